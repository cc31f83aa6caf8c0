/* The table of contents of a zip archive in memory. Stored entries are read where they lie. */
#ifndef NL_ZIP_H
#define NL_ZIP_H

#include "nl_core.h"

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
    nl_zip_entry *entries; /* by name */
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
/* The content of a deflated entry into to[entry->size], its checksum compared. The checksum of
 * stored ones is never looked at: that would read a whole checkpoint once more, and torch need not
 * write it. */
nl_status nl_zip_inflate(const nl_zip *zip, const nl_zip_entry *entry, void *to);

#endif
