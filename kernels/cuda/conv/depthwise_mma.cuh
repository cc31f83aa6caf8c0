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
 * In shared memory a token has 128 bytes, whose units of 16 are swizzled by its place as TMA does it, so that matrices of
 * eight tokens are read without conflicts. The block's threads copy tokens there, or on Hopper TMA: depthwise_sm90.cu.
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
enum { SLAB_COLUMNS = MMA_COLUMNS + 4 }; /* of a tile with what it reaches */
enum { CONV_BLOCKS = 3 };                /* at a time on a multiprocessor */

template <int SIDE> struct taps {
    static constexpr int COUNT = SIDE * SIDE, REACH = SIDE / 2, PAIRS = (SIDE + 1) / 2;
    static_assert(MMA_COLUMNS + 2 * REACH <= SLAB_COLUMNS, "slabs hold what tiles reach");
    __device__ static constexpr bool whole(int pair)
    {
        return 2 * pair + 1 < SIDE;
    }
};

/* ---- Tokens in shared memory: tiles [rows, MMA_COLUMNS, MMA_CHANNELS], slabs [rows, SLAB_COLUMNS, MMA_CHANNELS], of 1,024 bytes'
 * alignment. */

/* The calling warp's eight channels of MMA_CHANNELS; blocks with more warps have several for the same. */
__device__ __forceinline__ int warp_unit()
{
    return threadIdx.x / 32 % MMA_WARPS;
}

/* Byte where a unit of a token lies. */
template <int COLUMNS> __device__ __forceinline__ int unit_at(int row, int column, int unit)
{
    const int token = row * COLUMNS + column;
    return token * TOKEN_BYTES + ((unit ^ token % 8) << 4);
}

/* That unit of the slab's next row: its token's number is four more in eight. */
__device__ __forceinline__ uint32_t next_row(uint32_t at)
{
    static_assert(SLAB_COLUMNS % 8 == 4, "a row's swizzle is the last one's with a bit turned");
    return (at ^ 4 << 4) + SLAB_COLUMNS * TOKEN_BYTES;
}

/* A block's shared memory has `tiles` tiles, a slab with the rows that any tile reaches, and a barrier. */
struct mma_tiling : nl_tiling {
    int slab_rows;

    mma_tiling(const nl_tiling &tiling, const nl_token_grid &grid, int reach)
        : nl_tiling(tiling), slab_rows(rows + reach * (down < 3 ? down - 1 : 2))
    {
        slab_rows = slab_rows < grid.height ? slab_rows : grid.height;
    }
    __host__ __device__ int tile_bytes() const
    {
        return rows * MMA_COLUMNS * TOKEN_BYTES;
    }
    __host__ __device__ int token_bytes(int tiles) const
    {
        return tiles * tile_bytes() + slab_rows * SLAB_COLUMNS * TOKEN_BYTES;
    }
    int shared_bytes(int tiles) const
    {
        return token_bytes(tiles) + (int)sizeof(uint64_t);
    }
};

/* The first token and channel of what a block has of an image. */
struct token_place {
    int64_t image;
    int row, column, channel;
};

/* A tensor of tokens as a block's threads copy it; its arrivals are what the block waits for. */
struct token_rows {
    __nv_bfloat16 *at;
    int64_t stride;

    bool set(const nl_tensor &x, const nl_token_grid &, int, int)
    {
        at = (__nv_bfloat16 *)x.data, stride = x.row_stride;
        return true;
    }

    struct arrivals {
        __device__ __forceinline__ arrivals(void *) {}
        __device__ __forceinline__ void expect(int) {}
        __device__ __forceinline__ void wait()
        {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
        }
    };

    /* use(row, column, unit, where it lies) for each unit of the grid's tokens and channels, use(row, column, unit, NULL)
     * where the grid has no column or no channel. */
    template <int COLUMNS, typename Use>
    __device__ __forceinline__ void for_units(const nl_token_grid &grid, const token_place &place,
                                              int rows, Use use) const
    {
        const int unit = threadIdx.x % 8, channel = place.channel + unit * 8;
        __nv_bfloat16 *image = at + place.image * grid.height * grid.width * stride + channel;
        rows = min(rows, grid.height - place.row);
        for (int i = threadIdx.x / 8; i < rows * COLUMNS; i += MMA_THREADS / 8) {
            const int row = i / COLUMNS, column = i % COLUMNS, z = place.column + column;
            const bool there = z >= 0 && z < grid.width && channel < grid.channels;
            use(row, column, unit,
                there ? image + ((int64_t)(place.row + row) * grid.width + z) * stride : NULL);
        }
    }

