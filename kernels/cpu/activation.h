/* SPDX-License-Identifier: MIT */
/* Activations and their slopes over a run of elements: of the operations activate and activate_backward, and as the
 * epilogue of a product. */
#ifndef NL_CPU_ACTIVATION_H
#define NL_CPU_ACTIVATION_H

#include "ops.h"
#include "slope.h"

/* y [count] = activation(x); y may be x. */
static inline void nl_apply_activation(nl_activation activation, const float *x, int64_t count,
                                       float *y)
{
    switch (activation) {
    case NL_ACT_NONE:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i];
        break;
    case NL_ACT_RELU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] < 0 ? 0 : x[i]; /* NaN stays */
        break;
    case NL_ACT_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_silu(x[i]);
        break;
    case NL_ACT_SOFT_CLAMP:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = 3.0f * nlv_tanh(x[i] * (1.0f / 3));
        break;
    case NL_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_gelu_tanh(x[i]);
        break;
    }
}

/* dx [count] = dy times the slope at x; dx may be dy. */
static inline void nl_apply_activation_slope(nl_activation activation, const float *x,
                                             const float *dy, int64_t count, float *dx)
{
    switch (activation) {
    case NL_ACT_NONE:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i];
        break;
    case NL_ACT_RELU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * (x[i] > 0 ? 1.0f : x[i] * 0.0f); /* NaN stays */
        break;
    case NL_ACT_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * nlv_silu_slope(x[i]);
        break;
    case NL_ACT_SOFT_CLAMP:
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float t = nlv_tanh(x[i] * (1.0f / 3));
            dx[i] = dy[i] * (1.0f - t * t);
        }
        break;
    case NL_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * nlv_gelu_tanh_slope(x[i]);
        break;
    }
}

#endif
