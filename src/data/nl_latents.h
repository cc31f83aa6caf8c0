/* SPDX-License-Identifier: MIT */
/*
 * A data set of latents that a network or another program has made, not an autoencoder of pictures: shards and dataset.json
 * as `nalagen encode` writes them (docs/data.md), without mirrored samples.
 */
#ifndef NL_LATENTS_H
#define NL_LATENTS_H

#include "nl_core.h"

typedef struct nl_latents_options {
    const char *out;   /* the folder */
    const char *about; /* JSON object: what made the latents; noted under "encoding" */
    int channels, height, width;
    int factor;                     /* pixels for one latent: 8, or 1 in pixel space */
    const char *autoencoder;        /* "tiny", "kl" or "none" */
    const char *autoencoder_sha256; /* of its file; NULL: not known */
    bool
        moments; /* "kl": latents are mean and log variance, [2 C, H, W], as an encoder gives them: not scaled */
    double scale, shift;                               /* latent = scale (encoded - shift) */
    const char *const *class_ids, *const *class_names; /* [classes] */
    int classes;
    int64_t count; /* samples in all */
} nl_latents_options;

enum { NL_LATENTS_SHARD = 2048 /* samples of a shard */ };

int64_t nl_latents_shards(int64_t count);
/* Shard `number`: its latents [n, C, H, W], as a sampler ends with them (or moments), and labels [n]; n is NL_LATENTS_SHARD, or less at
 * the end. Numbers that are not finite are refused. */
nl_status nl_latents_write_shard(nl_context *context, const nl_latents_options *options,
                                 int64_t number, const float *latents, const int32_t *labels);
/* dataset.json, when all shards are there. */
nl_status nl_latents_finish(nl_context *context, const nl_latents_options *options);
/* Whether `out` holds a finished data set made as `about` says; one that was made otherwise is refused by name. */
nl_status nl_latents_find(nl_context *context, const nl_latents_options *options, bool *found);

#endif