    /* Queues copies of `rows` rows, zeros where the grid has no column or no channel. */
    template <int COLUMNS>
    __device__ __forceinline__ void load(uint32_t to, const nl_token_grid &grid,
                                         const token_place &place, int rows, const arrivals &) const
    {
        for_units<COLUMNS>(
            grid, place, rows, [&](int row, int column, int unit, const __nv_bfloat16 *from) {
                cp_async(to + unit_at<COLUMNS>(row, column, unit), from ? from : at, from != NULL);
            });
    }

    /* What all threads have written to the tile; until it is `stored` it stays there. */
    __device__ __forceinline__ void store(const unsigned char *tile, const nl_token_grid &grid,
                                          const token_place &place, int rows) const
    {
        __syncthreads();
        for_units<MMA_COLUMNS>(
            grid, place, rows, [&](int row, int column, int unit, __nv_bfloat16 *to) {
                if (to)
                    *(uint4 *)to = *(const uint4 *)(tile + unit_at<MMA_COLUMNS>(row, column, unit));
            });
    }
    __device__ __forceinline__ void stored() const {}
};

/* ---- The convolution */

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

/* The tile that follows. */
__device__ __forceinline__ void go_on(nl_tile &tile, const mma_tiling &tiling,
                                      const nl_token_grid &grid)
{
    if ((tile.column += MMA_COLUMNS) >= grid.width) {
        tile.column = 0;
        if ((tile.first += tiling.rows) >= grid.height)
            tile.first = 0, tile.image++;
        tile.last = min(tile.first + tiling.rows, grid.height);
    }
}

/* Where a tile's slab begins. */
template <int SIDE> __device__ __forceinline__ token_place reached(const nl_tile &tile, int channel)
{
    constexpr int REACH = taps<SIDE>::REACH;
    return {tile.image, max(tile.first - REACH, 0), tile.column - REACH, channel};
}

/* A warp's eight channels of a tile: base + bias + convolution to the place of base, [rows, MMA_COLUMNS]. */
template <int SIDE>
__device__ __forceinline__ void convolve(const nl_token_grid &grid, const nl_tile &tile,
                                         const uint32_t (&diagonal)[taps<SIDE>::COUNT], float2 bias,
                                         uint32_t slab, unsigned char *base)
{
    constexpr int REACH = taps<SIDE>::REACH, PAIRS = taps<SIDE>::PAIRS;
    const int warp = warp_unit(), lane = threadIdx.x % 32;
    const int begin = max(tile.first - REACH, 0), end = tile.last + REACH;
    float sum[SIDE][4]; /* output row o, of r - REACH to r + REACH, in place (o - begin) % SIDE */
    uint32_t at
        [PAIRS]; /* of a lane's row of the matrices: tokens 0-7, 8-15 at a tap, then at the next */
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++)
        at[pair] =
            slab + unit_at<SLAB_COLUMNS>(
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
                    at[pair] = next_row(at[pair]);
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
    int channel; /* the first of the group */

    __device__ __forceinline__ block_place(int channels)
    {
        const unsigned groups = (unsigned)(channels + MMA_CHANNELS - 1) / MMA_CHANNELS;
        tile = blockIdx.x / groups;
        channel = (int)(blockIdx.x % groups) * MMA_CHANNELS;
    }
};

/* out = base + bias + x convolved. Tokens: nl_tensor, or a tensor as a kernel has it. */
template <typename Tokens> struct conv_args {
    Tokens x, base, out; /* base may be out */
    nl_token_grid grid;
    mma_tiling tiling;
    const float *weight, *bias;
};

