/* SPDX-License-Identifier: MIT */
/* What the files that encode share. */
#ifndef NL_ENCODE_INTERNAL_H
#define NL_ENCODE_INTERNAL_H

#include "data.h"
#include "nl_encode.h"
#include "source.h"

typedef struct nl_encode_job {
    nl_context *context;
    const nl_encode_options *options;
    nl_encode_result *result;
    nl_source *source;
    nl_data_kind kind;
    int height, width;                   /* of the pictures */
    int64_t channels, rows, columns;     /* K and the size of a sample */
    int orientations;                    /* stored: 1 or 2 */
    int64_t picture_bytes, sample_bytes; /* with all orientations */
    int64_t elements;                    /* of one orientation */
    int64_t shard_pictures, shard_count, chunk_pictures;
    int64_t pictures; /* the source's, once for each crop: crop by crop */
    char *encoding;   /* JSON: everything that the shards depend on */
    char **
        class_names; /* [classes] of the file of the options, NULL where it has none; NULL without a file */
} nl_encode_job;

/* Whether samples are parts of their pictures, and shards say which. */
static inline bool nl_encode_crops(const nl_encode_job *job)
{
    return job->options->crops > 1;
}

/* What picture `number` of the job is in the source. */
static inline int64_t nl_encode_source(const nl_encode_job *job, int64_t number)
{
    return number % job->source->count;
}

/* What is found out about a picture while it is read. */
typedef struct nl_picture_note {
    float crop[NL_CROP_STORED];
    bool lying;   /* EXIF says to turn it */
    bool limited; /* it is so small that its parts are larger than they might be */
} nl_picture_note;

/* Pictures first, first + 1, ... of the job, those that are broken left out. */
typedef struct nl_chunk {
    int64_t first, count, good;
    uint8_t *rgb;           /* [good, orientations, H, W, 3] */
    int64_t *numbers;       /* [good] in the job */
    nl_status *status;      /* [count] */
    nl_picture_note *notes; /* [good] */
    cJSON *broken;          /* of [name, message] */
} nl_chunk;

nl_status nl_chunk_create(const nl_encode_job *job, nl_chunk *chunk);
void nl_chunk_free(nl_context *context, nl_chunk *chunk);
/* Reads and fits the pictures of chunk->first and count on the threads of the options. */
nl_status nl_chunk_read(const nl_encode_job *job, nl_chunk *chunk);

/* How far the job is: what its result says, and `more` pictures. */
nl_status nl_encode_report(const nl_encode_job *job, int64_t more);

/* A shard that is being filled. */
typedef struct nl_shard_builder {
    int64_t count; /* samples */
    int64_t done;  /* pictures of the job behind them, broken ones included */
    uint8_t *images;
    int32_t *labels;
    int64_t *numbers;
    float *crops; /* [count, NL_CROP_STORED]; NULL without crops */
    cJSON *broken;
} nl_shard_builder;

nl_status nl_shard_builder_create(const nl_encode_job *job, nl_shard_builder *builder);
void nl_shard_builder_free(nl_context *context, nl_shard_builder *builder);
/* Encodes a chunk and appends it. */
nl_status nl_shard_append(const nl_encode_job *job, nl_shard_builder *builder, nl_chunk *chunk);
/* Under the shard's name when it is whole, otherwise as its part, which nl_shard_begin resumes. */
nl_status nl_shard_write(const nl_encode_job *job, int64_t number, const nl_shard_builder *builder);
/* Begins a shard: empty, or with the part that an earlier run has left. */
nl_status nl_shard_begin(const nl_encode_job *job, int64_t number, nl_shard_builder *builder);
/* The shard of this number as an earlier run left it, and what was left out of it (to be deleted by the
 * caller); *count -1: it is not there. One of another encoding is refused. */
nl_status nl_shard_find(const nl_encode_job *job, int64_t number, int64_t *count, cJSON **broken);
/* Pictures of the job that this shard is made of. */
int64_t nl_shard_share(const nl_encode_job *job, int64_t number);
/* Allocated: "shard-00012.safetensors", or "shard-00012.part", in the folder. */
nl_status nl_shard_path(const nl_encode_job *job, int64_t number, bool part, char **path);

/* Fills names [classes], NULL on entry, from the text of the file of class names; allocated. Lines without a folder, folders
 * without a line and second lines are named in warnings; a text of something else is refused. */
nl_status nl_class_names_parse(const nl_encode_job *job, const char *text, size_t size,
                               char **names);
/* foreign_latents.c: what other programs have encoded, taken over. *found: the source is that. */
nl_status nl_encode_latents(nl_context *context, const nl_encode_options *options,
                            nl_encode_result *result, bool *found);
/* dataset.json. counts [shard_count]; skipped: an array of [name, message]. */
nl_status nl_manifest_write(const nl_encode_job *job, const int64_t *counts, const cJSON *skipped);
/* Allocated JSON of all that the shards depend on. */
nl_status nl_encoding_text(const nl_encode_job *job, char **text);
/* NL_ERROR_WRITE naming the first difference. */
nl_status nl_encoding_compare(const nl_encode_job *job, const char *path, const char *found);

#endif
