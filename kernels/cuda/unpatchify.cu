/* SPDX-License-Identifier: MIT */
/* Token columns (row, column, channel) back to the picture. */
#include "cuda_common.cuh"

/* A thread takes the channels of one pixel, which lie together in its token. grid (pixels, images). */
template <typename T>
__global__ void unpatchify_kernel(const T *tokens, float *x, int channels, int height, int width,
                                  int patch, int head_channels)
{
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x, plane = height * width;
    if (pixel >= plane)
        return;
    const int row = pixel / width, column = pixel % width;
    const int token = row / patch * (width / patch) + column / patch;
    const int place = row % patch * patch + column % patch;
    const int64_t pixels = (int64_t)blockIdx.y * plane;
    const T *from = tokens + (pixels + (int64_t)token * patch * patch + place) * head_channels;
    float *to = x + pixels * channels + pixel;
    for (int c = 0; c < channels; c++)
        to[(int64_t)c * plane] = nl_get(from + c);
}

extern "C" nl_status nl_cuda_unpatchify(nl_device *device, const nl_unpatchify_args *a)
{
    const int batch = (int)a->x.shape[0], height = (int)a->x.shape[2], width = (int)a->x.shape[3];
    /* Images are the grid's second dimension, which ends at 65,535. */
    for (int first = 0; first < batch; first += 65535)
        NL_FOR_TYPE(a->tokens, T, {
            const int64_t pixels = (int64_t)first * height * width;
            unpatchify_kernel<T>
                <<<dim3(nl_blocks(height * width, 256), NL_MIN(batch - first, 65535)), 256, 0,
                   nl_cuda_of(device)->stream>>>(
                    (const T *)a->tokens.data + pixels * a->head_channels,
                    (float *)a->x.data + pixels * a->x.shape[1], (int)a->x.shape[1], height, width,
                    (int)a->patch, (int)a->head_channels);
        });
    return NL_CUDA_LAUNCHED(device, "unpatchify");
}
