/* SPDX-License-Identifier: MIT */
/* Pictures of bytes to another size, NHWC: a thread for each output pixel takes the source pixels that have weight,
 * 2 x 2 for the bilinear kinds, 4 x 4 times the reduction for the cubic one. */
#include "cuda_common.cuh"

/* Keys' cubic with a = -1/2. */
__device__ static float cubic(float x)
{
    x = fabsf(x);
    return x < 1.f   ? (1.5f * x - 2.5f) * x * x + 1.f
           : x < 2.f ? ((-0.5f * x + 2.5f) * x - 4.f) * x + 2.f
                     : 0.f;
}

/* ratio: source pixels to one of the output */
__device__ static double centre_of(nl_resize kind, double ratio, int i)
{
    return kind == NL_RESIZE_LEGACY ? i * ratio : (i + 0.5) * ratio - 0.5;
}

struct resize_shape {
    int channels, height, width, out_height, out_width;
    nl_resize kind;
    double row_ratio, column_ratio;
    float scale, shift;
};

/* The source pixel below the place where output i reads, how far that is beyond it, and the next pixel. */
struct neighbours {
    int low, high;
    float beyond;
};

__device__ static neighbours neighbours_of(nl_resize kind, double ratio, int size, int i)
{
    const double centre = fmin(fmax(centre_of(kind, ratio, i), 0.), size - 1.);
    neighbours n;
    n.low = (int)centre;
    n.high = min(n.low + 1, size - 1);
    n.beyond = (float)(centre - n.low);
    return n;
}

/* Columns along x, the lines of all pictures along y. C channels at once (0: any number, one after the other). */
template <int C, typename T>
__global__ void bilinear_kernel(const uint8_t *x, T *y, int lines, resize_shape p)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= p.out_width)
        return;
    const int channels = C ? C : p.channels;
    const neighbours across = neighbours_of(p.kind, p.column_ratio, p.width, column);
    for (int line = blockIdx.y; line < lines; line += gridDim.y) {
        const int image = line / p.out_height;
        const neighbours down =
            neighbours_of(p.kind, p.row_ratio, p.height, line - image * p.out_height);
        const uint8_t *above = x + ((int64_t)image * p.height + down.low) * p.width * channels;
        const uint8_t *below = above + (int64_t)(down.high - down.low) * p.width * channels;
        T *to = y + ((int64_t)line * p.out_width + column) * channels;
#pragma unroll
        for (int c = 0; c < channels; c++) {
            const int low = across.low * channels + c, high = across.high * channels + c;
            const float upper = fmaf(across.beyond, (float)above[high] - above[low], above[low]);
            const float lower = fmaf(across.beyond, (float)below[high] - below[low], below[low]);
            nl_put(to + c, fmaf(p.scale, fmaf(down.beyond, lower - upper, upper), p.shift));
        }
    }
}

/* Where output i reads: the source pixels [first, last] around `centre`, each with weight cubic(|j - centre| / width). */
struct window {
    double centre;
    float width;
    int first, last;
};

__device__ static window window_of(double ratio, int in, int i)
{
    window w;
    w.width = ratio > 1. ? (float)ratio : 1.f;
    w.centre = centre_of(NL_RESIZE_BICUBIC, ratio, i);
    const double reach = 2. * w.width;
    w.first = max((int)ceil(w.centre - reach), 0);
    w.last = min((int)floor(w.centre + reach), in - 1);
    return w;
}

__device__ static float weight_of(const window &w, int j)
{
    return cubic((float)(j - w.centre) / w.width);
}

/* A thread for an output pixel, C channels of it at once (0: any number, one after the other). */
template <int C, typename T>
__global__ void cubic_kernel(const uint8_t *x, T *y, int64_t count, resize_shape p)
{
    const int at_once = C ? C : 1;
    NL_GRID_LOOP(pixel, count)
    {
        const int64_t line = pixel / p.out_width, image = line / p.out_height;
        const window rows = window_of(p.row_ratio, p.height, (int)(line - image * p.out_height));
        const window columns =
            window_of(p.column_ratio, p.width, (int)(pixel - line * p.out_width));
        float total_rows = 0.f, total_columns = 0.f;
        for (int v = columns.first; v <= columns.last; v++)
            total_columns += weight_of(columns, v);
        for (int u = rows.first; u <= rows.last; u++)
            total_rows += weight_of(rows, u);
        for (int c = 0; c < p.channels; c += at_once) {
            const uint8_t *from = x + image * p.height * p.width * p.channels + c;
            float sum[at_once] = {};
            for (int u = rows.first; u <= rows.last; u++) {
                const float vertical = weight_of(rows, u);
                float part[at_once] = {};
                for (int v = columns.first; v <= columns.last; v++) {
                    const float horizontal = weight_of(columns, v);
#pragma unroll
                    for (int j = 0; j < at_once; j++)
                        part[j] = fmaf(horizontal,
                                       from[((int64_t)u * p.width + v) * p.channels + j], part[j]);
                }
#pragma unroll
                for (int j = 0; j < at_once; j++)
                    sum[j] = fmaf(vertical, part[j], sum[j]);
            }
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                const float value = sum[j] / (total_rows * total_columns);
                nl_put(y + pixel * p.channels + c + j,
                       fmaf(p.scale, fminf(fmaxf(value, 0.f), 255.f), p.shift));
            }
        }
    }
}

template <typename T> static void run(const nl_resize_args *a, cudaStream_t stream)
{
    enum { THREADS = 128 };
    const resize_shape p = {(int)a->x.shape[3],
                            (int)a->x.shape[1],
                            (int)a->x.shape[2],
                            (int)a->y.shape[1],
                            (int)a->y.shape[2],
                            a->kind,
                            (double)a->x.shape[1] / (double)a->y.shape[1],
                            (double)a->x.shape[2] / (double)a->y.shape[2],
                            a->scale,
                            a->shift};
    const int64_t count = nl_tensor_count(&a->y) / p.channels;
    if (a->kind == NL_RESIZE_BICUBIC) {
        auto kernel = p.channels == 3 ? cubic_kernel<3, T> : cubic_kernel<0, T>;
        kernel<<<nl_blocks(count, 256), 256, 0, stream>>>((const uint8_t *)a->x.data,
                                                          (T *)a->y.data, count, p);
        return;
    }
    const int lines = (int)(count / p.out_width);
    const dim3 grid((unsigned)(p.out_width + THREADS - 1) / THREADS,
                    (unsigned)NL_MIN(lines, 65535));
    auto kernel = p.channels == 3 ? bilinear_kernel<3, T> : bilinear_kernel<0, T>;
    kernel<<<grid, THREADS, 0, stream>>>((const uint8_t *)a->x.data, (T *)a->y.data, lines, p);
}

extern "C" nl_status nl_cuda_resize(nl_device *device, const nl_resize_args *a)
{
    if (nl_tensor_count(&a->y) > 0)
        NL_FOR_IMAGE_TYPE(a->y, T, (run<T>(a, nl_cuda_of(device)->stream)));
    return NL_CUDA_LAUNCHED(device, "resize");
}
