/* SPDX-License-Identifier: MIT */
/*
 * numpy's .npz: named arrays in a zip archive, stored (savez) or deflated (savez_compressed), also beyond
 * 4 GiB. Arrays are read as a stream, so that memory does not grow with them; a checksum that does not
 * fit is an error at the array's end.
 */
#ifndef NL_ARRAYS_H
#define NL_ARRAYS_H

#include "nl_npy.h"

/* ---- Reading */

typedef struct nl_arrays nl_arrays;

nl_status nl_arrays_open(nl_context *context, const char *path, nl_arrays **arrays);
/* The same from memory that outlives the archive; `name` stands for the path in messages. */
nl_status nl_arrays_open_memory(nl_context *context, const char *name, const void *data,
                                int64_t size, nl_arrays **arrays);
void nl_arrays_close(nl_arrays *arrays); /* NULL is allowed */
bool nl_arrays_has(const nl_arrays *arrays, const char *name);
/* "arr_0, mu, sigma": for messages. Owned by the archive. */
const char *nl_arrays_names(const nl_arrays *arrays);

/* For messages: the context and the path as it was given. */
nl_context *nl_arrays_context(const nl_arrays *arrays);
const char *nl_arrays_path(const nl_arrays *arrays);

/* The comment of the archive, which may be anything. Owned by the archive. */
const char *nl_arrays_comment(const nl_arrays *arrays, int64_t *size);

typedef struct nl_zip_stream nl_array_stream;

/* The archive outlives the stream. Fortran order, big endian and other types are refused by name. */
nl_status nl_array_open(nl_arrays *arrays, const char *name, nl_array *array,
                        nl_array_stream **stream);
/* The next `bytes` of the elements. */
nl_status nl_array_read(nl_array_stream *stream, void *to, int64_t bytes);
void nl_array_close(nl_array_stream *stream); /* NULL is allowed */

/* A whole F32 or F64 array of this shape as doubles, allocated. */
nl_status nl_arrays_doubles(nl_arrays *arrays, const char *name, int ndim, const int64_t *shape,
                            double **values);

/* ---- Writing: stored; each array's elements come in any portions after its begin. */

typedef struct nl_arrays_writer nl_arrays_writer;

nl_status nl_arrays_create(nl_context *context, const char *path, bool overwrite,
                           nl_arrays_writer **writer);
nl_status nl_arrays_begin(nl_arrays_writer *writer, const char *name, const nl_array *array);
nl_status nl_arrays_write(nl_arrays_writer *writer, const void *data, int64_t bytes);
/* Ends and frees the writer in every case. */
nl_status nl_arrays_commit(nl_arrays_writer **writer);
void nl_arrays_abort(nl_arrays_writer **writer);

#endif
