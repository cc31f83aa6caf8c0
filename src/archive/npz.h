/* SPDX-License-Identifier: MIT */
/* What the files of this folder share. */
#ifndef NL_ARCHIVE_NPZ_H
#define NL_ARCHIVE_NPZ_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "nl_npz.h"

/* A member of the archive: local header, npy header, elements. */
typedef struct nl_npz_member {
    char name[16];
    int64_t offset;    /* of the local header */
    char header[320];  /* npy */
    int header_size;   /* a multiple of 64 */
    int64_t data;      /* offset of the first element */
    int64_t data_size; /* bytes */
    uint32_t crc;      /* of header and data */
} nl_npz_member;

/* Where everything lies; a function of count, height, width and the length of the comment. */
typedef struct nl_npz_layout {
    nl_npz_member members[2];
    int64_t picture_bytes;
    int64_t directory; /* offset of the central directory */
    int64_t size;      /* of the whole file */
} nl_npz_layout;

enum { NL_NPZ_LOCAL_SIZE = 30 + 9 + 20, NL_NPZ_TAIL_SIZE = 2 * (46 + 9 + 28) + 56 + 20 + 22 };

/* false when a size overflows. */
bool nl_npz_lay_out(int64_t count, int height, int width, int64_t comment_size,
                    nl_npz_layout *layout);
/* Local header of a member whose checksum is known. */
void nl_npz_local_header(const nl_npz_member *member, uint8_t bytes[NL_NPZ_LOCAL_SIZE]);
/* Central directory and end records, all but the comment. */
void nl_npz_tail(const nl_npz_layout *layout, int64_t comment_size,
                 uint8_t bytes[NL_NPZ_TAIL_SIZE]);

void nl_put16(uint8_t *at, uint32_t value);
void nl_put32(uint8_t *at, uint32_t value);
void nl_put64(uint8_t *at, uint64_t value);
uint32_t nl_get32(const uint8_t *at);
uint64_t nl_get64(const uint8_t *at);

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
