/* SPDX-License-Identifier: MIT */
/*
 * The reference back end: every operation in plain scalar C with sums in double, the oracle that the
 * fast back ends are compared with. Written to be read, not to be fast.
 */
#ifndef NL_REFERENCE_H
#define NL_REFERENCE_H

#include <math.h>

#include "ops.h"

#define NL_OPERATION(operation)                                                                    \
    nl_status nl_reference_##operation(nl_device *device, const nl_##operation##_args *args);
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

static const double nl_pi = 3.14159265358979323846;

/* Element [row, column] of an F32 or BF16 matrix whose rows may be strided. */
static inline double nl_get(const nl_tensor *x, int64_t row, int64_t column)
{
    int64_t i = row * x->row_stride + column;
    return x->dtype == NL_BF16 ? nl_bf16_to_float(((const uint16_t *)x->data)[i])
                               : ((const float *)x->data)[i];
}

/* Element i of a contiguous tensor. */
static inline double nl_at(const nl_tensor *x, int64_t i)
{
    return nl_get(x, 0, i);
}

/* The same of a tensor that may be left out, which counts as zeros. */
static inline double nl_at_or_zero(const nl_tensor *x, int64_t i)
{
    return x->data ? nl_get(x, 0, i) : 0;
}

static inline void nl_put(const nl_tensor *y, int64_t row, int64_t column, double value)
{
    ((float *)y->data)[row * y->row_stride + column] = (float)value;
}

static inline double nl_silu(double x)
{
    return x / (1 + exp(-x));
}

static inline void nl_add(const nl_tensor *y, int64_t row, int64_t column, double value)
{
    nl_put(y, row, column, nl_get(y, row, column) + value);
}

/* sums[c] += column c of x, for as many columns as there are sums; nothing when those are left out. */
static inline void nl_reference_column_sums(const nl_tensor *x, const nl_tensor *sums)
{
    for (int64_t c = 0; sums->data && c < sums->shape[0]; c++) {
        double sum = 0;
        for (int64_t row = 0; row < x->shape[0]; row++)
            sum += nl_get(x, row, c);
        nl_add(sums, 0, c, sum);
    }
}

double nl_reference_activation(nl_activation activation, double x);
/* Its derivative; at a kink the one from below, as in PyTorch. */
double nl_reference_activation_slope(nl_activation activation, double x);

#endif
