/* SPDX-License-Identifier: MIT */
/*
 * What a feature map is: phi of one query or key in double precision (nala-attention.md, formats.md). The reference
 * of NaLa attention is made of it, and whoever looks inside of attention takes the same.
 */
#ifndef NL_FEATURE_MAPS_H
#define NL_FEATURE_MAPS_H

#include <math.h>

#include "ops.h"

static const double nl_nala_epsilon = 1e-6; /* of directions and of the denominator */

/* relu(x)^p, 0 at x = 0. */
static inline double nl_relu_power(double x, double p)
{
    return x > 0 ? pow(x, p) : 0;
}

static inline double nl_norm2(const double *x, int64_t size)
{
    double squares = 0;
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return sqrt(squares);
}

/* nl_norm2(r) r^lambda / (nl_norm2(r^lambda) + 1e-6), r = relu(x) */
static inline void nl_power_features(const double *x, int64_t d, double lambda, double *phi)
{
    double squares = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += x[i] > 0 ? x[i] * x[i] : 0;
        phi[i] = nl_relu_power(x[i], lambda);
    }
    double factor = sqrt(squares) / (nl_norm2(phi, d) + nl_nala_epsilon);
    for (int64_t i = 0; i < d; i++)
        phi[i] *= factor;
}

/* phi_q(x) or phi_k(x), x [d] -> phi [F] */
static inline void nl_features(const nl_nala_attention_args *args, bool query, const double *x,
                               double *phi)
{
    int64_t d = args->head_size;
    nl_feature_map map = args->feature_map;
    double norm = nl_norm2(x, d);
    double exponent = query && nl_feature_map_norm_aware(map)
                          ? args->lambda * (args->tau + tanh(args->norm_scale * norm))
                          : args->lambda;
    if (map == NL_FEATURES_POWER)
        nl_power_features(x, d, args->lambda, phi);
    for (int64_t i = 0; i < d; i++) {
        double direction = x[i] / (norm + nl_nala_epsilon), base = query ? direction : x[i];
        double angle = M_PI / 4 * tanh(direction);
        switch (map) {
        case NL_FEATURES_COSINE:
        case NL_FEATURES_COSINE_CONSTANT:
            phi[i] = nl_relu_power(fabs(base), exponent) * cos(angle);
            phi[d + i] = nl_relu_power(fabs(base), exponent) * sin(angle);
            break;
        case NL_FEATURES_SPLIT:
            phi[i] = nl_relu_power(base, exponent);
            phi[d + i] = nl_relu_power(-base, exponent);
            break;
        case NL_FEATURES_RELU:
            phi[i] = x[i] > 0 ? x[i] : 0;
            break;
        case NL_FEATURES_ELU1:
            phi[i] = x[i] > 0 ? 1 + x[i] : exp(x[i]);
            break;
        case NL_FEATURES_POWER:
            break;
        }
    }
}

#endif
