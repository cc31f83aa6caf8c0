/* Max and average pooling, NHWC; padding takes no part. */
#include "cuda_common.cuh"

template <typename T>
__global__ void pool_kernel(const T *x, T *y, int64_t y_stride, int64_t count, int channels,
                            int height, int width, int out_height, int out_width, nl_pool kind,
                            int kernel, int stride, int pad)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t pixel = i / channels, image = pixel / ((int64_t)out_height * out_width);
        const int top = pixel / out_width % out_height * stride - pad,
                  left = pixel % out_width * stride - pad;
        float sum = 0.f, most = -INFINITY;
        int taken = 0;
        for (int row = max(top, 0); row < min(top + kernel, height); row++)
            for (int column = max(left, 0); column < min(left + kernel, width); column++) {
                const float v =
                    nl_get(x + ((image * height + row) * width + column) * channels + c);
                sum += v, most = v > most || v != v ? v : most, taken++;
            }
        nl_put(y + pixel * y_stride + c, kind == NL_POOL_MAX ? most : sum / taken);
    }
}

extern "C" nl_status nl_cuda_pool(nl_device *device, const nl_pool_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            pool_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, (T *)a->y.data, a->y.row_stride, count, (int)a->x.shape[3],
                (int)a->x.shape[1], (int)a->x.shape[2], (int)a->y.shape[1], (int)a->y.shape[2],
                a->kind, a->kernel, a->stride, a->pad);
        });
    return NL_CUDA_LAUNCHED(device, "pool");
}
