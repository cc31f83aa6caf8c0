/* SPDX-License-Identifier: MIT */
/* The features of one query or key, and their rotation: nala-attention.md, docs/formats.md. */
#ifndef NL_REFERENCE_NALA_FEATURES_H
#define NL_REFERENCE_NALA_FEATURES_H

#include "reference.h"

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
    double exponent = query && map != NL_FEATURES_COSINE_CONSTANT
                          ? args->lambda * (args->tau + tanh(norm))
                          : args->lambda;
    if (map == NL_FEATURES_POWER)
        nl_power_features(x, d, args->lambda, phi);
    for (int64_t i = 0; i < d; i++) {
        double direction = x[i] / (norm + nl_nala_epsilon), base = query ? direction : x[i];
        double angle = nl_pi / 4 * tanh(direction);
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

/* 2-D rotary angles on each d-wide half of phi: the first half of d turns with the row, the second
 * with the column of the token. sense -1 turns back. Frequencies 10000^-linspace(0, 1, d / 4), both ends included. */
static inline void nl_rotate(const nl_nala_attention_args *args, int64_t token, int64_t width,
                             double sense, double *phi)
{
    int64_t d = args->head_size, quarter = d / 4;
    int64_t row = token / args->grid_width, column = token % args->grid_width;
    for (int64_t pair = 0; pair < width / 2; pair++) {
        int64_t place = pair % (d / 2), i = place % quarter;
        double exponent = quarter > 1 ? (double)i / (quarter - 1) : 0;
        double angle = sense * (place < quarter ? row : column) * pow(10000, -exponent);
        double a = phi[2 * pair], b = phi[2 * pair + 1];
        phi[2 * pair] = a * cos(angle) - b * sin(angle);
        phi[2 * pair + 1] = b * cos(angle) + a * sin(angle);
    }
}

#endif
