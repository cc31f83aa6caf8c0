/* SPDX-License-Identifier: MIT */
/*
 * Depthwise convolutions of a grid of tokens: how it is cut into tiles, and what the forward and the backward pass of a 5 x 5
 * kernel in fp32 share. In bf16 tensor cores do them: depthwise_mma.cuh.
 *
 * A block has a tile of the grid of one image, 32 channels of it, of which each lane has one. Its warp has a strip of
 * columns, down which it goes row by row: each element is read from shared memory once, and then used for all five rows of
 * the kernel from registers.
 */
#ifndef NL_CUDA_DEPTHWISE_CONV_CUH
#define NL_CUDA_DEPTHWISE_CONV_CUH

#include "cuda_common.cuh"
#include "prim/cp_async.cuh"

enum { NL_SIDE = 5, NL_TAPS = NL_SIDE * NL_SIDE, NL_REACH = NL_SIDE / 2 };
enum { NL_STRIP = 4 };          /* columns of a warp */
enum { NL_TILE_CHANNELS = 32 }; /* of a token in a tile: one for each lane */

struct nl_token_grid {
    int64_t images;
    int height, width, channels;
};

/* Rows [first, last) of an image's tile, columns from `column` on. */
struct nl_tile {
    int64_t image;
    int first, last, column;
};

/* How images are cut: `across` tiles of a number of columns beside each other, `down` of `rows` rows. */
struct nl_tiling {
    int across, down, rows;
    int64_t count; /* tiles of all images */
};

/* Rows of 16-byte vectors, as slabs are fetched. */
static inline bool nl_rows_of_vectors(const nl_tensor *x)
{
    return x->row_stride % 8 == 0 && (uintptr_t)x->data % 16 == 0;
}

static inline nl_tiling nl_tiling_of(const nl_token_grid &grid, int columns, int rows)
{
    nl_tiling t;
    t.across = (grid.width + columns - 1) / columns;
    t.down = (grid.height + rows - 1) / rows;
    t.rows = (grid.height + t.down - 1) / t.down;
    t.count = grid.images * t.down * t.across;
    return t;
}

/* Tiles of at most `rows` rows, of fewer where there would not be `wanted` of them: the sums are the same. */
static inline nl_tiling nl_tiling_to_fill(const nl_token_grid &grid, int columns, int rows,
                                          int64_t wanted)
{
    enum { MIN_ROWS = 4 };
    nl_tiling tiling = nl_tiling_of(grid, columns, rows);
    while (tiling.count < wanted && rows > MIN_ROWS) {
        rows = (rows + 1) / 2;
        tiling = nl_tiling_of(grid, columns, rows);
    }
    return tiling;
}

/* Rows of the tallest tiles of which `capacity` rows fit, those that the kernel reaches included. */
static inline int nl_tile_rows(const nl_token_grid &grid, int capacity)
{
    return grid.height <= capacity ? grid.height : capacity - 2 * NL_REACH;
}

/* Of the slab below, for the tallest tile. */
static inline int nl_slab_bytes(const nl_token_grid &grid, const nl_tiling &t, int columns)
{
    const int rows = t.rows + 2 * NL_REACH;
    return (rows < grid.height ? rows : grid.height) * (columns + 2 * NL_REACH) * NL_TILE_CHANNELS *
           4;
}

__device__ __forceinline__ nl_tile nl_tile_at(const nl_tiling &t, const nl_token_grid &grid,
                                              int columns, int64_t index)
{
    nl_tile tile;
    const int64_t row = index / t.across;
    tile.column = (int)(index % t.across) * columns;
    tile.image = row / t.down;
    tile.first = (int)(row % t.down) * t.rows;
    tile.last = min(tile.first + t.rows, grid.height);
    return tile;
}

/* Rows of the grid that a tile's convolution reads: [nl_begin, nl_end). */
__device__ __forceinline__ int nl_begin(const nl_tile &tile)
{
    return max(tile.first - NL_REACH, 0);
}
__device__ __forceinline__ int nl_end(const nl_tile &tile, const nl_token_grid &grid)
{
    return min(tile.last + NL_REACH, grid.height);
}

/* Rows of tokens. */
struct nl_rows {
    float *at; /* the first channel of the block in the first token of the image, or the lane's */
    int64_t stride;
};

__device__ __forceinline__ nl_rows nl_rows_of(const float *x, int64_t stride, int64_t token,
                                              int channel)
{
    return {(float *)x + token * stride + channel, stride};
}

/* Until what this thread fetched is there. */
__device__ __forceinline__ void nl_fetched()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* slab [rows that the tile reads, COLUMNS + 4, 32] = x, 0 where the grid has no token or x no channel. `channels`: what x
 * has of a token, 32 at most, a multiple of 4. A thread has 16 bytes of a column, rows `step` apart. */
template <int COLUMNS>
__device__ __forceinline__ void nl_fetch_slab(float *slab, const nl_rows &x,
                                              const nl_token_grid &grid, const nl_tile &tile,
                                              int channels)
{
    constexpr int PITCH = (COLUMNS + 2 * NL_REACH) * 32;
    const int begin = nl_begin(tile), rows = nl_end(tile, grid) - begin;
    const int piece = threadIdx.x % 8 * 4, line = threadIdx.x / 8, lines = blockDim.x / 8;
    auto fetch_column = [&](int column, int row, int step) {
        const int z = tile.column - NL_REACH + column;
        const bool there = z >= 0 && z < grid.width && piece < channels;
        const float *from = x.at;
        if (there)
            from += ((int64_t)(begin + row) * grid.width + z) * x.stride + piece;
        const int64_t pitch = there ? step * grid.width * x.stride : 0;
        for (; row < rows; row += step, from += pitch)
            nl_prim::cp_async(nl_prim::shared_address(slab + row * PITCH + column * 32 + piece),
                              from, there);
    };
    fetch_column(NL_REACH + line % COLUMNS, line / COLUMNS, lines / COLUMNS);
    const int side = line % (2 * NL_REACH); /* the columns on either side */
    fetch_column(side < NL_REACH ? side : COLUMNS + side, line / (2 * NL_REACH),
                 lines / (2 * NL_REACH));
}

