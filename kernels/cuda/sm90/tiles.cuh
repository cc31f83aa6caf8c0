/* SPDX-License-Identifier: MIT */
/*
 * Tiles of heads in shared memory for the products of a warp group: rows of tokens, WIDE columns in rows of 128 bytes
 * or TAIL columns in rows of 32, swizzled as TMA leaves them (16-byte units of a row exchanged by the row's number).
 */
#ifndef NL_CUDA_TILES_CUH
#define NL_CUDA_TILES_CUH

#include "hopper.cuh"

namespace nl_hopper
{

enum {
    WIDE = 64, /* columns of a row of 128 bytes */
    TAIL = 16  /* columns of a row of 32 bytes */
};

/* ---- Boxes of a map [image, head, token, column], columns and tokens beyond the map zeros. */

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int column, int token,
                                         int head, int image, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(image)
                 : "memory");
}
/* Columns and tokens beyond the map are left out. */
__device__ __forceinline__ void store_box(const CUtensorMap *map, int column, int token, int head,
                                          int image, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(token), "r"(head), "r"(image)
                 : "memory");
}
__device__ __forceinline__ void commit_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until what this thread stores has been read from shared memory. */
__device__ __forceinline__ void wait_stored()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ---- Sixteen rows of a warp as four matrices: rows lane % 16, columns 16 j + lane / 16 * 8 on. */

__device__ __forceinline__ uint32_t wide_at(uint32_t rows, int j)
{
    const uint32_t lane = threadIdx.x % 32;
    return (rows + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4)) ^ j << 5;
}
__device__ __forceinline__ uint32_t tail_at(uint32_t rows)
{
    const uint32_t lane = threadIdx.x % 32;
    return rows + lane % 16 * 32 + ((lane / 16 ^ lane / 4 % 2) << 4);
}
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- Products of a warp group. Of d [64, N] a warp has sixteen rows; d[4 n + i] of a thread is in row lane / 4 +
 * i / 2 * 8, column 8 n + lane % 4 * 2 + i % 2. */

/* The same as tile_descriptor of a tail. */
__device__ __forceinline__ uint64_t tail_descriptor(uint32_t tile)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(256 >> 4) << 32 |
           (uint64_t)3 << 62;
}
/* In descriptors: sixteen columns across, sixteen rows along. */
enum { WIDE_ACROSS = 32 >> 4, WIDE_ALONG = 16 * 128 >> 4, TAIL_ALONG = 16 * 32 >> 4 };

#define NL_EIGHT(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/* d [64, N] (+)= a b^T: sixteen columns of tiles a [64, .] and b [N, .]. */
__device__ __forceinline__ void multiply_across(float (&d)[32], uint64_t a, uint64_t b, int add)
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
__device__ __forceinline__ void multiply_across(float (&d)[64], uint64_t a, uint64_t b, int add)
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

/* d [64, N] (+)= a b: a [64, 16] in registers, a warp's sixteen rows as in mma.m16n8k16; sixteen rows of a tile b of N
 * columns. */
__device__ __forceinline__ void multiply_along(float (&d)[8], const uint32_t (&a)[4], uint64_t b,
                                               int add)
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
__device__ __forceinline__ void multiply_along(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
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

#undef NL_EIGHT

} // namespace nl_hopper

#endif
