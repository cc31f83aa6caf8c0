/* SPDX-License-Identifier: MIT */
/*
 * Gradients of the feature maps of features.cuh (nala-attention.md, Cost). d holds the gradients by the two
 * features of an element (by the one in d.x). An element's gradient has a part of its own and, for maps that use the
 * norm of the row, a part that every element of the row shares:
 *
 *   dx_i = own_i + x_i shared(sums)
 *
 * so a row is walked over twice: nl_feature_gradient gives own and adds to the sums, nl_shared_gradient adds the rest.
 */
#ifndef NL_NALA_FEATURES_BACKWARD_CUH
#define NL_NALA_FEATURES_BACKWARD_CUH

#include "features.cuh"

/* pi/4 (1 - tanh^2 a), the slope of the angle, for |a| <= 1. Not EXACT: error 5e-4, a quarter of a bf16 rounding. */
template <bool EXACT> __device__ __forceinline__ float nl_angle_slope(float a)
{
    if (EXACT) {
        const float t = tanhf(a);
        return 0.785398163f * (1.f - t * t);
    }
    const float u = a * a;
    float w = fmaf(-0.119889943f, u, 0.433282181f);
    w = fmaf(w, u, -0.768768711f);
    return fmaf(w, u, 0.784886643f);
}

/* What a row shares. norm is of the row; POWER: of relu(x), and power_norm of relu(x)^lambda. */
struct nl_row_gradient {
    nl_row_scalars row;
    float norm, power_norm, lambda;
};

/* Sums over the row: by the exponent (x), and of the gradient by the direction times the row (y); POWER: gradient times
 * relu(x)^lambda (x). fp32 throughout, functions of full precision. */
template <int MAP, bool QUERY>
__device__ __forceinline__ float nl_feature_gradient(float x, float2 d, const nl_row_gradient &r,
                                                     float2 *sums)
{
    const float scale = r.row.scale, power = QUERY ? r.row.power : r.lambda;
    if (MAP == NL_FEATURES_RELU)
        return x > 0.f ? d.x : 0.f;
    if (MAP == NL_FEATURES_ELU1)
        return x > 0.f ? d.x : d.x * expf(x);
    if (MAP == NL_FEATURES_POWER) {
        const float relu = fmaxf(x, 0.f);
        sums->x = fmaf(d.x, nl_safe_pow<true>(relu, r.lambda), sums->x);
        return scale * d.x * r.lambda * nl_safe_pow<true>(relu, r.lambda - 1.f);
    }
    /* magnitude^power, magnitude = |direction| of a query, |x| of a key; 0 and flat at 0 */
    const float a = x * scale, base = QUERY ? fabsf(a) : fabsf(x);
    const float less = nl_safe_pow<true>(base, power - 1.f), m = less * base;
    float by_magnitude, by_angle = 0.f;
    if (MAP == NL_FEATURES_SPLIT) {
        by_magnitude = x > 0.f ? d.x : d.y;
    } else {
        const float2 angle = nl_angle<true>(a);
        by_magnitude = fmaf(d.x, angle.x, d.y * angle.y);
        by_angle = m * nl_angle_slope<true>(a) * fmaf(d.y, angle.x, -d.x * angle.y);
    }
    const float by_base = copysignf(power * less, x) * by_magnitude;
    if (!QUERY) {
        sums->y = fmaf(by_angle, x, sums->y);
        return fmaf(by_angle, scale, by_base);
    }
    if (base > 0.f)
        sums->x = fmaf(m * logf(base), by_magnitude, sums->x);
    sums->y = fmaf(by_base + by_angle, x, sums->y);
    return (by_base + by_angle) * scale;
}

/* The factor of x_i, from the sums of the row; maps of the direction only, 0 for the others. */
template <int MAP, bool QUERY>
__device__ __forceinline__ float nl_shared_factor(const nl_row_gradient &r, float2 sums)
{
    const bool direction = MAP == NL_FEATURES_COSINE || MAP == NL_FEATURES_COSINE_CONSTANT ||
                           (MAP == NL_FEATURES_SPLIT && QUERY);
    if (!direction || r.norm == 0.f)
        return 0.f;
    float by_norm = -sums.y * r.row.scale * r.row.scale;
    if (QUERY && MAP != NL_FEATURES_COSINE_CONSTANT) {
        const float t = tanhf(r.norm);
        by_norm = fmaf(r.lambda * sums.x, 1.f - t * t, by_norm);
    }
    return by_norm / r.norm;
}

/* dx of an element from its own part. */
template <int MAP>
__device__ __forceinline__ float nl_shared_gradient(float x, float own, float factor,
                                                    const nl_row_gradient &r, float2 sums)
{
    if (MAP == NL_FEATURES_POWER) {
        /* norm2(r) / (norm2(r^lambda) + eps) by r */
        const float relu = fmaxf(x, 0.f), total = r.power_norm + NL_NORM_EPS;
        if (relu == 0.f || r.power_norm == 0.f)
            return own;
        const float m = nl_safe_pow<true>(relu, r.lambda);
        return fmaf(sums.x,
                    relu / (r.norm * total) -
                        r.norm / (total * total) * r.lambda * m * (m / relu) / r.power_norm,
                    own);
    }
    return fmaf(x, factor, own);
}

#endif
