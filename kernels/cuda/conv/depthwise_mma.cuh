/* SPDX-License-Identifier: MIT */
/*
 * Depthwise convolutions of a grid of tokens in bf16, kernels of 3 x 3 and 5 x 5, on tensor cores: fp32 sums, weights rounded to
 * bf16.
 *
 * A tap multiplies each channel by a number of its own: rows of tokens times a diagonal matrix. So two neighbouring taps of one
 * row of the kernel are one product of 16 x 16 x 8, [16 tokens, 8 channels at either tap] times [two diagonals, 8 channels].
 * Seven of eight factors are zeros, and still it is less work than on the FMA units, which need an instruction for a tap and two
 * channels of a token. (What is not finite in one channel is so in its seven neighbours.)
 *
 * A block has a tile of one image, MMA_COLUMNS columns of MMA_CHANNELS channels, and each of its warps eight of the channels,
 * whose rows it walks down: a row of tokens is read once from shared memory and serves all rows of the kernel from registers.
 * In shared memory a token has 128 bytes, whose units of 16 are swizzled by its column, so that matrices of eight tokens
 * are read without conflicts.
 */
#ifndef NL_CUDA_DEPTHWISE_MMA_CUH
#define NL_CUDA_DEPTHWISE_MMA_CUH

#include "depthwise_conv.cuh"

#include "prim/mma.cuh"
#include "prim/shared_limit.cuh"

