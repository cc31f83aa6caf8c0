/* SPDX-License-Identifier: MIT */
/*
 * Training data: an encoded set of pictures in a folder, its reader, and the loader that makes batches
 * of it. docs/data.md has the files.
 *
 * Everything that training draws at random is a function of (seed, sample number); the sample number
 * counts the samples of all ranks since the start of the run. So a run can be stopped and resumed
 * at any step, on any number of ranks, and no state but the step has to be kept.
 */
#ifndef NL_DATA_H
#define NL_DATA_H

#include "ops.h"

/* ---- A data set */

#define NL_DATASET_FILE "dataset.json" /* in its folder */
#define NL_SHARD_ENCODING                                                                          \
    "nalagen.encoding" /* metadata of a shard: JSON of what it was made with */

extern const char *const nl_data_kind_names[]; /* by nl_data_kind, ended by NULL */

typedef struct nl_dataset nl_dataset;

typedef enum nl_data_kind {
    NL_DATA_PIXELS,  /* RGB in [-1, 1]: x = byte / 127.5 - 1 */
    NL_DATA_LATENTS, /* of the tiny autoencoder */
    NL_DATA_MOMENTS  /* of AutoencoderKL: mean, then log variance, clamped to [-30, 20] */
} nl_data_kind;

typedef struct nl_dataset_info {
    nl_data_kind kind;
    int64_t count;                 /* samples */
    int image_height, image_width; /* of the pictures, in pixels */
    int channels, height,
        width;           /* C, H, W: what a model of this data has as in_channels, input_size */
    int sample_channels; /* K: 2 C for moments, otherwise C */
    bool flips;          /* every sample can be had mirrored */
    int64_t pictures;    /* that the samples are of, the whole or parts */
    bool
        crops_known; /* what part of its picture a sample is: not where an older encode made parts */
    const char *autoencoder;           /* as in a configuration: "kl", "tiny", "none" */
    const char *autoencoder_sha256;    /* of its file, "" for none */
    double latent_scale, latent_shift; /* the model's x = latent_scale * (sample - latent_shift) */
    int classes;                       /* 0: unconditional */
    const char *const *class_ids;      /* [classes] names of the folders: "n01440764" */
    const char *const *class_names; /* [classes] for people: "tench"; the id where none was given */
    const int64_t *class_counts;    /* [classes] samples */
} nl_dataset_info;

/* Opens the folder that `nalagen encode` wrote and maps its shards; nothing else is read yet. Every
 * shape, count and label is checked first. */
nl_status nl_dataset_open(nl_context *context, const char *path, nl_dataset **dataset);
void nl_dataset_close(nl_dataset *dataset); /* NULL is allowed */
/* Leaves of the data set one of two parts that have no picture in common. held_out: of each class every k-th whole picture,
 * k = 1 / part to the next whole number, 0 < part <= 1/2; otherwise all samples of the other pictures. A set whose classes
 * have fewer than k pictures each has none to hold out: NL_ERROR_USAGE. */
nl_status nl_dataset_hold_out(nl_dataset *dataset, double part, bool held_out);
/* Owned by the data set. */
const nl_dataset_info *nl_dataset_get_info(const nl_dataset *dataset);
/* Of sample 0 <= index < count. */
int nl_dataset_label(const nl_dataset *dataset, int64_t index);
/* x [K, H, W] as it was encoded: neither scaled nor, for moments, drawn. flipped: the mirrored picture's.
 * A number that is not finite is NL_ERROR_INPUT with shard and index. Any thread, several at once. */
nl_status nl_dataset_read(const nl_dataset *dataset, int64_t index, bool flipped, float *x);

/* What part of its picture a sample is, as a network is told of it (NL_CROP_SCALE, ...): zeros for the whole picture that
 * is not mirrored, and where crops are not known for all but NL_CROP_MIRRORED. */
void nl_dataset_crop(const nl_dataset *dataset, int64_t index, bool flipped,
                     float crop[NL_CROP_NUMBERS]);

/* ---- Order */

/* Where sample number `sample` of a run comes from: sample / count is the epoch, and in each epoch every
 * index occurs once, in an order that seed and epoch decide. A bijection of [0, count) in O(1) memory. */
int64_t nl_data_order(uint64_t seed, int64_t count, int64_t sample);

/* ---- Batches */

typedef struct nl_loader nl_loader;

typedef struct nl_loader_options {
    uint64_t seed;
    int64_t batch;        /* samples of all ranks together; a multiple of `ranks` */
    int rank, ranks;      /* ranks 0 counts as 1 */
    int64_t first_step;   /* of the first batch; a run that resumes gives the steps behind it */
    bool in_order;        /* index = sample mod count, for validation; otherwise nl_data_order */
    bool flip;            /* mirror every other sample, by (seed, sample) */
    double label_dropout; /* share of labels that become the null class, by (seed, sample) */
    int64_t count;        /* take the first so many of the data set alone; 0: all */
    int prefetch;         /* batches that a thread makes ahead; 0: none, made when asked for */
    void *memory; /* nl_loader_bytes for the batches, 64-byte aligned (pinned, say), which outlive
                             the loader; NULL: allocated */
} nl_loader_options;

/* One rank's part of a global batch: samples step * batch + rank * size + i, 0 <= i < size. */
typedef struct nl_batch {
    int64_t step, size; /* size = batch / ranks */
    float *x;           /* [size, K, H, W], see nl_dataset_read; the flip is made */
    int32_t *labels;    /* [size] the null class, info->classes, where dropped */
    int64_t *indices;   /* [size] in the data set */
    int64_t *
        samples; /* [size] sample numbers: the `image` of nl_random.h for noise, times, posterior */
    bool *flipped; /* [size] */
    float *crops;  /* [size, NL_CROP_NUMBERS], see nl_dataset_crop */
} nl_batch;

/* Of nl_loader_options.memory; 0 when the options are not valid. */
int64_t nl_loader_bytes(const nl_dataset *dataset, const nl_loader_options *options);
/* The data set outlives the loader. */
nl_status nl_loader_create(const nl_dataset *dataset, const nl_loader_options *options,
                           nl_loader **loader);
void nl_loader_destroy(nl_loader *loader); /* NULL is allowed */
/* The batch of the next step, without end. It is the caller's (to read and to change) until the next
 * call. Of a failure the message is the context's; a later call tries the same step again. */
nl_status nl_loader_next(nl_loader *loader, nl_batch *batch);

#endif
