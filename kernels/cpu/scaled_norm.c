/* SPDX-License-Identifier: MIT */
/* The error norm of each image that dopri5 controls its step by. */
#include "nl_cpu.h"

#include <math.h>

/* The sum of squares of one image, in double. */
static double squares(const nl_scaled_norm_args *args, int64_t first, int64_t size)
{
    const float *x = (const float *)args->x.data + first, *a = (const float *)args->a.data + first;
    const float *b = args->b.data ? (const float *)args->b.data + first : a;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) {
        float largest = fabsf(a[i]) > fabsf(b[i]) ? fabsf(a[i]) : fabsf(b[i]);
        double ratio = x[i] / (args->atol + args->rtol * largest);
        sum += ratio * ratio;
    }
    return sum;
}

/* x, a, b [B, ...] -> rms [B] */
nl_status NL_CPU(scaled_norm)(nl_device *device, const nl_scaled_norm_args *args)
{
    int64_t images = args->x.shape[0], size = nl_tensor_count(&args->x) / images;
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size)) schedule(static)
    for (int64_t image = 0; image < images; image++)
        args->rms[image] = sqrt(squares(args, image * size, size) / (double)size);
    return NL_OK;
}
