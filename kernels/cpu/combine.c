/* SPDX-License-Identifier: MIT */
/* Linear combinations of states: every update of a transport sampler. */
#include "nl_cpu.h"

enum { BLOCK = 1024 };

/* y [count] from elements [first, first + count) of the terms of `image`. */
static void combine_block(const nl_combine_args *args, int64_t image, int64_t first, int64_t count)
{
    float sum[BLOCK] = {0}; /* y may be one of the x */
    for (int term = 0; term < args->terms; term++) {
        const float *x = (const float *)args->x[term].data + first;
        float factor =
            (float)args->coefficients[args->per_image ? term * args->y.shape[0] + image : term];
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] += factor * x[i];
    }
    float *y = (float *)args->y.data + first;
    for (int64_t i = 0; i < count; i++)
        y[i] = sum[i];
}

/* x[terms] [B, ...] -> y [B, ...] */
nl_status NL_CPU(combine)(nl_device *device, const nl_combine_args *args)
{
    int64_t images = args->y.shape[0], size = nl_tensor_count(&args->y) / images;
    int64_t blocks = (size + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size)) schedule(static)
    for (int64_t i = 0; i < images * blocks; i++) {
        int64_t first = i % blocks * BLOCK;
        combine_block(args, i / blocks, i / blocks * size + first, NL_MIN(BLOCK, size - first));
    }
    return NL_OK;
}
