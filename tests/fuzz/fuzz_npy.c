/* SPDX-License-Identifier: MIT */
/* numpy arrays: what opens can be read to the last element. */
#include "nl_fuzz.h"
#include "nl_npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_npy npy;
    nl_status status = nl_npy_open_memory(context, "fuzz", data, (int64_t)size, &npy);
    if (status == NL_OK) {
        nl_tensor tensor = nl_tensor_of((void *)npy.data, npy.dtype, npy.ndim, npy.shape);
        int64_t count = nl_tensor_count(&tensor);
        float *values;
        FUZZ_CHECK(nl_tensor_bytes(&tensor) <= (int64_t)size);
        if (NL_NEW_ARRAY(context, "values", count, &values) == NL_OK) {
            nl_convert_to_float(npy.data, npy.dtype, count, values);
            nl_free(context, values);
        }
        nl_npy_close(context, &npy);
    }
    fuzz_end(context, used, status);
    return 0;
}
