/* SPDX-License-Identifier: MIT */
/* Addresses of shared memory as PTX takes them. */
#ifndef NL_CUDA_PRIM_SHARED_CUH
#define NL_CUDA_PRIM_SHARED_CUH

#include <cstdint>
#include <cuda_runtime.h>

namespace nl_prim
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Bytes from p to the next multiple of BYTES. */
template <int BYTES> __device__ __forceinline__ uint32_t bytes_to_aligned(const void *p)
{
    return (BYTES - shared_address(p) % BYTES) % BYTES;
}

/* Makes what this thread wrote to shared memory known to the asynchronous proxy: TMA and wgmma. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

} // namespace nl_prim

#endif
