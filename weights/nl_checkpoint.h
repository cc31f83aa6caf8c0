/*
 * Files of named tensors. One type whatever the format: the file is mapped, its table is validated
 * before anything is allocated by it, and tensors are converted as they are read. Knows no models.
 */
#ifndef NL_CHECKPOINT_H
#define NL_CHECKPOINT_H

#include "nl_io.h"
#include "nl_tensor.h"

typedef struct nl_entry {
    const char *name;
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    const void *data;    /* in the mapping; little endian, may be unaligned */
    const int64_t *strides; /* elements, [ndim]; NULL: row-major contiguous */
    const float *scale;  /* I8 with a companion "<name>.scale" [shape[0]] F32: value = scale[row] * x */
} nl_entry;

typedef struct nl_checkpoint {
    nl_context *context;
    char *path;
    nl_mapping mapping;
    bool borrowed; /* the mapping's bytes are the caller's */
    int64_t count;
    nl_entry *entries;   /* sorted by name; the ".scale" companions are folded in and not listed */
    char **metadata;     /* pairs of key and value, ended by NULL */
    void *owned;         /* of the reader: names, strides */
    const char *format;  /* "safetensors", ... */
} nl_checkpoint;

/* Tells the format from the content. */
nl_status nl_checkpoint_open(nl_context *context, const char *path, nl_checkpoint **checkpoint);
/* The same from memory that outlives the checkpoint; `name` stands for the path in messages. */
nl_status nl_checkpoint_open_memory(nl_context *context, const char *name, const void *data,
                                    int64_t size, nl_checkpoint **checkpoint);
void nl_checkpoint_close(nl_checkpoint *checkpoint); /* NULL is allowed */

const nl_entry *nl_checkpoint_find(const nl_checkpoint *checkpoint, const char *name);
const char *nl_checkpoint_metadata(const nl_checkpoint *checkpoint, const char *key);
int64_t nl_entry_count(const nl_entry *entry); /* elements */
/* All elements as row-major floats into `to`; a non-finite one is NL_ERROR_INPUT with the tensor's name. */
nl_status nl_entry_read(const nl_checkpoint *checkpoint, const nl_entry *entry, float *to);

/* The readers behind nl_checkpoint_open: fill checkpoint->{count, entries, metadata, owned, format} from
 * checkpoint->mapping. On failure everything they allocated is freed. */
nl_status nl_safetensors_parse(nl_checkpoint *checkpoint);

/* What to strive for when several tensors do not fit: names at most 20 of them, then a count. Starts as
 * {0}; text is then a list of lines, each with a line break in front. */
typedef struct nl_problems {
    int count;
    char text[1600];
} nl_problems;
void nl_problem(nl_problems *problems, const char *format, ...) NL_PRINTF(2, 3);

/* ---- Writing safetensors: declare all tensors, then give their data in the same order. */

typedef struct nl_safetensors_writer nl_safetensors_writer;

typedef struct nl_tensor_header {
    const char *name;
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
} nl_tensor_header;

/* metadata: pairs, ended by NULL, or NULL. Tensors lie in the file in the order given. */
nl_status nl_safetensors_create(nl_context *context, const char *path, bool overwrite,
                                const char *const *metadata, const nl_tensor_header *tensors,
                                int64_t count, nl_safetensors_writer **writer);
nl_status nl_safetensors_write(nl_safetensors_writer *writer, const void *data, int64_t bytes);
/* Ends and frees the writer; an error when a tensor is missing. */
nl_status nl_safetensors_commit(nl_safetensors_writer **writer);
void nl_safetensors_abort(nl_safetensors_writer **writer);

/* Row-wise int8: scale[row] = max |x| / 127 (or the one of least squared error among a few below it),
 * q = round(x / scale). x [rows, columns]. */
void nl_quantize_rows(const float *x, int64_t rows, int64_t columns, int8_t *q, float *scale);

/* ---- numpy .npy: C-order arrays of '<f4', '<f8', '|u1', '<i4', '<i8'. */

typedef struct nl_npy {
    nl_mapping mapping;
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    const void *data; /* in the mapping */
} nl_npy;

nl_status nl_npy_open(nl_context *context, const char *path, nl_npy *npy);
/* The same from memory that outlives npy; `name` stands for the path in messages. */
nl_status nl_npy_open_memory(nl_context *context, const char *name, const void *data, int64_t size,
                             nl_npy *npy);
void nl_npy_close(nl_context *context, nl_npy *npy);
nl_status nl_npy_write(nl_context *context, const char *path, bool overwrite, nl_dtype dtype, int ndim,
                       const int64_t *shape, const void *data);

#endif
