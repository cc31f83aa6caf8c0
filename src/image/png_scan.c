/* SPDX-License-Identifier: MIT */
/*
 * A PNG's chunks without its pixels: size, text (tEXt, zTXt, iTXt), structure, every CRC.
 *
 * OFFSET  SIZE    DESCRIPTION
 * 0       4       length of the data, big endian, below 2^31
 * 4       4       type
 * 8       length  data
 * .       4       CRC of type and data
 */
#include <string.h>
#include <zlib.h>

#include "pixels.h"

enum {
    CHUNK_EXTRA = 12,
    HEADER_SIZE = 13,
    MAX_TEXTS = 1000,
    MAX_INFLATED = 1 << 24 /* bytes of all compressed texts together */
};

typedef struct nl_chunk {
    char type[5];
    const uint8_t *data;
    size_t size;
} nl_chunk;

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static nl_status next_chunk(nl_context *context, const char *path, const nl_mapping *mapping,
                            int64_t *offset, nl_chunk *chunk)
{
    const uint8_t *data = mapping->data + *offset;
    int64_t left = mapping->size - *offset;
    if (left < CHUNK_EXTRA || get_u32(data) > (uint64_t)(left - CHUNK_EXTRA))
        return nl_fail(
            context, NL_ERROR_INPUT,
            "%s: the PNG is cut off: a chunk at byte %lld goes past the end (%lld bytes)", path,
            (long long)*offset, (long long)mapping->size);
    uint32_t size = get_u32(data);
    memcpy(chunk->type, data + 4, 4);
    chunk->type[4] = '\0';
    for (int i = 0; i < 4; i++)
        if (!((chunk->type[i] | 32) >= 'a' && (chunk->type[i] | 32) <= 'z'))
            return nl_fail(context, NL_ERROR_INPUT, "%s: no PNG chunk at byte %lld", path,
                           (long long)*offset);
    chunk->data = data + 8;
    chunk->size = size;
    if ((uint32_t)crc32_z(0, data + 4, (z_size_t)size + 4) != get_u32(data + 8 + size))
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: the PNG is damaged: wrong CRC of chunk %s at byte %lld", path,
                       chunk->type, (long long)*offset);
    *offset += (int64_t)size + CHUNK_EXTRA;
    return NL_OK;
}

/* Allocated UTF-8 of Latin-1 text. */
static nl_status from_latin1(nl_context *context, const uint8_t *data, size_t size, char **text)
{
    NL_CHECK(NL_NEW_ARRAY(context, "PNG text", 2 * size + 1, text));
    char *to = *text;
    for (size_t i = 0; i < size && data[i]; i++) {
        if (data[i] < 128) {
            *to++ = (char)data[i];
        } else {
            *to++ = (char)(0xc0 | data[i] >> 6);
            *to++ = (char)(0x80 | (data[i] & 0x3f));
        }
    }
    *to = '\0';
    return NL_OK;
}

static nl_status from_bytes(nl_context *context, const uint8_t *data, size_t size, char **text)
{
    NL_CHECK(NL_NEW_ARRAY(context, "PNG text", size + 1, text));
    if (size)
        memcpy(*text, data, size);
    (*text)[size] = '\0';
    return NL_OK;
}

/* Allocated inflated bytes of a zlib stream. */
static nl_status inflate_text(nl_context *context, const char *path, const uint8_t *data,
                              size_t size, size_t *left, uint8_t **inflated, size_t *inflated_size)
{
    for (uLongf room = NL_MIN(4096, *left);; room = NL_MIN(4 * room, *left)) {
        uint8_t *bytes;
        NL_CHECK(NL_NEW_ARRAY(context, "PNG text", room, &bytes));
        uLongf length = room;
        int result = uncompress(bytes, &length, data, (uLong)size);
        if (result == Z_OK) {
            *inflated = bytes;
            *inflated_size = length;
            *left -= length;
            return NL_OK;
        }
        nl_free(context, bytes);
        if (result != Z_BUF_ERROR || room == *left)
            break;
    }
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s: a compressed PNG text is damaged, or all of them are longer than %d bytes",
                   path, MAX_INFLATED);
}

/* Takes bytes up to and with the next 0; false when there is none. */
static bool take_field(const uint8_t **data, size_t *size, size_t *length)
{
    const uint8_t *end = *size ? memchr(*data, 0, *size) : NULL;
    if (!end)
        return false;
    *length = (size_t)(end - *data);
    *size -= *length + 1;
    *data = end + 1;
    return true;
}

