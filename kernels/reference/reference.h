/* SPDX-License-Identifier: MIT */
/*
 * The reference back end: every operation in plain scalar C with sums in double, the oracle that the
 * fast back ends are compared with. Written to be read, not to be fast.
 */
#ifndef NL_REFERENCE_H
#define NL_REFERENCE_H

#include <math.h>

#include "nl_e4m3.h"
#include "ops.h"

#define NL_OPERATION(operation)                                                                    \
    nl_status nl_reference_##operation(nl_device *device, const nl_##operation##_args *args);
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

static const double nl_pi = 3.14159265358979323846;

/* Element [row, column] of an F32, BF16 or F8 matrix whose rows may be strided. */
static inline double nl_get(const nl_tensor *x, int64_t row, int64_t column)
{
    int64_t i = row * x->row_stride + column;
    if (x->dtype == NL_F8)
        return (double)x->scale[row] * nl_e4m3_to_float(((const uint8_t *)x->data)[i]);
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

/* Row `row` of y, F32 or F8, each element i by an expression, which is evaluated twice for F8. */
#define NL_PUT_ROW(y, row, i, expression)                                                          \
    do {                                                                                           \
        float inverse_ = 1, largest_ = 0;                                                          \
        bool f8_ = (y)->dtype == NL_F8;                                                            \
        for (int64_t i = 0; f8_ && i < (y)->shape[1]; i++)                                         \
            largest_ = fmaxf(largest_, fabsf((float)(expression)));                                \
        if (f8_)                                                                                   \
            (y)->scale[row] = nl_e4m3_scale(largest_, &inverse_);                                  \
        for (int64_t i = 0; i < (y)->shape[1]; i++)                                                \
            if (f8_)                                                                               \
                ((uint8_t *)(y)->data)[(row) * (y)->row_stride + i] =                              \
                    nl_float_to_e4m3((float)(expression)*inverse_);                                \
            else                                                                                   \
                nl_put(y, row, i, expression);                                                     \
    } while (0)

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
