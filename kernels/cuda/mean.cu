/* SPDX-License-Identifier: MIT */
/* y = mean of x, in double; one block. */
#include "cuda_common.cuh"

__global__ void mean_kernel(const float *x, int64_t count, float *y)
{
    double sum = 0.;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += x[i];
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        *y = (float)(sum / (double)count);
}

extern "C" nl_status nl_cuda_mean(nl_device *device, const nl_mean_args *a)
{
    mean_kernel<<<1, 256, 0, nl_cuda_of(device)->stream>>>(
        (const float *)a->x.data, nl_tensor_count(&a->x), (float *)a->y.data);
    return NL_CUDA_LAUNCHED(device, "mean");
}
