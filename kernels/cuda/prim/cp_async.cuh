/* SPDX-License-Identifier: MIT */
/* cp.async: copies of 16 bytes to shared memory, which a thread queues and waits for later. */
#ifndef NL_CUDA_PRIM_CP_ASYNC_CUH
#define NL_CUDA_PRIM_CP_ASYNC_CUH

#include "shared.cuh"

namespace nl_prim
{

/* Zeros where not `valid`. */
__device__ __forceinline__ void cp_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void cp_async_commit_group()
{
    asm volatile("cp.async.commit_group;");
}
/* Up to N groups may still be under way. */
template <int N> __device__ __forceinline__ void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

} // namespace nl_prim

#endif
