/* SPDX-License-Identifier: MIT */
/* Copies of 16 bytes to shared memory, which a thread queues and waits for later. */
#ifndef NL_CUDA_ASYNC_COPY_CUH
#define NL_CUDA_ASYNC_COPY_CUH

#include <cstdint>

namespace nl_async
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Zeros where not `valid`. */
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void commit_async()
{
    asm volatile("cp.async.commit_group;");
}
/* Up to N groups may still be under way. */
template <int N> __device__ __forceinline__ void wait_async()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

} // namespace nl_async

#endif
