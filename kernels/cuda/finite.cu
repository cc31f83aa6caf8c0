/* Is every element finite? Waits for the device. */
#include "cuda_common.cuh"

template <typename T> __global__ void finite_kernel(const T *x, int64_t count, int *bad)
{
    bool found = false;
    NL_GRID_LOOP(i, count)
    found |= !isfinite(nl_get(x + i));
    if (found)
        *bad = 1; /* every writer writes the same */
}

extern "C" nl_status nl_cuda_finite(nl_device *device, const nl_finite_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t count = nl_tensor_count(&a->x);
    void *bad;
    int host = 0;
    nl_status status = nl_cuda_scratch(device, "a flag", 16, &bad);
    if (status != NL_OK)
        return status;
    if ((status = nl_cuda_check(device, cudaMemsetAsync(bad, 0, 4, cuda->stream), "finite")) !=
        NL_OK)
        return status;
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            finite_kernel<T><<<NL_MIN(nl_blocks(count, 256), 1024u), 256, 0, cuda->stream>>>(
                (const T *)a->x.data, count, (int *)bad);
        });
    if ((status = NL_CUDA_LAUNCHED(device, "finite")) != NL_OK)
        return status;
    status = device->ops->download(device, &host, bad, 4);
    *a->finite = host == 0;
    return status;
}