namespace nl_depthwise
{

using namespace nl_prim;

enum { MMA_COLUMNS = 16, MMA_CHANNELS = 64, MMA_WARPS = MMA_CHANNELS / 8 };
enum { MMA_THREADS = 32 * MMA_WARPS, TOKEN_BYTES = 2 * MMA_CHANNELS };
enum { CONV_BLOCKS = 3 }; /* at a time on a multiprocessor */

template <int SIDE> struct taps {
    static constexpr int COUNT = SIDE * SIDE, REACH = SIDE / 2, PAIRS = (SIDE + 1) / 2;
    static constexpr int COLUMNS = MMA_COLUMNS + 2 * REACH; /* of a tile with what it reaches */
    __device__ static constexpr bool whole(int pair)
    {
        return 2 * pair + 1 < SIDE;
    }
};

/* Rows of tokens: first element of the block's first channel in the image's first token. */
struct rows_of {
    __nv_bfloat16 *at;
    int64_t stride;
};

/* Byte of a slab [rows, COLUMNS, MMA_CHANNELS] where a unit of a token lies. */
template <int COLUMNS> __device__ __forceinline__ int unit_at(int row, int column, int unit)
{
    return (row * COLUMNS + column) * TOKEN_BYTES + ((unit ^ column % 8) << 4);
}

/* use(row, column, unit) for each unit of a slab's tokens. */
template <int COLUMNS, typename Use> __device__ __forceinline__ void for_units(int rows, Use use)
{
    for (int i = threadIdx.x / 8; i < rows * COLUMNS; i += MMA_THREADS / 8)
        use(i / COLUMNS, i % COLUMNS, (int)threadIdx.x % 8);
}

/* Queues copies of `rows` rows from `begin` on and of COLUMNS columns from `left` on: zeros where the grid has no column or no
 * channel. */
template <int COLUMNS>
__device__ __forceinline__ void fetch(uint32_t slab, const rows_of &from, const nl_token_grid &grid,
                                      int begin, int rows, int left, int channels)
{
    for_units<COLUMNS>(rows, [&](int row, int column, int unit) {
        const int z = left + column;
        const bool there = z >= 0 && z < grid.width && unit * 8 < channels;
        const int64_t token = there ? (int64_t)(begin + row) * grid.width + z : 0;
        cp_async(slab + unit_at<COLUMNS>(row, column, unit),
                 from.at + token * from.stride + (there ? unit * 8 : 0), there);
    });
}

struct conv_args {
    nl_token_grid grid;
    nl_tiling tiling;
    rows_of x, base, out;       /* base may be out */
    const float *weight, *bias; /* bias or NULL */
};

/* Two taps of the diagonal for a lane of the product's second factor: tap of channel lane / 4 where that is one of the lane's two. */
template <int SIDE, bool TURNED>
__device__ __forceinline__ void load_diagonals(uint32_t (&diagonal)[taps<SIDE>::COUNT],
                                               const float *weight)
{
    const int lane = threadIdx.x % 32, channel = lane / 4;
    const bool mine = channel / 2 == lane % 4;
#pragma unroll
    for (int tap = 0; tap < taps<SIDE>::COUNT; tap++) {
        const int from = TURNED ? taps<SIDE>::COUNT - 1 - tap : tap;
        const float w = mine ? weight[channel * taps<SIDE>::COUNT + from] : 0.f;
        diagonal[tap] = channel % 2 ? pack_bf16x2(0.f, w) : pack_bf16x2(w, 0.f);
    }
}

/* A warp's eight channels of a tile: base + bias + convolution to the place of base, [rows, MMA_COLUMNS]. */
template <int SIDE>
__device__ __forceinline__ void convolve(const nl_token_grid &grid, const nl_tile &tile,
                                         const uint32_t (&diagonal)[taps<SIDE>::COUNT], float2 bias,
                                         uint32_t slab, unsigned char *base)
{
    constexpr int REACH = taps<SIDE>::REACH, PAIRS = taps<SIDE>::PAIRS,
                  COLUMNS = taps<SIDE>::COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = max(tile.first - REACH, 0), end = tile.last + REACH;
    float sum[SIDE][4]; /* output row o, of r - REACH to r + REACH, in place (o - begin) % SIDE */
    uint32_t at
        [PAIRS]; /* of a lane's row of the matrices: tokens 0-7, 8-15 at a tap, then at the next */
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++)
        at[pair] =
            slab + unit_at<COLUMNS>(
                       0, lane % 16 + 2 * pair + (taps<SIDE>::whole(pair) ? lane / 16 : 0), warp);
    uint32_t *to = (uint32_t *)(base + unit_at<MMA_COLUMNS>(0, lane / 4, warp)) + lane % 4;
#pragma unroll
    for (int i = 0; i < SIDE; i++)
        sum[i][0] = sum[i][2] = bias.x, sum[i][1] = sum[i][3] = bias.y;
    for (int block = begin; block < end; block += SIDE)
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            const int r = block + u;
            if (r >= end)
                break;
            if (r < grid.height) {
                float(&fresh)[4] = sum[(u + REACH) % SIDE]; /* the first of row r + REACH */
                fresh[0] = fresh[2] = bias.x, fresh[1] = fresh[3] = bias.y;
#pragma unroll
                for (int pair = 0; pair < PAIRS; pair++) {
                    uint32_t a[4];
                    if (taps<SIDE>::whole(pair))
                        ldmatrix_x4(a, at[pair]);
                    else
                        ldmatrix_x2(a[0], a[1], at[pair]);
                    at[pair] += COLUMNS * TOKEN_BYTES;
#pragma unroll
                    for (int y = 0; y < SIDE; y++) {
                        float(&c)[4] = sum[(u + SIDE + REACH - y) % SIDE];
                        const uint32_t *b = diagonal + y * SIDE + 2 * pair;
                        if (taps<SIDE>::whole(pair))
                            mma_m16n8k16(c, a, b[0], b[1]);
                        else
                            mma_m16n8k8(c, a[0], a[1], b[0]);
                    }
                }
            }
            if (r - REACH < tile.first)
                continue;
            const float(&done)[4] = sum[(u + SIDE - REACH) % SIDE];
#pragma unroll
            for (int i = 0; i < 2; i++) { /* columns lane / 4 and lane / 4 + 8 */
                uint32_t *word = to + i * 8 * TOKEN_BYTES / 4;
                const float2 before = unpack_bf16x2(*word);
                *word = pack_bf16x2(before.x + done[2 * i], before.y + done[2 * i + 1]);
            }
            to += MMA_COLUMNS * TOKEN_BYTES / 4;
        }
}

/* Blocks of a tile's groups of channels follow one another, so that whole tokens are read at a time. */
struct block_place {
    int64_t tile;
    int first, channels; /* of the group */

    __device__ __forceinline__ block_place(int channels_of_all)
    {
        const unsigned groups = (unsigned)(channels_of_all + MMA_CHANNELS - 1) / MMA_CHANNELS;
        tile = blockIdx.x / groups;
        first = (int)(blockIdx.x % groups) * MMA_CHANNELS;
        channels = min((int)MMA_CHANNELS, channels_of_all - first);
    }
};

