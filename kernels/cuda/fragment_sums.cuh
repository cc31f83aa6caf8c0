/* SPDX-License-Identifier: MIT */
/* Sums over the rows of a tile that lies in a warp as tensor cores leave it: a thread has rows lane / 4 and lane / 4 + 8. */
#ifndef NL_CUDA_FRAGMENT_SUMS_CUH
#define NL_CUDA_FRAGMENT_SUMS_CUH

#include <cuda_runtime.h>

/* v: eight columns, already added up over the thread's rows; the eight lanes with the same lane % 4 have the same columns.
 * Returns the sum over all rows of one of them, number nl_kept_column(). */
__device__ __forceinline__ float nl_sum_over_rows(float (&v)[8])
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
__device__ __forceinline__ int nl_kept_column()
{
    return (threadIdx.x & 16 ? 4 : 0) + (threadIdx.x & 8 ? 2 : 0) + (threadIdx.x & 4 ? 1 : 0);
}

#endif
