/* SPDX-License-Identifier: MIT */
/*
 * numpy arrays.
 *
 *   OFFSET  SIZE    DESCRIPTION
 *   0       6       "\x93NUMPY"
 *   6       2       version, major and minor: 1.0, 2.0 or 3.0
 *   8       2 or 4  n, length of the header, little endian; 2 bytes in version 1
 *   10, 12  n       {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, spaces, '\n'
 *   ...     rest    the elements
 */
#include <stdio.h>
#include <string.h>

#include "nl_npy.h"

static const struct {
    const char *descr;
    nl_dtype dtype;
} types[] = {{"<f4", NL_F32}, {"<f8", NL_F64}, {"<f2", NL_F16},
             {"|u1", NL_U8},  {"<i4", NL_I32}, {"<i8", NL_I64}};

/* Reads the header as Python would write it and no more of Python than that. */
typedef struct nl_npy_header {
    nl_context *context;
    const char *path;
    const char *next, *end;
    char descr[16];
    bool fortran_order;
    int ndim;
    int64_t shape[NL_MAX_DIMS];
} nl_npy_header;

static nl_status bad_header(const nl_npy_header *header, const char *expected)
{
    return nl_fail(header->context, NL_ERROR_INPUT, "%s: npy header: expected %s", header->path,
                   expected);
}

static void skip_space(nl_npy_header *header)
{
    while (header->next < header->end && (*header->next == ' ' || *header->next == '\n'))
        header->next++;
}

static bool take(nl_npy_header *header, const char *token)
{
    skip_space(header);
    size_t length = strlen(token);
    if ((size_t)(header->end - header->next) < length || memcmp(header->next, token, length) != 0)
        return false;
    header->next += length;
    return true;
}

static nl_status read_string(nl_npy_header *header, char *text, size_t size)
{
    skip_space(header);
    char quote = header->next < header->end ? *header->next : 0;
    if (quote != '\'' && quote != '"')
        return bad_header(header, "a string");
    header->next++;
    size_t length = 0;
    while (header->next < header->end && *header->next != quote && length + 1 < size)
        text[length++] = *header->next++;
    text[length] = 0;
    if (header->next == header->end || *header->next != quote)
        return bad_header(header, "the end of a string");
    header->next++;
    return NL_OK;
}

static nl_status read_shape(nl_npy_header *header)
{
    if (!take(header, "("))
        return bad_header(header, "a tuple after 'shape'");
    while (!take(header, ")")) {
        int64_t value = 0;
        int digits = 0;
        for (; header->next < header->end && *header->next >= '0' && *header->next <= '9'; digits++)
            if (!nl_mul_size(value, 10, &value) ||
                !nl_add_size(value, *header->next++ - '0', &value))
                return bad_header(header, "sizes below 2^63");
        if (digits == 0)
            return bad_header(header, "whole numbers >= 0 in 'shape'");
        if (header->ndim == NL_MAX_DIMS)
            return bad_header(header, "at most 5 sizes");
        header->shape[header->ndim++] = value;
        if (!take(header, ",") && !(header->next < header->end && *header->next == ')'))
            return bad_header(header, "a comma in 'shape'");
    }
    return NL_OK;
}

static nl_status read_header(nl_npy_header *header)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0;
    if (!take(header, "{"))
        return bad_header(header, "{");
    while (!take(header, "}")) {
        char key[16];
        NL_CHECK(read_string(header, key, sizeof(key)));
        int which = strcmp(key, "descr") == 0           ? DESCR
                    : strcmp(key, "fortran_order") == 0 ? ORDER
                    : strcmp(key, "shape") == 0         ? SHAPE
                                                        : 0;
        if (!which || (seen & which))
            return bad_header(header, "the keys 'descr', 'fortran_order', 'shape', once each");
        seen |= which;
        if (!take(header, ":"))
            return bad_header(header, "a colon after a key");
        if (which == DESCR)
            NL_CHECK(read_string(header, header->descr, sizeof(header->descr)));
        else if (which == SHAPE)
            NL_CHECK(read_shape(header));
        else if (take(header, "True"))
            header->fortran_order = true;
        else if (!take(header, "False"))
            return bad_header(header, "True or False after 'fortran_order'");
        if (!take(header, ",") && !(header->next < header->end && *header->next == '}'))
            return bad_header(header, "a comma after a value");
    }
    skip_space(header);
    if (header->next != header->end)
        return bad_header(header, "nothing behind }");
    if (seen != (DESCR | ORDER | SHAPE))
        return bad_header(header, "the keys 'descr', 'fortran_order', 'shape', once each");
    return NL_OK;
}

static nl_status find_type(const nl_npy_header *header, nl_dtype *dtype)
{
    const char *descr = header->descr;
    for (int i = 0; i < NL_COUNT(types); i++)
        if (strcmp(descr, types[i].descr) == 0) {
            *dtype = types[i].dtype;
            return NL_OK;
        }
    return nl_fail(header->context, NL_ERROR_INPUT,
                   "%s: elements of type '%s'%s are not read; save numbers as float32 "
                   "(array.astype('<f4')), pictures as uint8",
                   header->path, descr, descr[0] == '>' ? " (big endian)" : "");
}

