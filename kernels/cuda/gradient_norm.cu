/* SPDX-License-Identifier: MIT */
/* sqrt(sum x^2), in double: PARTS blocks, whatever the card, then one. */
#include "cuda_common.cuh"

enum { PARTS = 1024, THREADS = 256 };

__global__ void __launch_bounds__(THREADS)
    square_kernel(const float *x, int64_t count, double *parts)
{
    const int64_t fours = count / 4, step = (int64_t)PARTS * THREADS;
    const int64_t first = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    double sum = 0.;
#pragma unroll 4
    for (int64_t i = first; i < fours; i += step) {
        const float4 v = ((const float4 *)x)[i];
        sum += (double)v.x * v.x + (double)v.y * v.y + ((double)v.z * v.z + (double)v.w * v.w);
    }
    if (first < count % 4) {
        const double v = x[fours * 4 + first];
        sum += v * v;
    }
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) root_kernel(const double *parts, float *norm)
{
    double sum = 0.;
    for (int i = threadIdx.x; i < PARTS; i += THREADS)
        sum += parts[i];
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        *norm = (float)sqrt(sum);
}

extern "C" nl_status nl_cuda_gradient_norm(nl_device *device, const nl_gradient_norm_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    void *parts;
    nl_status status = nl_cuda_scratch(device, "sums of squares", PARTS * 8, &parts);
    if (status != NL_OK)
        return status;
    square_kernel<<<PARTS, THREADS, 0, stream>>>((const float *)a->x.data, nl_tensor_count(&a->x),
                                                 (double *)parts);
    root_kernel<<<1, THREADS, 0, stream>>>((const double *)parts, (float *)a->norm.data);
    return NL_CUDA_LAUNCHED(device, "gradient_norm");
}
