/* Not written yet: the slot says so. */
#include "cuda_common.cuh"

extern "C" nl_status nl_cuda_resize(nl_device *device, const nl_resize_args *)
{
    return nl_fail(device->context, NL_ERROR_DEVICE,
                   "resizing is not in the CUDA back end: use --device cpu");
}
