/* SPDX-License-Identifier: MIT */
/* Reads arrays of .npz archives as streams, stored or deflated, checksums checked. */
#include "nl_arrays.h"
#include "ops.h"
#include "zip.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

struct nl_arrays {
    nl_context *context;
    char *path, *names;
    nl_mapping mapping;
    bool borrowed; /* the mapping's bytes are the caller's */
    nl_zip zip;
};

/* Takes the mapping over, also on failure. */
static nl_status open_mapping(nl_context *context, const char *path, nl_mapping mapping,
                              bool borrowed, nl_arrays **out)
{
    nl_status status;
    void *memory = NULL;
    nl_arrays *arrays = NULL;
    status = nl_alloc_zero(context, "an archive of arrays", sizeof(*arrays), &memory);
    if (status != NL_OK) {
        if (!borrowed)
            nl_unmap(context, &mapping);
        return status;
    }
    arrays = memory;
    *arrays = (nl_arrays){.context = context, .mapping = mapping, .borrowed = borrowed};
    NL_TRY(nl_strdup(context, path, &arrays->path));
    NL_TRY(nl_zip_open(context, arrays->path, arrays->mapping.data, arrays->mapping.size,
                       &arrays->zip));
    NL_TRY(nl_strdup(context, "", &arrays->names));
    for (int64_t i = 0; i < NL_MIN(arrays->zip.count, 20); i++) {
        const nl_zip_entry *entry = &arrays->zip.entries[i];
        char *longer;
        int64_t size = entry->name_size;
        if (size > 4 && !memcmp(entry->name + size - 4, ".npy", 4))
            size -= 4;
        NL_TRY(nl_format(context, &longer, "%s%s%.*s", arrays->names, i ? ", " : "",
                         (int)NL_MIN(size, 100), entry->name));
        nl_free(context, arrays->names);
        arrays->names = longer;
    }
    *out = arrays;
    arrays = NULL;
cleanup:
    nl_arrays_close(arrays);
    return status;
}

nl_status nl_arrays_open(nl_context *context, const char *path, nl_arrays **arrays)
{
    nl_mapping mapping;
    *arrays = NULL;
    nl_status status = nl_map_file(context, path, &mapping);
    return status == NL_OK ? open_mapping(context, path, mapping, false, arrays) : status;
}

nl_status nl_arrays_open_memory(nl_context *context, const char *name, const void *data,
                                int64_t size, nl_arrays **arrays)
{
    nl_mapping mapping = {.data = data, .size = size};
    *arrays = NULL;
    return open_mapping(context, name, mapping, true, arrays);
}

void nl_arrays_close(nl_arrays *arrays)
{
    if (!arrays)
        return;
    nl_zip_close(&arrays->zip);
    if (!arrays->borrowed)
        nl_unmap(arrays->context, &arrays->mapping);
    nl_free(arrays->context, arrays->path);
    nl_free(arrays->context, arrays->names);
    nl_free(arrays->context, arrays);
}

const char *nl_arrays_names(const nl_arrays *arrays)
{
    return arrays->names;
}

nl_context *nl_arrays_context(const nl_arrays *arrays)
{
    return arrays->context;
}

const char *nl_arrays_path(const nl_arrays *arrays)
{
    return arrays->path;
}

const char *nl_arrays_comment(const nl_arrays *arrays, int64_t *size)
{
    *size = arrays->zip.comment_size;
    return (const char *)arrays->zip.comment;
}

static const nl_zip_entry *find(const nl_arrays *arrays, const char *name)
{
    char file[128];
    int size = snprintf(file, sizeof(file), "%s.npy", name);
    return nl_zip_find(&arrays->zip, file, size);
}

bool nl_arrays_has(const nl_arrays *arrays, const char *name)
{
    return find(arrays, name);
}

/* ---- Streams */

struct nl_array_stream {
    nl_arrays *arrays;
    const nl_zip_entry *entry;
    char name[128];   /* "file.npz: arr_0" */
    int64_t consumed; /* bytes of entry->stored */
    int64_t left;     /* unpacked bytes not yet read */
    uint32_t crc;
    bool inflating; /* zlib is set up */
    z_stream zlib;
};

