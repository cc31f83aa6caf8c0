/* SPDX-License-Identifier: MIT */
/*
 * Depthwise convolutions of a grid of tokens on Hopper: depthwise_mma.cuh with tokens that TMA copies. A tensor is [images, height,
 * width, channels]; a slab or a tile is one box of it, swizzled over its rows of 128 bytes, with zeros where the grid
 * ends; of a tile that is stored, what lies beyond the grid is left out.
 *
 * The gradients' kernel has one block on a multiprocessor, with the tokens of STAGES tiles: while some are worked on, others
 * come and go. A thread of the first warp moves them, eight warps convolve dout and eight correlate it with x, each set in
 * its own time; a stage is filled anew when both are done with it and dx has left it.
 */
#include "depthwise_sm90.cuh"

#include "prim/is_hopper.cuh"
#include "prim/tma.cuh"

namespace nl_depthwise
{

namespace
{

/* A tensor of tokens as TMA copies it, as token_rows. Its functions work in the block's first thread. */
struct token_boxes {
    CUtensorMap map;

    bool set(const nl_tensor &x, const nl_token_grid &grid, int columns, int rows)
    {
        const cuuint64_t sizes[] = {(cuuint64_t)grid.channels, (cuuint64_t)grid.width,
                                    (cuuint64_t)grid.height, (cuuint64_t)grid.images};
        const cuuint64_t token = 2 * (cuuint64_t)x.row_stride;
        const cuuint64_t strides[] = {token, token * sizes[1], token * sizes[1] * sizes[2]};
        const cuuint32_t box[] = {MMA_CHANNELS, (cuuint32_t)columns, (cuuint32_t)rows, 1};
        return make_tensor_map(&map, x.data, 4, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    }

    /* Each phase of the barrier is of one expect. */
    struct arrivals {
        uint64_t *barrier;
        uint32_t parity;

        __device__ __forceinline__ arrivals(void *at) : barrier((uint64_t *)at), parity(0)
        {
            if (threadIdx.x == 0) {
                mbarrier_init(barrier, 1);
                fence_mbarrier_init();
            }
            __syncthreads();
        }
        __device__ __forceinline__ void expect(int bytes)
        {
            if (threadIdx.x == 0)
                mbarrier_arrive_expect_tx(barrier, bytes);
        }
        __device__ __forceinline__ void wait()
        {
            mbarrier_wait_parity(barrier, parity);
            parity ^= 1;
        }
    };

    __device__ __forceinline__ void fetch(uint32_t to, const token_place &place,
                                          uint64_t *barrier) const
    {
        tma_load(to, &map, place.channel, place.column, place.row, (int)place.image,
                 shared_address(barrier));
    }
    __device__ __forceinline__ void send(uint32_t tile, const token_place &place) const
    {
        tma_store(&map, place.channel, place.column, place.row, (int)place.image, tile);
        tma_store_commit_group();
    }

    template <int COLUMNS>
    __device__ __forceinline__ void load(uint32_t to, const nl_token_grid &,
                                         const token_place &place, int,
                                         const arrivals &arrivals) const
    {
        if (threadIdx.x == 0)
            fetch(to, place, arrivals.barrier);
    }

    __device__ __forceinline__ void store(const unsigned char *tile, const nl_token_grid &,
                                          const token_place &place, int) const
    {
        fence_proxy_async();
        __syncthreads();
        if (threadIdx.x == 0)
            send(shared_address(tile), place);
    }
    __device__ __forceinline__ void stored() const
    {
        if (threadIdx.x == 0)
            tma_store_wait_read();
    }
};

/* ---- Gradients */

enum { STAGES = 2, ROLE_THREADS = MMA_THREADS, PIPE_THREADS = 32 + 2 * ROLE_THREADS };

/* Phase k of each is of the stage's tile k: its tokens are there; all warps have convolved, have correlated. */
struct stage_barriers {
    uint64_t full[STAGES], convolved[STAGES], correlated[STAGES];
};

/* A stage's bytes: as launched for one tile, dx, x, then the slab of dout. */
__host__ __device__ inline int stage_bytes(const mma_tiling &tiling)
{
    return (tiling.token_bytes(2) + 1023) / 1024 * 1024;
}

/* The stage that tile i of a block has, and the parity of its phase. */
struct stage_of {
    int stage;
    uint32_t parity;

