/*
 * A zip archive of stored .npy files written in one pass: sizes are known at the start of an array, its
 * checksum only at its end, so it follows the data (a data descriptor, zip64; flag bit 3). Every number has
 * its zip64 field, whatever its size. Layout: weights/zip.c. Times are the zip epoch, so that the same
 * arrays give the same file.
 */
#include "nl_arrays.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { MOST_ARRAYS = 32, HEADER = 256 };

typedef struct member {
    char name[64];
    int64_t offset, size;
    uint32_t crc;
} member;

struct nl_arrays_writer {
    nl_context *context;
    nl_writer *file;
    int64_t offset; /* bytes written */
    int64_t left;   /* of the array at work */
    int count;
    member members[MOST_ARRAYS];
};

/* Little-endian fields one after the other. */
typedef struct fields {
    uint8_t bytes[HEADER];
    int size;
} fields;

static void put(fields *f, int count, uint64_t value)
{
    for (int i = 0; i < count; i++)
        f->bytes[f->size++] = (uint8_t)(value >> 8 * i);
}

static nl_status emit(nl_arrays_writer *w, const void *data, int64_t size)
{
    w->offset += size;
    return nl_writer_write(w->file, data, (size_t)size);
}

nl_status nl_arrays_create(nl_context *context, const char *path, bool overwrite,
                           nl_arrays_writer **out)
{
    void *memory = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(nl_alloc_zero(context, "an archive of arrays", sizeof(nl_arrays_writer), &memory));
    nl_arrays_writer *w = memory;
    w->context = context;
    NL_TRY(nl_writer_open(context, path, overwrite, &w->file));
    *out = w;
    memory = NULL;
cleanup:
    nl_free(context, memory);
    return status;
}

/* Signature to extra field as both headers have them, for version, flags, method, time, date. */
static void put_common(fields *f, uint32_t crc, uint64_t size, int name_size, int extra_size)
{
    put(f, 2, 45); /* zip64 */
    put(f, 2, 8);  /* checksum after the data */
    put(f, 2, 0);  /* stored */
    put(f, 2, 0);
    put(f, 2, 0x21); /* 1980-01-01 */
    put(f, 4, crc);
    put(f, 4, size);
    put(f, 4, size);
    put(f, 2, (uint64_t)name_size);
    put(f, 2, (uint64_t)extra_size);
}