static nl_status damaged(const nl_array_stream *s, const char *what)
{
    return nl_fail(s->arrays->context, NL_ERROR_INPUT, "%s: %s: the archive is damaged", s->name,
                   what);
}

static nl_status inflate_some(nl_array_stream *s, void *to, int64_t bytes)
{
    const int64_t most = 1 << 30; /* zlib counts in unsigned int */
    while (bytes > 0) {
        int64_t in = NL_MIN(s->entry->stored - s->consumed, most), out = NL_MIN(bytes, most);
        s->zlib.next_in = (Bytef *)(uintptr_t)(s->entry->data + s->consumed);
        s->zlib.avail_in = (uInt)in;
        s->zlib.next_out = to;
        s->zlib.avail_out = (uInt)out;
        int result = inflate(&s->zlib, Z_NO_FLUSH);
        int64_t made = out - s->zlib.avail_out, used = in - s->zlib.avail_in;
        bool stuck = made == 0 && (used == 0 || result == Z_STREAM_END);
        if ((result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) || stuck)
            return damaged(s, "it cannot be unpacked");
        nl_map_release(&s->arrays->mapping, s->entry->data + s->consumed, used);
        s->consumed += used;
        to = (char *)to + made;
        bytes -= made;
    }
    return NL_OK;
}

/* Copies stored bytes and carries the checksum on, parts at once: a checksum alone takes longer than a GPU with the
 * picture that it is of. */
static void copy_stored(nl_array_stream *s, uint8_t *to, const uint8_t *from, int64_t bytes)
{
    enum { PART = 1 << 20, MOST = 64, THREADS = 4 };
    int threads = NL_MIN(THREADS, nl_default_threads());
    uLong crc[MOST], joining = crc32_combine_gen(PART);
    while (bytes > 0) {
        int64_t now = NL_MIN(bytes, (int64_t)MOST * PART);
        int parts = (int)((now + PART - 1) / PART);
#pragma omp parallel for num_threads(threads) if (parts > 1)
        for (int i = 0; i < parts; i++) {
            int64_t at = (int64_t)i * PART;
            size_t size = (size_t)NL_MIN(PART, now - at);
            memcpy(to + at, from + at, size);
            crc[i] = crc32_z(0, to + at, size);
        }
        for (int i = 0; i < parts; i++)
            s->crc = (uint32_t)(i < parts - 1 || now % PART == 0
                                    ? crc32_combine_op(s->crc, crc[i], joining)
                                    : crc32_combine(s->crc, crc[i], (z_off_t)(now % PART)));
        to += now;
        from += now;
        bytes -= now;
    }
}

/* The next unpacked bytes, header or elements. */
static nl_status read_some(nl_array_stream *s, void *to, int64_t bytes)
{
    if (bytes > s->left)
        return nl_fail(s->arrays->context, NL_ERROR_INTERNAL, "%s: read past its end", s->name);
    if (s->entry->deflated) {
        nl_status status = inflate_some(s, to, bytes);
        if (status != NL_OK)
            return status;
        s->crc = (uint32_t)crc32_z(s->crc, to, (size_t)bytes);
    } else {
        const uint8_t *from = s->entry->data + s->consumed;
        copy_stored(s, to, from, bytes);
        nl_map_release(&s->arrays->mapping, from, bytes);
        s->consumed += bytes;
    }
    s->left -= bytes;
    if (s->left == 0 && s->crc != s->entry->crc)
        return damaged(s, "its checksum does not fit");
    return NL_OK;
}

nl_status nl_array_read(nl_array_stream *stream, void *to, int64_t bytes)
{
    return bytes > 0 ? read_some(stream, to, bytes) : NL_OK;
}

void nl_array_close(nl_array_stream *s)
{
    if (!s)
        return;
    if (s->inflating)
        inflateEnd(&s->zlib);
    nl_free(s->arrays->context, s);
}

