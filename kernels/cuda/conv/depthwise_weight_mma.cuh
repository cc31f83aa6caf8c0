/* SPDX-License-Identifier: MIT */
/* The gradient of the weights of depthwise_mma.cuh: a tap's is the diagonal of a product over tokens, of dout and of x. Two
 * neighbouring taps are one of 16 x 8 x 16, [2 taps, 8 channels; 16 tokens] times [16 tokens, 8 channels]. */
#ifndef NL_CUDA_DEPTHWISE_WEIGHT_MMA_CUH
#define NL_CUDA_DEPTHWISE_WEIGHT_MMA_CUH

#include "depthwise_mma.cuh"

namespace nl_depthwise
{

enum { WEIGHT_BLOCKS = 2 }; /* at a time on a multiprocessor */

/* Sums of a warp's channels over the tiles of a block: rows of a product are channels at a tap, then at the next. Of dout it
 * reaches tap s = SIDE - 1 - the column of the kernel. */
template <int SIDE> struct weight_sums {
    float taps[SIDE][nl_depthwise::taps<SIDE>::PAIRS][4], bias[4];
};

template <int SIDE>
__device__ __forceinline__ void correlate(const nl_token_grid &grid, const nl_tile &tile,
                                          uint32_t x, uint32_t dout, weight_sums<SIDE> &sums)
{
    constexpr int REACH = taps<SIDE>::REACH, PAIRS = taps<SIDE>::PAIRS,
                  COLUMNS = taps<SIDE>::COLUMNS;
    constexpr uint32_t ONES = 0x3f803f80;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = max(tile.first - REACH, 0), end = min(tile.last + REACH, grid.height);
    uint32_t window[SIDE][2]; /* x of rows r - REACH to r + REACH, in place (row - begin) % SIDE */
    uint32_t at[PAIRS];       /* tokens 0-7 at a tap, at the next, then tokens 8-15 */
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        const bool whole = taps<SIDE>::whole(pair);
        at[pair] =
            dout + unit_at<COLUMNS>(0,
                                    whole ? lane % 8 + lane / 16 * 8 + 2 * pair + lane / 8 % 2
                                          : lane % 16 + 2 * pair,
                                    warp);
    }
    const uint32_t x_at = x + unit_at<MMA_COLUMNS>(0, lane % 16, warp);
    auto take = [&](uint32_t(&row)[2], int y) {
        row[0] = row[1] = 0;
        if (y >= tile.first && y < tile.last)
            ldmatrix_x2_trans(row[0], row[1], x_at + (y - tile.first) * MMA_COLUMNS * TOKEN_BYTES);
    };
#pragma unroll
    for (int e = -REACH; e < REACH; e++)
        take(window[(e + SIDE) % SIDE], begin + e);
    for (int block = begin; block < end; block += SIDE)
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            const int r = block + u;
            if (r >= end)
                break;
            take(window[(u + REACH) % SIDE], r + REACH);
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) {
                uint32_t a[4] = {};
                if (taps<SIDE>::whole(pair))
                    ldmatrix_x4_trans(a, at[pair]);
                else
                    ldmatrix_x2_trans(a[0], a[2], at[pair]);
                at[pair] += COLUMNS * TOKEN_BYTES;
#pragma unroll
                for (int y = 0; y < SIDE; y++) {
                    const uint32_t(&b)[2] = window[(u + SIDE + y - REACH) % SIDE];
                    mma_m16n8k16(sums.taps[y][pair], a, b[0], b[1]);
                }
                if (pair == REACH / 2 && r >= tile.first && r < tile.last)
                    mma_m16n8k16(sums.bias, a, ONES, ONES);
            }
        }
}

struct weight_args {
    nl_token_grid grid;
    nl_tiling tiling;
    rows_of x, dout;
    float *parts; /* [parts, channels (taps + 1)] */
    int tiles;    /* that a block goes through, summed up */
};

