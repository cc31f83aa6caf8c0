#include "nl_cpu.h"
#include "slope.h"

enum { BLOCK = 4096 };

/* dx [count] = dy times the slope at x; dx may be dy */
static void backward_block(nl_activation activation, const float *x, const float *dy, int64_t count,
                           float *dx)
{
    switch (activation) {
    case NL_ACT_NONE:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i];
        break;
    case NL_ACT_RELU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * (x[i] > 0 ? 1.0f : x[i] * 0.0f); /* NaN stays */
        break;
    case NL_ACT_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * nlv_silu_slope(x[i]);
        break;
    case NL_ACT_SOFT_CLAMP:
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float t = nlv_tanh(x[i] * (1.0f / 3));
            dx[i] = dy[i] * (1.0f - t * t);
        }
        break;
    case NL_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * nlv_gelu_tanh_slope(x[i]);
        break;
    }
}

nl_status NL_CPU(activate_backward)(nl_device *device, const nl_activate_backward_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data, *dy = args->dy.data;
    float *dx = args->dx.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i += BLOCK)
        backward_block(args->activation, x + i, dy + i, NL_MIN(BLOCK, count - i), dx + i);
    return NL_OK;
}
