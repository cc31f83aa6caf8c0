/* SPDX-License-Identifier: MIT */
/* Barriers: mbarrier, in shared memory, which copies arrive at too, and named barriers of some of a block's warps. */
#ifndef NL_CUDA_PRIM_MBARRIER_CUH
#define NL_CUDA_PRIM_MBARRIER_CUH

#include "shared.cuh"

namespace nl_prim
{

/* ---- mbarrier. A phase ends when all arrivals and all bytes announced have come; `parity` is that of the phase waited for,
 * 0 for the first. */

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
/* Makes initialised barriers known to TMA. */
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_proxy_async();
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t address)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier)
{
    mbarrier_arrive(shared_address(barrier));
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *barrier, uint32_t bytes)
{
    mbarrier_arrive_expect_tx(shared_address(barrier), bytes);
}
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t address, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(address),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait_parity(uint64_t *barrier, uint32_t parity)
{
    mbarrier_wait_parity(shared_address(barrier), parity);
}
/* Is that phase over? */
__device__ __forceinline__ bool mbarrier_test_parity(uint32_t address, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(over)
                 : "r"(address), "r"(parity)
                 : "memory");
    return over != 0;
}

/* ---- Named barrier `id` (0 is __syncthreads) of `threads` threads, some of which wait and some of which only arrive. */

__device__ __forceinline__ void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

} // namespace nl_prim

#endif
