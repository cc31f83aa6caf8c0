/* SPDX-License-Identifier: MIT */
/* x_t = a data + b noise, coefficients by image. */
#include "cuda_common.cuh"

__global__ void diffuse_kernel(const float *data, const float *noise, const float *coefficients,
                               float *y, int64_t count, int64_t size)
{
    NL_GRID_LOOP(i, count)
    {
        const float *c = coefficients + i / size * NL_LOSS_COLUMNS;
        y[i] = fmaf(c[NL_LOSS_DATA], data[i], c[NL_LOSS_NOISE] * noise[i]);
    }
}

extern "C" nl_status nl_cuda_diffuse(nl_device *device, const nl_diffuse_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        diffuse_kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            (const float *)a->data.data, (const float *)a->noise.data,
            (const float *)a->coefficients.data, (float *)a->y.data, count, count / a->y.shape[0]);
    return NL_CUDA_LAUNCHED(device, "diffuse");
}
