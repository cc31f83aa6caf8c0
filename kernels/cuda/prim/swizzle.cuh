/* SPDX-License-Identifier: MIT */
/*
 * Tiles of 16-bit elements in shared memory as TMA leaves them: rows of WIDE columns, 128 bytes, or of TAIL columns, 32
 * bytes, whose 16-byte units are exchanged by the row's number, so that a column of units meets all banks. Here are the
 * descriptors by which wgmma reads them and the addresses for ldmatrix and stmatrix.
 */
#ifndef NL_CUDA_PRIM_SWIZZLE_CUH
#define NL_CUDA_PRIM_SWIZZLE_CUH

#include "shared.cuh"

namespace nl_prim
{

enum {
    WIDE = 64, /* columns of a row of 128 bytes */
    TAIL = 16  /* columns of a row of 32 bytes: what a head has beyond 64 */
};

/* Of a tile [rows, WIDE]: groups of eight rows 1,024 bytes apart, the whole aligned to 1,024. */
__device__ __forceinline__ uint64_t wide_descriptor(uint32_t tile)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
__device__ __forceinline__ uint64_t wide_descriptor(const void *tile)
{
    return wide_descriptor(shared_address(tile));
}
/* Of a tile [rows, TAIL]. */
__device__ __forceinline__ uint64_t tail_descriptor(uint32_t tile)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(256 >> 4) << 32 |
           (uint64_t)3 << 62;
}
/* What a descriptor grows by: sixteen columns on, sixteen rows on. */
enum { WIDE_COLUMNS_16 = 32 >> 4, WIDE_ROWS_16 = 16 * 128 >> 4, TAIL_ROWS_16 = 16 * 32 >> 4 };

/* A lane's row of the four matrices [8, 8] of sixteen rows, for ldmatrix_x4 and stmatrix_x4: row lane % 16, columns
 * 16 j + lane / 16 * 8 on. */
__device__ __forceinline__ uint32_t wide_address(uint32_t rows, int j)
{
    const uint32_t lane = threadIdx.x % 32;
    return (rows + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4)) ^ j << 5;
}
__device__ __forceinline__ uint32_t tail_address(uint32_t rows)
{
    const uint32_t lane = threadIdx.x % 32;
    return rows + lane % 16 * 32 + ((lane / 16 ^ lane / 4 % 2) << 4);
}

} // namespace nl_prim

#endif
