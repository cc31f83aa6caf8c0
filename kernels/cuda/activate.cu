/* SPDX-License-Identifier: MIT */
/* Elementwise activations, eight elements a thread where the addresses allow it. */
#include "cuda_common.cuh"

template <typename T> __device__ __forceinline__ float activated(float v, nl_activation activation)
{
    switch (activation) {
    case NL_ACT_RELU:
        return v < 0.f ? 0.f : v; /* keeps NaN */
    case NL_ACT_SILU:
        return nl_silu(v);
    case NL_ACT_SOFT_CLAMP:
        return 3.f * tanhf(v / 3.f);
    case NL_ACT_GELU_TANH:
        return nl_gelu<T>(v);
    default:
        return v;
    }
}

template <typename T>
__global__ void activate_kernel(const T *x, T *y, int64_t count, nl_activation activation)
{
    NL_GRID_LOOP(i, count)
    nl_put(y + i, activated<T>(nl_get(x + i), activation));
}

template <typename T>
__global__ void activate_eights_kernel(const T *x, T *y, int64_t eights, nl_activation activation)
{
    NL_GRID_LOOP(i, eights)
    {
        float v[8];
        nl_load8(x + 8 * i, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = activated<T>(v[e], activation);
        nl_store8(y + 8 * i, v);
    }
}

extern "C" nl_status nl_cuda_activate(nl_device *device, const nl_activate_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t count = nl_tensor_count(&a->x);
    const bool eights = count % 8 == 0 && ((uintptr_t)a->x.data | (uintptr_t)a->y.data) % 16 == 0;
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            if (eights)
                activate_eights_kernel<T><<<nl_blocks(count / 8, 256), 256, 0, stream>>>(
                    (const T *)a->x.data, (T *)a->y.data, count / 8, a->activation);
            else
                activate_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
                    (const T *)a->x.data, (T *)a->y.data, count, a->activation);
        });
    return NL_CUDA_LAUNCHED(device, "activate");
}
