/* SPDX-License-Identifier: MIT */
/* LayerNorm with weight and bias, times SiLU(g): what follows NaLa attention. */
#include "layernorm.h"
#include "nl_cpu.h"
#include "vector_math.h"

/* x [M, D], weight and bias [D], g [M, D] or left out -> y [M, D] */
nl_status NL_CPU(layernorm_gate)(nl_device *device, const nl_layernorm_gate_args *args)
{
    int64_t rows = args->x.shape[0], size = args->x.shape[1];
    const float *weight = args->weight.data, *bias = args->bias.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *x = nl_cpu_row(&args->x, row);
        float *y = nl_cpu_row_out(&args->y, row);
        nl_moments m = nl_row_moments(x, size, args->eps);
        if (args->g.data) {
            const float *g = nl_cpu_row(&args->g, row);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                y[i] = (((x[i] - m.center) * m.scale + m.offset) * weight[i] + bias[i]) *
                       nlv_silu(g[i]);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                y[i] = ((x[i] - m.center) * m.scale + m.offset) * weight[i] + bias[i];
        }
    }
    return NL_OK;
}
