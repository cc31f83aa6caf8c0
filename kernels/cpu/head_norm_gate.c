/* SPDX-License-Identifier: MIT */
/* head_norm_gate and its gradients. */
#include <math.h>
#include <string.h>

#include "nl_cpu.h"
#include "rows.h"
#include "slope.h"

/* Rows whose gradients by the weights are summed one after the other. */
enum { CHUNK = 64 };

NL_ONE_COPY float inverse_rms(const float *x, int64_t size, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)size + eps);
}

/* x, g [M, h d], weight [d] -> y [M, h d] */
nl_status NL_CPU(head_norm_gate)(nl_device *device, const nl_head_norm_gate_args *args)
{
    int64_t rows = args->x.shape[0], columns = args->x.shape[1], size = args->weight.shape[0];
    const float *weight = args->weight.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t first = 0; first < columns; first += size) {
            const float *x = nl_cpu_row(&args->x, row) + first;
            const float *g = nl_cpu_row(&args->g, row) + first;
            float *y = nl_cpu_row_out(&args->y, row) + first;
            float scale = inverse_rms(x, size, args->eps);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                y[i] = weight[i] * (scale * x[i]) * nlv_silu(g[i]);
        }
    return NL_OK;
}

/* One head: with n = scale x, dn = weight SiLU(g) dy: dx = scale (dn - n mean(dn n)); sums [d] += SiLU(g) dy n. y may be
 * NULL. */
NL_ONE_COPY void head_backward(const float *x, const float *weight, const float *g, const float *dy,
                               int64_t size, float eps, float *dx, float *restrict dg,
                               float *restrict y, float *restrict sums)
{
    float scale = inverse_rms(x, size, eps), product = 0;
#pragma omp simd reduction(+ : product)
    for (int64_t i = 0; i < size; i++) {
        float n = scale * x[i], silu = nlv_silu(g[i]), change = silu * dy[i] * n;
        sums[i] += change;
        product += change * weight[i];
        dg[i] = dy[i] * weight[i] * n * nlv_silu_slope(g[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < (y ? size : 0); i++)
        y[i] = weight[i] * (scale * x[i]) * nlv_silu(g[i]);
    product /= (float)size;
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        dx[i] = scale * (dy[i] * nlv_silu(g[i]) * weight[i] - scale * x[i] * product);
}

/* x, g, dy [M, h d], weight [d] -> dx, dg, y [M, h d]; dweight [d] is added to */
nl_status NL_CPU(head_norm_gate_backward)(nl_device *device,
                                          const nl_head_norm_gate_backward_args *args)
{
    int64_t rows = args->x.shape[0], columns = args->x.shape[1], size = args->weight.shape[0];
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    void *scratch;
    nl_status status = nl_cpu_scratch(device, chunks * size * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
    float *sums = scratch; /* [chunks, d] */
    memset(sums, 0, (size_t)(chunks * size) * sizeof(float));
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t row = chunk * CHUNK; row < NL_MIN((chunk + 1) * CHUNK, rows); row++)
            for (int64_t first = 0; first < columns; first += size)
                head_backward(nl_cpu_row(&args->x, row) + first, args->weight.data,
                              nl_cpu_row(&args->g, row) + first, nl_cpu_row(&args->dy, row) + first,
                              size, args->eps, nl_cpu_row_out(&args->dx, row) + first,
                              nl_cpu_row_out(&args->dg, row) + first,
                              args->y.data ? nl_cpu_row_out(&args->y, row) + first : NULL,
                              sums + chunk * size);
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t i = 0; i < size; i++)
            ((float *)args->dweight.data)[i] += sums[chunk * size + i];
    return status;
}
