/* SPDX-License-Identifier: MIT */
/* The gradients of depthwise_mma.cuh, all from one slab of dout: what was convolved has dout convolved with the kernel turned half
 * a circle; a tap's is the diagonal of a product over tokens, [8 channels of dout, 16 tokens] times [16 tokens, 8 of x]. The first
 * factor of 16 x 8 x 16 has two of these: dout at a tap and at its mirror in the row of the kernel, for a row of x; or two rows of
 * x for dout at the middle tap, for which a row of ones after the last of x makes the bias's. */
#ifndef NL_CUDA_DEPTHWISE_BACKWARD_MMA_CUH
#define NL_CUDA_DEPTHWISE_BACKWARD_MMA_CUH

#include "depthwise_mma.cuh"

namespace nl_depthwise
{

enum { GRADIENT_BLOCKS = 2 }; /* at a time on a multiprocessor */

/* Sums of a warp's channels over the tiles of a block. Of dout it reaches tap s = SIDE - 1 - the column of the kernel. */
template <int SIDE> struct weight_sums {
    static constexpr int REACH = taps<SIDE>::REACH;
    static_assert(4 * MMA_CHANNELS * (taps<SIDE>::COUNT + 1) <=
                      TOKEN_BYTES * (SLAB_COLUMNS + 2 * MMA_COLUMNS),
                  "they fit where tokens were");
    float sides[SIDE][REACH][4]; /* by rows: taps s and SIDE - 1 - s */
    float middle[REACH + 1][4];  /* rows of the kernel 2 i and 2 i + 1, the bias after the last */
};

template <int SIDE>
__device__ __forceinline__ void correlate(const nl_token_grid &grid, const nl_tile &tile,
                                          uint32_t x, uint32_t dout, weight_sums<SIDE> &sums)
{
    constexpr int REACH = taps<SIDE>::REACH;
    const int warp = warp_unit(), lane = threadIdx.x % 32;
    const int begin = max(tile.first - REACH, 0), end = min(tile.last + REACH, grid.height);
    uint32_t window[SIDE][2]; /* x of rows r - REACH to r + REACH, in place (row - begin) % SIDE */
    uint32_t sides[REACH];    /* tokens 0-7 at a tap, at its mirror, then tokens 8-15 */
#pragma unroll
    for (int s = 0; s < REACH; s++) {
        const int tap = lane / 8 % 2 ? SIDE - 1 - s : s;
        sides[s] = dout + unit_at<SLAB_COLUMNS>(0, lane % 8 + lane / 16 * 8 + tap, warp);
    }
    uint32_t middle = dout + unit_at<SLAB_COLUMNS>(0, lane % 16 + REACH, warp);
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
            for (int s = 0; s < REACH; s++) {
                uint32_t a[4];
                ldmatrix_x4_trans(a, sides[s]);
                sides[s] = next_row(sides[s]);
#pragma unroll
                for (int y = 0; y < SIDE; y++) {
                    const uint32_t(&b)[2] = window[(u + SIDE + y - REACH) % SIDE];
                    mma_m16n8k16(sums.sides[y][s], a, b[0], b[1]);
                }
            }
            uint32_t b[2];
            ldmatrix_x2_trans(b[0], b[1], middle);
            middle = next_row(middle);
            const uint32_t ones = r >= tile.first && r < tile.last ? 0x3f803f80 : 0;
#pragma unroll
            for (int y = 0; y < SIDE; y += 2) {
                const uint32_t(&one)[2] = window[(u + SIDE + y - REACH) % SIDE];
                const uint32_t(&next)[2] = window[(u + SIDE + y + 1 - REACH) % SIDE];
                const bool last = y + 1 == SIDE;
                const uint32_t a[] = {one[0], last ? ones : next[0], one[1], last ? ones : next[1]};
                mma_m16n8k16(sums.middle[y / 2], a, b[0], b[1]);
            }
        }
}

/* The sums into memory [MMA_CHANNELS, taps + 1]. A lane has the diagonal's elements of channel lane / 4 where that is one of its
 * two. */
template <int SIDE>
__device__ __forceinline__ void put_sums(const weight_sums<SIDE> &sums, float *memory)
{
    constexpr int REACH = taps<SIDE>::REACH;
    const int warp = warp_unit(), lane = threadIdx.x % 32, channel = lane / 4;
    if (channel / 2 != lane % 4)
        return;
    float *mine = memory + (warp * 8 + channel) * (taps<SIDE>::COUNT + 1);
    const int odd = channel % 2;
#pragma unroll
    for (int y = 0; y < SIDE; y++)
#pragma unroll
        for (int s = 0; s < SIDE; s++) {
            const float(&c)[4] =
                s == REACH ? sums.middle[y / 2] : sums.sides[y][s < REACH ? s : SIDE - 1 - s];
            const int half = s == REACH ? y % 2 : s > REACH;
            mine[y * SIDE + SIDE - 1 - s] = odd ? c[2 * half + 1] : c[2 * half];
        }
    mine[taps<SIDE>::COUNT] = odd ? sums.middle[REACH][3] : sums.middle[REACH][2];
}

/* dx += dout convolved with the turned kernel; the weights' sums in parts. Tokens: nl_tensor, or a tensor as a kernel has it. */
template <typename Tokens> struct gradient_args {
    Tokens dout, x, dx;
    nl_token_grid grid;
    mma_tiling tiling;
    int tiles; /* of a part: a block goes through them */
    const float *weight;
    float *parts; /* [parts, channels (taps + 1)]: taps of all channels, then biases */
};

