/* SPDX-License-Identifier: MIT */
/* Reading .npz: a zip archive whose entries are .npy files. */
#include "nl_arrays.h"
#include "nl_bytes.h"
#include "zip.h"

#include <stdio.h>
#include <string.h>

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
    nl_arrays *arrays = NULL;
    status = NL_NEW(context, "an archive of arrays", &arrays);
    if (status != NL_OK) {
        if (!borrowed)
            nl_unmap(context, &mapping);
        return status;
    }
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

nl_status nl_array_read(nl_array_stream *stream, void *to, int64_t bytes)
{
    return bytes > 0 ? nl_zip_stream_read(stream, to, bytes) : NL_OK;
}

void nl_array_close(nl_array_stream *stream)
{
    nl_zip_stream_close(stream);
}

/* Reads the header of the array off the stream. `name` is for messages. */
static nl_status read_header(nl_context *context, nl_array_stream *stream, const char *name,
                             nl_array *array)
{
    enum { START = 12, MOST = 1 << 20 };
    int64_t total = nl_zip_stream_left(stream), offset;
    uint8_t start[START];
    uint8_t *header = NULL;
    nl_status status;
    if (total < START)
        return nl_fail(context, NL_ERROR_INPUT, "%s: not a numpy array", name);
    NL_TRY(nl_array_read(stream, start, START));
    int64_t size = start[6] == 1 ? 10 + (int64_t)nl_little(start + 8, 2)
                                 : 12 + (int64_t)nl_little(start + 8, 4);
    size = NL_MAX(NL_MIN(size, NL_MIN(total, MOST)), START);
    NL_TRY(NL_NEW_ARRAY(context, "the header of an array", size, &header));
    memcpy(header, start, START);
    NL_TRY(nl_array_read(stream, header + START, size - START));
    NL_TRY(nl_npy_read_header(context, name, header, size, total, array, &offset));
cleanup:
    nl_free(context, header);
    return status;
}

nl_status nl_array_open(nl_arrays *arrays, const char *name, nl_array *array, nl_array_stream **out)
{
    nl_context *context = arrays->context;
    const nl_zip_entry *entry = find(arrays, name);
    nl_array_stream *stream = NULL;
    char place[128]; /* "file.npz: arr_0" */
    nl_status status;
    *out = NULL;
    if (!entry)
        return nl_fail(context, NL_ERROR_INPUT, "%s: no array %s in it; it holds %s", arrays->path,
                       name, arrays->names);
    snprintf(place, sizeof(place), "%.90s: %.30s", arrays->path, name);
    NL_TRY(nl_zip_stream_open(&arrays->zip, entry, &arrays->mapping, &stream));
    NL_TRY(read_header(context, stream, place, array));
    *out = stream;
    stream = NULL;
cleanup:
    nl_array_close(stream);
    return status;
}

nl_status nl_arrays_doubles(nl_arrays *arrays, const char *name, int ndim, const int64_t *shape,
                            double **values)
{
    nl_context *context = arrays->context;
    nl_array_stream *stream = NULL;
    nl_array array;
    double *made = NULL;
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
    NL_TRY(NL_NEW_ARRAY(context, name, count, &made));
    int64_t bytes = count * nl_dtype_size(array.dtype);
    /* floats go to the end of the memory, from where they are widened upwards */
    char *from = (char *)made + count * (int64_t)sizeof(double) - bytes;
    NL_TRY(nl_array_read(stream, from, bytes));
    for (int64_t i = 0; array.dtype == NL_F32 && i < count; i++) {
        float x;
        memcpy(&x, from + 4 * i, 4);
        made[i] = x;
    }
    *values = made;
    made = NULL;
cleanup:
    nl_free(context, made);
    nl_array_close(stream);
    return status;
}
