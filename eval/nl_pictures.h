/* SPDX-License-Identifier: MIT */
/*
 * Pictures in their order from an .npz (arr_0, uint8 [N, H, W, 3]) or from a folder of PNG and JPEG (with
 * those below it, in the order of their paths). They come in batches of one size, read and decoded by a
 * thread of their own ahead of the one that takes them; memory does not grow with their number.
 */
#ifndef NL_PICTURES_H
#define NL_PICTURES_H

#include "nl_arrays.h"

typedef struct nl_picture_batch {
    const uint8_t *rgb; /* [count, height, width, 3], valid until the next batch */
    int64_t first, count;
    int64_t height, width;
} nl_picture_batch;

typedef nl_status (*nl_picture_taker)(void *taker, const nl_picture_batch *batch);

/* Pictures that come by once, from files or from a model. */
typedef struct nl_picture_source {
    const char *name; /* for messages */
    int64_t count;
    /* Hands over all of them in their order, at most `most` at a time; a failure of `take` ends it. */
    nl_status (*run)(void *user, int64_t most, nl_picture_taker take, void *taker);
    void *user;
} nl_picture_source;

typedef struct nl_pictures nl_pictures;

/* threads: that may decode pictures of a folder. */
nl_status nl_pictures_open(nl_context *context, const char *path, int threads,
                           nl_pictures **pictures);
/* arr_0 of an archive that outlives the pictures; `path` is for messages. */
nl_status nl_pictures_of(nl_context *context, const char *path, nl_arrays *arrays,
                         nl_pictures **pictures);
void nl_pictures_close(nl_pictures *pictures); /* NULL is allowed */

int64_t nl_pictures_count(const nl_pictures *pictures);
/* At most `most` pictures, the same in every call; count 0 at the end. */
nl_status nl_pictures_next(nl_pictures *pictures, int64_t most, nl_picture_batch *batch);
/* Valid as long as the pictures. */
nl_picture_source nl_pictures_source(nl_pictures *pictures);

#endif