/* grid (tiles times groups of channels) */
template <int SIDE, typename Tokens>
__global__ void __launch_bounds__(MMA_THREADS, CONV_BLOCKS)
    conv_kernel(const __grid_constant__ conv_args<Tokens> a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const block_place block(a.grid.channels);
    const nl_tile tile = nl_tile_at(a.tiling, a.grid, MMA_COLUMNS, block.tile);
    const token_place place = {tile.image, tile.first, tile.column, block.channel};
    const int rows = a.tiling.rows, channel = block.channel + threadIdx.x / 32 * 8;
    const uint32_t slab = shared_address(memory) + a.tiling.tile_bytes();
    typename Tokens::arrivals arrivals(memory + a.tiling.token_bytes(1));
    arrivals.expect(a.tiling.token_bytes(1));
    a.x.template load<SLAB_COLUMNS>(slab, a.grid, reached<SIDE>(tile, block.channel),
                                    a.tiling.slab_rows, arrivals);
    a.base.template load<MMA_COLUMNS>(shared_address(memory), a.grid, place, rows, arrivals);
    const bool mine = channel < a.grid.channels;
    uint32_t diagonal[taps<SIDE>::COUNT];
    float2 bias = make_float2(0.f, 0.f);
    if (mine) {
        const int two = channel + threadIdx.x % 4 * 2;
        load_diagonals<SIDE, false>(diagonal, a.weight + channel * taps<SIDE>::COUNT);
        bias = make_float2(a.bias[two], a.bias[two + 1]);
    }
    arrivals.wait();
    if (mine)
        convolve<SIDE>(a.grid, tile, diagonal, bias, slab, memory);
    a.out.store(memory, a.grid, place, rows);
    a.out.stored();
}

/* ---- Launches */

inline bool serves(int64_t kernel)
{
    return kernel == 3 || kernel == 5;
}

inline unsigned channel_groups(const nl_token_grid &grid)
{
    return nl_blocks(grid.channels, MMA_CHANNELS);
}

/* The tallest tiles of which `blocks` blocks fit into a multiprocessor. */
inline mma_tiling tallest_tiling(const nl_token_grid &grid, int tiles, int reach, int blocks)
{
    enum { RESERVED = 1 << 10 }; /* by CUDA, for each block */
    const int most = (nl_shared_limit() + RESERVED) / blocks - RESERVED;
    for (int rows = grid.height;; rows--) {
        const mma_tiling tiling(nl_tiling_of(grid, MMA_COLUMNS, rows), grid, reach);
        if (rows == 1 || tiling.shared_bytes(tiles) <= most)
            return tiling;
    }
}

/* Of a convolution: tiles as many as fill the card. */
inline mma_tiling conv_tiling(int64_t kernel, const nl_token_grid &grid, int multiprocessors)
{
    const int reach = (int)kernel / 2;
    const int rows = tallest_tiling(grid, 1, reach, CONV_BLOCKS).rows;
    const unsigned wanted = nl_blocks(2 * multiprocessors, channel_groups(grid));
    return {nl_tiling_to_fill(grid, MMA_COLUMNS, rows, wanted), grid, reach};
}

template <int SIDE, typename Tokens>
cudaError_t launch_conv(const conv_args<nl_tensor> &p, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)p.tiling.count * channel_groups(p.grid);
    const int bytes = p.tiling.shared_bytes(1);
    conv_args<Tokens> a = {{}, {}, {}, p.grid, p.tiling, p.weight, p.bias};
    if (!a.x.set(p.x, p.grid, SLAB_COLUMNS, p.tiling.slab_rows) ||
        !a.base.set(p.base, p.grid, MMA_COLUMNS, p.tiling.rows) ||
        !a.out.set(p.out, p.grid, MMA_COLUMNS, p.tiling.rows))
        return cudaErrorNotSupported;
    const cudaError_t error = nl_allow_shared(conv_kernel<SIDE, Tokens>, bytes);
    if (error == cudaSuccess)
        conv_kernel<SIDE, Tokens><<<blocks, MMA_THREADS, bytes, stream>>>(a);
    return error;
}

/* kernel: one that is served. */
template <typename Tokens>
cudaError_t run_conv(int64_t kernel, const conv_args<nl_tensor> &p, cudaStream_t stream)
{
    return kernel == 3 ? launch_conv<3, Tokens>(p, stream) : launch_conv<5, Tokens>(p, stream);
}

} // namespace nl_depthwise

#endif
