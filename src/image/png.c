/* SPDX-License-Identifier: MIT */
/*
 * PNG out: stb_image_write makes the picture, text chunks go in after the header.
 *
 * OFFSET  SIZE  DESCRIPTION
 * 0       8     signature
 * 8       25    IHDR: length 13, "IHDR", 13 bytes, CRC
 * 33      .     iTXt chunks, one a keyword
 * .       .     what stb wrote from offset 33 on: IDAT, IEND
 *
 * An iTXt chunk: u32 length, "iTXt", keyword, 0, 0 (not compressed), 0, empty language, 0, empty
 * translated keyword, 0, UTF-8 text, u32 CRC of everything after the length. Integers are big endian.
 */
#include <string.h>
#include <zlib.h>

#include "pixels.h"
#include "stb.h"

enum { HEADER_END = 33, CHUNK_EXTRA = 12, ITXT_EXTRA = 5 };

/* 1 to 79 printable Latin-1 characters, no space at either end and no two together. */
static bool good_keyword(const char *keyword)
{
    size_t length = strlen(keyword);
    if (length < 1 || length > NL_PNG_MAX_KEYWORD || keyword[0] == ' ' ||
        keyword[length - 1] == ' ' || strstr(keyword, "  "))
        return false;
    for (size_t i = 0; i < length; i++) {
        uint8_t c = (uint8_t)keyword[i];
        if (c < 32 || (c > 126 && c < 161))
            return false;
    }
    return true;
}

static nl_status text_size(nl_context *context, const char *const *text, size_t *size)
{
    const size_t largest = 1 << 30; /* a chunk may have 2^31 - 1 bytes */
    *size = 0;
    for (; text && *text; text += 2) {
        if (!good_keyword(text[0]) || !text[1])
            return nl_fail(
                context, NL_ERROR_USAGE,
                "PNG text \"%.100s\": a keyword has 1 to %d Latin-1 characters and a value",
                text[0], NL_PNG_MAX_KEYWORD);
        size_t length = strlen(text[1]);
        *size += CHUNK_EXTRA + ITXT_EXTRA + strlen(text[0]) + length;
        if (length > largest || *size > largest)
            return nl_fail(context, NL_ERROR_USAGE, "PNG text \"%s\": %zu bytes are too many",
                           text[0], length);
    }
    return NL_OK;
}

static uint8_t *put_u32(uint8_t *to, uint32_t x)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to++ = (uint8_t)(x >> shift);
    return to;
}

static uint8_t *put_text(uint8_t *to, const char *keyword, const char *value)
{
    size_t keyword_size = strlen(keyword), value_size = strlen(value);
    uint8_t *start = put_u32(to, (uint32_t)(keyword_size + ITXT_EXTRA + value_size));
    memcpy(start, "iTXt", 4);
    to = start + 4;
    memcpy(to, keyword, keyword_size);
    to += keyword_size;
    memset(to, 0, ITXT_EXTRA);
    to += ITXT_EXTRA;
    memcpy(to, value, value_size);
    to += value_size;
    return put_u32(to, (uint32_t)crc32(0, start, (uInt)(to - start)));
}

typedef struct nl_png_sink {
    nl_context *context;
    const char *const *text;
    size_t text_size;
    uint8_t *bytes;
    size_t size;
    nl_status status;
} nl_png_sink;

static void take_png(void *user, void *bytes, int size)
{
    nl_png_sink *sink = user;
    sink->size = (size_t)size + sink->text_size;
    sink->status = NL_NEW_ARRAY(sink->context, "a PNG", sink->size, &sink->bytes);
    if (sink->status != NL_OK)
        return;
    uint8_t *to = sink->bytes;
    memcpy(to, bytes, HEADER_END);
    to += HEADER_END;
    for (const char *const *text = sink->text; text && *text; text += 2)
        to = put_text(to, text[0], text[1]);
    memcpy(to, (uint8_t *)bytes + HEADER_END, (size_t)size - HEADER_END);
}

nl_status nl_png_encode(nl_context *context, const uint8_t *rgb, int height, int width,
                        const char *const *text, uint8_t **bytes, size_t *size)
{
    *bytes = NULL;
    *size = 0;
    nl_png_sink sink = {.context = context, .text = text};
    nl_status status = nl_image_check_size(context, NL_ERROR_USAGE, "PNG", height, width);
    if (status == NL_OK)
        status = text_size(context, text, &sink.text_size);
    if (status != NL_OK)
        return status;
    if (!nl_stb_png(rgb, height, width, take_png, &sink))
        return nl_fail(context, NL_ERROR_MEMORY,
                       "a PNG of %d x %d pixels: no memory to compress it", width, height);
    if (sink.status != NL_OK)
        return sink.status;
    *bytes = sink.bytes;
    *size = sink.size;
    return NL_OK;
}

nl_status nl_png_write(nl_context *context, const char *path, bool overwrite, const uint8_t *rgb,
                       int height, int width, const char *const *text)
{
    uint8_t *bytes;
    size_t size;
    nl_status status = nl_png_encode(context, rgb, height, width, text, &bytes, &size);
    if (status != NL_OK)
        return nl_fail_in(context, status, "%s", path);
    status = nl_write_file(context, path, overwrite, bytes, size);
    nl_free(context, bytes);
    return status;
}
