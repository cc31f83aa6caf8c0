/* SPDX-License-Identifier: MIT */
/* Zip archives: the table of contents of one in memory, whose entries are read where they lie or as a stream; and the
 * records of one to be written. */
#ifndef NL_ZIP_H
#define NL_ZIP_H

#include "nl_io.h"

typedef struct nl_zip_entry {
    const char *name; /* in the archive, not ended by NUL */
    int64_t name_size;
    bool deflated;
    uint32_t crc;
    const uint8_t *begin; /* of its header */
    const uint8_t *data;  /* in the archive */
    int64_t stored;       /* bytes at data */
    int64_t size;         /* bytes when unpacked; the same as stored unless deflated */
} nl_zip_entry;

typedef struct nl_zip {
    nl_context *context;
    const char *where; /* for messages */
    int64_t count;
    nl_zip_entry *entries;  /* by name */
    const uint8_t *comment; /* of the archive */
    int64_t comment_size;
} nl_zip;

/* Strict: every entry lies within the archive, none overlaps another, names are not repeated, the
 * two headers of an entry agree. zip64 is read; encryption and methods other than stored and
 * deflated are refused by name. `where` and `data` outlive *zip. */
nl_status nl_zip_open(nl_context *context, const char *where, const uint8_t *data, int64_t size,
                      nl_zip *zip);
void nl_zip_close(nl_zip *zip);
const nl_zip_entry *nl_zip_find(const nl_zip *zip, const char *name, int64_t name_size);

/* The content of an entry from its beginning, unpacked, in any portions: memory does not grow with it. A checksum that
 * does not fit is an error of the last portion. (Who takes stored data where they lie never looks at it: that
 * would read a whole checkpoint once more, and torch need not write it.) */
typedef struct nl_zip_stream nl_zip_stream;

/* mapping: where the archive lies, to release what has been read; or NULL. */
nl_status nl_zip_stream_open(const nl_zip *zip, const nl_zip_entry *entry,
                             const nl_mapping *mapping, nl_zip_stream **stream);
int64_t nl_zip_stream_left(const nl_zip_stream *stream); /* unpacked bytes */
nl_status nl_zip_stream_read(nl_zip_stream *stream, void *to, int64_t bytes);
void nl_zip_stream_close(nl_zip_stream *stream); /* NULL is allowed */
/* A whole entry into to[entry->size]. */
nl_status nl_zip_read(const nl_zip *zip, const nl_zip_entry *entry, void *to);

/* ---- Writing: records of stored members. Every number stands in its zip64 field, whatever its size; times are the zip
 * epoch, so that the same content gives the same file. */

typedef struct nl_zip_member {
    char name[64];
    int64_t offset; /* of the local header */
    int64_t size;
    uint32_t crc;
    bool crc_follows; /* in a descriptor behind the data; the local header's is 0 */
} nl_zip_member;

/* Bytes of the records, the first two without the name. */
enum {
    NL_ZIP_LOCAL = 30 + 20,
    NL_ZIP_CENTRAL = 46 + 28,
    NL_ZIP_DESCRIPTOR = 24,
    NL_ZIP_END = 56 + 20 + 22
};

/* Each fills its record and returns its size with the name. */
int nl_zip_put_local(const nl_zip_member *member, uint8_t *bytes);
int nl_zip_put_descriptor(const nl_zip_member *member, uint8_t *bytes);
int nl_zip_put_central(const nl_zip_member *member, uint8_t *bytes);
/* The end records, all but the comment; directory: offset of the first central record. */
int nl_zip_put_end(int64_t count, int64_t directory, int64_t directory_size, int64_t comment_size,
                   uint8_t *bytes);

#endif
