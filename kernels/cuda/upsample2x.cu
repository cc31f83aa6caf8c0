/* SPDX-License-Identifier: MIT */
/* Nearest neighbour, twice as high and wide, NHWC. */
#include "cuda_common.cuh"

/* V is what a thread copies: 16 bytes where channels allow it. */
template <typename V>
__global__ void upsample_kernel(const V *x, V *y, int64_t count, int channels, int height,
                                int width)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t pixel = i / channels;
        const int column = pixel % (2 * width), row = pixel / (2 * width) % (2 * height);
        const int64_t image = pixel / (4 * (int64_t)width * height);
        y[i] = x[((image * height + row / 2) * width + column / 2) * channels + c];
    }
}

extern "C" nl_status nl_cuda_upsample2x(nl_device *device, const nl_upsample2x_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t count = nl_tensor_count(&a->y), channels = a->x.shape[3];
    const int per_vector = 16 / nl_dtype_size(a->x.dtype), height = (int)a->x.shape[1],
              width = (int)a->x.shape[2];
    if (count > 0 && channels % per_vector == 0)
        upsample_kernel<uint4><<<nl_blocks(count / per_vector, 256), 256, 0, stream>>>(
            (const uint4 *)a->x.data, (uint4 *)a->y.data, count / per_vector,
            (int)channels / per_vector, height, width);
    else if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            upsample_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
                (const T *)a->x.data, (T *)a->y.data, count, (int)channels, height, width);
        });
    return NL_CUDA_LAUNCHED(device, "upsample2x");
}
