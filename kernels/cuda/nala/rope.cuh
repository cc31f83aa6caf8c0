/* SPDX-License-Identifier: MIT */
/* Angles of rope, public-code.md E: the first half of a head turns with the token's row, the second with its column, and
 * neighbours share an angle; frequencies 10000^-linspace(0, 1, d/4). */
#ifndef NL_CUDA_NALA_ROPE_CUH
#define NL_CUDA_NALA_ROPE_CUH

#include "cuda_common.cuh"

int64_t nl_nala_rope_bytes(int64_t positions, int64_t head_size);
/* (cos, sin) of position times frequency: table [positions, d / 4], on the device. */
cudaError_t nl_nala_rope_table(float2 *table, int64_t positions, int64_t head_size,
                               cudaStream_t stream);

#endif
