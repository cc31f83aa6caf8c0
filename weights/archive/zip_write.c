/* SPDX-License-Identifier: MIT */
/* The records of an archive to be written: APPNOTE 4.3; the layout stands in zip.c. */
#include "zip.h"

#include <string.h>

#include "nl_bytes.h"

enum { VERSION_NEEDED = 45 /* zip64 */, MADE_ON_UNIX = 3 << 8, DOS_DATE = 0x21 /* 1980-01-01 */ };

/* Version needed to name length, which local and central headers share: 26 bytes. */
static void put_common(const nl_zip_member *member, uint32_t crc, uint8_t *at)
{
    nl_put_little(at, 2, VERSION_NEEDED);
    nl_put_little(at + 2, 2, member->crc_follows ? 8 : 0);
    nl_put_little(at + 8, 2, DOS_DATE);
    nl_put_little(at + 10, 4, crc);
    nl_put_little(at + 14, 4, UINT32_MAX); /* sizes are in the extra field */
    nl_put_little(at + 18, 4, UINT32_MAX);
    nl_put_little(at + 22, 2, strlen(member->name));
}

static void put_extra(const nl_zip_member *member, bool offset, uint8_t *at)
{
    nl_put_little(at, 2, 1); /* zip64 */
    nl_put_little(at + 2, 2, offset ? 24 : 16);
    nl_put_little(at + 4, 8, (uint64_t)member->size);
    nl_put_little(at + 12, 8, (uint64_t)member->size);
    if (offset)
        nl_put_little(at + 20, 8, (uint64_t)member->offset);
}

int nl_zip_put_local(const nl_zip_member *member, uint8_t *bytes)
{
    size_t name = strlen(member->name);
    memset(bytes, 0, NL_ZIP_LOCAL + name);
    nl_put_little(bytes, 4, 0x04034b50);
    put_common(member, member->crc_follows ? 0 : member->crc, bytes + 4);
    nl_put_little(bytes + 28, 2, 20);
    memcpy(bytes + 30, member->name, name);
    put_extra(member, false, bytes + 30 + name);
    return NL_ZIP_LOCAL + (int)name;
}

int nl_zip_put_descriptor(const nl_zip_member *member, uint8_t *bytes)
{
    nl_put_little(bytes, 4, 0x08074b50);
    nl_put_little(bytes + 4, 4, member->crc);
    nl_put_little(bytes + 8, 8, (uint64_t)member->size);
    nl_put_little(bytes + 16, 8, (uint64_t)member->size);
    return NL_ZIP_DESCRIPTOR;
}

int nl_zip_put_central(const nl_zip_member *member, uint8_t *bytes)
{
    size_t name = strlen(member->name);
    memset(bytes, 0, NL_ZIP_CENTRAL + name);
    nl_put_little(bytes, 4, 0x02014b50);
    nl_put_little(bytes + 4, 2, MADE_ON_UNIX | VERSION_NEEDED);
    put_common(member, member->crc, bytes + 6);
    nl_put_little(bytes + 30, 2, 28);
    nl_put_little(bytes + 38, 4, 0100644u << 16); /* a regular file, rw-r--r-- */
    nl_put_little(bytes + 42, 4, UINT32_MAX);
    memcpy(bytes + 46, member->name, name);
    put_extra(member, true, bytes + 46 + name);
    return NL_ZIP_CENTRAL + (int)name;
}

int nl_zip_put_end(int64_t count, int64_t directory, int64_t directory_size, int64_t comment_size,
                   uint8_t *bytes)
{
    uint8_t *at = bytes;
    memset(bytes, 0, NL_ZIP_END);
    nl_put_little(at, 4, 0x06064b50); /* zip64 end of central directory */
    nl_put_little(at + 4, 8, 44);
    nl_put_little(at + 12, 2, MADE_ON_UNIX | VERSION_NEEDED);
    nl_put_little(at + 14, 2, VERSION_NEEDED);
    nl_put_little(at + 24, 8, (uint64_t)count);
    nl_put_little(at + 32, 8, (uint64_t)count);
    nl_put_little(at + 40, 8, (uint64_t)directory_size);
    nl_put_little(at + 48, 8, (uint64_t)directory);
    at += 56;
    nl_put_little(at, 4, 0x07064b50); /* its locator */
    nl_put_little(at + 8, 8, (uint64_t)(directory + directory_size));
    nl_put_little(at + 16, 4, 1);
    at += 20;
    nl_put_little(at, 4, 0x06054b50); /* end of central directory */
    nl_put_little(at + 8, 2, (uint64_t)count);
    nl_put_little(at + 10, 2, (uint64_t)count);
    nl_put_little(at + 12, 4, UINT32_MAX);
    nl_put_little(at + 16, 4, UINT32_MAX);
    nl_put_little(at + 20, 2, (uint64_t)comment_size);
    return NL_ZIP_END;
}
