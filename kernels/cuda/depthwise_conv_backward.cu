/* Gradients of depthwise_conv: dx += dout convolved with the turned kernel; dW and db in parts of one image each. */
#include "column_sums.cuh"

enum { TAPS = 8, THREADS = 64 };

struct grid_shape {
    int channels, height, width, kernel;
    int64_t x_stride, dx_stride, images;
};

template <typename T>
__global__ void input_kernel(const grid_shape s, const float *weight, const T *dout, T *dx)
{
    const int radius = s.kernel / 2;
    NL_GRID_LOOP(i, s.images * s.height * s.width * s.channels)
    {
        const int c = i % s.channels;
        const int64_t token = i / s.channels, image = token / (s.height * s.width);
        const int row = token / s.width % s.height, column = token % s.width;
        float sum = 0.f;
        for (int dy = -radius; dy <= radius; dy++)
            for (int dx_ = -radius; dx_ <= radius; dx_++) {
                const int y = row - dy,
                          z = column - dx_; /* where this token was read at (dy, dx) */
                if (y >= 0 && y < s.height && z >= 0 && z < s.width)
                    sum =
                        fmaf(weight[(c * s.kernel + dy + radius) * s.kernel + dx_ + radius],
                             nl_get(dout + ((image * s.height + y) * s.width + z) * s.channels + c),
                             sum);
            }
        T *to = dx + token * s.dx_stride + c;
        nl_put(to, nl_get(to) + sum);
    }
}

/* A thread has one channel and TAPS taps of one image; parts [images, channels (k k + 1)].
 * grid (images, channels / THREADS, k k / TAPS) */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    weight_kernel(const grid_shape s, const T *x, const T *dout, float *parts)
{
    const int c = blockIdx.y * THREADS + threadIdx.x, first = blockIdx.z * TAPS;
    const int radius = s.kernel / 2, taps = s.kernel * s.kernel;
    const int64_t image = blockIdx.x * (int64_t)s.height * s.width;
    if (c >= s.channels)
        return;
    float sum[TAPS] = {}, bias = 0.f;
    for (int row = 0; row < s.height; row++)
        for (int column = 0; column < s.width; column++) {
            const float g = nl_get(dout + (image + row * s.width + column) * s.channels + c);
            bias += g;
#pragma unroll
            for (int i = 0; i < TAPS; i++) {
                const int tap = first + i, y = row + tap / s.kernel - radius,
                          z = column + tap % s.kernel - radius;
                if (tap < taps && y >= 0 && y < s.height && z >= 0 && z < s.width)
                    sum[i] =
                        fmaf(g, nl_get(x + (image + y * s.width + z) * s.x_stride + c), sum[i]);
            }
        }
    float *part = parts + blockIdx.x * (int64_t)s.channels * (taps + 1);
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        if (first + i < taps)
            part[c * taps + first + i] = sum[i];
    if (first == 0)
        part[s.channels * taps + c] = bias;
}

extern "C" nl_status nl_cuda_depthwise_conv_backward(nl_device *device,
                                                     const nl_depthwise_conv_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    grid_shape s = {};
    s.channels = (int)a->dout.shape[1], s.kernel = (int)a->weight.shape[3];
    s.height = (int)a->grid_height, s.width = (int)a->grid_width, s.images = a->batch;
    s.x_stride = a->x.row_stride, s.dx_stride = a->dx.row_stride;
    const int64_t count = nl_tensor_count(&a->dout), taps = s.kernel * s.kernel;
    const int64_t columns = s.channels * (taps + 1);
    if (count == 0)
        return NL_OK;
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of a convolution", s.images * columns * 4, &scratch);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->dout, T, {
        input_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
            s, (const float *)a->weight.data, (const T *)a->dout.data, (T *)a->dx.data);
        weight_kernel<T>
            <<<dim3((unsigned)s.images, nl_blocks(s.channels, THREADS), nl_blocks(taps, TAPS)),
               THREADS, 0, stream>>>(s, (const T *)a->x.data, (const T *)a->dout.data,
                                     (float *)scratch);
    });
    const float *sums = (const float *)scratch;
    nl_cuda_add_parts(stream, sums, s.images, columns, s.channels * taps, (float *)a->dweight.data);
    nl_cuda_add_parts(stream, sums + s.channels * taps, s.images, columns, s.channels,
                      (float *)a->dbias.data);
    return NL_CUDA_LAUNCHED(device, "depthwise_conv_backward");
}
