/* SPDX-License-Identifier: MIT */
/*
 * What the command line program needs of a model beyond nalagen.h.
 */
#ifndef NL_PIPELINE_H
#define NL_PIPELINE_H

#include "nl_dit.h"

extern const char nl_shipped_model[], nl_shipped_autoencoder[]; /* names of files */

nl_context *nl_model_context(const nl_model *model);
const nl_config *nl_model_get_config(const nl_model *model);
/* [C, H, W] of one picture's latents. */
void nl_model_latent_shape(const nl_model *model, int shape[3]);
/* Pixels for one latent: 8, or 1 in pixel space. */
int nl_model_factor(const nl_config *config);
bool nl_model_has_autoencoder(const nl_model *model);
/* Of the network that guides it, or NULL. */
const nl_config *nl_model_guide_config(const nl_model *model);
/* The same as nl_model_sha256 of the network that guides it; NULL: there is none. */
nl_status nl_model_guide_sha256(nl_model *model, const char **hex);

/* Where data files lie: `folder` (may be NULL), $NALAGEN_WEIGHTS, $XDG_DATA_HOME/nalagen (~/.local/share/nalagen), the
 * folder of the installation, weights/shipped/ of the source tree. Allocated; NULL when there is none. */
nl_status nl_find_data(nl_context *context, const char *folder, const char *name, char **path);
/* NL_ERROR_INPUT: `what` was not found, the names (ended by NULL) and folders that were tried, and what to do. */
nl_status nl_data_missing(nl_context *context, const char *what, const char *folder,
                          const char *const *names, const char *advice);

/* Allocated: a path as it is; a mere name that is no file here as that of a data file (nl_find_data), where there is one. */
nl_status nl_find_named(nl_context *context, const char *path, char **found);

/* The file or folder of a backbone or an autoencoder; of the folder of a whole diffusers pipeline
 * its part, transformer or vae. key: see nl_checkpoint_open_key. */
nl_status nl_open_backbone(nl_context *context, const char *path, const char *key,
                           nl_checkpoint **checkpoint);
/* path "tiny": the one that ships. */
nl_status nl_open_autoencoder(nl_context *context, const char *path, nl_checkpoint **checkpoint);
/* The other half of an autoencoder that comes in two files, or NULL. */
nl_status nl_open_other_half(nl_context *context, const char *path, nl_checkpoint **checkpoint);
/* The checkpoint's configuration, with what `options` has to say (config_path, architecture,
 * transport_path, prediction, height, width). *config owns nothing after a failure. */
nl_status nl_read_config(const nl_checkpoint *checkpoint, const nl_model_options *options,
                         nl_config *config);
/* sha256 of a file, from the cache when the file is as it was then. */
nl_status nl_file_sha256(nl_context *context, const char *path, char hex[65]);
/* Of its file; of several files, that of their hashes written one behind the other. */
nl_status nl_checkpoint_sha256(const nl_checkpoint *checkpoint, char hex[65]);
/* The same, read and not taken from the cache. */
nl_status nl_checkpoint_read_sha256(const nl_checkpoint *checkpoint, char hex[65]);

/* `given` with the defaults of a model of this configuration for what it leaves open: sampler, steps, cfg_scale,
 * guide_scale. guide: of the model that guides it, or NULL. Checks that the sampler belongs to the model. */
nl_status nl_sampling_resolve(nl_context *context, const nl_config *config, const nl_config *guide,
                              const nl_sampling *given, nl_sampling *resolved);
/* What the sampler itself would refuse of what is resolved. Any thread that `context` belongs to. */
nl_status nl_sampling_check(nl_context *context, const nl_config *config,
                            const nl_sampling *resolved);

/* What a network is told of the part of the picture that is asked for; false: nothing, for the whole. */
bool nl_sampling_crop(const nl_sampling *sampling, float crop[NL_CROP_NUMBERS]);

/* The scale of guidance as a number, 0 for NL_CFG_UNCONDITIONAL, and the other way round. */
double nl_sampling_scale(const nl_sampling *resolved);
static inline double nl_sampling_cfg(double scale)
{
    return scale == 0 ? NL_CFG_UNCONDITIONAL : scale;
}

/* Pictures at once where nothing else is asked for and the memory allows. */
int nl_model_batch(const nl_model *model);

/* What the network is asked first in one step of a batch. */
typedef struct nl_observation {
    const nl_dit *dit;
    nl_device *device;     /* of the batch, or a measuring one, to which the same is shown before */
    int step, steps;       /* steps taken so far, of how many */
    double t;              /* as the network takes it */
    nl_tensor x;           /* [B, C, H, W] the pictures of the batch */
    nl_tensor labels;      /* I32 [B] their classes, never the null class of guidance */
    const nl_tensor *crop; /* as nl_dit_forward takes it, of one row, or NULL */
    int64_t first;         /* number of the first of them in the request */
} nl_observation;

typedef struct nl_observer {
    nl_status (*see)(void *user, const nl_observation *observation);
    void *user;
} nl_observer;

/* nl_generate that shows every step of every batch to `observer` before the network answers; what the observer
 * takes from the arena it gives back. Refuses dopri5, where each picture has times of its own, and mixes, whose classes are no
 * rows of the table. */
nl_status nl_generate_observed(nl_model *model, const nl_request *request,
                               const nl_observer *observer,
                               nl_status (*picture)(void *user, const nl_picture *picture),
                               void *user);

/* The class of image `index` when classes are drawn at random: 0 <= class < classes. */
int nl_draw_class(uint64_t seed, int64_t index, int classes);

/* A quick RGB picture of one latent [C, H, W], also from inside the progress callback: through the tiny
 * autoencoder when the model has it, otherwise a linear map at the latent's own size. rgb: allocated. */
nl_status nl_model_preview(nl_model *model, const float *latent, const int shape[3], uint8_t **rgb,
                           int *height, int *width);

/* A model around a network that stays the caller's, while that is trained, say; path: the file that it may become,
 * beside which its autoencoder may lie. Ended by nl_model_leave. */
nl_status nl_model_around(nl_dit *dit, const char *path, const char *vae, nl_model **model);
void nl_model_leave(nl_model *model); /* NULL is allowed */

#endif
