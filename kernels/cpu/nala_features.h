/* SPDX-License-Identifier: MIT */
/*
 * The features of one query or key, all six maps of docs/formats.md: x [d] -> phi [F].
 *
 * Elements of a direction lie within [-1, 1], so that cos and sin of pi/4 tanh(x) are short
 * polynomials; only powers that are not the cube need log2 and exp2.
 */
#ifndef NL_CPU_NALA_FEATURES_H
#define NL_CPU_NALA_FEATURES_H

#include "ops.h"
#include "vector_math.h"

#define NL_NORM_EPS 1e-6f /* added to a norm before dividing by it */

static inline float nl_norm2(const float *x, int64_t size)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return sqrtf(squares);
}

/* magnitude = |scale x|^power; phi = [magnitude cos(angle) ; magnitude sin(angle)], angle = pi/4
 * tanh(inverse x) */
static inline void nl_cosine_features(const float *x, int64_t d, float scale, float inverse,
                                      float power, float *phi)
{
    if (power == 3.0f) {
#pragma omp simd
        for (int64_t i = 0; i < d; i++) {
            float base = fabsf(scale * x[i]), magnitude = base * base * base;
            phi[i] = magnitude * nlv_cos_angle(inverse * x[i]);
            phi[d + i] = magnitude * nlv_sin_angle(inverse * x[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < d; i++) {
            float magnitude = nlv_pow(fabsf(scale * x[i]), power);
            phi[i] = magnitude * nlv_cos_angle(inverse * x[i]);
            phi[d + i] = magnitude * nlv_sin_angle(inverse * x[i]);
        }
    }
}

/* phi = [relu(scale x)^power ; relu(-scale x)^power] */
static inline void nl_split_features(const float *x, int64_t d, float scale, float power,
                                     float *phi)
{
#pragma omp simd
    for (int64_t i = 0; i < d; i++) {
        float magnitude = nlv_pow(fabsf(scale * x[i]), power);
        phi[i] = x[i] < 0 ? 0 : magnitude;
        phi[d + i] = x[i] > 0 ? 0 : magnitude;
    }
}

/* norm2(r) r^lambda / (norm2(r^lambda) + 1e-6), r = relu(x) */
static inline void nl_power_features(const float *x, int64_t d, float lambda, float *phi)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < d; i++) {
        float r = x[i] < 0 ? 0 : x[i];
        squares += r * r;
        phi[i] = nlv_pow(r, lambda);
    }
    float factor = sqrtf(squares) / (nl_norm2(phi, d) + NL_NORM_EPS);
#pragma omp simd
    for (int64_t i = 0; i < d; i++)
        phi[i] *= factor;
}

/* inverse: 1 / (norm of x + 1e-6), power: the exponent of a cosine or split map. */
static inline void nl_features(const nl_nala_attention_args *args, bool query, const float *x,
                               float inverse, float power, float *phi)
{
    int64_t d = args->head_size;
    float scale = query ? inverse : 1.0f;
    switch (args->feature_map) {
    case NL_FEATURES_COSINE:
    case NL_FEATURES_COSINE_CONSTANT:
        nl_cosine_features(x, d, scale, inverse, power, phi);
        break;
    case NL_FEATURES_SPLIT:
        nl_split_features(x, d, scale, power, phi);
        break;
    case NL_FEATURES_RELU:
#pragma omp simd
        for (int64_t i = 0; i < d; i++)
            phi[i] = x[i] < 0 ? 0 : x[i];
        break;
    case NL_FEATURES_ELU1:
#pragma omp simd
        for (int64_t i = 0; i < d; i++)
            phi[i] = x[i] > 0 ? 1.0f + x[i] : nlv_exp(x[i]);
        break;
    case NL_FEATURES_POWER:
        nl_power_features(x, d, args->lambda, phi);
        break;
    }
}

#endif