/* Where the header's text stands. */
static nl_status find_header(nl_npy_header *header, const uint8_t *data, int64_t size)
{
    if (size < 10 || memcmp(data, "\x93NUMPY", 6) != 0)
        return nl_fail(header->context, NL_ERROR_INPUT,
                       "%s: not a numpy array: expected it to begin with \\x93NUMPY", header->path);
    int major = data[6], minor = data[7], start = major == 1 ? 10 : 12;
    if (major < 1 || major > 3 || minor != 0)
        return nl_fail(header->context, NL_ERROR_INPUT,
                       "%s: npy version %d.%d is not read (read are 1.0, 2.0, 3.0)", header->path,
                       major, minor);
    int64_t length = data[8] | data[9] << 8;
    if (major > 1 && size >= start)
        length |= (int64_t)data[10] << 16 | (int64_t)data[11] << 24;
    if (size < start || length > size - start)
        return nl_fail(header->context, NL_ERROR_INPUT,
                       "%s: the npy header should be %lld bytes long, but the file has %lld: it is "
                       "cut off",
                       header->path, (long long)length, (long long)size);
    header->next = (const char *)data + start;
    header->end = header->next + length;
    return NL_OK;
}

nl_status nl_npy_read_header(nl_context *context, const char *name, const void *data,
                             int64_t available, int64_t size, nl_array *array, int64_t *offset)
{
    nl_npy_header header = {.context = context, .path = name, .shape = {1, 1, 1, 1, 1}};
    NL_CHECK(find_header(&header, data, available));
    *offset = header.end - (const char *)data;
    NL_CHECK(read_header(&header));
    NL_CHECK(find_type(&header, &array->dtype));
    if (header.fortran_order && header.ndim > 1)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: the array is in Fortran order; save it in C order "
                       "(numpy.ascontiguousarray)",
                       name);
    int64_t bytes = nl_dtype_size(array->dtype), found = size - *offset;
    bool fits = true;
    for (int i = 0; i < header.ndim; i++)
        fits = fits && nl_mul_size(bytes, header.shape[i], &bytes);
    if (!fits || bytes != found) {
        char text[128];
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: an array of %s and shape %s does not fill the %lld bytes that the file "
                       "has for it",
                       name, nl_dtype_name(array->dtype),
                       nl_shape_text(header.ndim, header.shape, text, sizeof(text)),
                       (long long)found);
    }
    array->ndim = header.ndim;
    memcpy(array->shape, header.shape, sizeof(array->shape));
    return NL_OK;
}

nl_status nl_npy_open_memory(nl_context *context, const char *name, const void *data, int64_t size,
                             nl_npy *npy)
{
    int64_t offset;
    nl_array array;
    memset(npy, 0, sizeof(*npy));
    NL_CHECK(nl_npy_read_header(context, name, data, size, size, &array, &offset));
    npy->data = (const char *)data + offset;
    npy->dtype = array.dtype;
    npy->ndim = array.ndim;
    memcpy(npy->shape, array.shape, sizeof(npy->shape));
    return NL_OK;
}

nl_status nl_npy_open(nl_context *context, const char *path, nl_npy *npy)
{
    nl_mapping mapping = {0};
    memset(npy, 0, sizeof(*npy));
    nl_status status = nl_map_file(context, path, &mapping);
    if (status == NL_OK)
        status = nl_npy_open_memory(context, path, mapping.data, mapping.size, npy);
    if (status == NL_OK)
        npy->mapping = mapping;
    else
        nl_unmap(context, &mapping);
    return status;
}

void nl_npy_close(nl_context *context, nl_npy *npy)
{
    nl_unmap(context, &npy->mapping);
    memset(npy, 0, sizeof(*npy));
}

/* Magic, version, length, then the dictionary padded with spaces. */
int nl_npy_put_header(nl_dtype dtype, int ndim, const int64_t *shape, char text[NL_NPY_HEADER])
{
    const char *descr = NULL;
    for (int i = 0; i < NL_COUNT(types); i++)
        if (types[i].dtype == dtype)
            descr = types[i].descr;
    if (!descr)
        return 0;
    int n = 10 + snprintf(text + 10, NL_NPY_HEADER - 10,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < ndim; i++)
        n += snprintf(text + n, NL_NPY_HEADER - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)shape[i]);
    n += snprintf(text + n, NL_NPY_HEADER - (size_t)n, "%s), }", ndim == 1 ? "," : "");
    int total = (n + 1 + 63) / 64 * 64;
    memset(text + n, ' ', (size_t)(total - n));
    text[total - 1] = '\n';
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    text[8] = (char)((total - 10) & 0xff);
    text[9] = (char)((total - 10) >> 8);
    return total;
}

nl_status nl_npy_write(nl_context *context, const char *path, bool overwrite, nl_dtype dtype,
                       int ndim, const int64_t *shape, const void *data)
{
    nl_status status = NL_OK;
    nl_writer *writer = NULL;
    char header[NL_NPY_HEADER];
    int64_t bytes = nl_dtype_size(dtype);
    int size = nl_npy_put_header(dtype, ndim, shape, header);
    if (size == 0)
        return nl_fail(context, NL_ERROR_INTERNAL, "%s: npy has no type for %s", path,
                       nl_dtype_name(dtype));
    for (int i = 0; i < ndim; i++)
        bytes *= shape[i];
    NL_TRY(nl_writer_open(context, path, overwrite, &writer));
    NL_TRY(nl_writer_write(writer, header, (size_t)size));
    NL_TRY(nl_writer_write(writer, data, (size_t)bytes));
    NL_TRY(nl_writer_commit(&writer));
cleanup:
    nl_writer_abort(&writer);
    return status;
}
