/* SPDX-License-Identifier: MIT */
/*
 * Gradients of the feature maps of features.cuh (nala-attention.md, Backward). d holds the gradients by the two
 * features of an element (by the one in d.x). An element's gradient has a part of its own and, for maps that use the
 * norm of the row, a part that every element of the row shares:
 *
 *   dx_i = own_i + x_i shared(sums)
 *
 * so a row is walked over twice: first for own and the sums, then to add the rest.
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
    float norm, power_norm, lambda, norm_scale;
    bool learnt; /* of a key, too, the sum by the exponent is wanted: of magnitudes alone */
};

/* ---- The gradient of a map, of queries or of keys. There is no primary definition here either.
 *
 *   own      of an element; adds to the sums over the row: by the exponent (x), and of the gradient by the direction times
 *            the row (y); power: gradient times relu(x)^lambda (x)
 *   factor   of x_i, from the sums of the row
 *   whole    dx of an element from its own part
 *
 * fp32 throughout, functions of full precision. */
template <int MAP, bool QUERY> struct nl_map_gradient;

/* A part shared by the row is x_i times a factor, or nothing. */
struct nl_gradient_by_factor {
    __device__ __forceinline__ static float factor(const nl_row_gradient &, float2)
    {
        return 0.f;
    }
    __device__ __forceinline__ static float whole(float x, float own, float factor,
                                                  const nl_row_gradient &, float2)
    {
        return fmaf(x, factor, own);
    }
};

/* magnitude^power, magnitude = |direction| of a query, |x| of a key; 0 and flat at 0. COSINE: of the angle too; GROWS: a
 * query's power grows with the norm. */
template <bool QUERY, bool COSINE, bool GROWS>
struct nl_gradient_of_magnitude : nl_gradient_by_factor {
    __device__ __forceinline__ static float own(float x, float2 d, const nl_row_gradient &r,
                                                float2 *sums)
    {
        const float scale = r.row.scale, power = QUERY ? r.row.power : r.lambda;
        const float a = x * scale, base = QUERY ? fabsf(a) : fabsf(x);
        const float less = nl_safe_pow<true>(base, power - 1.f), m = less * base;
        float by_magnitude, by_angle = 0.f;
        if (!COSINE) {
            by_magnitude = x > 0.f ? d.x : d.y;
        } else {
            const float2 angle = nl_angle<true>(a);
            by_magnitude = fmaf(d.x, angle.x, d.y * angle.y);
            by_angle = m * nl_angle_slope<true>(a) * fmaf(d.y, angle.x, -d.x * angle.y);
        }
        const float by_base = copysignf(power * less, x) * by_magnitude;
        if ((QUERY || r.learnt) && base > 0.f)
            sums->x = fmaf(m * logf(base), by_magnitude, sums->x);
        if (!QUERY) {
            sums->y = fmaf(by_angle, x, sums->y);
            return fmaf(by_angle, scale, by_base);
        }
        sums->y = fmaf(by_base + by_angle, x, sums->y);
        return (by_base + by_angle) * scale;
    }
    __device__ __forceinline__ static float factor(const nl_row_gradient &r, float2 sums)
    {
        const bool direction = COSINE || QUERY;
        if (!direction || r.norm == 0.f)
            return 0.f;
        float by_norm = -sums.y * r.row.scale * r.row.scale;
        if (QUERY && GROWS) {
            const float t = tanhf(r.norm_scale * r.norm);
            by_norm = fmaf(r.lambda * r.norm_scale * sums.x, 1.f - t * t, by_norm);
        }
        return by_norm / r.norm;
    }
};
template <bool QUERY>
struct nl_map_gradient<NL_FEATURES_COSINE, QUERY> : nl_gradient_of_magnitude<QUERY, true, true> {
};
template <bool QUERY>
struct nl_map_gradient<NL_FEATURES_COSINE_CONSTANT, QUERY>
    : nl_gradient_of_magnitude<QUERY, true, false> {
};
template <bool QUERY>
struct nl_map_gradient<NL_FEATURES_SPLIT, QUERY> : nl_gradient_of_magnitude<QUERY, false, true> {
};

template <bool QUERY> struct nl_map_gradient<NL_FEATURES_RELU, QUERY> : nl_gradient_by_factor {
    __device__ __forceinline__ static float own(float x, float2 d, const nl_row_gradient &,
                                                float2 *)
    {
        return x > 0.f ? d.x : 0.f;
    }
};
template <bool QUERY> struct nl_map_gradient<NL_FEATURES_ELU1, QUERY> : nl_gradient_by_factor {
    __device__ __forceinline__ static float own(float x, float2 d, const nl_row_gradient &,
                                                float2 *)
    {
        return x > 0.f ? d.x : d.x * expf(x);
    }
};

template <bool QUERY> struct nl_map_gradient<NL_FEATURES_POWER, QUERY> : nl_gradient_by_factor {
    __device__ __forceinline__ static float own(float x, float2 d, const nl_row_gradient &r,
                                                float2 *sums)
    {
        const float relu = fmaxf(x, 0.f);
        sums->x = fmaf(d.x, nl_safe_pow<true>(relu, r.lambda), sums->x);
        return r.row.scale * d.x * r.lambda * nl_safe_pow<true>(relu, r.lambda - 1.f);
    }
    __device__ __forceinline__ static float whole(float x, float own, float,
                                                  const nl_row_gradient &r, float2 sums)
    {
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
};

#endif
