/* SPDX-License-Identifier: MIT */
/* wgmma: products of a warp group (four warps, 64 rows), bf16 factors and fp32 sums, and the registers of its threads. E4M3
 * factors lie as bf16 ones of half as many columns would; their sums have some 14 bits. */
#ifndef NL_CUDA_PRIM_WGMMA_CUH
#define NL_CUDA_PRIM_WGMMA_CUH

#include "swizzle.cuh"

namespace nl_prim
{

/* ---- Registers a thread of a warp group, which its four warps give up or wait for together; a multiple of eight. */

template <int N> __device__ __forceinline__ void warpgroup_reg_dealloc()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void warpgroup_reg_alloc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- Order. Before the first product, and where registers that products read or add to were written. */

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Up to N groups may still be under way. */
template <int N> __device__ __forceinline__ void wgmma_wait_group()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The products write d behind the compiler's back: its uses stay on their side of this. */
template <int N> __device__ __forceinline__ void warpgroup_fence_operand(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* ---- Products, SS: both factors in shared memory, RS: the first in registers. Of d [64, N] a warp has sixteen rows;
 * d[4 n + i] of a thread is in row lane / 4 + i / 2 * 8, column 8 n + lane % 4 * 2 + i % 2. add: to what d holds. */

#define NL_EIGHT(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/* d [64, N] (+)= a b^T, both in shared memory: sixteen columns of tiles a [64, .] and b [N, .]. */
__device__ __forceinline__ void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;"
                 "\n}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24)
                 : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63}, %64, %65, p, 1, 1, 0, 0;"
                 "\n}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24),
                   NL_EIGHT(d, 32), NL_EIGHT(d, 40), NL_EIGHT(d, 48), NL_EIGHT(d, 56)
                 : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_ss(float (&d)[96], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, 0, 0;\n"
                 "}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24),
                   NL_EIGHT(d, 32), NL_EIGHT(d, 40), NL_EIGHT(d, 48), NL_EIGHT(d, 56),
                   NL_EIGHT(d, 64), NL_EIGHT(d, 72), NL_EIGHT(d, 80), NL_EIGHT(d, 88)
                 : "l"(a), "l"(b), "r"(add));
}

/* The same of 32 columns of E4M3. */
__device__ __forceinline__ void wgmma_ss_e4m3(float (&d)[96], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1;\n"
                 "}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24),
                   NL_EIGHT(d, 32), NL_EIGHT(d, 40), NL_EIGHT(d, 48), NL_EIGHT(d, 56),
                   NL_EIGHT(d, 64), NL_EIGHT(d, 72), NL_EIGHT(d, 80), NL_EIGHT(d, 88)
                 : "l"(a), "l"(b), "r"(add));
}

/* d [64, N] (+)= a b: a [64, 16] in registers, a warp's sixteen rows as in mma.m16n8k16; sixteen rows of a tile b of N
 * columns. */
__device__ __forceinline__ void wgmma_rs(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 1;"
                 "\n}"
                 : NL_EIGHT(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                         int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;"
                 "\n}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d [64, 64] (+)= a b^T: a [64, 16] in registers, sixteen columns of a tile b [64, .]. */
__device__ __forceinline__ void wgmma_rs_bt(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                            int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 0;"
                 "\n}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d [64, N] (+)= a^T b, both in shared memory: sixteen rows of tiles a [., 64] and b [., N]. */
__device__ __forceinline__ void wgmma_ss_at(float (&d)[8], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 1, 1;"
                 "\n}"
                 : NL_EIGHT(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_ss_at(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 1, 1;"
                 "\n}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24)
                 : "l"(a), "l"(b), "r"(add));
}

#undef NL_EIGHT

} // namespace nl_prim

#endif
