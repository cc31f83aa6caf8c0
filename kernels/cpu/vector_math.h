/* SPDX-License-Identifier: MIT */
/*
 * Elementary functions that a compiler can vectorise: no branches, no calls, no tables. Polynomials
 * are minimax fits; errors are a few ulp. NaN gives NaN. Finite arguments give finite results: exp
 * and exp2 saturate near 1e38 and 1e-38.
 */
#ifndef NL_VECTOR_MATH_H
#define NL_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float nlv_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t nlv_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* x + 1.5 2^23 holds the nearest integer to x in its low bits; |x| < 2^22. */
#define NLV_ROUND 0x1.8p23f

/* 2^n for an integer n in [-126, 127] given as n + NLV_ROUND. */
static inline float nlv_power_of_two(float shifted)
{
    return nlv_from_bits((nlv_bits(shifted) - nlv_bits(NLV_ROUND) + 127) << 23);
}

static inline float nlv_exp2(float x)
{
    x = x > 126.9f ? 126.9f : x;
    x = x < -126.0f ? -126.0f : x;
    float shifted = x + NLV_ROUND;
    float r = x - (shifted - NLV_ROUND);
    float p = 1.546973047e-04f;
    p = p * r + 1.339086685e-03f;
    p = p * r + 9.618030785e-03f;
    p = p * r + 5.550357106e-02f;
    p = p * r + 2.402265108e-01f;
    p = p * r + 6.931471880e-01f;
    p = p * r + 1.0f;
    return p * nlv_power_of_two(shifted);
}

/* exp of x in [-87.3, 88]. */
static inline float nlv_exp_within(float x)
{
    float shifted = x * 1.44269504f + NLV_ROUND;
    float n = shifted - NLV_ROUND;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts, the first short */
    float p = 1.394616335e-03f + r * 1.991794998e-04f;
    p = p * r + 8.333265211e-03f;
    p = p * r + 4.166626874e-02f;
    p = p * r + 1.666666686e-01f;
    p = p * r + 5.000000078e-01f;
    p = p * r * r + r + 1.0f;
    return p * nlv_power_of_two(shifted);
}

static inline float nlv_exp(float x)
{
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.3f ? -87.3f : x;
    return nlv_exp_within(x);
}

