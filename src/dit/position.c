/* SPDX-License-Identifier: MIT */
/* The position tables of a grid: sines and cosines of column and row. */
#include <math.h>

#include "nl_dit.h"

void nl_position_table(int64_t rows, int64_t columns, int64_t hidden_size, float *table)
{
    /* [sin(x w), cos(x w), sin(y w), cos(y w)], x the column, y the row, w_i = 10000^(-i / Q) */
    int64_t quarter = hidden_size / 4;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++, table += hidden_size)
            for (int64_t i = 0; i < quarter; i++) {
                double frequency = pow(10000, -(double)i / (double)quarter);
                table[i] = (float)sin((double)x * frequency);
                table[quarter + i] = (float)cos((double)x * frequency);
                table[2 * quarter + i] = (float)sin((double)y * frequency);
                table[3 * quarter + i] = (float)cos((double)y * frequency);
            }
}

void nl_rope_table(int64_t rows, int64_t columns, int64_t size, float *table)
{
    /* pair i < Q: y w_i, pair Q + i: x w_i, w_i = 10000^(-i / Q), Q = size / 4; all cosines, then all sines */
    int64_t quarter = size / 4, half = size / 2;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++, table += size)
            for (int64_t i = 0; i < half; i++) {
                double place = (double)(i < quarter ? y : x);
                double angle = place * pow(10000, -(double)(i % quarter) / (double)quarter);
                table[i] = (float)cos(angle);
                table[half + i] = (float)sin(angle);
            }
}
