/* SPDX-License-Identifier: MIT */
/* Latents of a file to pictures, what `nalagen decode` does. */
#ifndef NL_DECODE_H
#define NL_DECODE_H

#include "nl_core.h"
#include "nl_vae.h"

typedef struct nl_decode_options {
    const char *in, *key; /* see nl_latent_file_open */
    const char *out;      /* a PNG of one picture, a folder of PNGs 000000.png, ... or an .npz */
    nl_vae *vae;          /* with the scale and shift that the latents have */
    const char *about;    /* JSON object: on what the pictures depend, of the archive */
    float rounding;       /* a byte is trunc(127.5 x + rounding): 128 or 127.5 */
    bool force;           /* overwrite what is there */
    int64_t batch;        /* pictures at once; 0: 16 */
    nl_status (*written)(void *user, const char *path); /* of each file, in order; or NULL */
    void *user;
} nl_decode_options;

typedef struct nl_decode_result {
    int64_t count;
    int height, width; /* of each picture, in pixels */
} nl_decode_result;

/* Latents of other channels than the autoencoder's are refused. When it is cancelled, what is finished stays; of an archive
 * nothing but its parts, with which the same call goes on. Reports progress, stage "decoding". */
nl_status nl_decode_file(nl_context *context, const nl_decode_options *options,
                         nl_decode_result *result);

#endif
