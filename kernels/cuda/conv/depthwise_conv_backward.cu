/* SPDX-License-Identifier: MIT */
/* Gradients of depthwise_conv: dx += dout convolved with the turned kernel; dW and db in parts of fixed tiles, then the
 * parts in their order. In bf16 3 x 3 and 5 x 5 on tensor cores: depthwise_backward_mma.cuh. In fp32 5 x 5 with tiles of x and dout in
 * shared memory and the kernel's sums in registers: depthwise_conv.cuh. Other sizes element by element. */
#include "column_sums.cuh"
#include "depthwise_sm90.cuh"

enum { COLUMNS = 16, WARPS = COLUMNS / NL_STRIP }; /* of a tile; as many warps for dx and for dW */
enum { BLOCKS = 2 };                               /* at a time on a multiprocessor */
enum { MAX_SHARED = 99 << 10 };
enum { TAPS = 8, THREADS = 64 }; /* of other kernels */

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

/* What a block has in shared memory, one after the other: the weights, slabs of x and dout, sums of each warp. */
union tile_shared {
    float weights[32][NL_TAPS];
    float sums[WARPS][NL_TAPS + 1][33]; /* the last row: of the bias */
};

/* The first half of a block's warps makes dx, the other half dW and db. parts [gridDim.x, channels (k k + 1)].
 * grid (tiles, groups of channels) */
__global__ void __launch_bounds__(64 * WARPS, BLOCKS)
    tile_kernel(const nl_token_grid grid, const nl_tiling tiling, const float *x, int64_t x_stride,
                const float *weight, const float *dout, float *dx, int64_t dx_stride, float *parts)
{
    constexpr int PITCH = (COLUMNS + 2 * NL_REACH) * 32;
    extern __shared__ __align__(16) unsigned char memory[];
    tile_shared &shared = *(tile_shared *)memory;
    const int first = blockIdx.y * 32, channels = min(32, grid.channels - first);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, c = first + lane;
    const bool there = lane < channels, data = threadIdx.x < 32 * WARPS;
    for (int i = threadIdx.x; i < channels * NL_TAPS; i += blockDim.x)
        shared.weights[0][i] = weight[first * NL_TAPS + i];
    __syncthreads();
    float w[NL_TAPS] = {}, bias = 0.f; /* the turned kernel and 0, or the sums */
    if (data && there)
#pragma unroll
        for (int tap = 0; tap < NL_TAPS; tap++)
            w[tap] = shared.weights[lane][NL_TAPS - 1 - tap];

    nl_tile tile = nl_tile_at(tiling, grid, COLUMNS, blockIdx.x);
    const int64_t token = tile.image * grid.height * grid.width;
    float *slab = (float *)memory,
          *slab_dout = slab + (nl_end(tile, grid) - nl_begin(tile)) * PITCH;
    __syncthreads(); /* all have read the weights */
    nl_fetch_slab<COLUMNS>(slab, nl_rows_of(x, x_stride, token, first), grid, tile, channels);
    nl_fetch_slab<COLUMNS>(slab_dout, nl_rows_of(dout, grid.channels, token, first), grid, tile,
                           channels);
    nl_fetched();
    __syncthreads();
    tile.column += warp * NL_STRIP;
    const int at = warp * NL_STRIP * 32 + lane;
    const nl_rows to = nl_rows_of(dx, dx_stride, token, c);
    if (there && tile.column < grid.width) {
        if (data)
            nl_convolve<PITCH>(grid, tile, w, bias, slab_dout + at, to, to);
        else
            nl_correlate<PITCH>(grid, tile, slab + at, slab_dout + at, w, bias);
    }

    __syncthreads();
    if (!data && there) {
#pragma unroll
        for (int tap = 0; tap < NL_TAPS; tap++)
            shared.sums[warp][tap][lane] = w[tap];
        shared.sums[warp][NL_TAPS][lane] = bias;
    }
    __syncthreads();
    float *part = parts + blockIdx.x * (int64_t)grid.channels * (NL_TAPS + 1);
    for (int i = threadIdx.x; i < channels * (NL_TAPS + 1); i += blockDim.x) {
        const bool tap = i < channels * NL_TAPS;
        const int row = tap ? i % NL_TAPS : NL_TAPS,
                  column = tap ? i / NL_TAPS : i - channels * NL_TAPS;
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            sum += shared.sums[j][row][column];
        part[tap ? first * NL_TAPS + i : grid.channels * NL_TAPS + first + column] = sum;
    }
}

/* Two slabs of what is left of MAX_SHARED, in whole rows. */
static nl_tiling tiling_of(const nl_token_grid &grid)
{
    const int capacity = MAX_SHARED / (2 * (COLUMNS + 2 * NL_REACH) * NL_TILE_CHANNELS * 4);
    return nl_tiling_of(grid, COLUMNS, nl_tile_rows(grid, capacity));
}