/* Reads the header of the array off the stream. */
static nl_status read_header(nl_array_stream *s, nl_array *array)
{
    nl_context *context = s->arrays->context;
    enum { START = 12, MOST = 1 << 20 };
    uint8_t start[START];
    void *memory = NULL;
    nl_status status;
    nl_npy npy;
    int64_t offset;
    if (s->left < START)
        return nl_fail(context, NL_ERROR_INPUT, "%s: not a numpy array", s->name);
    NL_TRY(read_some(s, start, START));
    int64_t size =
        start[6] == 1
            ? 10 + (start[8] | start[9] << 8)
            : 12 + (start[8] | start[9] << 8 | (int64_t)start[10] << 16 | (int64_t)start[11] << 24);
    int64_t total = START + s->left;
    size = NL_MAX(NL_MIN(size, NL_MIN(total, MOST)), START);
    NL_TRY(nl_alloc_array(context, "the header of an array", size, 1, &memory));
    memcpy(memory, start, START);
    if (size > START)
        NL_TRY(read_some(s, (uint8_t *)memory + START, size - START));
    NL_TRY(nl_npy_read_header(context, s->name, memory, size, total, &npy, &offset));
    *array = (nl_array){.dtype = npy.dtype, .ndim = npy.ndim};
    memcpy(array->shape, npy.shape, sizeof(array->shape));
cleanup:
    nl_free(context, memory);
    return status;
}

nl_status nl_array_open(nl_arrays *arrays, const char *name, nl_array *array, nl_array_stream **out)
{
    nl_context *context = arrays->context;
    const nl_zip_entry *entry = find(arrays, name);
    nl_array_stream *s = NULL;
    void *memory = NULL;
    nl_status status;
    *out = NULL;
    if (!entry)
        return nl_fail(context, NL_ERROR_INPUT, "%s: no array %s in it; it holds %s", arrays->path,
                       name, arrays->names);
    NL_TRY(nl_alloc_zero(context, "an array", sizeof(*s), &memory));
    s = memory;
    s->arrays = arrays;
    s->entry = entry;
    s->left = entry->size;
    snprintf(s->name, sizeof(s->name), "%.90s: %.30s", arrays->path, name);
    if (entry->deflated) {
        if (inflateInit2(&s->zlib, -MAX_WBITS) != Z_OK)
            NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "%s: no memory to unpack it", s->name));
        s->inflating = true;
    }
    NL_TRY(read_header(s, array));
    *out = s;
    s = NULL;
cleanup:
    nl_array_close(s);
    return status;
}

nl_status nl_arrays_doubles(nl_arrays *arrays, const char *name, int ndim, const int64_t *shape,
                            double **values)
{
    nl_context *context = arrays->context;
    nl_array_stream *stream = NULL;
    nl_array array;
    void *memory = NULL;
    char found[128], expected[128];
    int64_t count = 1;
    nl_status status;
    *values = NULL;
    NL_TRY(nl_array_open(arrays, name, &array, &stream));
    bool fits = array.ndim == ndim && (array.dtype == NL_F64 || array.dtype == NL_F32);
    for (int i = 0; fits && i < ndim; i++) {
        fits = array.shape[i] == shape[i];
        count *= shape[i];
    }
    if (!fits)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: %s is %s %s, expected F64 or F32 %s",
                       arrays->path, name, nl_dtype_name(array.dtype),
                       nl_shape_text(array.ndim, array.shape, found, sizeof(found)),
                       nl_shape_text(ndim, shape, expected, sizeof(expected))));
    NL_TRY(nl_alloc_array(context, name, count, sizeof(double), &memory));
    int64_t bytes = count * nl_dtype_size(array.dtype);
    /* floats go to the end of the memory, from where they are widened upwards */
    char *from = (char *)memory + count * (int64_t)sizeof(double) - bytes;
    NL_TRY(nl_array_read(stream, from, bytes));
    for (int64_t i = 0; array.dtype == NL_F32 && i < count; i++) {
        float x;
        memcpy(&x, from + 4 * i, 4);
        ((double *)memory)[i] = x;
    }
    *values = memory;
    memory = NULL;
cleanup:
    nl_free(context, memory);
    nl_array_close(stream);
    return status;
}
