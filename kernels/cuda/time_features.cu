/* SPDX-License-Identifier: MIT */
/* [cos(t f_i) | sin(t f_i)], f_i = exp(-ln(10000) i / divisor): fp32 as the public code, so libdevice's exact functions. */
#include "cuda_common.cuh"

template <typename T>
__global__ void time_kernel(const float *t, T *features, int64_t count, int half, float divisor)
{
    NL_GRID_LOOP(i, count)
    {
        const int64_t image = i / half;
        const int k = i % half;
        const float angle = t[image] * expf(-9.210340371976184f * k / divisor);
        nl_put(features + image * 2 * half + k, cosf(angle));
        nl_put(features + image * 2 * half + half + k, sinf(angle));
    }
}

extern "C" nl_status nl_cuda_time_features(nl_device *device, const nl_time_features_args *a)
{
    const int half = (int)(a->features.shape[1] / 2);
    const int64_t count = a->t.shape[0] * half;
    const float divisor = a->divisor > 0 ? a->divisor : (float)half;
    if (count > 0)
        NL_FOR_TYPE(a->features, T, {
            time_kernel<T><<<nl_blocks(count, 128), 128, 0, nl_cuda_of(device)->stream>>>(
                (const float *)a->t.data, (T *)a->features.data, count, half, divisor);
        });
    return NL_CUDA_LAUNCHED(device, "time_features");
}
