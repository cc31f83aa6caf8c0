/* SPDX-License-Identifier: MIT */
/* rope, which is its own gradient the other way round. */
#include "nl_cpu.h"

/* x [B T, n d] in place, table [T, d] */
nl_status NL_CPU(rope)(nl_device *device, const nl_rope_args *args)
{
    int64_t rows = args->x.shape[0], columns = args->x.shape[1];
    int64_t tokens = args->table.shape[0], size = args->table.shape[1], half = size / 2;
    float sign = args->back ? -1 : 1;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *cosines = nl_cpu_row(&args->table, row % tokens), *sines = cosines + half;
        for (int64_t first = 0; first < columns; first += size) {
            float *x = nl_cpu_row_out(&args->x, row) + first;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = x[2 * i], b = x[2 * i + 1], s = sines[i] * sign;
                x[2 * i] = a * cosines[i] - b * s;
                x[2 * i + 1] = b * cosines[i] + a * s;
            }
        }
    }
    return NL_OK;
}
