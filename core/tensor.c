/* SPDX-License-Identifier: MIT */
/* Element types and views of tensors: rows, columns, other shapes, shapes as text. */
#include "nl_tensor.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    int size;
} dtypes[NL_DTYPE_COUNT] = {
    [NL_F32] = {"F32", 4}, [NL_BF16] = {"BF16", 2}, [NL_F16] = {"F16", 2},    [NL_F64] = {"F64", 8},
    [NL_I8] = {"I8", 1},   [NL_U8] = {"U8", 1},     [NL_BOOL] = {"BOOL", 1},  [NL_I16] = {"I16", 2},
    [NL_I32] = {"I32", 4}, [NL_I64] = {"I64", 8},   [NL_F8] = {"F8_E4M3", 1},
};

int nl_dtype_size(nl_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *nl_dtype_name(nl_dtype dtype)
{
    return dtypes[dtype].name;
}

bool nl_dtype_parse(const char *name, nl_dtype *dtype)
{
    for (int i = 0; i < NL_DTYPE_COUNT; i++)
        if (i != NL_F8 && strcasecmp(name, dtypes[i].name) == 0) {
            *dtype = (nl_dtype)i;
            return true;
        }
    return false;
}

nl_tensor nl_tensor_of(void *data, nl_dtype dtype, int ndim, const int64_t *shape)
{
    nl_tensor tensor = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < NL_MAX_DIMS; i++)
        tensor.shape[i] = i < ndim ? shape[i] : 1;
    tensor.row_stride = ndim > 0 ? shape[ndim - 1] : 1;
    return tensor;
}

int64_t nl_tensor_count(const nl_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

int64_t nl_tensor_bytes(const nl_tensor *tensor)
{
    return nl_tensor_count(tensor) * nl_dtype_size(tensor->dtype);
}

bool nl_tensor_contiguous(const nl_tensor *tensor)
{
    return tensor->ndim < 2 || tensor->row_stride == tensor->shape[tensor->ndim - 1];
}

static void *element(const nl_tensor *tensor, int64_t offset)
{
    return tensor->data ? (char *)tensor->data + offset * nl_dtype_size(tensor->dtype) : NULL;
}

nl_tensor nl_tensor_rows(const nl_tensor *tensor, int64_t first, int64_t count)
{
    nl_tensor rows = *tensor;
    int64_t step = tensor->ndim > 1 ? tensor->row_stride : 1;
    for (int i = 1; i < tensor->ndim - 1; i++)
        step *= tensor->shape[i];
    rows.data = element(tensor, first * step);
    rows.shape[0] = count;
    if (tensor->ndim == 1)
        rows.row_stride = count;
    if (tensor->scale)
        rows.scale += first;
    return rows;
}

nl_tensor nl_tensor_columns(const nl_tensor *tensor, int64_t first, int64_t count)
{
    nl_tensor columns = *tensor;
    columns.data = element(tensor, first);
    columns.shape[1] = count;
    return columns;
}

nl_tensor nl_tensor_reshape(const nl_tensor *tensor, int ndim, const int64_t *shape)
{
    return nl_tensor_of(tensor->data, tensor->dtype, ndim, shape);
}

bool nl_tensor_same_shape(const nl_tensor *a, const nl_tensor *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

const char *nl_shape_text(int ndim, const int64_t *shape, char *text, size_t size)
{
    int used = snprintf(text, size, "[");
    for (int i = 0; i < ndim && used >= 0 && (size_t)used < size; i++)
        used +=
            snprintf(text + used, size - (size_t)used, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (used >= 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "]");
    return text;
}
