/* SPDX-License-Identifier: MIT */
/* Inside src/data: a data set as it lies in memory, and the names in its files. */
#ifndef NL_DATA_INTERNAL_H
#define NL_DATA_INTERNAL_H

#include "nl_checkpoint.h"
#include "nl_data.h"
#include "nl_json.h"

#define NL_DATASET_FORMAT "nalagen dataset"
/* Tensors of a shard, and the keys of its metadata. */
#define NL_SHARD_IMAGES   "images"
#define NL_SHARD_LABELS   "labels"
#define NL_SHARD_PICTURES "pictures"
#define NL_SHARD_CROPS    "crops"
#define NL_SHARD_SKIPPED  "nalagen.skipped"
#define NL_SHARD_DONE     "nalagen.done"

enum { NL_DATASET_VERSION = 1, NL_DATA_MAX_SIDE = 1 << 14 };

typedef struct nl_shard {
    char *name; /* of the file */
    nl_checkpoint *file;
    const uint8_t *images; /* in the mapping: [count, flips, K, H, W] F16, or [count, H, W, 3] U8 */
    const uint8_t *labels; /* [count] I32, of any alignment */
    const uint8_t *crops;  /* [count, NL_CROP_STORED] F32, of any alignment; NULL: all whole */
    const uint8_t *pictures; /* [count] I64, of any alignment; NULL: numbers of samples */
    int64_t first, count;    /* the samples first, first + 1, ... of the data set */
} nl_shard;

struct nl_dataset {
    nl_context *context;
    char *path;
    cJSON *root; /* of dataset.json: owns the texts of info */
    nl_dataset_info info;
    const char **class_ids, **class_names;
    int64_t *class_counts;
    nl_shard *shards;
    int64_t shard_count;
    int64_t pictures;     /* of the source, the broken ones too; 0: not known */
    int64_t *chosen;      /* [info.count] the samples that are left, in order; NULL: all */
    bool crops;           /* shards have NL_SHARD_CROPS */
    int64_t elements;     /* K H W */
    int64_t sample_bytes; /* in a shard, with both orientations where they are stored */
};

/* The steps of nl_dataset_open. Parse: from the text of dataset.json, no shard is opened. Attach: checks an
 * opened shard and takes the file over on success. */
nl_status nl_dataset_parse(nl_context *context, const char *path, const char *text, int64_t size,
                           nl_dataset **dataset);
nl_status nl_dataset_attach(nl_dataset *dataset, nl_shard *shard, nl_checkpoint *file);
/* All shards are attached: counts classes and pictures. */
void nl_dataset_count(nl_dataset *dataset);

/* Number of the sample's picture in the source; of a crop plus `pictures` for each one before it. */
int64_t nl_dataset_picture(const nl_dataset *dataset, int64_t index);
/* Whether it is the picture as a whole. */
bool nl_dataset_is_whole(const nl_dataset *dataset, int64_t index);

/* The bytes of a sample in the mapping, of the orientation that will be read. */
const uint8_t *nl_dataset_bytes(const nl_dataset *dataset, int64_t index, bool flipped,
                                int64_t *size);
/* They will be read soon. */
void nl_dataset_ahead(const nl_dataset *dataset, int64_t index, bool flipped);

#endif
