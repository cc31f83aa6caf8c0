/* SPDX-License-Identifier: MIT */
/* Gradient of the picture to token columns (row, column, channel); dropped channels get 0. */
#include "cuda_common.cuh"

template <typename T>
__global__ void unpatchify_gradient_kernel(const float *dx, T *dtokens, int64_t count, int channels,
                                           int height, int width, int patch, int head_channels)
{
    const int grid_width = width / patch, places = height / patch * grid_width;
    NL_GRID_LOOP(i, count)
    {
        const int c = i % head_channels, at = i / head_channels % (patch * patch);
        const int64_t token = i / head_channels / (patch * patch), image = token / places;
        const int place = token % places;
        const int row = place / grid_width * patch + at / patch,
                  column = place % grid_width * patch + at % patch;
        nl_put(dtokens + i,
               c < channels ? dx[((image * channels + c) * height + row) * width + column] : 0.f);
    }
}

extern "C" nl_status nl_cuda_unpatchify_backward(nl_device *device,
                                                 const nl_unpatchify_backward_args *a)
{
    const int64_t count = nl_tensor_count(&a->dtokens);
    if (count > 0)
        NL_FOR_TYPE(a->dtokens, T, {
            unpatchify_gradient_kernel<T>
                <<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                    (const float *)a->dx.data, (T *)a->dtokens.data, count, (int)a->dx.shape[1],
                    (int)a->dx.shape[2], (int)a->dx.shape[3], (int)a->patch, (int)a->head_channels);
        });
    return NL_CUDA_LAUNCHED(device, "unpatchify_backward");
}