/* out = base + bias + convolution of the slab, for the warp's strip of the tile. `slab` points to the first element
 * that the lane reads of the strip, base and out to the lane's channel of the image's first token. */
template <int PITCH>
__device__ __forceinline__ void
nl_convolve(const nl_token_grid &grid, const nl_tile &strip, const float (&weight)[NL_TAPS],
            float bias, const float *slab, const nl_rows &base, const nl_rows &out)
{
    float sum[NL_SIDE][NL_STRIP]; /* output row o, of r - 2 to r + 2, in place (o - begin) % 5 */
    const int begin = nl_begin(strip), end = strip.last + NL_REACH;
    const int width = min(NL_STRIP, grid.width - strip.column);
    const int64_t done = (int64_t)(begin - NL_REACH) * grid.width + strip.column;
    const float *from = base.at + done * base.stride;
    float *to = out.at + done * out.stride;
#pragma unroll
    for (int i = 0; i < NL_SIDE * NL_STRIP; i++)
        sum[i / NL_STRIP][i % NL_STRIP] = bias;
    for (int five = begin; five < end; five += NL_SIDE)
#pragma unroll
        for (int u = 0; u < NL_SIDE; u++) {
            const int r = five + u;
            if (r >= end)
                break;
            const bool complete = r - NL_REACH >= strip.first; /* row r - 2 is, after this one */
            float before[NL_STRIP];
            if (complete)
#pragma unroll
                for (int i = 0; i < NL_STRIP; i++)
                    before[i] = from[min(i, width - 1) * (unsigned)base.stride];
            if (r < grid.height) {
                float x[NL_STRIP + 2 * NL_REACH];
#pragma unroll
                for (int i = 0; i < NL_STRIP + 2 * NL_REACH; i++)
                    x[i] = slab[i * 32];
#pragma unroll
                for (int tap = 0; tap < NL_TAPS; tap++)
#pragma unroll
                    for (int i = 0; i < NL_STRIP; i++) {
                        const int o = u + NL_SIDE + NL_REACH - tap / NL_SIDE;
                        float &y = sum[o % NL_SIDE][i];
                        y = fmaf(weight[tap], x[i + tap % NL_SIDE],
                                 tap == 0 ? bias : y); /* the first of row r + 2 */
                    }
            }
            if (complete)
#pragma unroll
                for (int i = 0; i < NL_STRIP; i++)
                    if (i < width)
                        to[i * (unsigned)out.stride] =
                            before[i] + sum[(u + NL_SIDE - NL_REACH) % NL_SIDE][i];
            slab += PITCH, from += grid.width * base.stride, to += grid.width * out.stride;
        }
}

/* dweight[ky, kx] += sum over the strip's tokens of dout(y, z) x(y + ky - 2, z + kx - 2), dbias += sum of dout. x and dout
 * point to the first elements that the lane reads of the strip, in slabs alike. */
template <int PITCH>
__device__ __forceinline__ void nl_correlate(const nl_token_grid &grid, const nl_tile &strip,
                                             const float *x, const float *dout,
                                             float (&dweight)[NL_TAPS], float &dbias)
{
    float window[NL_SIDE][NL_STRIP]; /* dout of rows r - 2 to r + 2, placed as above */
    const int begin = nl_begin(strip), end = nl_end(strip, grid);
    auto take = [&](float(&row)[NL_STRIP], int y) {
#pragma unroll
        for (int i = 0; i < NL_STRIP; i++)
            row[i] = 0.f;
        if (y < strip.first || y >= strip.last)
            return;
#pragma unroll
        for (int i = 0; i < NL_STRIP; i++) {
            row[i] = dout[(y - begin) * PITCH + (NL_REACH + i) * 32];
            dbias += row[i];
        }
    };
#pragma unroll
    for (int e = -NL_REACH; e < NL_REACH; e++)
        take(window[(e + NL_SIDE) % NL_SIDE], begin + e);
    for (int five = begin; five < end; five += NL_SIDE)
#pragma unroll
        for (int u = 0; u < NL_SIDE; u++) {
            const int r = five + u;
            if (r >= end)
                break;
            float in[NL_STRIP + 2 * NL_REACH];
            take(window[(u + NL_REACH) % NL_SIDE], r + NL_REACH);
#pragma unroll
            for (int i = 0; i < NL_STRIP + 2 * NL_REACH; i++)
                in[i] = x[i * 32];
#pragma unroll
            for (int tap = 0; tap < NL_TAPS; tap++)
#pragma unroll
                for (int i = 0; i < NL_STRIP; i++) {
                    const int o = u + NL_SIDE + NL_REACH - tap / NL_SIDE;
                    dweight[tap] =
                        fmaf(window[o % NL_SIDE][i], in[i + tap % NL_SIDE], dweight[tap]);
                }
            x += PITCH;
        }
}

#endif
