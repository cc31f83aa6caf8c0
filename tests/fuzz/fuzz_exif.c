/* SPDX-License-Identifier: MIT */
/* How EXIF says that a picture lies, and turning it: no pixel is lost, and turned it is upright. */
#include "nl_fuzz.h"
#include "pixels.h"

enum { HEIGHT = 3, WIDTH = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_image image = {.height = HEIGHT, .width = WIDTH};
    uint8_t *copy = malloc(size + !size); /* of this size, for the sanitizer */
    unsigned seen = 0;
    memcpy(copy, data, size);
    image.orientation = nl_exif_orientation(copy, (int64_t)size);
    free(copy);
    FUZZ_CHECK(image.orientation >= 0 && image.orientation <= 8);
    FUZZ_CHECK(NL_NEW_ZEROS(context, "a picture", 3 * HEIGHT * WIDTH, &image.rgb) == NL_OK);
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        image.rgb[3 * i] = (uint8_t)i;
    bool swapped = image.orientation >= 5;
    FUZZ_CHECK(nl_image_turn(context, &image) == NL_OK);
    FUZZ_CHECK(image.height == (swapped ? WIDTH : HEIGHT));
    FUZZ_CHECK(image.width == (swapped ? HEIGHT : WIDTH) && image.orientation <= 1);
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        seen |= 1u << image.rgb[3 * i];
    FUZZ_CHECK(seen == (1u << HEIGHT * WIDTH) - 1);
    nl_image_free(context, &image);
    fuzz_end(context, used, NL_OK);
    return 0;
}
