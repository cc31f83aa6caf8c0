/* SPDX-License-Identifier: MIT */
/* Sums in double, in a fixed order. */
#ifndef NL_CUDA_DOUBLE_SUM_CUH
#define NL_CUDA_DOUBLE_SUM_CUH

/* The sum over the block, valid in thread 0. */
__device__ __forceinline__ double nl_block_sum_double(double x)
{
    __shared__ double partial[32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(~0u, x, offset);
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
