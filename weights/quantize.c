/* SPDX-License-Identifier: MIT */
/* Rows of a matrix to int8 with the scale of least squared error. */
#include <math.h>

#include "nl_checkpoint.h"

/* Squared error of a row when it is stored with this scale. */
static double row_error(const float *x, int64_t columns, float scale)
{
    double error = 0;
    for (int64_t i = 0; i < columns; i++) {
        double q = fmax(-127, fmin(127, nearbyint((double)x[i] / scale))), d = q * scale - x[i];
        error += d * d;
    }
    return error;
}

/* A scale below max / 127 clips the longest weights and is finer for all others. */
static float best_scale(const float *x, int64_t columns)
{
    enum { CANDIDATES = 16 };
    float largest = 0, best = 0;
    for (int64_t i = 0; i < columns; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    double best_error = INFINITY;
    for (int i = 0; i < CANDIDATES; i++) {
        float scale = largest / 127 * (1 - 0.03f * (float)i);
        double error = scale > 0 ? row_error(x, columns, scale) : INFINITY;
        if (error < best_error) {
            best_error = error;
            best = scale;
        }
    }
    return best;
}

void nl_quantize_rows(const float *x, int64_t rows, int64_t columns, int8_t *q, float *scale)
{
    for (int64_t r = 0; r < rows; r++, x += columns, q += columns) {
        scale[r] = best_scale(x, columns);
        for (int64_t i = 0; i < columns; i++) {
            double value = scale[r] > 0 ? nearbyint((double)x[i] / scale[r]) : 0;
            q[i] = (int8_t)fmax(-127, fmin(127, value));
        }
    }
}
