/* SPDX-License-Identifier: MIT */
/* Floats to bytes of a picture. */
#include "nl_cpu.h"

/* Rounded like the public code: product and sum each in fp32 (no fused multiply-add), clamped,
 * truncated. NaN becomes 0. */
nl_status NL_CPU(to_uint8)(nl_device *device, const nl_to_uint8_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data;
    uint8_t *y = args->y.data;
    float scale = args->scale, shift = args->shift;
#pragma omp parallel for simd num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float value = scale * x[i] + shift;
        value = value > 0 ? value : 0;
        y[i] = (uint8_t)(int)(value < 255 ? value : 255);
    }
    return NL_OK;
}
