/*
 * The feature maps of norm-aware linear attention on the GPU (config.md, nala-attention.md), one element at a
 * time, from scalars that belong to the whole query or key:
 *
 *   scale   multiplies the element first: 1 / (norm2 + 1e-6) where the map wants the direction
 *   power   exponent of the magnitude
 *
 * Elements of a direction lie within [-1, 1], so cos(pi/4 tanh a) and sin(pi/4 tanh a) are short polynomials
 * in a^2 on the FMA units: no tanh, sin or cos on the special-function units.
 */
#ifndef NL_NALA_FEATURES_CUH
#define NL_NALA_FEATURES_CUH

#include "ops.h"

#define NL_NORM_EPS 1e-6f

struct nl_row_scalars {
    float scale, power;
};

/* |x|^power with 0 -> 0, whatever the power. */
__device__ __forceinline__ float nl_safe_pow(float magnitude, float power)
{
    return magnitude > 0.f ? exp2f(power * __log2f(magnitude)) : 0.f;
}

/* (cos, sin)(pi/4 tanh a) for |a| <= 1. EXACT: error 3e-8, else 2.3e-5 (a tenth of a bf16 rounding). */
template <bool EXACT> __device__ __forceinline__ float2 nl_angle(float a)
{
    const float u = a * a;
    float c, s;
    if (EXACT) {
        c = -0.002223508067f, s = -0.001608860243f;
        c = fmaf(c, u, 0.01280166815f), s = fmaf(s, u, 0.00927804318f);
        c = fmaf(c, u, -0.03702725083f), s = fmaf(s, u, -0.02696106769f);
        c = fmaf(c, u, 0.07707973642f), s = fmaf(s, u, 0.05689687923f);
        c = fmaf(c, u, -0.1372154164f), s = fmaf(s, u, -0.1052340253f);
        c = fmaf(c, u, 0.2213820966f), s = fmaf(s, u, 0.1878913711f);
        c = fmaf(c, u, -0.3084211545f), s = fmaf(s, u, -0.3425420228f);
        c = fmaf(c, u, 0.9999999707f), s = fmaf(s, u, 0.7853981422f);
    } else {
        c = 0.02498909566f, s = 0.01884591159f;
        c = fmaf(c, u, -0.1018616834f), s = fmaf(s, u, -0.07935766751f);
        c = fmaf(c, u, 0.2104901117f), s = fmaf(s, u, 0.1799085415f);
        c = fmaf(c, u, -0.3071967851f), s = fmaf(s, u, -0.3416437394f);
        c = fmaf(c, u, 0.9999777103f), s = fmaf(s, u, 0.7853817947f);
    }
    return make_float2(c, s * a);
}

/* What a map sums over the elements of a row before its scalars are known: (x^2) or (relu^2, relu^2lambda). */
template <int MAP> __device__ __forceinline__ float2 nl_row_terms(float x, float lambda)
{
    if (MAP == NL_FEATURES_POWER) {
        const float r = fmaxf(x, 0.f);
        const float m = lambda == 3.f ? r * r * r : nl_safe_pow(r, lambda);
        return make_float2(r * r, m * m);
    }
    return make_float2(x * x, 0.f);
}

template <int MAP>
__device__ __forceinline__ nl_row_scalars nl_query_scalars(float2 sums, float lambda, float tau)
{
    nl_row_scalars row = {1.f, lambda};
    if (MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_SPLIT || MAP == NL_FEATURES_COSINE_CONSTANT) {
        const float norm = sqrtf(sums.x);
        row.scale = 1.f / (norm + NL_NORM_EPS);
        if (MAP != NL_FEATURES_COSINE_CONSTANT)
            row.power = lambda * (tau + tanhf(norm));
    } else if (MAP == NL_FEATURES_POWER) {
        row.scale = sqrtf(sums.x) / (sqrtf(sums.y) + NL_NORM_EPS);
    }
    return row;
}

template <int MAP>
__device__ __forceinline__ nl_row_scalars nl_key_scalars(float2 sums, float lambda)
{
    nl_row_scalars row = {1.f, lambda};
    if (MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_COSINE_CONSTANT)
        row.scale = 1.f / (sqrtf(sums.x) + NL_NORM_EPS);
    else if (MAP == NL_FEATURES_POWER)
        row.scale = sqrtf(sums.x) / (sqrtf(sums.y) + NL_NORM_EPS);
    return row;
}

/* The features of one element: (first half, second half) for the maps of width 2d, (feature, 0) otherwise. */
template <int MAP, bool EXACT>
__device__ __forceinline__ float2 nl_query_feature(float x, nl_row_scalars row)
{
    if (MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_COSINE_CONSTANT) {
        const float a = x * row.scale;
        const float m = nl_safe_pow(fabsf(a), row.power);
        const float2 angle = nl_angle<EXACT>(a);
        return make_float2(m * angle.x, m * angle.y);
    }
    if (MAP == NL_FEATURES_SPLIT) {
        const float a = x * row.scale;
        const float m = nl_safe_pow(fabsf(a), row.power);
        return make_float2(a > 0.f ? m : 0.f, a < 0.f ? m : 0.f);
    }
    if (MAP == NL_FEATURES_POWER) {
        const float r = fmaxf(x, 0.f);
        return make_float2(row.scale * (row.power == 3.f ? r * r * r : nl_safe_pow(r, row.power)), 0.f);
    }
    if (MAP == NL_FEATURES_RELU)
        return make_float2(fmaxf(x, 0.f), 0.f);
    return make_float2(x > 0.f ? 1.f + x : expf(x), 0.f); /* 1 + elu */
}

template <int MAP, bool EXACT>
__device__ __forceinline__ float2 nl_key_feature(float x, nl_row_scalars row)
{
    if (MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_COSINE_CONSTANT) {
        const float k = fabsf(x);
        const float m = row.power == 3.f ? k * k * k : nl_safe_pow(k, row.power);
        const float2 angle = nl_angle<EXACT>(x * row.scale);
        return make_float2(m * angle.x, m * angle.y);
    }
    if (MAP == NL_FEATURES_SPLIT) {
        const float k = fabsf(x);
        const float m = row.power == 3.f ? k * k * k : nl_safe_pow(k, row.power);
        return make_float2(x > 0.f ? m : 0.f, x < 0.f ? m : 0.f);
    }
    return nl_query_feature<MAP, EXACT>(x, row);
}

/* Two halves of features, or one? */
template <int MAP> struct nl_map_halves {
    static const int value =
        MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_COSINE_CONSTANT || MAP == NL_FEATURES_SPLIT ? 2 : 1;
};

#endif
