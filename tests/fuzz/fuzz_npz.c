/* SPDX-License-Identifier: MIT */
/* numpy's archives: what opens as an array can be read to its end, in portions, or is refused as damaged. */
#include "nl_arrays.h"
#include "nl_fuzz.h"

static const char *const names[] = {"arr_0", "arr_1", "mu", "sigma", "count"};

static nl_status read_array(nl_arrays *arrays, const char *name)
{
    enum { PORTION = 1000, MOST = 16 << 20 };
    static uint8_t portion[PORTION];
    nl_array array;
    nl_array_stream *stream;
    int64_t bytes;
    nl_status status;
    NL_TRY(nl_array_open(arrays, name, &array, &stream));
    bytes = nl_dtype_size(array.dtype);
    for (int i = 0; i < array.ndim; i++) {
        FUZZ_CHECK(array.shape[i] >= 0);
        FUZZ_CHECK(nl_mul_size(bytes, array.shape[i], &bytes));
    }
    bytes = NL_MIN(bytes, MOST); /* a deflated archive may be of anything */
    for (int64_t take; bytes > 0; bytes -= take) {
        take = NL_MIN(bytes, PORTION);
        NL_TRY(nl_array_read(stream, portion, take));
    }
cleanup:
    nl_array_close(stream);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used, comment;
    nl_arrays *arrays = NULL;
    nl_status status = nl_arrays_open_memory(context, "fuzz", data, (int64_t)size, &arrays);
    if (status == NL_OK) {
        nl_arrays_comment(arrays, &comment);
        FUZZ_CHECK(comment >= 0 && comment < (int64_t)size);
        for (int i = 0; i < NL_COUNT(names); i++)
            if (nl_arrays_has(arrays, names[i]) && status == NL_OK)
                status = read_array(arrays, names[i]);
        double *values;
        if (nl_arrays_doubles(arrays, "mu", 1, (int64_t[]){4}, &values) == NL_OK)
            nl_free(context, values);
        nl_arrays_close(arrays);
    }
    fuzz_end(context, used, status);
    return 0;
}
