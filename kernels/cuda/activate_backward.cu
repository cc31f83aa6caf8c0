/* SPDX-License-Identifier: MIT */
/* dx = dy activation'(x). */
#include "cuda_common.cuh"

template <typename T> __device__ __forceinline__ float derivative(float x, nl_activation activation)
{
    switch (activation) {
    case NL_ACT_RELU:
        return x > 0.f ? 1.f : 0.f;
    case NL_ACT_SILU:
        return nl_silu_derivative(x);
    case NL_ACT_SOFT_CLAMP: {
        const float t = tanhf(x / 3.f);
        return 1.f - t * t;
    }
    case NL_ACT_GELU_TANH:
        return nl_gelu_derivative<T>(x);
    default:
        return 1.f;
    }
}

template <typename T>
__global__ void activate_gradient_kernel(const T *x, const T *dy, T *dx, int64_t count,
                                         nl_activation activation)
{
    NL_GRID_LOOP(i, count)
    nl_put(dx + i, nl_get(dy + i) * derivative<T>(nl_get(x + i), activation));
}

extern "C" nl_status nl_cuda_activate_backward(nl_device *device,
                                               const nl_activate_backward_args *a)
{
    const int64_t count = nl_tensor_count(&a->x);
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            activate_gradient_kernel<T>
                <<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                    (const T *)a->x.data, (const T *)a->dy.data, (T *)a->dx.data, count,
                    a->activation);
        });
    return NL_CUDA_LAUNCHED(device, "activate_backward");
}
