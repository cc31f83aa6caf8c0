/* SPDX-License-Identifier: MIT */
/* Gradients of the gated LayerNorm, and its output once more. */
#include "layernorm.h"
#include "nl_cpu.h"
#include "slope.h"

enum { CHUNK = 64 /* rows whose sums over rows are one after the other */ };

/* One row: y = (n weight + bias) SiLU(g), n the normalised x. Its parts of dweight and dbias are added to
 * sums [2, D]; daffine [D] is room for dy SiLU(g). dx may be dy and y may be x. */
static void backward_row(const nl_layernorm_gate_backward_args *args, int64_t row,
                         float *restrict sums, float *restrict daffine)
{
    int64_t size = args->x.shape[1];
    const float *x = nl_cpu_row(&args->x, row), *dy = nl_cpu_row(&args->dy, row);
    const float *weight = args->weight.data, *bias = args->bias.data;
    const float *g = args->g.data ? nl_cpu_row(&args->g, row) : NULL;
    float *dx = nl_cpu_row_out(&args->dx, row);
    float *y = args->y.data ? nl_cpu_row_out(&args->y, row) : NULL;
    float sum = 0, product = 0;
    nl_moments m = nl_row_moments(x, size, args->eps);
    if (g) {
        float *dg = nl_cpu_row_out(&args->dg, row);
#pragma omp simd
        for (int64_t i = 0; i < size; i++) {
            float affine = ((x[i] - m.center) * m.scale + m.offset) * weight[i] + bias[i];
            dg[i] = dy[i] * affine * nlv_silu_slope(g[i]);
            daffine[i] = dy[i] * nlv_silu(g[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            daffine[i] = dy[i];
    }
#pragma omp simd reduction(+ : sum, product)
    for (int64_t i = 0; i < size; i++) {
        float normal = (x[i] - m.center) * m.scale + m.offset;
        sum += daffine[i] * weight[i];
        product += daffine[i] * weight[i] * normal;
        sums[i] += daffine[i] * normal;
        sums[size + i] += daffine[i];
    }
    sum /= (float)size;
    product /= (float)size;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        float normal = (x[i] - m.center) * m.scale + m.offset;
        dx[i] = (daffine[i] * weight[i] - sum - normal * product) * m.scale;
    }
    if (y && g) {
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] =
                (((x[i] - m.center) * m.scale + m.offset) * weight[i] + bias[i]) * nlv_silu(g[i]);
    } else if (y) {
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] = ((x[i] - m.center) * m.scale + m.offset) * weight[i] + bias[i];
    }
}

/* x, g, dy [M, D]; weight, bias [D] -> dx, dg, y [M, D]; dweight, dbias [D] are added to */
nl_status NL_CPU(layernorm_gate_backward)(nl_device *device,
                                          const nl_layernorm_gate_backward_args *args)
{
    int64_t rows = args->x.shape[0], size = args->x.shape[1];
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    int team = nl_cpu_team(device, rows * size);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, (2 * chunks + team) * size * (int64_t)sizeof(float), &scratch));
    float *sums = scratch, *room = sums + 2 * chunks * size;
    float *dweight = args->dweight.data, *dbias = args->dbias.data;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        float *own = sums + chunk * 2 * size;
        for (int64_t i = 0; i < 2 * size; i++)
            own[i] = 0;
        for (int64_t row = chunk * CHUNK; row < NL_MIN((chunk + 1) * CHUNK, rows); row++)
            backward_row(args, row, own, room + omp_get_thread_num() * size);
    }
    /* dbias follows dweight in a chunk's sums */
    for (int64_t chunk = 1; chunk < chunks; chunk++)
#pragma omp simd
        for (int64_t i = 0; i < 2 * size; i++)
            sums[i] += sums[chunk * 2 * size + i];
    for (int64_t i = 0; i < size; i++) {
        dweight[i] += sums[i];
        dbias[i] += sums[size + i];
    }
    if (args->dg_sums.data)
        NL_CPU(column_sums)(device, &args->dg, size, args->dg_sums.data);
    return NL_OK;
}
