/* SPDX-License-Identifier: MIT */
/* Angles of rope, public-code.md E: the first half of a head turns with the token's row, the second with its column, and
 * neighbours share an angle; frequencies 10000^-linspace(0, 1, d/4). */
#ifndef NL_CUDA_NALA_ROPE_CUH
#define NL_CUDA_NALA_ROPE_CUH

#include "cuda_common.cuh"

struct nl_nala_rope {
    const float2 *table; /* [positions, d / 4] (cos, sin); NULL: no rope */
    int width;           /* of the grid of tokens */
    uint32_t inverse;    /* (2^32 - 1) / width */
};

int64_t nl_nala_rope_bytes(int64_t positions, int64_t head_size);
/* (cos, sin) of position times frequency: table [positions, d / 4], on the device. */
cudaError_t nl_nala_rope_table(float2 *table, int64_t positions, int64_t head_size,
                               cudaStream_t stream);
/* The table at the beginning of `workspace`, of nl_nala_rope_bytes. */
cudaError_t nl_nala_rope_place(nl_nala_rope *rope, int64_t grid_height, int64_t grid_width,
                               int64_t head_size, void *workspace, cudaStream_t stream);

/* Row and column of a token. */
__device__ __forceinline__ int2 nl_place_of(const nl_nala_rope &rope, int token)
{
    int row = (int)__umulhi((uint32_t)token, rope.inverse), column = token - row * rope.width;
    if (column >= rope.width)
        row++, column -= rope.width;
    return make_int2(row, column);
}
/* (cos, sin) of the angle by which a dimension of a head turns there. */
__device__ __forceinline__ float2 nl_turn_of(const nl_nala_rope &rope, int2 place, int dim,
                                             int head_size)
{
    const int side = head_size / 2;
    const bool second = dim >= side;
    return rope
        .table[(second ? place.y : place.x) * (head_size / 4) + (second ? dim - side : dim) / 2];
}

#endif
