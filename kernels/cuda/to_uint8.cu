/* SPDX-License-Identifier: MIT */
/* clamp(trunc(scale x + shift), 0, 255); NaN gives 0. */
#include "cuda_common.cuh"

template <typename T>
__global__ void uint8_kernel(const T *x, uint8_t *y, int64_t count, float scale, float shift)
{
    NL_GRID_LOOP(i, count)
    {
        const float v = __fadd_rn(__fmul_rn(scale, nl_get(x + i)), shift);
        y[i] = (uint8_t)fminf(fmaxf(v, 0.f), 255.f);
    }
}

extern "C" nl_status nl_cuda_to_uint8(nl_device *device, const nl_to_uint8_args *a)
{
    const int64_t count = nl_tensor_count(&a->x);
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            uint8_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, (uint8_t *)a->y.data, count, a->scale, a->shift);
        });
    return NL_CUDA_LAUNCHED(device, "to_uint8");
}
