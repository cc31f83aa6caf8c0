/* SPDX-License-Identifier: MIT */
/* Pictures through an autoencoder and back, what `nalagen reconstruct` does. */
#ifndef NL_RECONSTRUCT_H
#define NL_RECONSTRUCT_H

#include "nl_core.h"
#include "nl_vae.h"

typedef struct nl_reconstruct_options {
    const char *in;  /* a picture, a folder of pictures, or an .npz with arr_0 */
    const char *out; /* the same: a PNG, a folder of PNGs under the pictures' names, an .npz */
    nl_vae *vae;     /* loaded with scale 1 and shift 0 */
    const char *vae_sha256;
    int height, width; /* pictures are fitted to it as encode does; 0: as they are */
    bool turn;         /* as EXIF says */
    bool force;        /* overwrite what is there */
    int64_t batch;     /* pictures at once; 0: as many as pay */
} nl_reconstruct_options;

/* Peak signal to noise ratio of a picture: 10 log10(255^2 / mean square of the difference), in dB. */
typedef struct nl_reconstruct_result {
    int64_t count;
    int64_t exact;      /* of them without any difference, of which there is no ratio */
    double mean, worst; /* of the others; NaN: there are none */
    int64_t worst_index;
    char worst_name[512]; /* of its file; "" in an archive */
} nl_reconstruct_result;

/* Pictures whose size is no multiple of the autoencoder's factor are refused by name. Large ones go through in tiles where
 * the memory is short. When it is cancelled, what is finished stays; of an archive nothing but its parts, with which the
 * same call goes on. Reports progress, stage "reconstructing". */
nl_status nl_reconstruct(nl_context *context, const nl_reconstruct_options *options,
                         nl_reconstruct_result *result);

#endif
