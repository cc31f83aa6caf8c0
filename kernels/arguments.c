/* SPDX-License-Identifier: MIT */
/* What check.c says of an operation's arguments: types, shapes, strides, overlap, and the message. */
#include "arguments.h"
#include "frozen.h"

#include <stdio.h>
#include <string.h>

static void refuse(nl_arguments *a, const char *problem)
{
    a->status =
        nl_fail(a->device->context, NL_ERROR_INTERNAL, "operation %s: %s", a->operation, problem);
}

void nl_check(nl_arguments *a, bool holds, const char *format, ...)
{
    if (holds || a->status != NL_OK)
        return;
    char problem[256];
    va_list values;
    va_start(values, format);
    vsnprintf(problem, sizeof(problem), format, values);
    va_end(values);
    refuse(a, problem);
}

static bool dtype_fits(const nl_arguments *a, nl_dtype dtype, int flags)
{
    if (flags & NL_ARG_F8 || dtype == NL_F8)
        return dtype == NL_F8 && (flags & (NL_ARG_F8 | NL_ARG_MAYBE_F8));
    if (flags & NL_ARG_U8)
        return dtype == NL_U8;
    if (flags & NL_ARG_I32)
        return dtype == NL_I32;
    if (flags & NL_ARG_I64)
        return dtype == NL_I64;
    if (flags & NL_ARG_F64)
        return dtype == NL_F64;
    if (flags & NL_ARG_F32)
        return dtype == NL_F32;
    if (flags & NL_ARG_STORED)
        return dtype == NL_F32 || dtype == NL_F16 || dtype == NL_BF16 || dtype == NL_U8;
    /* A measuring device has the name of the one that it stands for. */
    bool gpu = strncmp(a->device->name, "cuda", 4) == 0;
    bool half = gpu || (flags & NL_ARG_WEIGHT) ||
                ((flags & NL_ARG_FEATURE_MAP) && a->device->feature_maps == NL_BF16);
    return dtype == NL_F32 || (dtype == NL_BF16 && half) ||
           (dtype == NL_F16 && gpu && (flags & NL_ARG_F16));
}

static const char *expected_dtype(int flags)
{
    return flags & NL_ARG_F8       ? "F8"
           : flags & NL_ARG_U8     ? "U8"
           : flags & NL_ARG_I32    ? "I32"
           : flags & NL_ARG_I64    ? "I64"
           : flags & NL_ARG_F64    ? "F64"
           : flags & NL_ARG_STORED ? "F32, F16, BF16 or U8"
           : flags & NL_ARG_WEIGHT ? "F32 or BF16"
                                   : "F32";
}

static bool shape_fits(const nl_tensor *tensor, int ndim, const int64_t *shape)
{
    bool fits = tensor->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++)
        fits = tensor->shape[i] > 0 && (shape[i] == NL_ANY || tensor->shape[i] == shape[i]);
    return fits;
}

/* As nl_shape_text, with "any" for NL_ANY. */
static const char *pattern_text(int ndim, const int64_t *shape, char *text, size_t size)
{
    int used = snprintf(text, size, "[");
    for (int i = 0; i < ndim; i++) {
        const char *comma = i ? ", " : "";
        if (shape[i] == NL_ANY)
            used += snprintf(text + used, size - (size_t)used, "%sany", comma);
        else
            used +=
                snprintf(text + used, size - (size_t)used, "%s%lld", comma, (long long)shape[i]);
    }
    snprintf(text + used, size - (size_t)used, "]");
    return text;
}

