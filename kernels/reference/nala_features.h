/* SPDX-License-Identifier: MIT */
/* The rotation of the features of one query or key: docs/nala-attention.md, docs/formats.md. */
#ifndef NL_REFERENCE_NALA_FEATURES_H
#define NL_REFERENCE_NALA_FEATURES_H

#include "feature_maps.h"
#include "reference.h"

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
