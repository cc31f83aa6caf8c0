/* SPDX-License-Identifier: MIT */
/*
 * The feature maps of norm-aware linear attention on the GPU (docs/formats.md, nala-attention.md), each a specialisation of
 * nl_map, one element at a time, from scalars that belong to the whole query or key:
 *
 *   scale   multiplies the element first: 1 / (norm2 + 1e-6) where the map wants the direction
 *   power   exponent of the magnitude
 *
 * Elements of a direction lie within [-1, 1], so cos(pi/4 tanh a) and sin(pi/4 tanh a) are short polynomials
 * in a^2 on the FMA units: no tanh, sin or cos on the special-function units.
 */
#ifndef NL_NALA_FEATURES_CUH
#define NL_NALA_FEATURES_CUH

#include <type_traits>

#include "ops.h"
#include "prim/convert.cuh"

#define NL_NORM_EPS 1e-6f

struct nl_row_scalars {
    float scale, power;
};

/* x^power for x >= 0, with 0 -> 0 whatever the power; two special-function instructions and no branch. */
template <bool EXACT> __device__ __forceinline__ float nl_safe_pow(float x, float power)
{
    float y;
    if (EXACT)
        y = exp2f(power * log2f(x));
    else
        asm("{ .reg .f32 t;\n lg2.approx.ftz.f32 t, %1;\n mul.f32 t, t, %2;\n"
            "ex2.approx.ftz.f32 %0, t; }"
            : "=f"(y)
            : "f"(x), "f"(power));
    return x > 0.f ? y : 0.f;
}

/* x^lambda of a key: two products when lambda is 3 (CUBE), as it nearly always is. */
template <bool EXACT, bool CUBE>
__device__ __forceinline__ float nl_key_power(float x, float lambda)
{
    return CUBE ? x * x * x : nl_safe_pow<EXACT>(x, lambda);
}

template <bool EXACT> __device__ __forceinline__ float nl_reciprocal(float x)
{
    return EXACT ? 1.f / x : __fdividef(1.f, x);
}

