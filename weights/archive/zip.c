/* SPDX-License-Identifier: MIT */
/*
 * Zip archives, from their end (APPNOTE.TXT 6.3):
 *
 *   end of central directory, 22 bytes and a comment
 *   0   4  "PK\5\6"
 *   4   2  this disk; 6 2 disk of the directory; 8 2 entries on this disk
 *   10  2  entries            0xffff: in the zip64 record
 *   12  4  size of directory  0xffffffff: there
 *   16  4  its offset         0xffffffff: there
 *   20  2  length of the comment, which ends the file
 *
 *   zip64 locator, 20 bytes, in front of it     zip64 record, 56 bytes or more
 *   0   4  "PK\6\7"                             0   4  "PK\6\6"
 *   8   8  offset of the record                 32  8  entries; 40 8 size; 48 8 offset of directory
 *
 *   directory entry, 46 bytes, name, extra, comment     local header, 30 bytes, name, extra, data
 *   0   4  "PK\1\2"                                     0   4  "PK\3\4"
 *   8   2  flags, bit 0: encrypted                      26  2  length of the name
 *   10  2  method, 0 stored, 8 deflated                 28  2  of the extra field
 *   16  4  crc32; 20 4 stored size; 24 4 size
 *   28  2  length of the name; 30 2 of extra; 32 2 of comment
 *   42  4  offset of the local header
 *
 *   extra field 1 (zip64): those of size, stored size, offset (in this order) that are 0xffffffff,
 *   8 bytes each
 */
#include "zip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "nl_bytes.h"

enum {
    END_SIZE = 22,
    LOCATOR_SIZE = 20,
    RECORD_SIZE = 56,
    ENTRY_SIZE = 46,
    LOCAL_SIZE = 30,
    ZIP64_FIELD = 1,
    MAX_RATIO = 1032 /* of deflate */
};

static const uint32_t wide = 0xffffffff; /* the number stands in a zip64 field */

typedef struct nl_directory {
    nl_zip *zip;
    const uint8_t *data; /* the archive */
    int64_t size;
    int64_t begin, end; /* the directory */
    int64_t count;
} nl_directory;

static nl_status damaged(const nl_directory *directory, const char *what)
{
    return nl_fail(directory->zip->context, NL_ERROR_INPUT,
                   "%s: damaged zip archive: %s; copy or download it again", directory->zip->where,
                   what);
}

static nl_status damaged_entry(const nl_directory *directory, const nl_zip_entry *entry,
                               const char *what)
{
    return nl_fail(directory->zip->context, NL_ERROR_INPUT, "%s: zip entry %.*s: %s",
                   directory->zip->where, (int)entry->name_size, entry->name, what);
}

static bool signature(const uint8_t *at, int third, int fourth)
{
    return at[0] == 'P' && at[1] == 'K' && at[2] == third && at[3] == fourth;
}

/* The end record is the last thing in the file but for its comment. */
static const uint8_t *find_end(const nl_directory *directory)
{
    int64_t lowest = NL_MAX(0, directory->size - END_SIZE - 0xffff);
    for (int64_t at = directory->size - END_SIZE; at >= lowest; at--) {
        const uint8_t *end = directory->data + at;
        if (signature(end, 5, 6) &&
            at + END_SIZE + (int64_t)nl_little(end + 20, 2) == directory->size)
            return end;
    }
    return NULL;
}

static nl_status read_zip64(nl_directory *directory, const uint8_t *end, uint64_t numbers[3])
{
    if (end - directory->data < LOCATOR_SIZE || !signature(end - LOCATOR_SIZE, 6, 7))
        return NL_OK;
    uint64_t at = nl_little(end - LOCATOR_SIZE + 8, 8);
    uint64_t room = (uint64_t)(end - LOCATOR_SIZE - directory->data);
    if (room < RECORD_SIZE || at > room - RECORD_SIZE || !signature(directory->data + at, 6, 6))
        return damaged(directory, "its zip64 record is not where it should be");
    for (int i = 0; i < 3; i++)
        numbers[i] = nl_little(directory->data + at + 32 + 8 * i, 8);
    return NL_OK;
}

