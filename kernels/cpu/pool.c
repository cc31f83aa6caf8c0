/* SPDX-License-Identifier: MIT */
/* Maximum and average pooling, windows cut off at the border. */
#include "nl_cpu.h"

#include <math.h>

/* One output pixel y [C] from the part of its window that lies within the picture. */
static void pool_pixel(const nl_pool_args *args, int64_t image, int64_t row, int64_t column,
                       float *restrict y)
{
    const int64_t *shape = args->x.shape; /* B, H, W, C */
    bool maximum = args->kind == NL_POOL_MAX;
    int64_t top = row * args->stride - args->pad, left = column * args->stride - args->pad;
    int64_t count = 0;
    for (int64_t c = 0; c < shape[3]; c++)
        y[c] = maximum ? -INFINITY : 0;
    for (int64_t u = NL_MAX(top, 0); u < NL_MIN(top + args->kernel, shape[1]); u++)
        for (int64_t v = NL_MAX(left, 0); v < NL_MIN(left + args->kernel, shape[2]); v++, count++) {
            const float *x = nl_cpu_row(&args->x, (image * shape[1] + u) * shape[2] + v);
            if (maximum) {
#pragma omp simd
                for (int64_t c = 0; c < shape[3]; c++)
                    y[c] = x[c] <= y[c] ? y[c] : x[c] == x[c] ? (y[c] == y[c] ? x[c] : y[c]) : x[c];
            } else {
#pragma omp simd
                for (int64_t c = 0; c < shape[3]; c++)
                    y[c] += x[c];
            }
        }
    if (!maximum)
        for (int64_t c = 0; c < shape[3]; c++)
            y[c] /= (float)count;
    for (int64_t c = 0; args->relu && c < shape[3]; c++)
        y[c] = y[c] < 0 ? 0 : y[c];
}

/* x [B, H, W, C] -> y [B, H', W', C] */
nl_status NL_CPU(pool)(nl_device *device, const nl_pool_args *args)
{
    const int64_t *shape = args->y.shape;
    int64_t pixels = shape[0] * shape[1] * shape[2];
    int64_t work = pixels * shape[3] * args->kernel * args->kernel;
#pragma omp parallel for num_threads(nl_cpu_team(device, work)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        pool_pixel(args, pixel / (shape[1] * shape[2]), pixel / shape[2] % shape[1],
                   pixel % shape[2], nl_cpu_row_out(&args->y, pixel));
    return NL_OK;
}
