/* SPDX-License-Identifier: MIT */
/* WebP: the way to libwebp, and the orientation in its EXIF chunk. The first twelve bytes are made to say that it is one. */
#include "nl_fuzz.h"
#include "nl_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    context->options.max_memory = 4 << 20; /* small pictures are as good, and faster */
    int64_t used = context->memory_used;
    nl_image image = {0}, again = {0};
    nl_status status = NL_OK;
    if (size >= 12) {
        uint8_t *file = malloc(size);
        memcpy(file, data, size);
        memcpy(file, "RIFF", 4);
        memcpy(file + 8, "WEBP", 4);
        status = nl_image_read_bytes(context, "fuzz", file, size, &image);
        if (status == NL_OK && nl_image_read_bytes(context, "fuzz", file, size, &again) == NL_OK) {
            size_t bytes = (size_t)image.height * (size_t)image.width * 3;
            FUZZ_CHECK(bytes > 0 && memcmp(image.rgb, again.rgb, bytes) == 0);
            FUZZ_CHECK(image.orientation >= 0 && image.orientation <= 8);
            nl_image_free(context, &again);
        }
        FUZZ_CHECK(status == NL_OK || !image.rgb);
        free(file);
    }
    nl_image_free(context, &image);
    fuzz_end(context, used, status);
    return 0;
}
