/* Gradients of depthwise_conv: dx += dout convolved with the turned kernel; dW and db in parts of one image each. */
#include "column_sums.cuh"

enum { LANES = 32, WARPS = 8, MAX_SHARED = 96 << 10 };
enum { TAPS = 8, THREADS = 64 }; /* of pictures that do not fit */

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

/* Both for an image whose x and dout fit into shared memory, LANES channels of it: [tokens, LANES] each, and the weights
 * [k k, LANES]. A lane has a channel. grid (images, channels / LANES) */
template <typename T>
__global__ void __launch_bounds__(LANES *WARPS)
    image_kernel(const grid_shape s, const T *x, const float *weight, const T *dout, T *dx,
                 float *parts)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int tokens = s.height * s.width, radius = s.kernel / 2, taps = s.kernel * s.kernel;
    float *weights = (float *)shared;
    T *xs = (T *)(weights + taps * LANES), *ds = xs + tokens * LANES;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int c = blockIdx.y * LANES + lane;
    const int64_t image = blockIdx.x * (int64_t)tokens;
    const bool there = c < s.channels;
    for (int tap = warp; tap < taps; tap += WARPS)
        weights[tap * LANES + lane] = there ? weight[(int64_t)c * taps + tap] : 0.f;
    for (int t = warp; t < tokens; t += WARPS) {
        nl_put(xs + t * LANES + lane, there ? nl_get(x + (image + t) * s.x_stride + c) : 0.f);
        nl_put(ds + t * LANES + lane, there ? nl_get(dout + (image + t) * s.channels + c) : 0.f);
    }
    __syncthreads();
    if (!there)
        return;

    for (int t = warp; t < tokens; t += WARPS) {
        const int row = t / s.width, column = t % s.width;
        float sum = 0.f;
        for (int ky = 0; ky < s.kernel; ky++) {
            const int y = row - ky + radius;
            if (y < 0 || y >= s.height)
                continue;
            for (int kx = 0; kx < s.kernel; kx++) {
                const int z = column - kx + radius;
                if (z >= 0 && z < s.width)
                    sum = fmaf(weights[(ky * s.kernel + kx) * LANES + lane],
                               nl_get(ds + (y * s.width + z) * LANES + lane), sum);
            }
        }
        T *to = dx + (image + t) * s.dx_stride + c;
        nl_put(to, nl_get(to) + sum);
    }

    float *part = parts + blockIdx.x * (int64_t)s.channels * (taps + 1);
    for (int tap = warp; tap <= taps; tap += WARPS) { /* the last one: the bias */
        const int dy = tap < taps ? tap / s.kernel - radius : 0,
                  dz = tap < taps ? tap % s.kernel - radius : 0;
        float sum = 0.f;
        for (int row = max(0, -dy); row < min(s.height, s.height - dy); row++)
#pragma unroll 4
            for (int column = max(0, -dz); column < min(s.width, s.width - dz); column++) {
                const int t = row * s.width + column;
                const float g = nl_get(ds + t * LANES + lane);
                sum = tap < taps ? fmaf(g, nl_get(xs + (t + dy * s.width + dz) * LANES + lane), sum)
                                 : sum + g;
            }
        part[tap < taps ? c * taps + tap : s.channels * taps + c] = sum;
    }
}

template <typename T>
static cudaError_t launch(const grid_shape &s, const nl_depthwise_conv_backward_args *a,
                          float *parts, cudaStream_t stream)
{
    const int taps = s.kernel * s.kernel;
    const int64_t bytes =
        (int64_t)taps * LANES * 4 + 2ll * s.height * s.width * LANES * (int64_t)sizeof(T);
    if (bytes <= MAX_SHARED) {
        const cudaError_t error = cudaFuncSetAttribute(
            image_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error == cudaSuccess)
            image_kernel<T>
                <<<dim3((unsigned)s.images, nl_blocks(s.channels, LANES)), LANES * WARPS,
                   (size_t)bytes, stream>>>(s, (const T *)a->x.data, (const float *)a->weight.data,
                                            (const T *)a->dout.data, (T *)a->dx.data, parts);
        return error;
    }
    input_kernel<T><<<nl_blocks(nl_tensor_count(&a->dout), 256), 256, 0, stream>>>(
        s, (const float *)a->weight.data, (const T *)a->dout.data, (T *)a->dx.data);
    weight_kernel<T>
        <<<dim3((unsigned)s.images, nl_blocks(s.channels, THREADS), nl_blocks(taps, TAPS)), THREADS,
           0, stream>>>(s, (const T *)a->x.data, (const T *)a->dout.data, parts);
    return cudaSuccess;
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
    cudaError_t error = cudaSuccess;
    NL_FOR_TYPE(a->dout, T, error = launch<T>(s, a, (float *)scratch, stream));
    if (error != cudaSuccess)
        return nl_cuda_check(device, error, "depthwise_conv_backward");
    const float *sums = (const float *)scratch;
    nl_cuda_add_parts(
        stream, sums, s.images,
        {{(float *)a->dweight.data, s.channels * taps}, {(float *)a->dbias.data, s.channels}});
    return NL_CUDA_LAUNCHED(device, "depthwise_conv_backward");
}
