/* SPDX-License-Identifier: MIT */
/* PNG with every CRC put right first, so that mutations reach what lies behind them. */
#include <zlib.h>

#include "nl_fuzz.h"
#include "nl_image.h"

enum { SIGNATURE = 8, EXTRA = 12 };

static void mend(uint8_t *png, size_t size)
{
    static const uint8_t signature[SIGNATURE] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (size >= SIGNATURE)
        memcpy(png, signature, SIGNATURE);
    for (size_t at = SIGNATURE; at + EXTRA <= size;) {
        uint8_t *chunk = png + at;
        size_t length =
            (size_t)chunk[0] << 24 | (size_t)chunk[1] << 16 | (size_t)chunk[2] << 8 | chunk[3];
        if (length > size - at - EXTRA)
            return;
        uint32_t crc = (uint32_t)crc32(0, chunk + 4, (uInt)length + 4);
        for (int i = 0; i < 4; i++)
            chunk[8 + length + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        at += length + EXTRA;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    context->options.max_memory = 4 << 20;
    int64_t used = context->memory_used;
    uint8_t *png = malloc(size ? size : 1); /* exact, for the sanitizers */
    FUZZ_CHECK(png);
    memcpy(png, data, size);
    mend(png, size);
    nl_image image;
    nl_status status = nl_image_read_bytes(context, "fuzz", png, size, &image);
    for (char **text = image.text; text && *text; text += 2) /* pairs, each ended */
        FUZZ_CHECK(text[1] && strlen(text[0]) > 0 && strlen(text[1]) < 1 << 25);
    if (status == NL_OK)
        FUZZ_CHECK(image.rgb && image.height > 0 && image.width > 0);
    nl_image_free(context, &image);
    free(png);
    fuzz_end(context, used, status);
    return 0;
}