template <bool EXACT> __device__ __forceinline__ float nl_root(float x)
{
    float y;
    if (EXACT)
        y = sqrtf(x);
    else
        asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh of x >= 0 */
template <bool EXACT> __device__ __forceinline__ float nl_tanh(float x)
{
    return EXACT ? tanhf(x) : 1.f - __fdividef(2.f, __expf(2.f * fminf(x, 20.f)) + 1.f);
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

/* ---- A map. There is no primary definition, so that a map that is forgotten does not compile. It has
 *
 *   HALVES          of features: 2 of width d, or 1
 *   TERMS           sums over a row that its scalars are made of
 *   PACKED          works on two elements at a time in bf16 (below)
 *   OF_ZERO         features of 0 are not 0
 *   POWER           has an exponent, for which CUBE makes a difference
 *   row_terms       of an element, for these sums
 *   query_scalars, key_scalars     from the sums
 *   query_feature, key_feature     (first half, second half) of an element, or (feature, 0)
 */
template <int MAP, bool EXACT, bool CUBE> struct nl_map;

/* The maps that know a query's direction and norm: x^2 is summed up. */
template <bool EXACT> struct nl_map_of_direction {
    static constexpr int HALVES = 2, TERMS = 1;
    static constexpr bool PACKED = false, OF_ZERO = false, POWER = true;

    __device__ __forceinline__ static float2 row_terms(float x, float)
    {
        return make_float2(x * x, 0.f);
    }
    __device__ __forceinline__ static nl_row_scalars query_scalars(float2 sums, float lambda,
                                                                   float tau, float norm_scale)
    {
        nl_row_scalars row = {1.f, lambda};
        const float norm = nl_root<EXACT>(sums.x);
        row.scale = nl_reciprocal<EXACT>(norm + NL_NORM_EPS);
        row.power = lambda * (tau + nl_tanh<EXACT>(norm_scale * norm));
        return row;
    }
    __device__ __forceinline__ static nl_row_scalars key_scalars(float2 sums, float lambda)
    {
        nl_row_scalars row = {1.f, lambda};
        row.scale = nl_reciprocal<EXACT>(nl_root<EXACT>(sums.x) + NL_NORM_EPS);
        return row;
    }
};

template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_COSINE, EXACT, CUBE> : nl_map_of_direction<EXACT> {
    static constexpr bool PACKED = true;

    __device__ __forceinline__ static float2 query_feature(float x, nl_row_scalars row)
    {
        const float a = x * row.scale;
        const float m = nl_safe_pow<EXACT>(fabsf(a), row.power);
        const float2 angle = nl_angle<EXACT>(a);
        return make_float2(m * angle.x, m * angle.y);
    }
    __device__ __forceinline__ static float2 key_feature(float x, nl_row_scalars row)
    {
        const float k = fabsf(x);
        const float m = nl_key_power<EXACT, CUBE>(k, row.power);
        const float2 angle = nl_angle<EXACT>(x * row.scale);
        return make_float2(m * angle.x, m * angle.y);
    }
};

/* The exponent of a query is that of a key. */
template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_COSINE_CONSTANT, EXACT, CUBE> : nl_map<NL_FEATURES_COSINE, EXACT, CUBE> {
    __device__ __forceinline__ static nl_row_scalars query_scalars(float2 sums, float lambda, float,
                                                                   float)
    {
        return nl_map_of_direction<EXACT>::key_scalars(sums, lambda);
    }
};

/* A half for each sign. */
template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_SPLIT, EXACT, CUBE> : nl_map_of_direction<EXACT> {
    __device__ __forceinline__ static nl_row_scalars key_scalars(float2, float lambda)
    {
        return {1.f, lambda};
    }
    __device__ __forceinline__ static float2 query_feature(float x, nl_row_scalars row)
    {
        const float a = x * row.scale;
        const float m = nl_safe_pow<EXACT>(fabsf(a), row.power);
        return make_float2(a > 0.f ? m : 0.f, a < 0.f ? m : 0.f);
    }
    __device__ __forceinline__ static float2 key_feature(float x, nl_row_scalars row)
    {
        const float k = fabsf(x);
        const float m = nl_key_power<EXACT, CUBE>(k, row.power);
        return make_float2(x > 0.f ? m : 0.f, x < 0.f ? m : 0.f);
    }
};

/* The maps whose keys are as their queries. */
template <typename MAP> struct nl_map_of_both : MAP {
    __device__ __forceinline__ static nl_row_scalars query_scalars(float2 sums, float lambda, float,
                                                                   float)
    {
        return MAP::key_scalars(sums, lambda);
    }
    __device__ __forceinline__ static float2 query_feature(float x, nl_row_scalars row)
    {
        return MAP::key_feature(x, row);
    }
};

/* relu(x)^lambda, with the norm of relu(x): relu^2 and relu^2lambda are summed up. */
template <bool EXACT, bool CUBE> struct nl_power_map {
    static constexpr int HALVES = 1, TERMS = 2;
    static constexpr bool PACKED = false, OF_ZERO = false, POWER = true;

    __device__ __forceinline__ static float2 row_terms(float x, float lambda)
    {
        const float r = fmaxf(x, 0.f);
        const float m = nl_key_power<EXACT, CUBE>(r, lambda);
        return make_float2(r * r, m * m);
    }
    __device__ __forceinline__ static nl_row_scalars key_scalars(float2 sums, float lambda)
    {
        nl_row_scalars row = {1.f, lambda};
        row.scale =
            nl_root<EXACT>(sums.x) * nl_reciprocal<EXACT>(nl_root<EXACT>(sums.y) + NL_NORM_EPS);
        return row;
    }
    __device__ __forceinline__ static float2 key_feature(float x, nl_row_scalars row)
    {
        const float r = fmaxf(x, 0.f);
        return make_float2(row.scale * nl_key_power<EXACT, CUBE>(r, row.power), 0.f);
    }
};
template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_POWER, EXACT, CUBE> : nl_map_of_both<nl_power_map<EXACT, CUBE>> {
};

/* The maps that look at nothing but the element. */
struct nl_map_of_element {
    static constexpr int HALVES = 1, TERMS = 1;
    static constexpr bool PACKED = false, OF_ZERO = false, POWER = false;

    __device__ __forceinline__ static float2 row_terms(float x, float)
    {
        return make_float2(x * x, 0.f);
    }
    __device__ __forceinline__ static nl_row_scalars key_scalars(float2, float lambda)
    {
        return {1.f, lambda};
    }
};
struct nl_relu_map : nl_map_of_element {
    __device__ __forceinline__ static float2 key_feature(float x, nl_row_scalars)
    {
        return make_float2(fmaxf(x, 0.f), 0.f);
    }
};
/* 1 + elu */
struct nl_elu1_map : nl_map_of_element {
    static constexpr bool OF_ZERO = true;

    __device__ __forceinline__ static float2 key_feature(float x, nl_row_scalars)
    {
        return make_float2(x > 0.f ? 1.f + x : expf(x), 0.f);
    }
};
template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_RELU, EXACT, CUBE> : nl_map_of_both<nl_relu_map> {
};
template <bool EXACT, bool CUBE>
struct nl_map<NL_FEATURES_ELU1, EXACT, CUBE> : nl_map_of_both<nl_elu1_map> {
};

template <int MAP> constexpr int nl_halves = nl_map<MAP, true, true>::HALVES;
template <int MAP> constexpr bool nl_packed = nl_map<MAP, true, true>::PACKED;

#define NL_CHECK_MAP(map, name, halves, aware)                                                     \
    static_assert(nl_halves<map> == halves, "features of " name " are not as wide as ops.h says");
NL_FEATURE_MAPS(NL_CHECK_MAP)
#undef NL_CHECK_MAP

/* The problem of this block's head, blockIdx.x: with lambda and tau of its own, in *own, where they are LEARNT. */
template <bool LEARNT, typename Problem>
__device__ __forceinline__ const Problem &nl_of_head(const Problem &p, Problem *own)
{
    if (!LEARNT)
        return p;
    *own = p;
    own->lambda = expf(p.log_lambda[blockIdx.x]), own->tau = expf(p.log_tau[blockIdx.x]);
    return *own;
}

/* use(a constant of the map's value) */
template <int VALUE> using nl_constant = std::integral_constant<int, VALUE>;
template <typename Use> auto nl_for_feature_map(nl_feature_map map, Use use)
{
    switch (map) {
#define NL_CASE(map, ...)                                                                          \
    case map:                                                                                      \
        return use(nl_constant<map>());
        NL_FEATURE_MAPS(NL_CASE)
#undef NL_CASE
    }
    return use(nl_constant<NL_FEATURES_COSINE>()); /* not reached: arguments are checked */
}

/* ---- Two elements at a time, in bf16 from end to end, for the cosine maps: the features become bf16 operands of tensor
 * cores anyway, and packed arithmetic halves the instructions, which is what bounds these kernels. */

/* magnitude * (cos, sin)(pi/4 tanh a); relative error of a few bf16 roundings (1.2e-3 and 2.7e-3 rms). */
__device__ __forceinline__ void nl_angle_pair(__nv_bfloat162 a, __nv_bfloat162 magnitude,
                                              uint32_t *first, uint32_t *second)
{
    const __nv_bfloat162 u = __hmul2(a, a);
    __nv_bfloat162 c = __hfma2(nl_pair_of(-0.054931640625f), u, nl_pair_of(0.18359375f));
    __nv_bfloat162 s = __hfma2(nl_pair_of(-0.04052734375f), u, nl_pair_of(0.154296875f));
    c = __hfma2(c, u, nl_pair_of(-0.302734375f));
    s = __hfma2(s, u, nl_pair_of(-0.3359375f));
    c = __hfma2(c, u, nl_pair_of(1.f));
    s = __hfma2(s, u, nl_pair_of(0.78515625f));
    *first = nl_bits(__hmul2(magnitude, c));
    *second = nl_bits(__hmul2(__hmul2(magnitude, a), s));
}

/* k: two elements; scale: of their keys. */
template <bool CUBE>
__device__ __forceinline__ void nl_key_pair(uint32_t k, uint32_t scale, float lambda,
                                            uint32_t *first, uint32_t *second)
{
    const __nv_bfloat162 x = nl_pair(k), m = nl_pair(k & 0x7fff7fffu);
    __nv_bfloat162 magnitude;
    if (CUBE)
        magnitude = __hmul2(__hmul2(m, m), m);
    else
        magnitude = __floats2bfloat162_rn(nl_safe_pow<false>(__low2float(m), lambda),
                                          nl_safe_pow<false>(__high2float(m), lambda));
    nl_angle_pair(__hmul2(x, nl_pair(scale)), magnitude, first, second);
}

/* q: two elements of one query. |dir|^p = 2^(p log2|q| + offset), offset = p log2(scale). */
template <bool POSITIVE_POWER>
__device__ __forceinline__ void nl_query_pair(uint32_t q, __nv_bfloat162 scale, float power,
                                              float offset, uint32_t *first, uint32_t *second)
{
    float low = fabsf(__uint_as_float(q << 16)), high = fabsf(__uint_as_float(q & 0xffff0000u));
    const bool low_zero = !POSITIVE_POWER && low == 0.f, high_zero = !POSITIVE_POWER && high == 0.f;
    asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(low));
    asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(high));
    low = fmaf(power, low, offset);
    high = fmaf(power, high, offset);
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(low));
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(high));
    const __nv_bfloat162 magnitude =
        __floats2bfloat162_rn(low_zero ? 0.f : low, high_zero ? 0.f : high);
    nl_angle_pair(__hmul2(nl_pair(q), scale), magnitude, first, second);
}

#endif