static nl_status find_directory(nl_directory *directory)
{
    const uint8_t *end = find_end(directory);
    if (!end &&
        (directory->size == 0 || (directory->size >= 4 && memcmp(directory->data, "PK", 2))))
        return nl_fail(directory->zip->context, NL_ERROR_INPUT,
                       "%s: %s, expected a zip archive such as .npz or .pt", directory->zip->where,
                       directory->size ? "it begins like no zip archive" : "the file is empty");
    if (!end)
        return nl_fail(
            directory->zip->context, NL_ERROR_INPUT,
            "%s: the file is cut off: its %lld bytes begin like a zip archive but do not "
            "end like one; copy or download it again",
            directory->zip->where, (long long)directory->size);
    uint64_t numbers[3] = {nl_little(end + 10, 2), nl_little(end + 12, 4), nl_little(end + 16, 4)};
    if (nl_little(end + 4, 2) != nl_little(end + 6, 2))
        return damaged(directory, "it is one of several parts");
    NL_CHECK(read_zip64(directory, end, numbers));
    uint64_t limit = (uint64_t)(end - directory->data);
    if (numbers[1] > limit || numbers[2] > limit - numbers[1])
        return damaged(directory, "its directory is not within the file");
    if (numbers[0] > numbers[1] / ENTRY_SIZE)
        return damaged(directory, "its directory is too short for its entries");
    directory->zip->comment = end + END_SIZE;
    directory->zip->comment_size = (int64_t)nl_little(end + 20, 2);
    directory->count = (int64_t)numbers[0];
    directory->begin = (int64_t)numbers[2];
    directory->end = directory->begin + (int64_t)numbers[1];
    return NL_OK;
}

/* Replaces those of size, stored size and offset that the 32-bit fields could not hold. */
static bool read_extra(const uint8_t *extra, int64_t size, uint64_t numbers[3])
{
    bool needed = numbers[0] == wide || numbers[1] == wide || numbers[2] == wide;
    for (int64_t at = 0; needed && at + 4 <= size;) {
        int64_t length = (int64_t)nl_little(extra + at + 2, 2);
        const uint8_t *field = extra + at + 4, *end = field + length;
        if (length > size - at - 4)
            return false;
        if (nl_little(extra + at, 2) == ZIP64_FIELD) {
            for (int i = 0; i < 3; i++) {
                if (numbers[i] != wide)
                    continue;
                if (end - field < 8)
                    return false;
                numbers[i] = nl_little(field, 8);
                field += 8;
            }
            return true;
        }
        at += 4 + length;
    }
    return !needed;
}

/* Where the data are, behind the local header at `offset`. */
static nl_status locate(const nl_directory *directory, uint64_t offset, uint64_t stored,
                        nl_zip_entry *entry)
{
    uint64_t limit = (uint64_t)directory->begin;
    if (limit < LOCAL_SIZE || offset > limit - LOCAL_SIZE)
        return damaged_entry(directory, entry, "it is not within the file");
    const uint8_t *local = directory->data + offset;
    uint64_t name_size = nl_little(local + 26, 2), extra_size = nl_little(local + 28, 2);
    uint64_t room = limit - offset - LOCAL_SIZE;
    if (!signature(local, 3, 4) || room < name_size + extra_size ||
        name_size != (uint64_t)entry->name_size ||
        memcmp(local + LOCAL_SIZE, entry->name, name_size) != 0)
        return damaged_entry(directory, entry, "the directory and its own header differ");
    if (stored > room - name_size - extra_size)
        return damaged_entry(directory, entry, "it is not within the file: cut off or damaged");
    entry->begin = local;
    entry->data = local + LOCAL_SIZE + name_size + extra_size;
    entry->stored = (int64_t)stored;
    return NL_OK;
}

