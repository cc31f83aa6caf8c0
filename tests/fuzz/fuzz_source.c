/* SPDX-License-Identifier: MIT */
/* Arrays of training pictures: CIFAR's batches (first byte even), IDX files, plain or packed. What opens can be read to the
 * last picture. */
#include "fuzz_files.h"
#include "source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[][2] = {
        {"batches.meta.txt", "data_batch_1.bin"},
        {"train-labels-idx1-ubyte", "train-images-idx3-ubyte"},
        {"train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"}};
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_source *source = NULL;
    nl_image image;
    char hex[65], stamps[65], path[256], *name;
    if (size < 3) {
        nl_core_context_destroy(context);
        return 0;
    }
    int kind = data[0] % NL_COUNT(names);
    size_t first = (data[1] | (size_t)data[2] << 8) % (size - 2);
    fuzz_write(names[kind][0], data + 3, first);
    fuzz_write(names[kind][1], data + 3 + first, size - 3 - first);
    fuzz_path("", path);
    nl_status status = nl_source_open(
        context, path,
        &(nl_source_options){.unconditional = data[0] & 64, .empty_classes = data[0] & 32},
        &source);
    for (int64_t i = 0; status == NL_OK && i < NL_MIN(source->count, 64); i++) {
        int64_t index = i == 63 ? source->count - 1 : i;
        FUZZ_CHECK(source->pictures[index].label >= 0);
        FUZZ_CHECK(source->pictures[index].label < NL_MAX(source->classes, 1));
        if (nl_source_read(source, index, &image) == NL_OK)
            nl_image_free(context, &image);
        if (nl_source_name(source, index, &name) == NL_OK)
            nl_free(context, name);
    }
    if (status == NL_OK)
        (void)nl_source_sha256(source, hex, stamps);
    nl_source_close(source);
    for (int i = 0; i < 2; i++)
        fuzz_remove(names[kind][i]);
    if (status == NL_ERROR_USAGE) /* a split that is not there */
        status = NL_ERROR_INPUT;
    fuzz_end(context, used, status);
    return 0;
}
