/* SPDX-License-Identifier: MIT */
/* numpy's .npy: one array in C order, of '<f4', '<f8', '<f2', '|u1', '<i4' or '<i8'. */
#ifndef NL_NPY_H
#define NL_NPY_H

#include "nl_io.h"
#include "nl_tensor.h"

/* What the header of an array says. */
typedef struct nl_array {
    nl_dtype dtype;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
} nl_array;

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
nl_status nl_npy_write(nl_context *context, const char *path, bool overwrite, nl_dtype dtype,
                       int ndim, const int64_t *shape, const void *data);

/* The header alone, of an array of `size` bytes whose first `available` are at `data`. *offset: where its
 * elements begin. Fortran order, big endian and other types are refused by name. */
nl_status nl_npy_read_header(nl_context *context, const char *name, const void *data,
                             int64_t available, int64_t size, nl_array *array, int64_t *offset);
/* The bytes in front of an array's elements into text; returns how many, a multiple of 64. 0: npy has no such type. */
enum { NL_NPY_HEADER = 320 };
int nl_npy_put_header(nl_dtype dtype, int ndim, const int64_t *shape, char text[NL_NPY_HEADER]);

#endif
