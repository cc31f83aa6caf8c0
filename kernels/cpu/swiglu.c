/* SPDX-License-Identifier: MIT */
/* swiglu and its gradients. */
#include "nl_cpu.h"
#include "slope.h"

/* x [M, 2K] -> y [M, K] */
nl_status NL_CPU(swiglu)(nl_device *device, const nl_swiglu_args *args)
{
    int64_t rows = args->y.shape[0], size = args->y.shape[1];
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size * 4)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *x1 = nl_cpu_row(&args->x, row), *x2 = x1 + size;
        float *y = nl_cpu_row_out(&args->y, row);
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] = nlv_silu(x1[i]) * x2[i];
    }
    return NL_OK;
}

/* x [M, 2K], dy [M, K] -> dx [M, 2K], y [M, K] */
nl_status NL_CPU(swiglu_backward)(nl_device *device, const nl_swiglu_backward_args *args)
{
    int64_t rows = args->dy.shape[0], size = args->dy.shape[1];
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size * 4)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *x1 = nl_cpu_row(&args->x, row), *x2 = x1 + size;
        const float *dy = nl_cpu_row(&args->dy, row);
        float *dx1 = nl_cpu_row_out(&args->dx, row), *dx2 = dx1 + size;
#pragma omp simd
        for (int64_t i = 0; i < size; i++) {
            dx1[i] = dy[i] * x2[i] * nlv_silu_slope(x1[i]);
            dx2[i] = dy[i] * nlv_silu(x1[i]);
        }
        if (!args->y.data)
            continue;
        float *y = nl_cpu_row_out(&args->y, row); /* dy may lie there: it is used up */
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] = nlv_silu(x1[i]) * x2[i];
    }
    return NL_OK;
}