/* Splits x = 2^e m, 1/sqrt(2) <= m < sqrt(2); yields log(m) and e. x > 0. */
static inline float nlv_log_parts(float x, float *e)
{
    uint32_t bits = nlv_bits(x) - 0x3f3504f3u; /* 1/sqrt(2) */
    *e = (float)((int32_t)bits >> 23);
    float f = nlv_from_bits((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 6.917983208e-02f;
    p = p * f + -1.177966698e-01f;
    p = p * f + 1.186603552e-01f;
    p = p * f + -1.238579855e-01f;
    p = p * f + 1.421991855e-01f;
    p = p * f + -1.666919744e-01f;
    p = p * f + 2.000215141e-01f;
    p = p * f + -2.499998688e-01f;
    p = p * f + 3.333331183e-01f;
    return f + f * f * (p * f - 0.5f);
}

static inline float nlv_log(float x)
{
    float e, log_m = nlv_log_parts(x, &e);
    return x == x ? e * 0.693359375f + (e * -2.12194440e-4f + log_m) : x;
}

static inline float nlv_log2(float x)
{
    float e, log_m = nlv_log_parts(x, &e);
    return x == x ? log_m * 1.44269504f + e : x;
}

/* x^p for x >= 0; 0^p = 0. */
static inline float nlv_pow(float x, float p)
{
    float e, log_m = nlv_log_parts(x, &e);
    float y = nlv_exp2(p * (log_m * 1.44269504f + e));
    return x > 0.0f ? y : x * 0.0f; /* NaN stays */
}

/* Never below 1.6e-38: subnormal numbers would be slow. */
static inline float nlv_sigmoid(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    return 1.0f / (1.0f + nlv_exp_within(-x));
}

static inline float nlv_silu(float x)
{
    return x * nlv_sigmoid(x);
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline float nlv_gelu_tanh(float x)
{
    float u2 = x * (1.59576912f + 0.0713548163f * x * x);
    return x * nlv_sigmoid(u2);
}

static inline float nlv_tanh(float x)
{
    float y = x * x;
    float p = -5.717036547e-03f;
    p = p * y + 2.065057899e-02f;
    p = p * y + -5.374349526e-02f;
    p = p * y + 1.333149125e-01f;
    p = p * y + -3.333328392e-01f;
    float near = x + x * y * p;
    float far = copysignf(1.0f - 2.0f / (1.0f + nlv_exp(2.0f * fabsf(x))), x);
    return fabsf(x) < 0.625f ? near : far;
}

/* sin and cos for |x| <= 8 or so: pi / 2 in three parts, short enough that small multiples are
 * exact. */
static inline void nlv_sincos(float x, float *sin_x, float *cos_x)
{
    float shifted = x * 0.636619772f + NLV_ROUND;
    float n = shifted - NLV_ROUND;
    float r = ((x - n * 1.5703125f) - n * 4.837512969970703125e-4f) - n * 7.54978995e-8f;
    float y = r * r;
    float s = 2.718274345e-06f;
    s = s * y + -1.983933098e-04f;
    s = s * y + 8.333329374e-03f;
    s = s * y + -1.666666664e-01f;
    s = r + r * y * s;
    float c = -2.724515422e-07f;
    c = c * y + 2.480000367e-05f;
    c = c * y + -1.388888590e-03f;
    c = c * y + 4.166666665e-02f;
    c = 1.0f - 0.5f * y + y * y * c;
    uint32_t quadrant = nlv_bits(shifted);
    float a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sin_x = nlv_from_bits(nlv_bits(a) ^ (quadrant & 2) << 30);
    *cos_x = nlv_from_bits(nlv_bits(b) ^ ((quadrant + 1) & 2) << 30);
}

/* cos(pi/4 tanh x) and sin(pi/4 tanh x) for |x| <= 1: even and odd, so polynomials in x^2. */
static inline float nlv_cos_angle(float x)
{
    float y = x * x;
    float p = -2.223212415e-03f;
    p = p * y + 1.280072534e-02f;
    p = p * y + -3.702608067e-02f;
    p = p * y + 7.707902440e-02f;
    p = p * y + -1.372151972e-01f;
    p = p * y + 2.213820650e-01f;
    p = p * y + -3.084211529e-01f;
    return p * y + 9.999999706e-01f;
}

static inline float nlv_sin_angle(float x)
{
    float y = x * x;
    float p = -1.608646602e-03f;
    p = p * y + 9.277361881e-03f;
    p = p * y + -2.696022208e-02f;
    p = p * y + 5.689636468e-02f;
    p = p * y + -1.052338668e-01f;
    p = p * y + 1.878913483e-01f;
    p = p * y + -3.425420216e-01f;
    return (p * y + 7.853981422e-01f) * x;
}

/* Derivative of the angle pi/4 tanh x, |x| <= 1. */
static inline float nlv_angle_slope(float x)
{
    float y = x * x;
    float p = -3.490049619e-03f;
    p = p * y + 2.111209154e-02f;
    p = p * y + -6.561697987e-02f;
    p = p * y + 1.499813246e-01f;
    p = p * y + -2.956141607e-01f;
    p = p * y + 5.234688944e-01f;
    p = p * y + -7.853921994e-01f;
    return p * y + 7.853981181e-01f;
}

/* SiLU for results that become BF16: off by 6e-5 of the result at most, without a division. NaN stays NaN. */
static inline float nlv_silu_coarse(float x)
{
    float t = x * -1.44269504f;
    t = t > 100.0f ? 100.0f : t;
    t = t < -100.0f ? -100.0f : t;
    float shifted = t + NLV_ROUND;
    float r = t - (shifted - NLV_ROUND);
    float p = 9.618130e-03f;
    p = p * r + 5.550411e-02f;
    p = p * r + 2.402265e-01f;
    p = p * r + 6.931472e-01f;
    p = p * r + 1.0f;
    float d = 1.0f + p * nlv_power_of_two(shifted);           /* 1 / sigmoid(x) */
    float inverse = nlv_from_bits(0x7ef311c3u - nlv_bits(d)); /* 5 % off; Newton squares that */
    inverse = inverse * (2.0f - d * inverse);
    inverse = inverse * (2.0f - d * inverse);
    return x * inverse;
}

/* Rounded to nearest even; NaN stays NaN. */
static inline uint16_t nlv_to_bf16(float x)
{
    uint32_t bits = nlv_bits(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

static inline float nlv_from_bf16(uint16_t x)
{
    return nlv_from_bits((uint32_t)x << 16);
}

static inline void nl_to_bf16(const float *from, int64_t count, uint16_t *to)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        to[i] = nlv_to_bf16(from[i]);
}

static inline void nl_from_bf16(const uint16_t *from, int64_t count, float *to)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        to[i] = nlv_from_bf16(from[i]);
}

#endif
