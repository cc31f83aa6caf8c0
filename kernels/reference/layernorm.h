/* SPDX-License-Identifier: MIT */
/* Mean and 1 / sqrt(variance + eps) of one row, biased variance; about 0 for NL_NORM_RMS. */
#ifndef NL_REFERENCE_LAYERNORM_H
#define NL_REFERENCE_LAYERNORM_H

#include "reference.h"

static inline void nl_row_moments(const nl_tensor *x, int64_t row, nl_norm norm, double eps,
                                  double *mean, double *inverse_deviation)
{
    int64_t size = x->shape[x->ndim - 1];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < size; i++)
        sum += nl_get(x, row, i);
    *mean = norm == NL_NORM_RMS ? 0 : sum / size;
    for (int64_t i = 0; i < size; i++)
        squares += (nl_get(x, row, i) - *mean) * (nl_get(x, row, i) - *mean);
    *inverse_deviation = 1 / sqrt(squares / size + eps);
}

#endif
