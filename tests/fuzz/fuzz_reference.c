/* SPDX-License-Identifier: MIT */
/* References of eval and stats, as they lie there or made of numbers of the input: what is read as mean and covariance can be those of a distribution; what merges can be read
 * again, of the sum of the pictures. */
#include <math.h>

#include "fuzz_files.h"
#include "nl_arrays.h"
#include "nl_measure.h"
#include "reference.h"

static nl_status read_statistics(nl_context *context, const char *path)
{
    nl_arrays *arrays = NULL;
    nl_statistics g = {0};
    nl_status status;
    NL_TRY(nl_arrays_open(context, path, &arrays));
    for (int f = 0; f < NL_FEATURES; f++) {
        int64_t size = nl_feature_size(f);
        NL_TRY(nl_statistics_read(arrays, f, true, &g));
        FUZZ_CHECK((g.mean == NULL) == (g.covariance == NULL));
        for (int64_t i = 0; g.mean && i < size; i++)
            FUZZ_CHECK(isfinite(g.mean[i]) && g.covariance[i * size + i] >= 0);
        nl_statistics_free(context, &g);
    }
cleanup:
    nl_statistics_free(context, &g);
    nl_arrays_close(arrays);
    return status;
}

/* An archive whose checksums are right, of arrays as the input says: which (a bit each), of which kind, how much too large, and the
 * numbers, over and over. */
static nl_status build(nl_context *context, const uint8_t *data, size_t size, const char *path)
{
    static const char *const names[] = {"mu_64", "sigma_64", "mu", "sigma", "count", "arr_0"};
    static const int64_t shapes[][4] = {{64}, {64, 64}, {64}, {64, 64}, {0}, {2, 2, 3, 3}};
    static const int ndims[] = {1, 2, 1, 2, 0, 4};
    static const nl_dtype dtypes[] = {NL_F64, NL_F32, NL_I64, NL_U8};
    static uint8_t values[1 << 16];
    nl_arrays_writer *writer = NULL;
    nl_status status;
    for (size_t i = 0; i < sizeof(values); i++)
        values[i] = size > 3 ? data[3 + i % (size - 3)] : 0;
    NL_TRY(nl_arrays_create(context, path, true, &writer));
    for (int i = 0; i < NL_COUNT(names); i++) {
        nl_dtype usual = i < 4 ? NL_F64 : i == 4 ? NL_I64 : NL_U8;
        nl_array array = {data[1] ? dtypes[data[1] % NL_COUNT(dtypes)] : usual, ndims[i], {0}};
        int64_t bytes = nl_dtype_size(array.dtype);
        memcpy(array.shape, shapes[i], sizeof(shapes[i]));
        if (array.ndim)
            array.shape[0] += data[2] % 4;
        for (int k = 0; k < array.ndim; k++)
            bytes *= array.shape[k];
        if (!(data[0] >> (i + 1) & 1))
            continue;
        NL_TRY(nl_arrays_begin(writer, names[i], &array));
        NL_TRY(nl_arrays_write(writer, values, bytes));
    }
    NL_TRY(nl_arrays_commit(&writer));
cleanup:
    nl_arrays_abort(&writer);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char path[256], out[256];
    const char *const twice[] = {path, path};
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    fuzz_path("reference.npz", path);
    fuzz_path("merged.npz", out);
    if (size > 3 && data[0] & 1)
        FUZZ_CHECK(build(context, data, size, path) == NL_OK);
    else
        fuzz_write("reference.npz", data + (size > 0), size - (size > 0));
    nl_status status = read_statistics(context, path);
    nl_status merged = nl_merge_references(context, twice, 2, out, true, 3);
    if (merged == NL_OK)
        FUZZ_CHECK(read_statistics(context, out) == NL_OK);
    fuzz_end(context, used, status == NL_OK ? merged : status);
    return 0;
}
