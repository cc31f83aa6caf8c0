/* SPDX-License-Identifier: MIT */
/* A model as the pipeline holds it. */
#ifndef NL_PIPELINE_MODEL_H
#define NL_PIPELINE_MODEL_H

#include "nl_dit.h"
#include "nl_pipeline.h"
#include "nl_sampler.h"
#include "nl_vae.h"

struct nl_model {
    nl_context *context;
    nl_config config;
    nl_dit *dit;
    nl_dit *one_step;            /* makes u(x, 0, 1) in its place, or NULL */
    nl_vae *vae;                 /* NULL: latents only */
    char *path;                  /* of the checkpoint */
    char *config_text;           /* JSON */
    nl_class_index *class_index; /* NULL until a class is asked for */
    char sha256[65];             /* "" until it is asked for */
    nl_dit *guide;               /* another network, for autoguidance, or NULL */
    char *guide_path;
    char guide_sha256[65];
};

/* Allocated: the file or folder that holds the backbone; of a whole diffusers pipeline its part, of a run of
 * nalagen train its model or newest checkpoint (nl_run.h). */
nl_status nl_backbone_path(nl_context *context, const char *path, char **found);

/* The autoencoder by options->vae, the configuration and the data files. */
nl_status nl_model_open_vae(nl_model *model, const char *path);

/* options->guide: the network that guides this one; refused where it makes other latents or has other classes. */
nl_status nl_model_open_guide(nl_model *model, const nl_model_options *options);

/* Counts, indices, labels and mixes; taken: something takes the pictures. */
nl_status nl_check_request(const nl_model *model, const nl_request *request, bool taken);

/* `sampling`, resolved, as the samplers take it. */
nl_status nl_sampler_options_for(nl_context *context, const nl_config *config,
                                 const nl_sampling *sampling, nl_sampler_options *options);

/* Bytes of the arena that a preview of a latent [C, H, W] takes beside what is in use; 0 without the tiny
 * autoencoder. */
nl_status nl_preview_bytes(const nl_model *model, const int shape[3], int64_t *bytes);

#endif
