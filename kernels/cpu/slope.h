/* SPDX-License-Identifier: MIT */
/* Derivatives of the activations, for their backward passes. */
#ifndef NL_CPU_SLOPE_H
#define NL_CPU_SLOPE_H

#include "vector_math.h"

/* s (1 + x (1 - s)), s = sigmoid(x) */
static inline float nlv_silu_slope(float x)
{
    float s = nlv_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* x s(v), v = 2 sqrt(2 / pi) (x + 0.044715 x^3): s + x s (1 - s) dv/dx */
static inline float nlv_gelu_tanh_slope(float x)
{
    float square = x * x;
    float s = nlv_sigmoid(x * (1.59576912f + 0.0713548163f * square));
    return s + x * s * (1.0f - s) * (1.59576912f + 0.214064449f * square);
}

#endif
