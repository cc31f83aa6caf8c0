/* SPDX-License-Identifier: MIT */
/* What the data set holds -> latents: y = scale x + shift, or a sample of N(mean, exp(log variance)). */
#include <cuda_fp16.h>

#include "cuda_common.cuh"

__device__ __forceinline__ float element(const void *x, nl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case NL_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
    case NL_F16:
        return __half2float(((const __half *)x)[i]);
    case NL_U8:
        return ((const uint8_t *)x)[i];
    default:
        return ((const float *)x)[i];
    }
}

/* size: elements of an image of y */
__global__ void latents_kernel(const void *x, nl_dtype dtype, const float *noise, float *y,
                               int64_t count, int64_t size, bool moments, float scale, float shift)
{
    NL_GRID_LOOP(i, count)
    {
        const int64_t at = moments ? i / size * 2 * size + i % size : i;
        float value = element(x, dtype, at);
        if (moments)
            value = fmaf(expf(0.5f * element(x, dtype, at + size)), noise[i], value);
        y[i] = fmaf(scale, value, shift);
    }
}

extern "C" nl_status nl_cuda_latents(nl_device *device, const nl_latents_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        latents_kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            a->x.data, a->x.dtype, (const float *)a->noise.data, (float *)a->y.data, count,
            count / a->y.shape[0], a->x.shape[1] != a->y.shape[1], a->scale, a->shift);
    return NL_CUDA_LAUNCHED(device, "latents");
}
