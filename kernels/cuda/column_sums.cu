/* SPDX-License-Identifier: MIT */
/* Sums over the rows of a matrix: column_sums.cuh. */
#include "column_sums.cuh"

enum { ROWS = 256, WARPS = 8 }; /* rows of a part, shared out to the warps of a block */

__device__ __forceinline__ void load4(const float *p, float (&x)[4])
{
    const float4 a = *(const float4 *)p;
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
}
__device__ __forceinline__ void load4(const __nv_bfloat16 *p, float (&x)[4])
{
    const uint2 a = *(const uint2 *)p;
    x[0] = __uint_as_float(a.x << 16), x[1] = __uint_as_float(a.x & 0xffff0000u);
    x[2] = __uint_as_float(a.y << 16), x[3] = __uint_as_float(a.y & 0xffff0000u);
}

/* A lane has WIDTH columns (4, or 1 where rows are not aligned). grid (parts, groups of 32 WIDTH columns) */
template <typename T, int WIDTH>
__global__ void __launch_bounds__(32 * WARPS)
    part_kernel(const T *x, int64_t stride, int64_t rows, int columns, float *parts)
{
    __shared__ float shared[WARPS][32 * WIDTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = (blockIdx.y * 32 + lane) * WIDTH;
    const int64_t last = min((blockIdx.x + 1) * (int64_t)ROWS, rows);
    float sum[WIDTH] = {};
    if (column < columns)
#pragma unroll 8
        for (int64_t row = blockIdx.x * (int64_t)ROWS + warp; row < last; row += WARPS) {
            if constexpr (WIDTH == 4) {
                float v[4];
                load4(x + row * stride + column, v);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[i] += v[i];
            } else {
                sum[0] += nl_get(x + row * stride + column);
            }
        }
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        shared[warp][lane * WIDTH + i] = sum[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * WIDTH; i += 32 * WARPS) {
        const int at = blockIdx.y * 32 * WIDTH + i;
        float total = 0.f;
        for (int w = 0; w < WARPS; w++)
            total += shared[w][i];
        if (at < columns)
            parts[blockIdx.x * (int64_t)columns + at] = total;
    }
}

struct column_runs {
    nl_column_run runs[NL_MAX_COLUMN_RUNS];
    int64_t columns; /* of all runs */
};

/* block (32 columns, 32 groups of parts) */
__global__ void __launch_bounds__(1024)
    add_kernel(const float *parts, int64_t count, const column_runs to)
{
    __shared__ float shared[32][33];
    const int64_t column = blockIdx.x * 32ll + threadIdx.x;
    float sum = 0.f;
    if (column < to.columns)
#pragma unroll 16
        for (int64_t part = threadIdx.y; part < count; part += 32)
            sum += parts[part * to.columns + column];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = nl_warp_sum(shared[threadIdx.x][threadIdx.y]); /* a warp adds the groups of one column */
    int64_t mine = blockIdx.x * 32ll + threadIdx.y;
    for (int run = 0; threadIdx.x == 0 && run < NL_MAX_COLUMN_RUNS; run++) {
        if (mine >= 0 && mine < to.runs[run].columns && to.runs[run].sums)
            to.runs[run].sums[mine] += sum;
        mine -= to.runs[run].columns;
    }
}

void nl_cuda_add_parts(cudaStream_t stream, const float *parts, int64_t count,
                       std::initializer_list<nl_column_run> runs)
{
    column_runs to = {};
    int i = 0;
    for (const nl_column_run &run : runs)
        to.runs[i++] = run, to.columns += run.columns;
    add_kernel<<<nl_blocks(to.columns, 32), dim3(32, 32), 0, stream>>>(parts, count, to);
}

nl_status nl_cuda_column_sums(nl_device *device, const nl_tensor *x, float *sums)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = x->shape[0], columns = x->shape[1], count = nl_blocks(rows, ROWS);
    void *scratch;
    nl_status status = nl_cuda_scratch(device, "sums of columns", count * columns * 4, &scratch);
    if (status != NL_OK || rows == 0 || columns == 0)
        return status;
    const bool vectors = columns % 4 == 0 && x->row_stride % 4 == 0 && (uintptr_t)x->data % 16 == 0;
    NL_FOR_TYPE(*x, T, {
        if (vectors)
            part_kernel<T, 4>
                <<<dim3((unsigned)count, nl_blocks(columns, 128)), 32 * WARPS, 0, stream>>>(
                    (const T *)x->data, x->row_stride, rows, (int)columns, (float *)scratch);
        else
            part_kernel<T, 1>
                <<<dim3((unsigned)count, nl_blocks(columns, 32)), 32 * WARPS, 0, stream>>>(
                    (const T *)x->data, x->row_stride, rows, (int)columns, (float *)scratch);
    });
    nl_cuda_add_parts(stream, (const float *)scratch, count, {{sums, columns}});
    return NL_CUDA_LAUNCHED(device, "sums of columns");
}
