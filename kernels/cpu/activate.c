/* SPDX-License-Identifier: MIT */
/* An activation function over all elements. */
#include "activation.h"
#include "nl_cpu.h"

/* Elements handled together: small enough for the cache, large enough to hide the loop. */
enum { BLOCK = 4096 };

nl_status NL_CPU(activate)(nl_device *device, const nl_activate_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data;
    float *y = args->y.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i += BLOCK)
        nl_apply_activation(args->activation, x + i, NL_MIN(BLOCK, count - i), y + i);
    return NL_OK;
}
