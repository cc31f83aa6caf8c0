/* SPDX-License-Identifier: MIT */
/*
 * A zip archive of stored .npy files written in one pass: sizes are known at the start of an array, its
 * checksum only at its end, so it follows the data.
 */
#include "nl_arrays.h"
#include "npz.h"

#include <zlib.h>

enum { MOST_ARRAYS = 32 };

struct nl_arrays_writer {
    nl_context *context;
    nl_writer *file;
    int64_t offset; /* bytes written */
    int64_t left;   /* of the array at work */
    int count;
    nl_zip_member members[MOST_ARRAYS];
};

static nl_status emit(nl_arrays_writer *w, const void *data, int64_t size)
{
    w->offset += size;
    return nl_writer_write(w->file, data, (size_t)size);
}

nl_status nl_arrays_create(nl_context *context, const char *path, bool overwrite,
                           nl_arrays_writer **out)
{
    nl_arrays_writer *w = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(NL_NEW(context, "an archive of arrays", &w));
    w->context = context;
    NL_TRY(nl_writer_open(context, path, overwrite, &w->file));
    *out = w;
    w = NULL;
cleanup:
    nl_free(context, w);
    return status;
}

static nl_status end_array(nl_arrays_writer *w)
{
    uint8_t record[NL_NPZ_RECORD];
    if (w->count == 0)
        return NL_OK;
    const nl_zip_member *m = &w->members[w->count - 1];
    if (w->left != 0)
        return nl_fail(w->context, NL_ERROR_INTERNAL, "%s: %lld bytes are missing", m->name,
                       (long long)w->left);
    return emit(w, record, nl_zip_put_descriptor(m, record));
}

nl_status nl_arrays_begin(nl_arrays_writer *w, const char *name, const nl_array *array)
{
    uint8_t record[NL_NPZ_RECORD];
    nl_npz_member member;
    NL_CHECK(end_array(w));
    if (w->count == MOST_ARRAYS || !nl_npz_make_member(name, array, w->offset, &member))
        return nl_fail(w->context, NL_ERROR_INTERNAL,
                       "array %s of type %s, number %d of an archive", name,
                       nl_dtype_name(array->dtype), w->count);
    member.zip.crc_follows = true;
    w->left = member.zip.size - member.header_size;
    w->members[w->count++] = member.zip;
    return emit(w, record, nl_npz_put_member(&member, record));
}

nl_status nl_arrays_write(nl_arrays_writer *w, const void *data, int64_t bytes)
{
    if (w->count == 0 || bytes > w->left)
        return nl_fail(w->context, NL_ERROR_INTERNAL, "more bytes than the array has");
    nl_zip_member *m = &w->members[w->count - 1];
    m->crc = (uint32_t)crc32_z(m->crc, data, (size_t)bytes);
    w->left -= bytes;
    return emit(w, data, bytes);
}

static nl_status write_directory(nl_arrays_writer *w)
{
    uint8_t record[NL_NPZ_RECORD];
    int64_t start = w->offset;
    for (int i = 0; i < w->count; i++)
        NL_CHECK(emit(w, record, nl_zip_put_central(&w->members[i], record)));
    return emit(w, record, nl_zip_put_end(w->count, start, w->offset - start, 0, record));
}

nl_status nl_arrays_commit(nl_arrays_writer **writer)
{
    nl_arrays_writer *w = *writer;
    nl_status status;
    NL_TRY(end_array(w));
    NL_TRY(write_directory(w));
    NL_TRY(nl_writer_commit(&w->file));
cleanup:
    nl_arrays_abort(writer);
    return status;
}

void nl_arrays_abort(nl_arrays_writer **writer)
{
    nl_arrays_writer *w = *writer;
    if (!w)
        return;
    nl_writer_abort(&w->file);
    nl_free(w->context, w);
    *writer = NULL;
}
