/* SPDX-License-Identifier: MIT */
/* out = addend + depthwise convolution over the token grid: depthwise_conv.cuh. */
#include "depthwise_conv.cuh"

#include "prim/shared_limit.cuh"

enum { COLUMNS = 16, WARPS = COLUMNS / NL_STRIP }; /* of a block */
enum { MAX_ROWS = 16, MIN_ROWS = 4 };              /* of a tile, without those it reaches */
enum { BLOCKS = 4 };                               /* at a time on a multiprocessor */

/* grid (tiles, groups of channels) */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    tile_kernel(const nl_token_grid grid, const nl_tiling tiling, const T *x, int64_t x_stride,
                const float *weight, const float *bias, const T *base, T *out)
{
    constexpr int N = 4 / sizeof(T), PITCH = (COLUMNS + 2 * NL_REACH) * 32;
    extern __shared__ __align__(16) uint32_t slab[];
    __shared__ float weights[32 * N * NL_TAPS];
    const int first = blockIdx.y * 32 * N, channels = min(32 * N, grid.channels - first);
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * NL_STRIP;
    nl_tile tile = nl_tile_at(tiling, grid, COLUMNS, blockIdx.x);
    const int64_t token = tile.image * grid.height * grid.width;
    nl_fetch_slab<COLUMNS>(slab, nl_words_of(x, x_stride, token, first), grid, tile, channels / N);
    for (int i = threadIdx.x; i < channels * NL_TAPS; i += blockDim.x)
        weights[i] = weight[first * NL_TAPS + i];
    nl_fetched();
    __syncthreads();
    tile.column += column;
    if (lane * N >= channels || tile.column >= grid.width)
        return;
    const int c = first + lane * N;
    float w[NL_TAPS][N], b[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        b[j] = bias[c + j];
#pragma unroll
        for (int tap = 0; tap < NL_TAPS; tap++)
            w[tap][j] = weights[(lane * N + j) * NL_TAPS + tap];
    }
    nl_convolve<N, PITCH>(grid, tile, w, b, slab + column * 32 + lane,
                          nl_words_of(base, grid.channels, token, c),
                          nl_words_of(out, grid.channels, token, c));
}

/* Any kernel and number of channels: a thread an element. */
template <typename T>
__global__ void depthwise_any_kernel(const T *x, int64_t x_stride, const float *weight,
                                     const float *bias, const T *base, T *out, int64_t count,
                                     int channels, int height, int width, int kernel)
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
        nl_put(out + i, nl_get(base + i) + sum);
    }
}

/* Tiles of fewer rows where tall ones would leave multiprocessors idle: the sums are the same. */
static nl_tiling tiling_of(const nl_token_grid &grid, int64_t groups, int multiprocessors)
{
    int rows = nl_tile_rows(grid, MAX_ROWS + 2 * NL_REACH);
    nl_tiling tiling = nl_tiling_of(grid, COLUMNS, rows);
    while (tiling.count * groups < 2ll * multiprocessors && rows > MIN_ROWS) {
        rows = (rows + 1) / 2;
        tiling = nl_tiling_of(grid, COLUMNS, rows);
    }
    return tiling;
}

template <typename T>
static cudaError_t launch(const nl_depthwise_conv_args *a, int multiprocessors, cudaStream_t stream)
{
    const int kernel = (int)a->weight.shape[2];
    const nl_token_grid grid = {a->batch, (int)a->grid_height, (int)a->grid_width,
                                (int)a->out.shape[1]};
    const T *x = (const T *)a->x.data,
            *base = (const T *)(a->addend.data ? a->addend : a->out).data;
    const float *weight = (const float *)a->weight.data, *bias = (const float *)a->bias.data;
    T *out = (T *)a->out.data;
    if (kernel != NL_SIDE || !nl_rows_of_vectors(&a->x) || grid.channels % 8 != 0) {
        const int64_t count = nl_tensor_count(&a->out);
        depthwise_any_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
            x, a->x.row_stride, weight, bias, base, out, count, grid.channels, grid.height,
            grid.width, kernel);
        return cudaSuccess;
    }
    const unsigned groups = nl_blocks(grid.channels * sizeof(T), NL_TILE_BYTES);
    const nl_tiling tiling = tiling_of(grid, groups, multiprocessors);
    const int bytes = nl_slab_bytes(grid, tiling, COLUMNS);
    const cudaError_t error = nl_allow_shared(tile_kernel<T>, bytes);
    if (error == cudaSuccess)
        tile_kernel<T><<<dim3((unsigned)tiling.count, groups), 32 * WARPS, bytes, stream>>>(
            grid, tiling, x, a->x.row_stride, weight, bias, base, out);
    return error;
}

extern "C" nl_status nl_cuda_depthwise_conv(nl_device *device, const nl_depthwise_conv_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    cudaError_t error = cudaSuccess;
    if (nl_tensor_count(&a->out) > 0)
        NL_FOR_TYPE(a->x, T, error = launch<T>(a, cuda->multiprocessors, cuda->stream));
    if (error != cudaSuccess)
        return nl_cuda_check(device, error, "depthwise_conv");
    return NL_CUDA_LAUNCHED(device, "depthwise_conv");
}