/* Sums as put_sums leaves them, by all threads of the block. */
template <int SIDE, typename Tokens>
__device__ __forceinline__ void write_part(const gradient_args<Tokens> &a, const block_place &block,
                                           const float *sums)
{
    constexpr int COUNT = taps<SIDE>::COUNT;
    const int first = block.channel, channels = min((int)MMA_CHANNELS, a.grid.channels - first);
    float *part = a.parts + block.tile * a.grid.channels * (COUNT + 1);
    for (int i = threadIdx.x; i < channels * COUNT; i += blockDim.x)
        part[first * COUNT + i] = sums[i / COUNT * (COUNT + 1) + i % COUNT];
    for (int i = threadIdx.x; i < channels; i += blockDim.x)
        part[(int64_t)a.grid.channels * COUNT + first + i] = sums[i * (COUNT + 1) + COUNT];
}

/* For any card: all warps convolve a tile, then correlate it. grid (parts times groups of channels) */
template <int SIDE>
__global__ void __launch_bounds__(MMA_THREADS, GRADIENT_BLOCKS)
    gradient_kernel(const __grid_constant__ gradient_args<token_rows> a)
{
    constexpr int COUNT = taps<SIDE>::COUNT;
    extern __shared__ __align__(1024) unsigned char memory[];
    const block_place block(a.grid.channels); /* of a part */
    const int rows = a.tiling.rows, first = block.channel;
    const uint32_t dx = shared_address(memory), x = dx + a.tiling.tile_bytes();
    const uint32_t dout = x + a.tiling.tile_bytes();
    const int channel = first + threadIdx.x / 32 * 8;
    const bool mine = channel < a.grid.channels;
    token_rows::arrivals arrivals(memory + a.tiling.token_bytes(2));
    weight_sums<SIDE> sums = {};
    for (int i = 0; i < a.tiles; i++) {
        const int64_t index = block.tile * a.tiles + i;
        if (index >= a.tiling.count)
            break;
        const nl_tile tile = nl_tile_at(a.tiling, a.grid, MMA_COLUMNS, index);
        const token_place place = {tile.image, tile.first, tile.column, first};
        arrivals.expect(a.tiling.token_bytes(2));
        a.dout.load<SLAB_COLUMNS>(dout, a.grid, reached<SIDE>(tile, first), a.tiling.slab_rows,
                                  arrivals);
        a.dx.load<MMA_COLUMNS>(dx, a.grid, place, rows, arrivals);
        a.x.load<MMA_COLUMNS>(x, a.grid, place, rows, arrivals);
        uint32_t diagonal[COUNT];
        if (mine)
            load_diagonals<SIDE, true>(diagonal, a.weight + channel * COUNT);
        arrivals.wait();
        if (mine)
            convolve<SIDE>(a.grid, tile, diagonal, make_float2(0.f, 0.f), dout, memory);
        a.dx.store(memory, a.grid, place, rows);
        if (mine)
            correlate<SIDE>(a.grid, tile, x, dout, sums);
        a.dx.stored();
        __syncthreads(); /* all have read what is there */
    }
    put_sums<SIDE>(sums, (float *)memory);
    __syncthreads();
    write_part<SIDE>(a, block, (const float *)memory);
}

/* ---- Launches */

/* How the gradients are cut: by the grid and the card alone, as the weights' sums depend on it. A part is what a block does
 * while all `blocks` that the card takes are there. */
struct weight_parts {
    mma_tiling tiling;
    int tiles; /* of a part */
    int64_t count;
};
inline weight_parts weight_parts_of(int64_t kernel, const nl_token_grid &grid, int blocks)
{
    const mma_tiling tiling = tallest_tiling(grid, 2, (int)kernel / 2, GRADIENT_BLOCKS);
    const int tiles = (int)nl_blocks(tiling.count * channel_groups(grid), blocks);
    return {tiling, tiles, nl_blocks(tiling.count, tiles)};
}

/* a's tensors of p's, in the boxes that a kernel copies; false for those that Tokens do not take. */
template <typename Tokens>
bool set_tokens(const gradient_args<nl_tensor> &p, gradient_args<Tokens> *a)
{
    return a->dout.set(p.dout, p.grid, SLAB_COLUMNS, p.tiling.slab_rows) &&
           a->x.set(p.x, p.grid, MMA_COLUMNS, p.tiling.rows) &&
           a->dx.set(p.dx, p.grid, MMA_COLUMNS, p.tiling.rows);
}

template <int SIDE>
cudaError_t launch_gradients(const gradient_args<nl_tensor> &p, cudaStream_t stream)
{
    const unsigned blocks = nl_blocks(p.tiling.count, p.tiles) * channel_groups(p.grid);
    const int bytes = p.tiling.shared_bytes(2);
    gradient_args<token_rows> a = {{}, {}, {}, p.grid, p.tiling, p.tiles, p.weight, p.parts};
    if (!set_tokens(p, &a))
        return cudaErrorNotSupported;
    const cudaError_t error = nl_allow_shared(gradient_kernel<SIDE>, bytes);
    if (error == cudaSuccess)
        gradient_kernel<SIDE><<<blocks, MMA_THREADS, bytes, stream>>>(a);
    return error;
}

/* kernel: one that is served. */
inline cudaError_t run_gradients(int64_t kernel, const gradient_args<nl_tensor> &p,
                                 cudaStream_t stream)
{
    return kernel == 3 ? launch_gradients<3>(p, stream) : launch_gradients<5>(p, stream);
}

} // namespace nl_depthwise

#endif