static cudaError_t launch_tiles(const nl_token_grid &grid, const nl_tiling &tiling,
                                const nl_depthwise_conv_backward_args *a, float *parts,
                                cudaStream_t stream)
{
    const unsigned groups = nl_blocks(grid.channels, NL_TILE_CHANNELS);
    int bytes = 2 * nl_slab_bytes(grid, tiling, COLUMNS);
    if (bytes < (int)sizeof(tile_shared))
        bytes = (int)sizeof(tile_shared);
    const cudaError_t error = nl_allow_shared(tile_kernel, bytes);
    if (error == cudaSuccess)
        tile_kernel<<<dim3((unsigned)tiling.count, groups), 64 * WARPS, bytes, stream>>>(
            grid, tiling, (const float *)a->x.data, a->x.row_stride, (const float *)a->weight.data,
            (const float *)a->dout.data, (float *)a->dx.data, a->dx.row_stride, parts);
    return error;
}

static cudaError_t launch_mma(const nl_token_grid &grid, const nl_depthwise::weight_parts &cut,
                              const nl_depthwise_conv_backward_args *a, float *parts,
                              cudaStream_t stream)
{
    using namespace nl_depthwise;
    const int64_t kernel = a->weight.shape[3];
    const gradient_args<nl_tensor> args = {
        a->dout, a->x, a->dx, grid, cut.tiling, cut.tiles, (const float *)a->weight.data, parts};
    const cudaError_t error = gradients_sm90(kernel, args, stream);
    return error == cudaErrorNotSupported ? run_gradients(kernel, args, stream) : error;
}

template <typename T>
static void launch_any(const grid_shape &s, const nl_depthwise_conv_backward_args *a, float *parts,
                       cudaStream_t stream)
{
    input_kernel<T><<<nl_blocks(nl_tensor_count(&a->dout), 256), 256, 0, stream>>>(
        s, (const float *)a->weight.data, (const T *)a->dout.data, (T *)a->dx.data);
    weight_kernel<T>
        <<<dim3((unsigned)s.images, nl_blocks(s.channels, THREADS),
                nl_blocks(s.kernel * s.kernel, TAPS)),
           THREADS, 0, stream>>>(s, (const T *)a->x.data, (const T *)a->dout.data, parts);
}

extern "C" nl_status nl_cuda_depthwise_conv_backward(nl_device *device,
                                                     const nl_depthwise_conv_backward_args *a)
{
    const nl_cuda *cuda = nl_cuda_of(device);
    const nl_token_grid grid = {a->batch, (int)a->grid_height, (int)a->grid_width,
                                (int)a->dout.shape[1]};
    const int kernel = (int)a->weight.shape[3];
    const grid_shape s = {grid.channels,   grid.height,      grid.width, kernel,
                          a->x.row_stride, a->dx.row_stride, a->batch};
    const int64_t taps = (int64_t)grid.channels * kernel * kernel, columns = taps + grid.channels;
    const bool vectors = grid.channels % 8 == 0 && nl_rows_of_vectors(&a->x) &&
                         nl_rows_of_vectors(&a->dout) && nl_rows_of_vectors(&a->dx);
    const bool mma = vectors && a->dout.dtype == NL_BF16 && nl_depthwise::serves(kernel);
    const bool tiles = vectors && a->dout.dtype == NL_F32 && kernel == NL_SIDE;
    const nl_tiling tiling = tiling_of(grid);
    const nl_depthwise::weight_parts cut = nl_depthwise::weight_parts_of(
        kernel, grid, nl_depthwise::gradient_blocks() * cuda->multiprocessors);
    const int64_t count = mma ? cut.count : tiles ? tiling.count : a->batch;
    if (nl_tensor_count(&a->dout) == 0)
        return NL_OK;
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of a convolution", count * columns * 4, &scratch);
    if (status != NL_OK)
        return status;
    float *parts = (float *)scratch;
    cudaError_t error = cudaSuccess;
    if (mma)
        error = launch_mma(grid, cut, a, parts, cuda->stream);
    else if (tiles)
        error = launch_tiles(grid, tiling, a, parts, cuda->stream);
    else
        NL_FOR_TYPE(a->dout, T, launch_any<T>(s, a, parts, cuda->stream));
    if (error != cudaSuccess)
        return nl_cuda_check(device, error, "depthwise_conv_backward");
    nl_cuda_add_parts(cuda->stream, parts, count,
                      {{(float *)a->dweight.data, taps}, {(float *)a->dbias.data, grid.channels}});
    return NL_CUDA_LAUNCHED(device, "depthwise_conv_backward");
}
