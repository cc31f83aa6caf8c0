/* SPDX-License-Identifier: MIT */
/* TMA: boxes of a tensor between device memory and shared memory, by Hopper's copy engine. */
#ifndef NL_CUDA_PRIM_TMA_CUH
#define NL_CUDA_PRIM_TMA_CUH

#include <cuda.h>

#include "mbarrier.cuh"

namespace nl_prim
{

/* ---- Host */

typedef decltype(&cuTensorMapEncodeTiled) tensor_map_encoder;

/* The driver's function that describes tensors; NULL where the driver has none. It cannot be linked: a build with CUDA runs
 * without a driver. */
inline tensor_map_encoder find_tensor_map_encoder()
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    (void)cudaGetLastError();
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? (tensor_map_encoder)function
               : NULL;
}

/* Boxes of a bf16 tensor of `rank` dimensions, the innermost first; strides in bytes, from the second dimension on. What
 * lies beyond the tensor is read as zeros and not written. False: this driver or this tensor does not go. */
inline bool make_tensor_map(CUtensorMap *map, const void *data, int rank, const cuuint64_t *sizes,
                            const cuuint64_t *strides, const cuuint32_t *box,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion)
{
    static const tensor_map_encoder encode = find_tensor_map_encoder();
    const cuuint32_t steps[] = {1, 1, 1, 1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)data,
                            sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                            promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Attention's operands, [batch, heads, tokens, head size]: strides in elements; boxes of `rows` tokens and `columns` = 64 (rows
 * of 128 bytes) or 16 (of 32), swizzled over the row's bytes. */
struct head_tensor {
    int64_t head_size, tokens, heads, batch;
    int64_t token_stride, head_stride, image_stride;
};
inline bool make_head_tensor_map(CUtensorMap *map, const void *data, const head_tensor &t,
                                 int columns, int rows)
{
    const cuuint64_t sizes[] = {(cuuint64_t)t.head_size, (cuuint64_t)t.tokens, (cuuint64_t)t.heads,
                                (cuuint64_t)t.batch};
    const cuuint64_t strides[] = {2 * (cuuint64_t)t.token_stride, 2 * (cuuint64_t)t.head_stride,
                                  2 * (cuuint64_t)t.image_stride};
    const cuuint32_t box[] = {(cuuint32_t)columns, (cuuint32_t)rows, 1, 1};
    return make_tensor_map(map, data, 4, sizes, strides, box,
                           columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

/* ---- Device: each by one thread. A load's bytes arrive at `barrier`, which expects them. */

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, int column, int row,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}
__device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, int column, int row,
                                         uint64_t *barrier)
{
    tma_load(shared_address(to), map, column, row, shared_address(barrier));
}
__device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, int x, int y, int z,
                                         uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, int column, int token,
                                         int head, int image, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(image)
                 : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int column, int token, int head,
                                          int image, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(token), "r"(head), "r"(image)
                 : "memory");
}
__device__ __forceinline__ void tma_store_commit_group()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until what this thread stores has been read from shared memory. */
__device__ __forceinline__ void tma_store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

} // namespace nl_prim

#endif
