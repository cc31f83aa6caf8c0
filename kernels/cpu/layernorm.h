/* SPDX-License-Identifier: MIT */
/* Layer normalisation of one row, shared by the operations that do something with the result. */
#ifndef NL_CPU_LAYERNORM_H
#define NL_CPU_LAYERNORM_H

#include <math.h>
#include <stdint.h>

/* (x - mean) / deviation = (x - center) scale + offset: a float alone is not close enough to a mean
 * that is large beside the deviation, so the center is the mean rounded and the offset its rest. */
typedef struct nl_moments {
    float center, scale, offset; /* scale = 1 / sqrt(biased variance + eps) */
} nl_moments;

/* x [size], in two passes. */
static inline nl_moments nl_row_moments(const float *x, int64_t size, float eps)
{
    float sum = 0, rest = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++)
        sum += x[i];
    float center = sum / (float)size;
#pragma omp simd reduction(+ : rest, squares)
    for (int64_t i = 0; i < size; i++) {
        float difference = x[i] - center;
        rest += difference;
        squares += difference * difference;
    }
    rest /= (float)size;
    float variance = squares / (float)size - rest * rest;
    float scale = 1.0f / sqrtf((variance < 0 ? 0 : variance) + eps);
    return (nl_moments){center, scale, -rest * scale};
}

/* The same about 0: 1 / sqrt(mean x^2 + eps). */
static inline nl_moments nl_row_rms(const float *x, int64_t size, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return (nl_moments){0, 1.0f / sqrtf(squares / (float)size + eps), 0};
}

#endif
