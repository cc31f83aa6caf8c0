/* SPDX-License-Identifier: MIT */
/* The table of rope's angles: rope.cuh. A thread for each position and frequency. */
#include "rope.cuh"

static __global__ void rope_kernel(float2 *table, int positions, int quarter)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= positions * quarter)
        return;
    const int at = i % quarter;
    const float frequency = powf(10000.f, -(quarter > 1 ? (float)at / (quarter - 1) : 0.f));
    float sine, cosine;
    sincosf(i / quarter * frequency, &sine, &cosine);
    table[i] = make_float2(cosine, sine);
}

int64_t nl_nala_rope_bytes(int64_t positions, int64_t head_size)
{
    return (positions * head_size / 4 * (int64_t)sizeof(float2) + 255) / 256 * 256;
}

cudaError_t nl_nala_rope_place(nl_nala_rope *rope, int64_t grid_height, int64_t grid_width,
                               int64_t head_size, void *workspace, cudaStream_t stream)
{
    rope->table = (const float2 *)workspace;
    rope->width = (int)grid_width;
    rope->inverse = UINT32_MAX / (uint32_t)grid_width;
    return nl_nala_rope_table((float2 *)workspace, NL_MAX(grid_height, grid_width), head_size,
                              stream);
}

cudaError_t nl_nala_rope_table(float2 *table, int64_t positions, int64_t head_size,
                               cudaStream_t stream)
{
    const int quarter = (int)head_size / 4, count = (int)positions * quarter;
    rope_kernel<<<(count + 255) / 256, 256, 0, stream>>>(table, (int)positions, quarter);
    return cudaGetLastError();
}
