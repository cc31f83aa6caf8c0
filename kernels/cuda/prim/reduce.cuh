/* SPDX-License-Identifier: MIT */
/* Sums and maxima over the threads of a quad (four neighbouring lanes), a warp and a block, in a fixed order. */
#ifndef NL_CUDA_PRIM_REDUCE_CUH
#define NL_CUDA_PRIM_REDUCE_CUH

#include <cuda_runtime.h>

/* ---- A quad has the same rows of a tile that lies in a warp as tensor cores leave it. All its lanes get the result. */

__device__ __forceinline__ float nl_quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float nl_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* ---- A warp */

template <typename T> __device__ __forceinline__ T nl_warp_sum(T x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

/* The sums over the rows of such a tile. v: eight columns, already added up over the thread's rows; the eight lanes with the
 * same lane % 4 have the same columns. Returns the sum over all rows of one of them, number nl_column_of_sum(). */
__device__ __forceinline__ float nl_column_sum(float (&v)[8])
{
#pragma unroll
    for (int half = 4, bit = 16; half > 0; half /= 2, bit /= 2) {
        const bool high = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float got = __shfl_xor_sync(~0u, high ? v[i] : v[i + half], bit);
            v[i] = (high ? v[i + half] : v[i]) + got;
        }
    }
    return v[0];
}
__device__ __forceinline__ int nl_column_of_sum()
{
    return (threadIdx.x & 16 ? 4 : 0) + (threadIdx.x & 8 ? 2 : 0) + (threadIdx.x & 4 ? 1 : 0);
}

/* ---- A block */

/* For all threads, again and again. */
__device__ __forceinline__ float nl_block_sum(float x)
{
    __shared__ float partial[32];
    x = nl_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.f;
    for (int i = 0; i < blockDim.x / 32; i++)
        x += partial[i];
    return x;
}

/* In double, once; valid in thread 0. */
__device__ __forceinline__ double nl_block_sum_double(double x)
{
    __shared__ double partial[32];
    x = nl_warp_sum(x);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.;
    if (threadIdx.x == 0)
        for (int i = 0; i < blockDim.x / 32; i++)
            x += partial[i];
    return x;
}

#endif
