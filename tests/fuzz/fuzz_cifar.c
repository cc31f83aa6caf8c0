/* SPDX-License-Identifier: MIT */
/* CIFAR's Python version: a batch and the file of names, split at the number of the first two bytes. */
#include "fuzz_files.h"
#include "source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_source *source = NULL;
    nl_image image;
    char path[256];
    if (size < 3) {
        nl_core_context_destroy(context);
        return 0;
    }
    size_t first = (data[0] | (size_t)data[1] << 8) % (size - 1);
    fuzz_write("batches.meta", data + 2, NL_MIN(first, size - 2));
    fuzz_write("data_batch_1", data + 2 + NL_MIN(first, size - 2),
               size - 2 - NL_MIN(first, size - 2));
    nl_status status =
        nl_source_open(context, fuzz_path("", path), &(nl_source_options){.split = NULL}, &source);
    for (int64_t i = 0; status == NL_OK && i < source->count; i++) {
        FUZZ_CHECK(source->pictures[i].label >= 0 && source->pictures[i].label < source->classes);
        FUZZ_CHECK(nl_source_read(source, i, &image) == NL_OK);
        nl_image_free(context, &image);
    }
    nl_source_close(source);
    fuzz_remove("batches.meta");
    fuzz_remove("data_batch_1");
    fuzz_end(context, used, status);
    return 0;
}
