/* SPDX-License-Identifier: MIT */
/* The residual sum and the adaptive LayerNorm that follows it, in one pass. */
#include "f8.h"
#include "layernorm.h"

/* y [D] of a row by its root mean square; one copy for all rows, so that its sums have one order. */
__attribute__((noinline)) static void finish_rms(const nl_layernorm_modulate_args *args,
                                                 const float *x, const float *shift,
                                                 const float *scale, float *y)
{
    int64_t size = args->x.shape[1];
    const float *weight = args->weight.data;
    float factor = nl_row_rms(x, size, args->eps).scale;
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        y[i] = x[i] * factor * (weight[i] * (1.0f + scale[i])) + shift[i];
}

/* x, branch [M, D]; gate, shift, scale [M / rows_per_image, D] -> x or sum, y [M, D] */
nl_status NL_CPU(layernorm_modulate)(nl_device *device, const nl_layernorm_modulate_args *args)
{
    int64_t rows = args->x.shape[0], size = args->x.shape[1];
    float *room;
    nl_status status = nl_cpu_f8_room(device, &args->y, &room);
    if (status != NL_OK)
        return status;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t image = row / args->rows_per_image;
        const float *x = nl_cpu_row(&args->x, row);
        float *y = nl_cpu_row_before_f8(&args->y, row, room);
        const float *shift = nl_cpu_row(&args->shift, image);
        const float *scale = nl_cpu_row(&args->scale, image);
        if (args->branch.data) {
            const float *branch = nl_cpu_row(&args->branch, row);
            const float *gate = nl_cpu_row(&args->gate, image);
            float *sum = nl_cpu_row_out(args->sum.data ? &args->sum : &args->x, row);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                sum[i] = x[i] + gate[i] * branch[i];
            x = sum;
        }
        if (args->norm == NL_NORM_RMS) {
            finish_rms(args, x, shift, scale, y);
        } else {
            nl_moments m = nl_row_moments(x, size, args->eps);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                y[i] = ((x[i] - m.center) * m.scale + m.offset) * (1.0f + scale[i]) + shift[i];
        }
        if (room)
            nl_cpu_put_f8(&args->y, row, y);
    }
    return NL_OK;
}
