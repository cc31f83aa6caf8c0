/* SPDX-License-Identifier: MIT */
/* Where an element is not finite, the first mark stays. */
#include "cuda_common.cuh"

template <typename T>
__global__ void finite_kernel(const T *x, int64_t count, int32_t *found, int32_t mark)
{
    bool bad = false;
    NL_GRID_LOOP(i, count)
    bad |= !isfinite(nl_get(x + i));
    if (bad)
        atomicCAS(found, 0, mark);
}

extern "C" nl_status nl_cuda_finite(nl_device *device, const nl_finite_args *a)
{
    const int64_t count = nl_tensor_count(&a->x);
    if (count == 0)
        return NL_OK;
    NL_FOR_TYPE(a->x, T, {
        finite_kernel<T>
            <<<NL_MIN(nl_blocks(count, 256), 1024u), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, count, (int32_t *)a->found.data, a->mark);
    });
    return NL_CUDA_LAUNCHED(device, "finite");
}
