/* SPDX-License-Identifier: MIT */
/* Encoding pictures into a data set, what `nalagen encode` does. */
#ifndef NL_ENCODE_H
#define NL_ENCODE_H

#include "nl_data.h"
#include "nl_vae.h"

typedef struct nl_encode_options {
    const char *source; /* folder or archive, see nl_source_open; or latents of other programs */
    const char *out;    /* folder */
    const char *split;  /* see nl_source_open, or NULL */
    bool unconditional; /* no classes */
    bool empty_classes; /* class folders may be empty */
    bool turn;          /* pictures are turned as EXIF says */
    int height, width;  /* of the pictures to make; 0: the source's own, or 256 where they differ */
    /* Loaded with scale 1 and shift 0, on the device that encodes; NULL: pixels. */
    const nl_vae *vae;
    const char *vae_sha256;
    double latent_scale, latent_shift; /* noted for the model */
    const char *class_names;           /* text file, "folder name" a line, or NULL */
    bool no_flips;
    int64_t crops;          /* samples of each picture: the whole one, then parts of it; 0: 1 */
    bool strict;            /* a broken picture is an error; otherwise it is named and left out */
    bool force;             /* begin anew, whatever is in `out` */
    int threads;            /* that decode pictures */
    int64_t shard_pictures; /* pictures of a file; 0: 64 MiB of samples, at most 8192 */
    int64_t chunk_pictures; /* read and encoded at once; 0: as many as pay */
} nl_encode_options;

/* What a folder or file of pictures holds, as nl_encode takes it. */
typedef struct nl_source_facts {
    const char *format; /* for people: "class folders", "CIFAR-10", ... */
    int64_t count;
    int classes;           /* 0: unconditional */
    char **class_ids;      /* [classes] */
    int64_t *class_counts; /* [classes] pictures of each */
    int height, width; /* of every picture; 0: they differ, or are not known before they are read */
} nl_source_facts;

/* Lists the pictures and reads none. NL_ERROR_INPUT: it is no source of pictures. */
nl_status nl_source_describe(nl_context *context, const char *path, nl_source_facts *facts);
void nl_source_facts_free(nl_context *context, nl_source_facts *facts);

typedef struct nl_encode_result {
    int64_t count, skipped; /* samples; broken pictures */
    int64_t there;          /* of `count`, made by an earlier run */
    int64_t limited;        /* parts of pictures that are too small for parts of half their side */
    int64_t turned;         /* pictures that EXIF says to turn, among those read now */
    char first_turned[256];
} nl_encode_result;

/* Goes on with what an earlier run with the same source and options has left in `out`, or finds it finished.
 * Reports progress. What was encoded by then is kept when the work is cancelled, and every half minute. */
nl_status nl_encode_dataset(nl_context *context, const nl_encode_options *options,
                            nl_encode_result *result);

#endif
