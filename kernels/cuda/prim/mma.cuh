/* SPDX-License-Identifier: MIT */
/* Products of a warp on tensor cores, mma.m16n8k16 with bf16 factors and fp32 sums, and the matrices [8, 8] that ldmatrix and
 * stmatrix move for them: each lane gives the address of one row. */
#ifndef NL_CUDA_PRIM_MMA_CUH
#define NL_CUDA_PRIM_MMA_CUH

#include <cuda_bf16.h>

#include "shared.cuh"

namespace nl_prim
{

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t &a, uint32_t &b, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(a), "=r"(b)
                 : "r"(address));
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t &a, uint32_t &b, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(a), "=r"(b)
                 : "r"(address));
}
/* Hopper. */
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* c [16, 8] += a [16, 16] b [16, 8]. A thread has rows lane / 4 and lane / 4 + 8: of c elements 0, 1 and 2, 3 in columns
 * lane % 4 * 2 and the next. */
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c [16, 8] += a [16, 8] b [8, 8] */
__device__ __forceinline__ void mma_m16n8k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

/* B fragments of 16 rows and the column tiles n, n + 1 (where there is one of NT) of a row-major [rows, columns] matrix. */
template <int NT, int STRIDE>
__device__ __forceinline__ void load_b_fragments(uint32_t (&b)[4], const __nv_bfloat16 *rows, int n)
{
    const int lane = threadIdx.x % 32;
    if (n + 1 < NT)
        ldmatrix_x4_trans(b, shared_address(rows + lane % 16 * STRIDE + n * 8 + lane / 16 * 8));
    else
        ldmatrix_x2_trans(b[0], b[1], shared_address(rows + lane % 16 * STRIDE + n * 8));
}

} // namespace nl_prim

#endif
