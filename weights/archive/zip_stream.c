/* SPDX-License-Identifier: MIT */
/* The content of one entry of a zip archive, unpacked as it is read, its checksum carried along. */
#include "zip.h"

#include <string.h>
#include <zlib.h>

#include "nl_crc.h"

struct nl_zip_stream {
    const nl_zip *zip;
    const nl_zip_entry *entry;
    const nl_mapping *mapping;
    int64_t taken; /* bytes of entry->stored */
    int64_t left;  /* unpacked bytes not yet read */
    uint32_t crc;
    z_stream zlib; /* of a deflated entry */
};

static nl_status damaged(const nl_zip_stream *s, const char *what)
{
    return nl_fail(s->zip->context, NL_ERROR_INPUT, "%s: zip entry %.*s: %s", s->zip->where,
                   (int)s->entry->name_size, s->entry->name, what);
}

nl_status nl_zip_stream_open(const nl_zip *zip, const nl_zip_entry *entry,
                             const nl_mapping *mapping, nl_zip_stream **stream)
{
    NL_CHECK(NL_NEW(zip->context, "a zip entry", stream));
    nl_zip_stream *s = *stream;
    *s = (nl_zip_stream){.zip = zip, .entry = entry, .mapping = mapping, .left = entry->size};
    if (entry->deflated && inflateInit2(&s->zlib, -MAX_WBITS) != Z_OK) {
        nl_free(zip->context, s);
        *stream = NULL;
        return nl_fail(zip->context, NL_ERROR_MEMORY, "%s: no memory to unpack it", zip->where);
    }
    return NL_OK;
}

void nl_zip_stream_close(nl_zip_stream *s)
{
    if (!s)
        return;
    if (s->entry->deflated)
        inflateEnd(&s->zlib);
    nl_free(s->zip->context, s);
}

int64_t nl_zip_stream_left(const nl_zip_stream *s)
{
    return s->left;
}

/* One call of zlib, which counts in 32 bits; *made: bytes that came out of it. */
static int inflate_once(nl_zip_stream *s, uint8_t *to, int64_t bytes, int64_t *made)
{
    enum { PIECE = 1 << 30 };
    const uint8_t *from = s->entry->data + s->taken;
    uInt in = (uInt)NL_MIN(s->entry->stored - s->taken, PIECE), out = (uInt)NL_MIN(bytes, PIECE);
    s->zlib.next_in = (uint8_t *)(uintptr_t)from;
    s->zlib.avail_in = in;
    s->zlib.next_out = to;
    s->zlib.avail_out = out;
    int result = inflate(&s->zlib, Z_NO_FLUSH);
    in -= s->zlib.avail_in;
    *made = out - s->zlib.avail_out;
    if (s->mapping)
        nl_map_release(s->mapping, from, in);
    s->taken += in;
    return result == Z_OK && in == 0 && *made == 0 ? Z_BUF_ERROR : result;
}

/* The last byte of an entry is followed by the end of its deflated data, and by nothing else. */
static nl_status inflate_some(nl_zip_stream *s, uint8_t *to, int64_t bytes)
{
    bool last = bytes == s->left;
    int result = Z_OK;
    int64_t made;
    while (bytes > 0 && result == Z_OK) {
        result = inflate_once(s, to, bytes, &made);
        s->crc = (uint32_t)crc32_z(s->crc, to, (size_t)made);
        to += made;
        bytes -= made;
        s->left -= made;
    }
    for (made = 0; last && bytes == 0 && made == 0 && result == Z_OK;)
        result = inflate_once(s, &(uint8_t){0}, 1, &made);
    if (bytes > 0 || (last && (result != Z_STREAM_END || s->crc != s->entry->crc)))
        return damaged(s, "the compressed data are damaged");
    return NL_OK;
}

nl_status nl_zip_stream_read(nl_zip_stream *s, void *to, int64_t bytes)
{
    const uint8_t *from = s->entry->data + s->taken;
    if (bytes < 0 || bytes > s->left)
        return nl_fail(s->zip->context, NL_ERROR_INTERNAL, "%s: %.*s: read past its end",
                       s->zip->where, (int)s->entry->name_size, s->entry->name);
    if (s->entry->deflated)
        return inflate_some(s, to, bytes);
    s->crc = nl_crc32(s->crc, to, from, bytes);
    if (s->mapping)
        nl_map_release(s->mapping, from, bytes);
    s->taken += bytes;
    s->left -= bytes;
    return s->left > 0 || s->crc == s->entry->crc ? NL_OK : damaged(s, "its checksum does not fit");
}

nl_status nl_zip_read(const nl_zip *zip, const nl_zip_entry *entry, void *to)
{
    nl_zip_stream *stream = NULL;
    nl_status status = nl_zip_stream_open(zip, entry, NULL, &stream);
    if (status == NL_OK)
        status = nl_zip_stream_read(stream, to, entry->size);
    nl_zip_stream_close(stream);
    return status;
}
