/* out += depthwise convolution over the token grid; one thread an element, neighbours through the cache. */
#include "cuda_common.cuh"

template <typename T>
__global__ void depthwise_kernel(const T *x, int64_t x_stride, const float *weight,
                                 const float *bias, T *out, int64_t count, int channels, int height,
                                 int width, int kernel)
{
    const int radius = kernel / 2;
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t token = i / channels, image = token / (height * width);
        const int row = token / width % height, column = token % width;
        float sum = bias[c];
        for (int dy = -radius; dy <= radius; dy++)
            for (int dx = -radius; dx <= radius; dx++) {
                const int y = row + dy, z = column + dx;
                if (y >= 0 && y < height && z >= 0 && z < width)
                    sum = fmaf(weight[(c * kernel + dy + radius) * kernel + dx + radius],
                               nl_get(x + ((image * height + y) * width + z) * x_stride + c), sum);
            }
        nl_put(out + i, nl_get(out + i) + sum);
    }
}

extern "C" nl_status nl_cuda_depthwise_conv(nl_device *device, const nl_depthwise_conv_args *a)
{
    const int64_t count = nl_tensor_count(&a->out);
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            depthwise_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, a->x.row_stride, (const float *)a->weight.data,
                (const float *)a->bias.data, (T *)a->out.data, count, (int)a->out.shape[1],
                (int)a->grid_height, (int)a->grid_width, (int)a->weight.shape[2]);
        });
    return NL_CUDA_LAUNCHED(device, "depthwise_conv");
}
