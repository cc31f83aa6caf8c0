#include "nl_cpu.h"
#include "vector_math.h"

/* Elements handled together: small enough for the cache, large enough to hide the loop. */
enum { BLOCK = 4096 };

static void activate_block(nl_activation activation, const float *x, int64_t count, float *y)
{
    switch (activation) {
    case NL_ACT_NONE:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i];
        break;
    case NL_ACT_RELU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] < 0 ? 0 : x[i]; /* NaN stays */
        break;
    case NL_ACT_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_silu(x[i]);
        break;
    case NL_ACT_SOFT_CLAMP:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = 3.0f * nlv_tanh(x[i] * (1.0f / 3));
        break;
    case NL_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_gelu_tanh(x[i]);
        break;
    }
}

nl_status NL_CPU(activate)(nl_device *device, const nl_activate_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data;
    float *y = args->y.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i += BLOCK)
        activate_block(args->activation, x + i, NL_MIN(BLOCK, count - i), y + i);
    return NL_OK;
}
