/* SPDX-License-Identifier: MIT */
/* An activation function over all elements. */
#include "activation.h"
#include "nl_cpu.h"
#include "vector_math.h"

/* Elements handled together: small enough for the cache, large enough to hide the loop. */
enum { BLOCK = 4096 };

static void activate_half(nl_activation activation, const uint16_t *x, int64_t count, uint16_t *y)
{
    float values[BLOCK];
    nl_from_bf16(x, count, values);
    nl_apply_activation(activation, values, count, values);
    nl_to_bf16(values, count, y);
}

nl_status NL_CPU(activate)(nl_device *device, const nl_activate_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    bool half = args->x.dtype == NL_BF16;
    const void *x = args->x.data;
    void *y = args->y.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t size = NL_MIN(BLOCK, count - i);
        if (half)
            activate_half(args->activation, (const uint16_t *)x + i, size, (uint16_t *)y + i);
        else
            nl_apply_activation(args->activation, (const float *)x + i, size, (float *)y + i);
    }
    return NL_OK;
}
