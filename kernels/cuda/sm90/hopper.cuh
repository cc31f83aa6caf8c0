/* SPDX-License-Identifier: MIT */
/* Hopper's asynchronous machinery: barriers in shared memory, tiles copied by TMA, products of warp groups. */
#ifndef NL_CUDA_HOPPER_CUH
#define NL_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cuda_runtime.h>

namespace nl_hopper
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- Barriers. A phase ends when all arrivals and all bytes announced have come; `parity` is that of the phase waited
 * for, 0 for the first. */

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
/* Makes initialised barriers known to the copy engine. */
__device__ __forceinline__ void barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t address)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    barrier_arrive(shared_address(barrier));
}
__device__ __forceinline__ void barrier_expect(uint32_t address, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    barrier_expect(shared_address(barrier), bytes);
}
__device__ __forceinline__ void barrier_wait(uint32_t address, uint32_t parity)
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
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    barrier_wait(shared_address(barrier), parity);
}

/* ---- TMA: the box of `map` at (column, row) to shared memory. */
__device__ __forceinline__ void copy_box(void *to, const CUtensorMap *map, int column, int row,
                                         uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
                 : "memory");
}

/* The same of a map of three dimensions. */
__device__ __forceinline__ void copy_box(void *to, const CUtensorMap *map, int x, int y, int z,
                                         uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
/* Makes what this thread wrote to shared memory known to the copy engine and the products. */
__device__ __forceinline__ void shared_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- Registers a thread of a warp group, which its four warps give up or wait for together; a multiple of eight. */

template <int N> __device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- Products of a warp group */

__device__ __forceinline__ void product_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void product_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The products write d behind the compiler's back: its uses stay on their side of this. */
template <int N> __device__ __forceinline__ void pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptor of a tile [rows, 64] of 16-bit elements as TMA leaves it with 128-byte swizzling: rows of 128 bytes, groups
 * of eight rows 1,024 bytes apart, the whole aligned to 1,024. */
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t tile)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
__device__ __forceinline__ uint64_t tile_descriptor(const void *tile)
{
    return tile_descriptor(shared_address(tile));
}

/* Named barrier `id` of `threads` threads, some of which wait and some of which only arrive. */
__device__ __forceinline__ void named_wait(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

} // namespace nl_hopper

#endif
