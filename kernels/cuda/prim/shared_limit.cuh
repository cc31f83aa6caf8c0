/* SPDX-License-Identifier: MIT */
/* How much shared memory a block may have: 227 KB on Hopper, 163 on an A100, 99 on consumer cards. It is asked, never assumed. */
#ifndef NL_CUDA_PRIM_SHARED_LIMIT_CUH
#define NL_CUDA_PRIM_SHARED_LIMIT_CUH

#include <atomic>
#include <cstdlib>
#include <cuda_runtime.h>

/* Bytes a card gives; for tests NL_CUDA_SHARED_MEMORY lowers it, in KB. 0: it does not say. */
inline int nl_shared_limit_of(int device)
{
    int limit = 0;
    if (cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
        cudaSuccess)
        return 0;
    const char *lowered = getenv("NL_CUDA_SHARED_MEMORY");
    const int most = lowered ? atoi(lowered) << 10 : limit;
    return most > 0 && most < limit ? most : limit;
}

/* Bytes, on the current card, which is asked once. Threads that ask at the same time get the same answer. */
inline int nl_shared_limit()
{
    enum { CARDS = 64, LEAST = 48 << 10 };
    static std::atomic<int> known[CARDS]; /* 0: not asked yet */
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device < 0)
        return LEAST;
    int limit = device < CARDS ? known[device].load(std::memory_order_relaxed) : 0;
    if (limit == 0 && (limit = nl_shared_limit_of(device)) > 0 && device < CARDS)
        known[device].store(limit, std::memory_order_relaxed);
    return limit > 0 ? limit : LEAST;
}

/* Lets blocks of a kernel have that much; cudaErrorInvalidValue, as from CUDA, where they may not. */
template <typename Kernel> cudaError_t nl_allow_shared(Kernel kernel, int bytes)
{
    return bytes > nl_shared_limit()
               ? cudaErrorInvalidValue
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

#endif