void nl_check_tensor(nl_arguments *a, const char *name, const nl_tensor *tensor, int flags,
                     int ndim, const int64_t *shape)
{
    if (a->status != NL_OK)
        return;
    if (!tensor->data) {
        nl_check(a, flags & NL_ARG_OPTIONAL, "%s is missing", name);
        return;
    }
    char found[128], expected[128];
    bool known = tensor->ndim >= 0 && tensor->ndim <= NL_MAX_DIMS && tensor->dtype < NL_DTYPE_COUNT;
    nl_check(a, known, "%s is no tensor", name);
    if (known && (!dtype_fits(a, tensor->dtype, flags) || !shape_fits(tensor, ndim, shape)))
        nl_check(a, false, "%s is %s %s, expected %s %s", name, nl_dtype_name(tensor->dtype),
                 nl_shape_text(tensor->ndim, tensor->shape, found, sizeof(found)),
                 expected_dtype(flags), pattern_text(ndim, shape, expected, sizeof(expected)));
    nl_check(a, (tensor->dtype == NL_F8) == (tensor->scale != NULL),
             "%s is %s with factors of its rows missing, or with some that it must not have", name,
             nl_dtype_name(tensor->dtype));
    if (a->status == NL_OK && !nl_tensor_contiguous(tensor))
        nl_check(a, (flags & NL_ARG_STRIDED) && tensor->row_stride > tensor->shape[ndim - 1],
                 "%s has rows of %lld elements %lld apart, expected them %s", name,
                 (long long)tensor->shape[ndim - 1], (long long)tensor->row_stride,
                 flags & NL_ARG_STRIDED ? "no closer than that" : "contiguous");
    if (a->status != NL_OK || a->count == NL_MAX_ARGUMENTS)
        return;
    a->tensors[a->count].name = name;
    a->tensors[a->count].tensor = tensor;
    a->tensors[a->count].flags = flags;
    a->count++;
}

/* Bytes from the first element to the end of the last. */
static uintptr_t extent(const nl_tensor *tensor)
{
    int64_t last = tensor->shape[tensor->ndim - 1];
    int64_t rows = nl_tensor_count(tensor) / last;
    int64_t elements = tensor->ndim < 2 ? last : (rows - 1) * tensor->row_stride + last;
    return (uintptr_t)(elements * nl_dtype_size(tensor->dtype));
}

static bool overlap(const nl_tensor *a, const nl_tensor *b)
{
    uintptr_t start_a = (uintptr_t)a->data, start_b = (uintptr_t)b->data;
    if (start_a + extent(a) <= start_b || start_b + extent(b) <= start_a)
        return false;
    if (a->ndim < 2 || b->ndim < 2 || a->row_stride != b->row_stride || a->dtype != b->dtype)
        return true;
    /* Columns of one matrix: apart when they end before the others begin, around the stride. */
    uintptr_t size = (uintptr_t)nl_dtype_size(a->dtype), stride = (uintptr_t)a->row_stride * size;
    uintptr_t width_a = (uintptr_t)a->shape[a->ndim - 1] * size;
    uintptr_t width_b = (uintptr_t)b->shape[b->ndim - 1] * size;
    uintptr_t from_a = (start_b % stride + stride - start_a % stride) % stride;
    return from_a < width_a || from_a + width_b > stride;
}

static bool same_view(const nl_tensor *a, const nl_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && nl_tensor_same_shape(a, b) &&
           (a->ndim < 2 || a->row_stride == b->row_stride);
}

nl_status nl_arguments_end(nl_arguments *a)
{
    for (int i = 0; i < a->count; i++) {
        if (!(a->tensors[i].flags & NL_ARG_OUTPUT))
            continue;
        const nl_tensor *output = a->tensors[i].tensor;
        nl_check(a, !nl_frozen(a->device, output->data, (int64_t)extent(output)),
                 "%s lies in weights that were frozen", a->tensors[i].name);
        for (int j = 0; j < a->count; j++) {
            const nl_tensor *other = a->tensors[j].tensor;
            if (j == i || !overlap(output, other))
                continue;
            bool in_place = (a->tensors[j].flags & NL_ARG_IN_PLACE) && same_view(output, other);
            nl_check(a, in_place, "%s overlaps %s", a->tensors[i].name, a->tensors[j].name);
        }
    }
    return a->status;
}