/* TURNED: by the kernel turned half a circle, the gradient of what was convolved. grid (tiles times groups of channels) */
template <int SIDE, bool TURNED>
__global__ void __launch_bounds__(MMA_THREADS, CONV_BLOCKS) conv_kernel(const conv_args a)
{
    constexpr int REACH = taps<SIDE>::REACH, COLUMNS = taps<SIDE>::COLUMNS;
    extern __shared__ __align__(128) unsigned char memory[];
    const block_place place(a.grid.channels);
    const int first = place.first, channels = place.channels;
    const nl_tile tile = nl_tile_at(a.tiling, a.grid, MMA_COLUMNS, place.tile);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = max(tile.first - REACH, 0), height = tile.last - tile.first;
    const int rows = min(tile.last + REACH, a.grid.height) - begin;
    const int64_t token = tile.image * a.grid.height * a.grid.width;
    auto block_rows = [&](const rows_of &all) {
        return rows_of{all.at + token * all.stride + first, all.stride};
    };
    unsigned char *base = memory + rows * COLUMNS * TOKEN_BYTES;
    fetch<COLUMNS>(shared_address(memory), block_rows(a.x), a.grid, begin, rows,
                   tile.column - REACH, channels);
    fetch<MMA_COLUMNS>(shared_address(base), block_rows(a.base), a.grid, tile.first, height,
                       tile.column, channels);
    cp_async_commit_group();
    const bool mine = warp * 8 < channels;
    const int channel = first + warp * 8;
    uint32_t diagonal[taps<SIDE>::COUNT];
    float2 bias = make_float2(0.f, 0.f);
    if (mine) {
        load_diagonals<SIDE, TURNED>(diagonal, a.weight + channel * taps<SIDE>::COUNT);
        if (a.bias)
            bias = make_float2(a.bias[channel + lane % 4 * 2], a.bias[channel + lane % 4 * 2 + 1]);
    }
    cp_async_wait_group<0>();
    __syncthreads();
    if (mine)
        convolve<SIDE>(a.grid, tile, diagonal, bias, shared_address(memory), base);
    __syncthreads();
    const rows_of out = block_rows(a.out);
    for_units<MMA_COLUMNS>(height, [&](int row, int column, int unit) {
        const int z = tile.column + column;
        if (z < a.grid.width && unit * 8 < channels)
            *(uint4 *)(out.at + ((int64_t)(tile.first + row) * a.grid.width + z) * out.stride +
                       unit * 8) = *(const uint4 *)(base + unit_at<MMA_COLUMNS>(row, column, unit));
    });
}

/* ---- Launches */

inline bool serves(int64_t kernel)
{
    return kernel == 3 || kernel == 5;
}

inline rows_of rows_in(const nl_tensor &x)
{
    return {(__nv_bfloat16 *)x.data, x.row_stride};
}

/* Of a tile of so many rows: what it reaches, and its own place beside. */
template <int SIDE> int tile_bytes(const nl_token_grid &grid, int rows)
{
    const int reached = rows + 2 * taps<SIDE>::REACH;
    return ((reached < grid.height ? reached : grid.height) * taps<SIDE>::COLUMNS +
            rows * MMA_COLUMNS) *
           TOKEN_BYTES;
}

/* Rows of the tallest tiles of which `blocks` fit into a multiprocessor. */
template <int SIDE> int tile_rows(const nl_token_grid &grid, int blocks)
{
    int rows = grid.height;
    while (rows > 1 && tile_bytes<SIDE>(grid, rows) > nl_shared_limit() / blocks)
        rows--;
    return rows;
}

inline unsigned channel_groups(const nl_token_grid &grid)
{
    return nl_blocks(grid.channels, MMA_CHANNELS);
}

template <int SIDE, bool TURNED>
cudaError_t launch_conv(conv_args a, int multiprocessors, cudaStream_t stream)
{
    const unsigned groups = channel_groups(a.grid);
    a.tiling = nl_tiling_to_fill(a.grid, MMA_COLUMNS, tile_rows<SIDE>(a.grid, CONV_BLOCKS),
                                 nl_blocks(2 * multiprocessors, groups));
    const int bytes = tile_bytes<SIDE>(a.grid, a.tiling.rows);
    const cudaError_t error = nl_allow_shared(conv_kernel<SIDE, TURNED>, bytes);
    if (error == cudaSuccess)
        conv_kernel<SIDE, TURNED>
            <<<(unsigned)a.tiling.count * groups, MMA_THREADS, bytes, stream>>>(a);
    return error;
}

/* out = base + bias + x convolved; the launcher sets the tiling. kernel: one that is served. */
template <bool TURNED>
cudaError_t run_conv(int64_t kernel, const conv_args &a, int multiprocessors, cudaStream_t stream)
{
    return kernel == 3 ? launch_conv<3, TURNED>(a, multiprocessors, stream)
                       : launch_conv<5, TURNED>(a, multiprocessors, stream);
}

} // namespace nl_depthwise

#endif
