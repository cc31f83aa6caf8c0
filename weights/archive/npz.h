/* SPDX-License-Identifier: MIT */
/* What the files of this folder share. */
#ifndef NL_NPZ_PRIVATE_H
#define NL_NPZ_PRIVATE_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "nl_bytes.h"
#include "nl_npy.h"
#include "nl_npz.h"
#include "zip.h"

/* An array in an archive: local header, npy header, elements. */
typedef struct nl_npz_member {
    nl_zip_member zip; /* its checksum begins with that of the npy header */
    int header_size;   /* npy, a multiple of 64 */
    char header[NL_NPY_HEADER];
} nl_npz_member;

/* Bytes in front of an array's elements, and room for all of one's records. */
enum { NL_NPZ_RECORD = NL_ZIP_LOCAL + sizeof(((nl_zip_member *)0)->name) + NL_NPY_HEADER };

/* An array NAME whose local header begins at `offset`. false: the name is too long, npy has no such type, or a size overflows. */
bool nl_npz_make_member(const char *name, const nl_array *array, int64_t offset,
                        nl_npz_member *member);
int64_t nl_npz_data_offset(const nl_npz_member *member); /* of its first element */
/* Local header and npy header; returns how many bytes. */
int nl_npz_put_member(const nl_npz_member *member, uint8_t bytes[NL_NPZ_RECORD]);

/* A file under work and its name, for messages. */
typedef struct nl_npz_file {
    nl_context *context;
    char *path; /* allocated */
    int fd;     /* -1: closed */
} nl_npz_file;

/* All bytes or a failure that names the file. Each is a step that context->fail_write counts. */
nl_status nl_npz_put(const nl_npz_file *file, const void *data, size_t size, int64_t offset);
nl_status nl_npz_get(const nl_npz_file *file, void *data, size_t size, int64_t offset);
nl_status nl_npz_sync(const nl_npz_file *file);
/* Takes the disk's room for `size` bytes, or says how much is missing. */
nl_status nl_npz_reserve(const nl_npz_file *file, int64_t size);
nl_status nl_npz_step(nl_context *context, const char *path);
/* A lock of this open file over [start, start + length); dies with the process. wait: until it is
 * free or the work is cancelled. */
nl_status nl_npz_lock(const nl_npz_file *file, int64_t start, int64_t length, bool wait,
                      bool *locked);
void nl_npz_unlock(const nl_npz_file *file, int64_t start, int64_t length);

enum { NL_JOURNAL_HEADER = 64, NL_JOURNAL_RECORD = 16 };

typedef struct nl_journal {
    nl_npz_file file;
    int64_t count;
    int64_t records; /* offset of the first */
    uint32_t crc;    /* of the header */
    uint64_t token;
} nl_journal;

typedef struct nl_journal_entry {
    uint32_t crc;
    int label;
} nl_journal_entry;

/* Writes an empty journal over what stands in the file. */
nl_status nl_journal_begin(nl_journal *journal, const nl_npz_options *options);
/* Reads the header and compares: NL_ERROR_WRITE names the first parameter that differs. *begun:
 * false when the file holds no journal yet (a process died before it was written). */
nl_status nl_journal_read(nl_journal *journal, const nl_npz_options *options, bool *begun);
/* Of the run that began it; 0 when there is no journal yet or none was given. */
uint64_t nl_journal_token(const nl_journal *journal);
nl_status nl_journal_note(const nl_journal *journal, int64_t index, nl_journal_entry entry);
/* Up to NL_JOURNAL_CHUNK records from `first`; there[i] whether record first + i is one. */
enum { NL_JOURNAL_CHUNK = 1024 };
nl_status nl_journal_entries(const nl_journal *journal, int64_t first, int64_t count,
                             nl_journal_entry *entries, bool *there);

#endif
