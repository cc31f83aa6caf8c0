/* SPDX-License-Identifier: MIT */
/* Backward of nala_features.h: dphi [F] -> dx [d]. Powers of 0 have the derivative 0. With learnt exponents their
 * gradient, too. */
#ifndef NL_CPU_NALA_FEATURES_BACKWARD_H
#define NL_CPU_NALA_FEATURES_BACKWARD_H

#include "nala_features.h"
#include "vector.h"

/* p, the exponent, is that of this query when it `varies` with norm_scale times the norm. */
typedef struct nl_magnitude {
    bool query; /* the base is the direction, not x itself */
    bool split; /* by sign instead of by angle */
    bool cube;  /* p is 3 */
    bool varies;
    bool learnt; /* the gradient by p is wanted, whatever p is */
    float norm_scale;
} nl_magnitude;

/* The gradient by the logarithms of a head's lambda and tau. */
typedef struct nl_log_exponents {
    float lambda, tau;
} nl_log_exponents;

/* The maps in which |base|^p stands; docs/nala-attention.md. `kind` is constant to the compiler. Returns the gradient by p
 * where p varies or is learnt. */
NL_INLINE float nl_magnitude_backward(nl_magnitude kind, const float *x, int64_t d, float norm,
                                      float p, float lambda, const float *dphi, float *dx)
{
    float inverse = 1.0f / (norm + NL_NORM_EPS), along = 0, dexponent = 0;
#pragma omp simd reduction(+ : along, dexponent)
    for (int64_t i = 0; i < d; i++) {
        float direction = inverse * x[i], base = kind.query ? direction : x[i];
        float magnitude = fabsf(base), lower, log2_magnitude = 0;
        if (kind.cube) {
            lower = magnitude * magnitude;
        } else {
            float e, log_m = nlv_log_parts(magnitude, &e);
            log2_magnitude = log_m * 1.44269504f + e;
            lower = magnitude > 0 ? nlv_exp2((p - 1.0f) * log2_magnitude) : magnitude * 0.0f;
        }
        float power = lower * magnitude, dpower, ddirection = 0;
        if (kind.split) {
            dpower = base > 0 ? dphi[i] : dphi[d + i];
        } else {
            float c = nlv_cos_angle(direction), s = nlv_sin_angle(direction);
            dpower = dphi[i] * c + dphi[d + i] * s;
            ddirection = power * nlv_angle_slope(direction) * (dphi[d + i] * c - dphi[i] * s);
        }
        float dbase = p * lower * (base < 0 ? -dpower : dpower);
        if (kind.varies || kind.learnt)
            dexponent += magnitude > 0 ? power * log2_magnitude * dpower : 0;
        if (kind.query)
            ddirection += dbase;
        along += ddirection * x[i];
        dx[i] = kind.query ? ddirection * inverse : ddirection * inverse + dbase;
    }
    float dnorm = -along * inverse * inverse;
    dexponent *= 0.693147181f;
    if (kind.varies) {
        float tangent = nlv_tanh(kind.norm_scale * norm);
        float growth = lambda * kind.norm_scale * (1.0f - tangent * tangent);
        dnorm += dexponent * growth;
    }
    float factor = norm > 0 ? dnorm / norm : norm * 0.0f;
#pragma omp simd
    for (int64_t i = 0; i < d; i++)
        dx[i] += factor * x[i];
    return dexponent;
}

/* norm2(r) r^lambda / (norm2(r^lambda) + 1e-6), r = relu(x) */
static inline void nl_power_backward(const float *x, int64_t d, float lambda, const float *dphi,
                                     float *dx)
{
    float squares = 0, powers = 0, product = 0;
#pragma omp simd reduction(+ : squares, powers, product)
    for (int64_t i = 0; i < d; i++) {
        float r = x[i] < 0 ? 0 : x[i], power = nlv_pow(r, lambda);
        squares += r * r;
        powers += power * power;
        product += dphi[i] * power;
    }
    float norm = sqrtf(squares), power_norm = sqrtf(powers);
    float inverse = 1.0f / (power_norm + NL_NORM_EPS), factor = norm * inverse;
    float common = power_norm > 0 ? product * norm * inverse * inverse / power_norm : 0;
    float straight = norm > 0 ? product * inverse / norm : 0;
#pragma omp simd
    for (int64_t i = 0; i < d; i++) {
        float r = x[i] < 0 ? 0 : x[i], power = nlv_pow(r, lambda);
        float slope = lambda * nlv_pow(r, lambda - 1.0f);
        dx[i] = (factor * dphi[i] - common * power) * slope + straight * r;
    }
}

/* args: of the head (nl_nala_of_head). *gradient is added to where the exponents are learnt. */
static inline void nl_features_backward(const nl_nala_attention_args *args, bool query,
                                        const float *x, const float *dphi, float *dx,
                                        nl_log_exponents *gradient)
{
    int64_t d = args->head_size;
    float lambda = args->lambda, norm = nl_norm2(x, d), by_exponent = 0;
    float varying = lambda * (args->tau + nlv_tanh(args->norm_scale * norm));
    bool learnt = args->log_lambda.data != NULL;
#define BACKWARD(p, ...)                                                                           \
    nl_magnitude_backward((nl_magnitude){__VA_ARGS__}, x, d, norm, p, lambda, dphi, dx)
    switch (args->feature_map) {
    case NL_FEATURES_COSINE:
        if (query)
            by_exponent =
                BACKWARD(varying, .query = true, .varies = true, .norm_scale = args->norm_scale);
        else if (learnt)
            by_exponent = BACKWARD(lambda, .learnt = true);
        else if (lambda == 3.0f)
            BACKWARD(lambda, .cube = true);
        else
            BACKWARD(lambda, .cube = false);
        break;
    case NL_FEATURES_COSINE_CONSTANT:
        if (query)
            BACKWARD(lambda, .query = true);
        else
            BACKWARD(lambda, .query = false);
        break;
    case NL_FEATURES_SPLIT:
        if (query)
            by_exponent = BACKWARD(varying, .query = true, .varies = true,
                                   .norm_scale = args->norm_scale, .split = true);
        else
            by_exponent = BACKWARD(lambda, .split = true, .learnt = true);
        break;
    case NL_FEATURES_RELU:
#pragma omp simd
        for (int64_t i = 0; i < d; i++)
            dx[i] = x[i] > 0 ? dphi[i] : x[i] * 0.0f;
        break;
    case NL_FEATURES_ELU1:
#pragma omp simd
        for (int64_t i = 0; i < d; i++)
            dx[i] = dphi[i] * (x[i] > 0 ? 1.0f : nlv_exp(x[i]));
        break;
    case NL_FEATURES_POWER:
        nl_power_backward(x, d, lambda, dphi, dx);
        break;
    }
#undef BACKWARD
    if (!learnt)
        return;
    gradient->lambda += by_exponent * (query ? varying : lambda);
    gradient->tau += query ? by_exponent * lambda * args->tau : 0;
}

#endif
