/* SPDX-License-Identifier: MIT */
/*
 * Pictures in their order from an .npz (arr_0, uint8 [N, H, W, 3]), from a folder of PNG, JPEG and WebP (with
 * those below it, in the order of their paths), or the one of a file. They come in batches of one size, read and decoded by a
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

/* Some of a source's pictures: `count` from `first` on. */
typedef struct nl_picture_range {
    int64_t first, count;
} nl_picture_range;

/* Pictures that come by once, from files or from a model. */
typedef struct nl_picture_source {
    const char *name; /* for messages */
    int64_t count;
    /* Hands over those of `range` in their order, at most `most` at a time; a failure of `take` ends it. */
    nl_status (*run)(void *user, nl_picture_range range, int64_t most, nl_picture_taker take,
                     void *taker);
    void *user;
} nl_picture_source;

/* All of them. */
#define NL_ALL_PICTURES(source) ((nl_picture_range){0, (source)->count})

typedef struct nl_pictures nl_pictures;

/* threads: that may decode pictures of a folder. */
nl_status nl_pictures_open(nl_context *context, const char *path, int threads,
                           nl_pictures **pictures);
/* arr_0 of an archive that outlives the pictures; `path` is for messages. */
nl_status nl_pictures_of(nl_context *context, const char *path, nl_arrays *arrays,
                         nl_pictures **pictures);
void nl_pictures_close(nl_pictures *pictures); /* NULL is allowed */

typedef enum nl_pictures_kind {
    NL_PICTURES_ARCHIVE,
    NL_PICTURES_FOLDER,
    NL_PICTURES_FILE
} nl_pictures_kind;
nl_pictures_kind nl_pictures_get_kind(const nl_pictures *pictures);
/* Of a file: its name below the folder; NULL of an archive's picture. */
const char *nl_pictures_name(const nl_pictures *pictures, int64_t index);

/* Before the first batch: pictures are turned as EXIF says, and fitted to a size as ADM, DiT and SiT do (0: as they
 * are). */
void nl_pictures_fit(nl_pictures *pictures, int height, int width, bool turn);
typedef struct nl_picture_size {
    int height, width;
} nl_picture_size;
/* Of all pictures, where that is known: of an archive, or fitted; otherwise 0. */
nl_picture_size nl_pictures_size(const nl_pictures *pictures);

int64_t nl_pictures_count(const nl_pictures *pictures);
/* At most `most` pictures, the same in every call; count 0 at the end. */
nl_status nl_pictures_next(nl_pictures *pictures, int64_t most, nl_picture_batch *batch);
/* Valid as long as the pictures. */
nl_picture_source nl_pictures_source(nl_pictures *pictures);

#endif