static nl_status read_value(nl_context *context, const char *path, bool utf8, bool compressed,
                            const uint8_t *data, size_t size, size_t *left, char **value)
{
    uint8_t *inflated = NULL;
    nl_status status = NL_OK;
    if (compressed) {
        NL_TRY(inflate_text(context, path, data, size, left, &inflated, &size));
        data = inflated;
    }
    status =
        utf8 ? from_bytes(context, data, size, value) : from_latin1(context, data, size, value);
cleanup:
    nl_free(context, inflated);
    return status;
}

/* tEXt: keyword 0 text; zTXt: keyword 0 method text; iTXt: keyword 0 flag method language 0 translated
 * keyword 0 text */
static nl_status read_text(nl_context *context, const char *path, const nl_chunk *chunk,
                           size_t *left, char *pair[2])
{
    const uint8_t *data = chunk->data, *keyword = data;
    size_t size = chunk->size, keyword_size, skipped;
    bool utf8 = chunk->type[0] == 'i', compressed = chunk->type[0] == 'z';
    bool good = take_field(&data, &size, &keyword_size) && keyword_size > 0 &&
                keyword_size <= NL_PNG_MAX_KEYWORD;
    if (good && compressed) {
        good = size >= 1 && data[0] == 0;
        data++, size--;
    } else if (good && utf8) {
        good = size >= 2 && data[0] <= 1 && data[1] == 0;
        compressed = good && data[0] == 1;
        if (good)
            data += 2, size -= 2;
        good = good && take_field(&data, &size, &skipped) && take_field(&data, &size, &skipped);
    }
    if (!good)
        return nl_fail(context, NL_ERROR_INPUT, "%s: malformed PNG text chunk %s", path,
                       chunk->type);
    nl_status status = from_latin1(context, keyword, keyword_size, &pair[0]);
    if (status != NL_OK)
        return status;
    status = read_value(context, path, utf8, compressed, data, size, left, &pair[1]);
    if (status != NL_OK) {
        nl_free(context, pair[0]);
        pair[0] = NULL;
    }
    return status;
}

static bool is_text(const nl_chunk *chunk)
{
    return strcmp(chunk->type, "tEXt") == 0 || strcmp(chunk->type, "zTXt") == 0 ||
           strcmp(chunk->type, "iTXt") == 0;
}

/* Walks all chunks; counts texts, and reads them where image->text has room. */
static nl_status walk(nl_context *context, const char *path, const nl_mapping *mapping,
                      nl_image *image, int *texts)
{
    int64_t offset = NL_PNG_SIGNATURE_SIZE;
    size_t left = MAX_INFLATED;
    bool pixels = false;
    *texts = 0;
    for (int index = 0;; index++) {
        nl_chunk chunk;
        nl_status status = next_chunk(context, path, mapping, &offset, &chunk);
        if (status != NL_OK)
            return status;
        if ((index == 0) != (strcmp(chunk.type, "IHDR") == 0) ||
            (index == 0 && chunk.size != HEADER_SIZE))
            return nl_fail(context, NL_ERROR_INPUT, "%s: a PNG starts with one IHDR of %d bytes",
                           path, HEADER_SIZE);
        if (index == 0) {
            uint32_t width = get_u32(chunk.data), height = get_u32(chunk.data + 4);
            status = nl_image_check_size(context, NL_ERROR_INPUT, path, height, width);
            if (status != NL_OK)
                return status;
            image->width = (int)width;
            image->height = (int)height;
        } else if (is_text(&chunk) && *texts < MAX_TEXTS) {
            if (image->text)
                status = read_text(context, path, &chunk, &left, image->text + 2 * *texts);
            if (status != NL_OK)
                return status;
            (*texts)++;
        } else if (strcmp(chunk.type, "IDAT") == 0) {
            pixels = true;
        } else if (strcmp(chunk.type, "IEND") == 0) {
            break;
        }
    }
    return pixels ? NL_OK
                  : nl_fail(context, NL_ERROR_INPUT, "%s: the PNG has no pixels (no IDAT)", path);
}

nl_status nl_png_scan(nl_context *context, const char *path, const nl_mapping *mapping,
                      nl_image *image)
{
    int texts;
    nl_status status = walk(context, path, mapping, image, &texts);
    if (status != NL_OK || texts == 0)
        return status;
    status = NL_NEW_ZEROS(context, "PNG text", (2 * (size_t)texts + 1), &image->text);
    if (status != NL_OK)
        return status;
    return walk(context, path, mapping, image, &texts);
}