/* grid (parts times groups of channels) */
template <int SIDE>
__global__ void __launch_bounds__(MMA_THREADS, WEIGHT_BLOCKS) weight_kernel(const weight_args a)
{
    constexpr int REACH = taps<SIDE>::REACH, COLUMNS = taps<SIDE>::COLUMNS,
                  COUNT = taps<SIDE>::COUNT;
    extern __shared__ __align__(128) unsigned char memory[];
    const block_place place(a.grid.channels); /* of a part */
    const int first = place.first, channels = place.channels;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = lane / 4;
    weight_sums<SIDE> sums = {};
    for (int i = 0; i < a.tiles; i++) {
        const int64_t index = place.tile * a.tiles + i;
        if (index >= a.tiling.count)
            break;
        const nl_tile tile = nl_tile_at(a.tiling, a.grid, MMA_COLUMNS, index);
        const int begin = max(tile.first - REACH, 0), height = tile.last - tile.first;
        const int rows = min(tile.last + REACH, a.grid.height) - begin;
        const int64_t token = tile.image * a.grid.height * a.grid.width;
        const uint32_t dout = shared_address(memory), x = dout + rows * COLUMNS * TOKEN_BYTES;
        __syncthreads(); /* all have read what was there */
        fetch<COLUMNS>(dout, {a.dout.at + token * a.dout.stride + first, a.dout.stride}, a.grid,
                       begin, rows, tile.column - REACH, channels);
        fetch<MMA_COLUMNS>(x, {a.x.at + token * a.x.stride + first, a.x.stride}, a.grid, tile.first,
                           height, tile.column, channels);
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads();
        correlate<SIDE>(a.grid, tile, x, dout, sums);
    }
    __syncthreads();
    float *mine = (float *)memory + (warp * 8 + channel) * (COUNT + 1);
    if (channel / 2 == lane % 4) { /* this lane has the diagonal's element of its channel */
        const int odd = channel % 2;
#pragma unroll
        for (int y = 0; y < SIDE; y++)
#pragma unroll
            for (int s = 0; s < SIDE; s++) {
                const float(&c)[4] = sums.taps[y][s / 2];
                mine[y * SIDE + SIDE - 1 - s] = odd ? c[s % 2 * 2 + 1] : c[s % 2 * 2];
            }
        mine[COUNT] = sums.bias[REACH % 2 * 2];
    }
    __syncthreads();
    float *part = a.parts + place.tile * a.grid.channels * (COUNT + 1);
    const float *all = (const float *)memory;
    for (int i = threadIdx.x; i < channels * COUNT; i += MMA_THREADS)
        part[first * COUNT + i] = all[i / COUNT * (COUNT + 1) + i % COUNT];
    for (int i = threadIdx.x; i < channels; i += MMA_THREADS)
        part[(int64_t)a.grid.channels * COUNT + first + i] = all[i * (COUNT + 1) + COUNT];
}

/* ---- Launches */

/* How a gradient of weights is cut: by the grid and the card alone, as its sums depend on it. */
struct weight_parts {
    nl_tiling tiling;
    int tiles; /* of a part */
    int64_t count;
};
inline weight_parts weight_parts_of(int64_t kernel, const nl_token_grid &grid)
{
    enum { MOST = 2 };
    weight_parts parts;
    const int rows =
        kernel == 3 ? tile_rows<3>(grid, WEIGHT_BLOCKS) : tile_rows<5>(grid, WEIGHT_BLOCKS);
    parts.tiling = nl_tiling_of(grid, MMA_COLUMNS, rows);
    parts.tiles = MOST;
    parts.count = (parts.tiling.count + MOST - 1) / MOST;
    return parts;
}

template <int SIDE>
cudaError_t launch_weight(const weight_args &a, int64_t count, cudaStream_t stream)
{
    const int sums = MMA_CHANNELS * (taps<SIDE>::COUNT + 1) * 4;
    const int tile = tile_bytes<SIDE>(a.grid, a.tiling.rows), bytes = tile < sums ? sums : tile;
    const cudaError_t error = nl_allow_shared(weight_kernel<SIDE>, bytes);
    if (error == cudaSuccess)
        weight_kernel<SIDE>
            <<<(unsigned)count * channel_groups(a.grid), MMA_THREADS, bytes, stream>>>(a);
    return error;
}

/* parts [parts.count, channels (taps + 1)]: taps of all channels, then biases. */
inline cudaError_t run_weight(int64_t kernel, const weight_parts &parts, const weight_args &a,
                              cudaStream_t stream)
{
    return kernel == 3 ? launch_weight<3>(a, parts.count, stream)
                       : launch_weight<5>(a, parts.count, stream);
}

} // namespace nl_depthwise

#endif
