/* Max and average pooling, NHWC; padding takes no part. */
#include "image_types.cuh"

struct pool_shape {
    int channels, height, width, out_height, out_width, kernel, stride, pad;
    int64_t y_stride; /* between pixels */
};

/* A thread for V channels of an output pixel. */
template <int V, bool MAX, typename X, typename Y>
__global__ void pool_kernel(const X *x, Y *y, int64_t count, pool_shape p)
{
    const int parts = p.channels / V;
    NL_GRID_LOOP(i, count)
    {
        const int64_t pixel = i / parts;
        const int c = (int)(i - pixel * parts) * V;
        const int64_t line = pixel / p.out_width, image = line / p.out_height;
        const int top = (int)(line - image * p.out_height) * p.stride - p.pad,
                  left = (int)(pixel - line * p.out_width) * p.stride - p.pad;
        const int first = max(left, 0), last = min(left + p.kernel, p.width);
        float v[V], total[V];
        int taken = 0;
#pragma unroll
        for (int j = 0; j < V; j++)
            total[j] = MAX ? -INFINITY : 0.f;
        for (int row = max(top, 0); row < min(top + p.kernel, p.height); row++) {
            const X *from = x + ((image * p.height + row) * p.width + first) * p.channels + c;
            for (int column = first; column < last; column++, from += p.channels) {
                nl_load(from, v);
#pragma unroll
                for (int j = 0; j < V; j++)
                    if (MAX)
                        total[j] = v[j] > total[j] || v[j] != v[j] ? v[j] : total[j];
                    else
                        total[j] += v[j];
                taken++;
            }
        }
        if (!MAX)
#pragma unroll
            for (int j = 0; j < V; j++)
                total[j] /= taken;
        nl_store(y + pixel * p.y_stride + c, total);
    }
}

/* The average of a whole picture: a block for 32 channels of an image, a warp for every 32nd pixel; the warps' sums are
 * added in their order. */
enum { MEAN_WARPS = 32 };
template <typename X, typename Y>
__global__ void __launch_bounds__(32 * MEAN_WARPS)
    mean_kernel(const X *x, Y *y, int64_t y_stride, int channels, int pixels)
{
    __shared__ float sums[MEAN_WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    const X *from = x + (int64_t)blockIdx.y * pixels * channels + c;
    float sum = 0.f;
    if (c < channels)
#pragma unroll 4
        for (int pixel = warp; pixel < pixels; pixel += MEAN_WARPS)
            sum += nl_get(from + (int64_t)pixel * channels);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= channels)
        return;
    for (int i = 1; i < MEAN_WARPS; i++)
        sum += sums[i][lane];
    nl_put(y + blockIdx.y * y_stride + c, sum / pixels);
}

static bool by_eights(const nl_tensor *t)
{
    return t->shape[3] % 8 == 0 && t->row_stride % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

template <typename X, typename Y>
static void run(const nl_pool_args *a, const pool_shape &p, cudaStream_t stream)
{
    if (a->kind == NL_POOL_AVERAGE && p.out_height == 1 && p.out_width == 1 && p.pad == 0 &&
        p.kernel == p.height && p.kernel == p.width) {
        const dim3 grid((unsigned)(p.channels + 31) / 32, (unsigned)a->x.shape[0]);
        mean_kernel<<<grid, 32 * MEAN_WARPS, 0, stream>>>(
            (const X *)a->x.data, (Y *)a->y.data, p.y_stride, p.channels, p.height * p.width);
        return;
    }
    const bool eights = by_eights(&a->x) && by_eights(&a->y), max = a->kind == NL_POOL_MAX;
    const int64_t count = nl_tensor_count(&a->y) / (eights ? 8 : 1);
    auto kernel = eights ? max ? pool_kernel<8, true, X, Y> : pool_kernel<8, false, X, Y>
                  : max ? pool_kernel<1, true, X, Y>
                         : pool_kernel<1, false, X, Y>;
    kernel<<<nl_blocks(count, 256), 256, 0, stream>>>((const X *)a->x.data, (Y *)a->y.data, count,
                                                      p);
}

extern "C" nl_status nl_cuda_pool(nl_device *device, const nl_pool_args *a)
{
    const pool_shape p = {
        (int)a->x.shape[3], (int)a->x.shape[1], (int)a->x.shape[2], (int)a->y.shape[1],
        (int)a->y.shape[2], a->kernel,          a->stride,          a->pad,
        a->y.row_stride};
    if (nl_tensor_count(&a->y) > 0)
        NL_FOR_IMAGE_TYPE(
            a->x, X, NL_FOR_IMAGE_TYPE(a->y, Y, (run<X, Y>(a, p, nl_cuda_of(device)->stream))));
    return NL_CUDA_LAUNCHED(device, "pool");
}
