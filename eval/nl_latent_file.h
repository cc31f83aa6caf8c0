/* SPDX-License-Identifier: MIT */
/*
 * Latents in a file: an .npy, an array of an .npz, or a tensor of a safetensors or torch file; [n, C, h, w], or [C, h, w] of
 * one picture, as float32, float64, float16 or (safetensors, torch) bfloat16.
 */
#ifndef NL_LATENT_FILE_H
#define NL_LATENT_FILE_H

#include "nl_arrays.h"
#include "nl_checkpoint.h"

typedef struct nl_latent_file {
    nl_context *context;
    const char *path;
    int64_t count; /* n */
    int64_t channels, height, width;
    /* ---- of the reader: one of the three */
    nl_dtype dtype;
    int64_t next; /* picture that is read next */
    nl_npy npy;
    nl_arrays *arrays;
    nl_array_stream *stream;
    nl_checkpoint *checkpoint;
    float *all; /* of a checkpoint's tensor */
    void *raw;  /* of the stream */
    int64_t raw_room;
} nl_latent_file;

/* key: the array or tensor; NULL: "latents", or the only one there is. Nothing but the shape is read, of a checkpoint's
 * tensor all. To be closed after a failure as well. `path` outlives the file. */
nl_status nl_latent_file_open(nl_context *context, const char *path, const char *key,
                              nl_latent_file *file);
/* The next `count` pictures' latents, [count, C, h, w]. NaN and infinity: NL_ERROR_INPUT with the picture. */
nl_status nl_latent_file_read(nl_latent_file *file, int64_t count, float *latents);
void nl_latent_file_close(nl_latent_file *file); /* {0} is allowed */

#endif
