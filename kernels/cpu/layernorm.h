/* Layer normalisation of one row, shared by the operations that do something with the result. */
#ifndef NL_CPU_LAYERNORM_H
#define NL_CPU_LAYERNORM_H

#include <math.h>
#include <stdint.h>

/* x [size]; mean and 1 / sqrt(biased variance + eps) in two passes. */
static inline void nl_row_moments(const float *x, int64_t size, float eps, float *mean,
                                  float *inverse_deviation)
{
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++)
        sum += x[i];
    float m = sum / (float)size;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += (x[i] - m) * (x[i] - m);
    *mean = m;
    *inverse_deviation = 1.0f / sqrtf(squares / (float)size + eps);
}

#endif
