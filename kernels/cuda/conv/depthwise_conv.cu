/* SPDX-License-Identifier: MIT */
/* out = addend + depthwise convolution over the token grid: depthwise_mma.cuh, in fp32 depthwise_conv.cuh. */
#include "depthwise_sm90.cuh"

enum { COLUMNS = 16, WARPS = COLUMNS / NL_STRIP }; /* of a block */
enum { MAX_ROWS = 16 };                            /* of a tile, without those it reaches */
enum { BLOCKS = 4 };                               /* at a time on a multiprocessor */

/* grid (tiles, groups of channels) */
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    tile_kernel(const nl_token_grid grid, const nl_tiling tiling, const float *x, int64_t x_stride,
                const float *weight, const float *bias, const float *base, float *out)
{
    constexpr int PITCH = (COLUMNS + 2 * NL_REACH) * 32;
    extern __shared__ __align__(16) float slab[];
    __shared__ float weights[32 * NL_TAPS];
    const int first = blockIdx.y * 32, channels = min(32, grid.channels - first);
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * NL_STRIP;
    nl_tile tile = nl_tile_at(tiling, grid, COLUMNS, blockIdx.x);
    const int64_t token = tile.image * grid.height * grid.width;
    nl_fetch_slab<COLUMNS>(slab, nl_rows_of(x, x_stride, token, first), grid, tile, channels);
    for (int i = threadIdx.x; i < channels * NL_TAPS; i += blockDim.x)
        weights[i] = weight[first * NL_TAPS + i];
    nl_fetched();
    __syncthreads();
    tile.column += column;
    if (lane >= channels || tile.column >= grid.width)
        return;
    float w[NL_TAPS];
#pragma unroll
    for (int tap = 0; tap < NL_TAPS; tap++)
        w[tap] = weights[lane * NL_TAPS + tap];
    nl_convolve<PITCH>(grid, tile, w, bias[first + lane], slab + column * 32 + lane,
                       nl_rows_of(base, grid.channels, token, first + lane),
                       nl_rows_of(out, grid.channels, token, first + lane));
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

template <typename T>
static void launch_any(const nl_depthwise_conv_args *a, const nl_tensor &base, cudaStream_t stream)
{
    const int64_t count = nl_tensor_count(&a->out);
    depthwise_any_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
        (const T *)a->x.data, a->x.row_stride, (const float *)a->weight.data,
        (const float *)a->bias.data, (const T *)base.data, (T *)a->out.data, count,
        (int)a->out.shape[1], (int)a->grid_height, (int)a->grid_width, (int)a->weight.shape[2]);
}

static cudaError_t launch_tiles(const nl_token_grid &grid, const nl_depthwise_conv_args *a,
                                const nl_tensor &base, nl_cuda *cuda)
{
    const unsigned groups = nl_blocks(grid.channels, NL_TILE_CHANNELS);
    const nl_tiling tiling =
        nl_tiling_to_fill(grid, COLUMNS, nl_tile_rows(grid, MAX_ROWS + 2 * NL_REACH),
                          nl_blocks(2 * cuda->multiprocessors, groups));
    const int bytes = nl_slab_bytes(grid, tiling, COLUMNS);
    const cudaError_t error = nl_allow_shared(tile_kernel, bytes);
    if (error == cudaSuccess)
        tile_kernel<<<dim3((unsigned)tiling.count, groups), 32 * WARPS, bytes, cuda->stream>>>(
            grid, tiling, (const float *)a->x.data, a->x.row_stride, (const float *)a->weight.data,
            (const float *)a->bias.data, (const float *)base.data, (float *)a->out.data);
    return error;
}

static cudaError_t launch_mma(const nl_token_grid &grid, const nl_depthwise_conv_args *a,
                              const nl_tensor &base, const nl_cuda *cuda)
{
    using namespace nl_depthwise;
    const int64_t kernel = a->weight.shape[2];
    const conv_args<nl_tensor> args = {a->x,
                                       base,
                                       a->out,
                                       grid,
                                       conv_tiling(kernel, grid, cuda->multiprocessors),
                                       (const float *)a->weight.data,
                                       (const float *)a->bias.data};
    const cudaError_t error = conv_sm90(kernel, args, cuda->stream);
    return error == cudaErrorNotSupported ? run_conv<token_rows>(kernel, args, cuda->stream)
                                          : error;
}

extern "C" nl_status nl_cuda_depthwise_conv(nl_device *device, const nl_depthwise_conv_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t kernel = a->weight.shape[2];
    const nl_token_grid grid = {a->batch, (int)a->grid_height, (int)a->grid_width,
                                (int)a->out.shape[1]};
    const nl_tensor base = a->addend.data ? a->addend : a->out;
    const bool vectors = grid.channels % 8 == 0 && nl_rows_of_vectors(&a->x) &&
                         nl_rows_of_vectors(&base) && nl_rows_of_vectors(&a->out);
    cudaError_t error = cudaSuccess;
    if (nl_tensor_count(&a->out) == 0)
        return NL_OK;
    if (vectors && a->x.dtype == NL_BF16 && nl_depthwise::serves(kernel))
        error = launch_mma(grid, a, base, cuda);
    else if (vectors && a->x.dtype == NL_F32 && kernel == NL_SIDE)
        error = launch_tiles(grid, a, base, cuda);
    else
        NL_FOR_TYPE(a->x, T, launch_any<T>(a, base, cuda->stream));
    if (error != cudaSuccess)
        return nl_cuda_check(device, error, "depthwise_conv");
    return NL_CUDA_LAUNCHED(device, "depthwise_conv");
}
