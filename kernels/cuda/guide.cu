/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance: y = u + scale (c - u) in the guided channels, c in the others. fp32. */
#include "cuda_common.cuh"

__global__ void guide_kernel(const float *prediction, float *y, int64_t count, int64_t per_image,
                             int64_t guided, float scale)
{
    NL_GRID_LOOP(i, count)
    {
        const float c = prediction[i], u = prediction[count + i];
        y[i] = i % per_image < guided ? fmaf(scale, c - u, u) : c;
    }
}

extern "C" nl_status nl_cuda_guide(nl_device *device, const nl_guide_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        guide_kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            (const float *)a->prediction.data, (float *)a->y.data, count, count / a->y.shape[0],
            a->channels * (count / a->y.shape[0] / a->y.shape[1]), a->scale);
    return NL_CUDA_LAUNCHED(device, "guide");
}
