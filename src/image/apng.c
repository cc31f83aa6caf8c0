/* SPDX-License-Identifier: MIT */
/*
 * Animated PNG: the first picture is an ordinary PNG, which is what other programs show; chunks that they pass over hold the
 * others. Each is compressed as a PNG of its own.
 *
 * OFFSET  SIZE  DESCRIPTION
 * 0       .     signature, IHDR and text, as png.c has them
 * .       20    acTL: u32 pictures, u32 how often they are shown (0: without end)
 * .       38    fcTL: u32 sequence number, width, height, left, top; u16 numerator and denominator of the seconds that it is
 *               shown; u8 what becomes of it and how the next one is drawn over it (0, 0: nothing, as it stands)
 * .       .     IDAT
 *               for each of the others: its fcTL, and
 * .       .     fdAT: u32 sequence number, then what stood in IDAT
 * .       12    IEND
 */
#include <string.h>
#include <zlib.h>

#include "pixels.h"

enum { EXTRA = 12 /* of a chunk: length, type, CRC */, NUMBER = 4, ACTL = 8, FCTL = 26 };

typedef struct nl_bytes {
    uint8_t *data;
    size_t size;
} nl_bytes;

static uint8_t *put_u32(uint8_t *to, uint32_t x)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to++ = (uint8_t)(x >> shift);
    return to;
}

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

/* Where the data of size bytes is that follows, after `put_end`. */
static uint8_t *put_chunk(uint8_t *to, const char *type, size_t size)
{
    to = put_u32(to, (uint32_t)size);
    memcpy(to, type, 4);
    return to + 4;
}

static uint8_t *put_end(uint8_t *data, size_t size)
{
    return put_u32(data + size, (uint32_t)crc32_z(0, data - 4, size + 4));
}

static uint8_t *put_control(uint8_t *to, uint32_t number, int height, int width, int milliseconds)
{
    uint8_t *data = put_chunk(to, "fcTL", FCTL);
    to = put_u32(data, number);
    to = put_u32(to, (uint32_t)width);
    to = put_u32(to, (uint32_t)height);
    memset(to, 0, FCTL - (size_t)(to - data));
    to += 8; /* left, top */
    put_u32(to, (uint32_t)milliseconds << 16 | 1000);
    return put_end(data, FCTL);
}

/* The chunk of that type in a PNG of ours, from its length on. */
static const uint8_t *find_chunk(const nl_bytes *png, const char *type)
{
    const uint8_t *at = png->data + NL_PNG_SIGNATURE_SIZE;
    while (memcmp(at + 4, type, 4) != 0)
        at += get_u32(at) + EXTRA;
    return at;
}

/* The pixels of a PNG, in as many chunks IDAT as there are. */
static uint8_t *put_pixels(uint8_t *to, const nl_bytes *png, uint32_t *number)
{
    for (const uint8_t *at = find_chunk(png, "IDAT"); !memcmp(at + 4, "IDAT", 4);
         at += get_u32(at) + EXTRA) {
        size_t size = get_u32(at);
        uint8_t *data = put_chunk(to, "fdAT", NUMBER + size);
        memcpy(put_u32(data, (*number)++), at + 8, size);
        to = put_end(data, NUMBER + size);
    }
    return to;
}

static nl_status join(nl_context *context, const nl_bytes *pngs, int count, int height, int width,
                      int milliseconds, nl_bytes *made)
{
    const uint8_t *pixels = find_chunk(&pngs[0], "IDAT"), *end = find_chunk(&pngs[0], "IEND");
    size_t head = (size_t)(pixels - pngs[0].data), room = EXTRA + ACTL;
    uint32_t number = 0;
    for (int i = 0; i < count; i++) /* more than it takes: a PNG is larger than its pixels */
        room += pngs[i].size + EXTRA + FCTL;
    NL_CHECK(NL_NEW_ARRAY(context, "an animated PNG", room, &made->data));
    memcpy(made->data, pngs[0].data, head);
    uint8_t *data = put_chunk(made->data + head, "acTL", ACTL);
    put_u32(put_u32(data, (uint32_t)count), 0);
    uint8_t *to = put_control(put_end(data, ACTL), number++, height, width, milliseconds);
    memcpy(to, pixels, (size_t)(end - pixels));
    to += end - pixels;
    for (int i = 1; i < count; i++) {
        to = put_control(to, number++, height, width, milliseconds);
        to = put_pixels(to, &pngs[i], &number);
    }
    memcpy(to, end, EXTRA);
    made->size = (size_t)(to + EXTRA - made->data);
    return NL_OK;
}

nl_status nl_apng_encode(nl_context *context, const uint8_t *const *pictures, int count, int height,
                         int width, int milliseconds, const char *const *text, uint8_t **bytes,
                         size_t *size)
{
    nl_bytes *pngs = NULL, made = {0};
    nl_status status = NL_OK;
    *bytes = NULL;
    *size = 0;
    if (count < 1 || milliseconds < 1 || milliseconds > UINT16_MAX)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "an animated PNG of %d pictures, each for %d milliseconds: expected at least "
            "1, and 1 to %d",
            count, milliseconds, UINT16_MAX);
    NL_TRY(NL_NEW_ZEROS(context, "pictures of an animated PNG", count, &pngs));
    for (int i = 0; i < count; i++)
        NL_TRY(nl_png_encode(context, pictures[i], height, width, i ? NULL : text, &pngs[i].data,
                             &pngs[i].size));
    NL_TRY(join(context, pngs, count, height, width, milliseconds, &made));
    *bytes = made.data;
    *size = made.size;
cleanup:
    for (int i = 0; pngs && i < count; i++)
        nl_free(context, pngs[i].data);
    nl_free(context, pngs);
    return status;
}
