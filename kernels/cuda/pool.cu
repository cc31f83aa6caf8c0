/* SPDX-License-Identifier: MIT */
/* Max and average pooling, NHWC; padding takes no part. */
#include "cuda_common.cuh"

/* NaN where one of them is. */
__device__ __forceinline__ float nl_larger(float a, float b)
{
    return b > a || b != b ? b : a;
}

struct pool_shape {
    int channels, height, width, out_height, out_width, kernel, stride, pad;
    int64_t y_stride; /* between pixels */
    bool relu;
};

/* A block's row of the grid is a line of the output. A thread for V channels of `STRIP` pixels next to each other: what it
 * finds in a column of the input serves all of them. */
enum { STRIP = 4, THREADS = 256 };
template <int V, bool MAX, typename X, typename Y>
__global__ void __launch_bounds__(THREADS) pool_kernel(const X *x, Y *y, int lines, pool_shape p)
{
    const int parts = p.channels / V, strips = (p.out_width + STRIP - 1) / STRIP;
    const int i = blockIdx.x * THREADS + threadIdx.x, strip = i / parts,
              c = (i - strip * parts) * V;
    if (strip >= strips)
        return;
    const int out = strip * STRIP, left = out * p.stride - p.pad;
    const int end = min(left + (STRIP - 1) * p.stride + p.kernel, p.width);
    for (int line = blockIdx.y; line < lines; line += gridDim.y) {
        const int image = line / p.out_height;
        const int top = (line - image * p.out_height) * p.stride - p.pad;
        const int above = max(top, 0), below = min(top + p.kernel, p.height);
        float total[STRIP][V];
#pragma unroll
        for (int s = 0; s < STRIP; s++)
#pragma unroll
            for (int j = 0; j < V; j++)
                total[s][j] = MAX ? -INFINITY : 0.f;
        for (int column = max(left, 0); column < end; column++) {
            const X *from =
                x + (((int64_t)image * p.height + above) * p.width + column) * p.channels + c;
            float found[V], v[V];
            nl_load(from, found);
            for (int row = above + 1; row < below; row++) {
                from += (int64_t)p.width * p.channels;
                nl_load(from, v);
#pragma unroll
                for (int j = 0; j < V; j++)
                    found[j] = MAX ? nl_larger(found[j], v[j]) : found[j] + v[j];
            }
#pragma unroll
            for (int s = 0; s < STRIP; s++)
                if (column >= left + s * p.stride && column < left + s * p.stride + p.kernel)
#pragma unroll
                    for (int j = 0; j < V; j++)
                        total[s][j] =
                            MAX ? nl_larger(total[s][j], found[j]) : total[s][j] + found[j];
        }
#pragma unroll
        for (int s = 0; s < STRIP; s++) {
            const int first = left + s * p.stride;
            const int taken = (below - above) * (min(first + p.kernel, p.width) - max(first, 0));
            if (out + s >= p.out_width)
                break;
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (!MAX)
                    total[s][j] /= taken;
                if (p.relu)
                    total[s][j] = total[s][j] < 0.f ? 0.f : total[s][j];
            }
            nl_store(y + ((int64_t)line * p.out_width + out + s) * p.y_stride + c, total[s]);
        }
    }
}

/* The average of a whole picture. A block for up to 32 times V channels of an image; groups of its threads share the pixels,
 * and their sums are added in their order. */
enum { MEAN_THREADS = 1024 };
template <int V, typename X, typename Y>
__global__ void __launch_bounds__(MEAN_THREADS)
    mean_kernel(const X *x, Y *y, int64_t y_stride, int channels, int pixels, bool relu)
{
    __shared__ float sums[V][MEAN_THREADS];
    const int all = channels / V, parts = min(all, 32), groups = MEAN_THREADS / parts;
    const int group = threadIdx.x / parts, part = threadIdx.x - group * parts;
    const int at = blockIdx.x * parts + part;
    const bool inside = group < groups && at < all;
    const X *from = x + (int64_t)blockIdx.y * pixels * channels + at * V;
    float sum[V] = {}, v[V];
    if (inside)
#pragma unroll 4
        for (int pixel = group; pixel < pixels; pixel += groups) {
            nl_load(from + (int64_t)pixel * channels, v);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += v[j];
        }
#pragma unroll
    for (int j = 0; j < V; j++)
        sums[j][threadIdx.x] = sum[j];
    __syncthreads();
    if (!inside || group > 0)
        return;
#pragma unroll
    for (int j = 0; j < V; j++) {
        for (int g = 1; g < groups; g++)
            sum[j] += sums[j][g * parts + part];
        sum[j] /= pixels;
        sum[j] = relu && sum[j] < 0.f ? 0.f : sum[j];
    }
    nl_store(y + blockIdx.y * y_stride + at * V, sum);
}

static bool by_eights(const nl_tensor *t)
{
    return t->shape[3] % 8 == 0 && t->row_stride % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

template <typename X, typename Y>
static void run(const nl_pool_args *a, const pool_shape &p, cudaStream_t stream)
{
    const bool eights = by_eights(&a->x) && by_eights(&a->y), max = a->kind == NL_POOL_MAX;
    if (!max && p.out_height == 1 && p.out_width == 1 && p.pad == 0 && p.kernel == p.height &&
        p.kernel == p.width) {
        const int parts = p.channels / (eights ? 8 : 1);
        const dim3 grid((unsigned)(parts + 31) / 32, (unsigned)a->x.shape[0]);
        auto kernel = eights ? mean_kernel<8, X, Y> : mean_kernel<1, X, Y>;
        kernel<<<grid, MEAN_THREADS, 0, stream>>>((const X *)a->x.data, (Y *)a->y.data, p.y_stride,
                                                  p.channels, p.height * p.width, p.relu);
        return;
    }
    auto kernel = eights ? max ? pool_kernel<8, true, X, Y> : pool_kernel<8, false, X, Y>
                  : max ? pool_kernel<1, true, X, Y>
                         : pool_kernel<1, false, X, Y>;
    const int lines = (int)(a->x.shape[0] * p.out_height);
    const int strips = (p.out_width + STRIP - 1) / STRIP * (p.channels / (eights ? 8 : 1));
    const dim3 grid((unsigned)(strips + THREADS - 1) / THREADS, (unsigned)NL_MIN(lines, 65535));
    kernel<<<grid, THREADS, 0, stream>>>((const X *)a->x.data, (Y *)a->y.data, lines, p);
}

extern "C" nl_status nl_cuda_pool(nl_device *device, const nl_pool_args *a)
{
    const pool_shape p = {(int)a->x.shape[3], (int)a->x.shape[1],
                          (int)a->x.shape[2], (int)a->y.shape[1],
                          (int)a->y.shape[2], a->kernel,
                          a->stride,          a->pad,
                          a->y.row_stride,    a->relu};
    if (nl_tensor_count(&a->y) > 0)
        NL_FOR_IMAGE_TYPE(
            a->x, X, NL_FOR_IMAGE_TYPE(a->y, Y, (run<X, Y>(a, p, nl_cuda_of(device)->stream))));
    return NL_CUDA_LAUNCHED(device, "pool");
}
