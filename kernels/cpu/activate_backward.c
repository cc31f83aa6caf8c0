/* SPDX-License-Identifier: MIT */
/* The gradient of an activation function. */
#include "activation.h"
#include "nl_cpu.h"

enum { BLOCK = 4096 };

nl_status NL_CPU(activate_backward)(nl_device *device, const nl_activate_backward_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data, *dy = args->dy.data;
    float *dx = args->dx.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i += BLOCK)
        nl_apply_activation_slope(args->activation, x + i, dy + i, NL_MIN(BLOCK, count - i),
                                  dx + i);
    return NL_OK;
}
