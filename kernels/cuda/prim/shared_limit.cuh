/* SPDX-License-Identifier: MIT */
/* How much shared memory a block may have: 227 KB on Hopper, 163 on an A100, 99 on consumer cards. It is asked, never assumed. */
#ifndef NL_CUDA_PRIM_SHARED_LIMIT_CUH
#define NL_CUDA_PRIM_SHARED_LIMIT_CUH

#include <cstdlib>
#include <cuda_runtime.h>

/* Bytes, on the current card. For tests NL_CUDA_SHARED_MEMORY lowers it, in KB. */
inline int nl_shared_limit()
{
    int device = 0, limit = 48 << 10;
    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const char *lowered = getenv("NL_CUDA_SHARED_MEMORY");
    const int most = lowered ? atoi(lowered) << 10 : limit;
    return most > 0 && most < limit ? most : limit;
}

/* Lets blocks of a kernel have that much; cudaErrorInvalidValue, as from CUDA, where they may not. */
template <typename Kernel> cudaError_t nl_allow_shared(Kernel kernel, int bytes)
{
    return bytes > nl_shared_limit()
               ? cudaErrorInvalidValue
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

#endif