static nl_status read_entry(const nl_directory *directory, int64_t *at, nl_zip_entry *entry)
{
    const uint8_t *header = directory->data + *at;
    int64_t room = directory->end - *at;
    if (room < ENTRY_SIZE || !signature(header, 1, 2))
        return damaged(directory, "its directory does not hold what it should");
    int64_t name_size = (int64_t)nl_little(header + 28, 2);
    int64_t extra_size = (int64_t)nl_little(header + 30, 2);
    int64_t total = ENTRY_SIZE + name_size + extra_size + (int64_t)nl_little(header + 32, 2);
    if (total > room)
        return damaged(directory, "its directory is cut off");
    *entry = (nl_zip_entry){.name = (const char *)header + ENTRY_SIZE, .name_size = name_size};
    uint64_t numbers[3] = {nl_little(header + 24, 4), nl_little(header + 20, 4),
                           nl_little(header + 42, 4)};
    if (!read_extra(header + ENTRY_SIZE + name_size, extra_size, numbers))
        return damaged_entry(directory, entry, "its zip64 sizes are missing");
    uint64_t method = nl_little(header + 10, 2);
    if (nl_little(header + 8, 2) & 1)
        return damaged_entry(directory, entry, "it is encrypted");
    if (method != 0 && method != 8)
        return damaged_entry(directory, entry, "its compression is neither stored nor deflate");
    if (method == 0 ? numbers[0] != numbers[1] : numbers[0] / MAX_RATIO > numbers[1])
        return damaged_entry(directory, entry, "its two sizes contradict each other");
    entry->deflated = method == 8;
    entry->crc = (uint32_t)nl_little(header + 16, 4);
    entry->size = (int64_t)numbers[0];
    *at += total;
    return locate(directory, numbers[2], numbers[1], entry);
}

static int compare_places(const void *a, const void *b)
{
    const nl_zip_entry *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int compare_text(const char *a, int64_t a_size, const char *b, int64_t b_size)
{
    int order = memcmp(a, b, (size_t)NL_MIN(a_size, b_size));
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int compare_names(const void *a, const void *b)
{
    const nl_zip_entry *x = a, *y = b;
    return compare_text(x->name, x->name_size, y->name, y->name_size);
}

static nl_status check_entries(const nl_directory *directory)
{
    nl_zip *zip = directory->zip;
    if (zip->count == 0)
        return NL_OK;
    qsort(zip->entries, (size_t)zip->count, sizeof(nl_zip_entry), compare_places);
    for (int64_t i = 1; i < zip->count; i++)
        if (zip->entries[i - 1].data + zip->entries[i - 1].stored > zip->entries[i].begin)
            return damaged_entry(directory, &zip->entries[i], "it overlaps another entry");
    qsort(zip->entries, (size_t)zip->count, sizeof(nl_zip_entry), compare_names);
    for (int64_t i = 1; i < zip->count; i++)
        if (compare_names(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return damaged_entry(directory, &zip->entries[i], "it is there twice");
    return NL_OK;
}

nl_status nl_zip_open(nl_context *context, const char *where, const uint8_t *data, int64_t size,
                      nl_zip *zip)
{
    nl_directory directory = {.zip = zip, .data = data, .size = size};
    nl_status status;
    int64_t at;
    *zip = (nl_zip){.context = context, .where = where};
    NL_TRY(find_directory(&directory));
    NL_TRY(NL_NEW_ARRAY(context, "the directory of a zip archive", directory.count, &zip->entries));
    at = directory.begin;
    for (; zip->count < directory.count; zip->count++)
        NL_TRY(read_entry(&directory, &at, &zip->entries[zip->count]));
    if (at != directory.end)
        NL_TRY(damaged(&directory, "its directory holds more than it says"));
    NL_TRY(check_entries(&directory));
    return NL_OK;
cleanup:
    nl_zip_close(zip);
    return status;
}

void nl_zip_close(nl_zip *zip)
{
    nl_free(zip->context, zip->entries);
    zip->entries = NULL;
    zip->count = 0;
}

const nl_zip_entry *nl_zip_find(const nl_zip *zip, const char *name, int64_t name_size)
{
    nl_zip_entry key = {.name = name, .name_size = name_size};
    if (zip->count == 0)
        return NULL;
    return bsearch(&key, zip->entries, (size_t)zip->count, sizeof(nl_zip_entry), compare_names);
}