    __device__ __forceinline__ stage_of(int i) : stage(i % STAGES), parity(i / STAGES % 2) {}
};

/* A warp has read or written what it will of a tile. */
__device__ __forceinline__ void warp_is_done(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(barrier);
}

/* By one thread: tokens of `tiles` tiles from `tile` on, in and out. */
template <int SIDE>
__device__ __forceinline__ void move_tokens(const gradient_args<token_boxes> &a, nl_tile tile,
                                            int tiles, int channel, uint32_t memory,
                                            stage_barriers &barriers)
{
    nl_tile next = tile;
    auto fetch = [&](int i) {
        const int stage = stage_of(i).stage;
        uint64_t *full = &barriers.full[stage];
        const uint32_t dx = memory + stage * stage_bytes(a.tiling);
        const uint32_t x = dx + a.tiling.tile_bytes();
        const token_place place = {next.image, next.first, next.column, channel};
        mbarrier_arrive_expect_tx(full, a.tiling.token_bytes(2));
        a.dout.fetch(x + a.tiling.tile_bytes(), reached<SIDE>(next, channel), full);
        a.dx.fetch(dx, place, full);
        a.x.fetch(x, place, full);
        go_on(next, a.tiling, a.grid);
    };
    for (int i = 0; i < min((int)STAGES, tiles); i++)
        fetch(i);
    for (int i = 0; i < tiles; i++) {
        const stage_of at(i);
        mbarrier_wait_parity(&barriers.convolved[at.stage], at.parity);
        a.dx.send(memory + at.stage * stage_bytes(a.tiling),
                  {tile.image, tile.first, tile.column, channel});
        go_on(tile, a.tiling, a.grid);
        if (i + STAGES < tiles) {
            mbarrier_wait_parity(&barriers.correlated[at.stage], at.parity);
            tma_store_wait_read();
            fetch(i + STAGES);
        }
    }
    tma_store_wait_read();
}

/* grid (parts times groups of channels) */
template <int SIDE>
__global__ void __launch_bounds__(PIPE_THREADS, 1)
    gradient_pipe_kernel(const __grid_constant__ gradient_args<token_boxes> a)
{
    enum { TILES_DONE = 1 }; /* a named barrier */
    extern __shared__ __align__(1024) unsigned char memory[];
    const block_place block(a.grid.channels); /* of a part */
    const int bytes = stage_bytes(a.tiling), channel = block.channel + warp_unit() * 8;
    const bool mine = channel < a.grid.channels;
    const int64_t index = block.tile * a.tiles;
    const int tiles = (int)min((int64_t)a.tiles, a.tiling.count - index);
    nl_tile tile = nl_tile_at(a.tiling, a.grid, MMA_COLUMNS, index);
    stage_barriers &barriers = *(stage_barriers *)(memory + STAGES * bytes);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&barriers.full[stage], 1);
            mbarrier_init(&barriers.convolved[stage], MMA_WARPS);
            mbarrier_init(&barriers.correlated[stage], MMA_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            move_tokens<SIDE>(a, tile, tiles, block.channel, shared_address(memory), barriers);
        __syncwarp();
        named_barrier_sync(TILES_DONE, PIPE_THREADS);
    } else if (threadIdx.x < 32 + ROLE_THREADS) {
        uint32_t diagonal[taps<SIDE>::COUNT];
        if (mine)
            load_diagonals<SIDE, true>(diagonal, a.weight + channel * taps<SIDE>::COUNT);
        for (int i = 0; i < tiles; i++) {
            const stage_of at(i);
            unsigned char *dx = memory + at.stage * bytes;
            mbarrier_wait_parity(&barriers.full[at.stage], at.parity);
            if (mine)
                convolve<SIDE>(a.grid, tile, diagonal, make_float2(0.f, 0.f),
                               shared_address(dx) + 2 * a.tiling.tile_bytes(), dx);
            fence_proxy_async(); /* dx is written before it is sent */
            warp_is_done(&barriers.convolved[at.stage]);
            go_on(tile, a.tiling, a.grid);
        }
        named_barrier_sync(TILES_DONE, PIPE_THREADS);
    } else {
        weight_sums<SIDE> sums = {};
        for (int i = 0; i < tiles; i++) {
            const stage_of at(i);
            const uint32_t x = shared_address(memory) + at.stage * bytes + a.tiling.tile_bytes();
            mbarrier_wait_parity(&barriers.full[at.stage], at.parity);
            if (mine)
                correlate<SIDE>(a.grid, tile, x, x + a.tiling.tile_bytes(), sums);
            warp_is_done(&barriers.correlated[at.stage]);
            go_on(tile, a.tiling, a.grid);
        }
        named_barrier_sync(TILES_DONE, PIPE_THREADS);
        put_sums<SIDE>(sums, (float *)memory);
    }
    __syncthreads();
    write_part<SIDE>(a, block, (const float *)memory);
}

template <int SIDE> cudaError_t launch_pipe(const gradient_args<nl_tensor> &p, cudaStream_t stream)
{
    const unsigned blocks = nl_blocks(p.tiling.count, p.tiles) * channel_groups(p.grid);
    const int bytes = STAGES * stage_bytes(p.tiling) + (int)sizeof(stage_barriers);
    gradient_args<token_boxes> a = {{}, {}, {}, p.grid, p.tiling, p.tiles, p.weight, p.parts};
    if (bytes > nl_shared_limit() || !set_tokens(p, &a))
        return cudaErrorNotSupported;
    const cudaError_t error = nl_allow_shared(gradient_pipe_kernel<SIDE>, bytes);
    if (error == cudaSuccess)
        gradient_pipe_kernel<SIDE><<<blocks, PIPE_THREADS, bytes, stream>>>(a);
    return error;
}

bool is_hopper()
{
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess && nl_is_hopper(device);
}

} // namespace

cudaError_t conv_sm90(int64_t kernel, const conv_args<nl_tensor> &args, cudaStream_t stream)
{
    return is_hopper() ? run_conv<token_boxes>(kernel, args, stream) : cudaErrorNotSupported;
}

cudaError_t gradients_sm90(int64_t kernel, const gradient_args<nl_tensor> &args,
                           cudaStream_t stream)
{
    return !is_hopper()  ? cudaErrorNotSupported
           : kernel == 3 ? launch_pipe<3>(args, stream)
                         : launch_pipe<5>(args, stream);
}

int gradient_blocks()
{
    return is_hopper() ? 1 : GRADIENT_BLOCKS;
}

} // namespace nl_depthwise
