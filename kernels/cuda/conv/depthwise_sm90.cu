/* SPDX-License-Identifier: MIT */
/*
 * Depthwise convolutions of a grid of tokens on Hopper: depthwise_mma.cuh with tokens that TMA copies. A tensor is [images, height,
 * width, channels]; a slab or a tile is one box of it, swizzled over its rows of 128 bytes, with zeros where the grid
 * ends; of a tile that is stored, what lies beyond the grid is left out.
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

    template <int COLUMNS>
    __device__ __forceinline__ void load(uint32_t to, const nl_token_grid &,
                                         const token_place &place, int,
                                         const arrivals &arrivals) const
    {
        if (threadIdx.x == 0)
            tma_load(to, &map, place.channel, place.column, place.row, (int)place.image,
                     shared_address(arrivals.barrier));
    }

    __device__ __forceinline__ void prefetch(const token_place &place) const
    {
        if (threadIdx.x == 0)
            tma_prefetch(&map, place.channel, place.column, place.row, (int)place.image);
    }

    __device__ __forceinline__ void store(const unsigned char *tile, const nl_token_grid &,
                                          const token_place &place, int) const
    {
        fence_proxy_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            tma_store(&map, place.channel, place.column, place.row, (int)place.image,
                      shared_address(tile));
            tma_store_commit_group();
        }
    }
    __device__ __forceinline__ void stored() const
    {
        if (threadIdx.x == 0)
            tma_store_wait_read();
    }
};

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
    return is_hopper() ? run_gradients<token_boxes>(kernel, args, stream) : cudaErrorNotSupported;
}

} // namespace nl_depthwise
