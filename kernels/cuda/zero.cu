/* SPDX-License-Identifier: MIT */
/* x = 0. */
#include "cuda_common.cuh"

extern "C" nl_status nl_cuda_zero(nl_device *device, const nl_zero_args *a)
{
    return nl_cuda_check(
        device,
        cudaMemsetAsync(a->x.data, 0, (size_t)nl_tensor_bytes(&a->x), nl_cuda_of(device)->stream),
        "zero");
}