/* The .npy header of the array. */
static int npy_header(const nl_array *array, char *text)
{
    const char *descr = array->dtype == NL_U8    ? "|u1"
                        : array->dtype == NL_F64 ? "<f8"
                        : array->dtype == NL_I64 ? "<i8"
                                                 : "<f4";
    char shape[128] = "";
    for (int i = 0; i < array->ndim; i++)
        snprintf(shape + strlen(shape), sizeof(shape) - strlen(shape), "%lld,%s",
                 (long long)array->shape[i], i + 1 < array->ndim ? " " : "");
    int n = snprintf(text + 10, HEADER - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    int total = (10 + n + 1 + 63) / 64 * 64;
    memset(text + 10 + n, ' ', (size_t)(total - 10 - n));
    text[total - 1] = '\n';
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    text[8] = (char)((total - 10) & 0xff);
    text[9] = (char)((total - 10) >> 8);
    return total;
}

static nl_status end_array(nl_arrays_writer *w)
{
    if (w->count == 0)
        return NL_OK;
    const member *m = &w->members[w->count - 1];
    if (w->left != 0)
        return nl_fail(w->context, NL_ERROR_INTERNAL, "%s: %lld bytes are missing", m->name,
                       (long long)w->left);
    fields f = {.size = 0};
    put(&f, 4, 0x08074b50);
    put(&f, 4, m->crc);
    put(&f, 8, (uint64_t)m->size);
    put(&f, 8, (uint64_t)m->size);
    return emit(w, f.bytes, f.size);
}

nl_status nl_arrays_begin(nl_arrays_writer *w, const char *name, const nl_array *array)
{
    char header[HEADER];
    fields f = {.size = 0};
    nl_status status;
    NL_TRY(end_array(w));
    if (w->count == MOST_ARRAYS)
        return nl_fail(w->context, NL_ERROR_INTERNAL, "too many arrays for one archive");
    member *m = &w->members[w->count++];
    int name_size = snprintf(m->name, sizeof(m->name), "%s.npy", name);
    int header_size = npy_header(array, header);
    w->left = nl_dtype_size(array->dtype);
    for (int i = 0; i < array->ndim; i++)
        w->left *= array->shape[i];
    m->offset = w->offset;
    m->size = header_size + w->left;
    m->crc = (uint32_t)crc32(0, (const Bytef *)header, (uInt)header_size);
    put(&f, 4, 0x04034b50);
    put_common(&f, 0, 0xffffffff, name_size, 20);
    NL_TRY(emit(w, f.bytes, f.size));
    NL_TRY(emit(w, m->name, name_size));
    f.size = 0;
    put(&f, 2, 1);
    put(&f, 2, 16);
    put(&f, 8, (uint64_t)m->size);
    put(&f, 8, (uint64_t)m->size);
    NL_TRY(emit(w, f.bytes, f.size));
    NL_TRY(emit(w, header, header_size));
cleanup:
    return status;
}

nl_status nl_arrays_write(nl_arrays_writer *w, const void *data, int64_t bytes)
{
    if (w->count == 0 || bytes > w->left)
        return nl_fail(w->context, NL_ERROR_INTERNAL, "more bytes than the array has");
    member *m = &w->members[w->count - 1];
    m->crc = (uint32_t)crc32_z(m->crc, data, (size_t)bytes);
    w->left -= bytes;
    return emit(w, data, bytes);
}

static nl_status write_directory(nl_arrays_writer *w)
{
    nl_status status;
    int64_t start = w->offset;
    for (int i = 0; i < w->count; i++) {
        const member *m = &w->members[i];
        fields f = {.size = 0};
        put(&f, 4, 0x02014b50);
        put(&f, 2, 45);
        put_common(&f, m->crc, 0xffffffff, (int)strlen(m->name), 28);
        put(&f, 2, 0); /* comment */
        put(&f, 2, 0); /* disk */
        put(&f, 2, 0);
        put(&f, 4, 0);
        put(&f, 4, 0xffffffff);
        NL_TRY(emit(w, f.bytes, f.size));
        NL_TRY(emit(w, m->name, (int64_t)strlen(m->name)));
        f.size = 0;
        put(&f, 2, 1);
        put(&f, 2, 24);
        put(&f, 8, (uint64_t)m->size);
        put(&f, 8, (uint64_t)m->size);
        put(&f, 8, (uint64_t)m->offset);
        NL_TRY(emit(w, f.bytes, f.size));
    }
    fields f = {.size = 0};
    int64_t end = w->offset;
    put(&f, 4, 0x06064b50); /* zip64 record */
    put(&f, 8, 44);
    put(&f, 2, 45);
    put(&f, 2, 45);
    put(&f, 4, 0);
    put(&f, 4, 0);
    put(&f, 8, (uint64_t)w->count);
    put(&f, 8, (uint64_t)w->count);
    put(&f, 8, (uint64_t)(end - start));
    put(&f, 8, (uint64_t)start);
    put(&f, 4, 0x07064b50); /* its locator */
    put(&f, 4, 0);
    put(&f, 8, (uint64_t)end);
    put(&f, 4, 1);
    put(&f, 4, 0x06054b50); /* end record */
    put(&f, 2, 0);
    put(&f, 2, 0);
    put(&f, 2, 0xffff);
    put(&f, 2, 0xffff);
    put(&f, 4, 0xffffffff);
    put(&f, 4, 0xffffffff);
    put(&f, 2, 0);
    NL_TRY(emit(w, f.bytes, f.size));
cleanup:
    return status;
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
