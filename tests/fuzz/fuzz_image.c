/* SPDX-License-Identifier: MIT */
/* Pictures: what reads has all its pixels, and a second reading gives the same. */
#include "nl_fuzz.h"
#include "nl_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    context->options.max_memory = 4 << 20; /* small pictures are as good, and faster */
    int64_t used = context->memory_used;
    nl_image image, again;
    nl_status status = nl_image_read_bytes(context, "fuzz", data, size, &image);
    if (status == NL_OK && nl_image_read_bytes(context, "fuzz", data, size, &again) == NL_OK) {
        FUZZ_CHECK(image.height == again.height && image.width == again.width);
        size_t bytes = (size_t)image.height * (size_t)image.width * 3;
        FUZZ_CHECK(bytes > 0 && memcmp(image.rgb, again.rgb, bytes) == 0);
        nl_image_free(context, &again);
    }
    FUZZ_CHECK(status == NL_OK || (!image.rgb && !image.text));
    nl_image_free(context, &image);
    fuzz_end(context, used, status);
    return 0;
}
