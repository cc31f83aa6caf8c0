/* SPDX-License-Identifier: MIT */
/* Archives of training pictures: tars, zips and .npz (by the first byte), whatever labels they hold. What opens can be read to
 * the last picture. */
#include "fuzz_files.h"
#include "source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"set.tar", "set.zip", "set.npz"};
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_source *source = NULL;
    nl_image image;
    char hex[65], stamps[65], path[256], *name;
    if (size < 1) {
        nl_core_context_destroy(context);
        return 0;
    }
    const char *file = names[data[0] % NL_COUNT(names)];
    fuzz_write(file, data + 1, size - 1);
    nl_status status = nl_source_open(
        context, fuzz_path(file, path),
        &(nl_source_options){.unconditional = data[0] & 64, .split = data[0] & 32 ? "val" : NULL},
        &source);
    for (int64_t i = 0; status == NL_OK && i < NL_MIN(source->count, 16); i++) {
        FUZZ_CHECK(source->pictures[i].label >= 0);
        FUZZ_CHECK(source->pictures[i].label < NL_MAX(source->classes, 1));
        if (nl_source_read(source, i, &image) == NL_OK)
            nl_image_free(context, &image);
        if (nl_source_name(source, i, &name) == NL_OK)
            nl_free(context, name);
    }
    if (status == NL_OK)
        (void)nl_source_sha256(source, hex, stamps);
    nl_source_close(source);
    fuzz_remove(file);
    if (status == NL_ERROR_USAGE) /* a split that is not there */
        status = NL_ERROR_INPUT;
    fuzz_end(context, used, status);
    return 0;
}
