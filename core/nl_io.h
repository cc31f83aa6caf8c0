/* SPDX-License-Identifier: MIT */
/*
 * Files: mapped for reading, written checked and atomically, and a running sha256. Every failure
 * names the file and the reason; a short read or write never passes for a whole one.
 */
#ifndef NL_IO_H
#define NL_IO_H

#include "nl_core.h"

/* ---- Reading */

typedef struct nl_mapping {
    const uint8_t *data; /* read-only, valid until nl_unmap; never NULL, also when size is 0 */
    int64_t size;
    bool mapped; /* otherwise an allocation (pipes, file systems without mmap) */
} nl_mapping;

/* "-" is standard input. A folder, a missing file, a file without permission: NL_ERROR_INPUT. */
nl_status nl_map_file(nl_context *context, const char *path, nl_mapping *mapping);
void nl_unmap(nl_context *context, nl_mapping *mapping);
/* Hints for bytes of a mapped file: they will be read at once; they are not needed for now, so that a large
 * file does not fill the memory of this process (read again they come back from the file). */
void nl_map_ahead(const nl_mapping *mapping, const void *data, int64_t size);
void nl_map_release(const nl_mapping *mapping, const void *data, int64_t size);
/* The whole file will be read here and there: nothing is read ahead unless nl_map_ahead asks for it. */
void nl_map_random(const nl_mapping *mapping);

/* ---- Writing: to a temporary file beside `path`, then flush, fsync, close, rename, fsync of the
 * folder. Until nl_writer_commit returns NL_OK nothing stands at `path`; nl_writer_abort leaves what
 * stood there before. "-" is standard output and cannot be taken back. */

typedef struct nl_writer nl_writer;

nl_status nl_writer_open(nl_context *context, const char *path, bool overwrite, nl_writer **writer);
nl_status nl_writer_write(nl_writer *writer, const void *data, size_t size);
nl_status nl_writer_printf(nl_writer *writer, const char *format, ...) NL_PRINTF(2, 3);
/* Whether what was written can be replaced: in a regular file. */
bool nl_writer_goes_back(const nl_writer *writer);
/* Replaces bytes that were written, from `offset` on. */
nl_status nl_writer_overwrite(nl_writer *writer, int64_t offset, const void *data, size_t size);
/* Ends and frees the writer in every case; *writer becomes NULL. */
nl_status nl_writer_commit(nl_writer **writer);
void nl_writer_abort(nl_writer **writer); /* NULL inside is allowed */
/* Whether a writer could make a file at `path`, as far as can be known before there is anything to write. */
nl_status nl_writer_check(nl_context *context, const char *path);

/* Bytes that may still be written where `path` is or will be; INT64_MAX where that is not known (streams, devices, file
 * systems that do not say). */
int64_t nl_space_left(const char *path);
/* Before work whose result has at least so many bytes: NL_ERROR_WRITE where they do not fit. */
nl_status nl_check_space(nl_context *context, const char *path, int64_t bytes) NL_MUST_CHECK;
/* Before work that makes so many files at `path` ("" is "."), whose sizes are not known, being compressed. NL_ERROR_WRITE where
 * there is not a sector and an inode for each; a warning where files of `bytes` each (0: who knows) would not fit. */
nl_status nl_check_space_for_files(nl_context *context, const char *path, int64_t files,
                                   int64_t bytes) NL_MUST_CHECK;
/* NL_ERROR_WRITE, with what there is beside what is needed. */
nl_status nl_fail_space(nl_context *context, const char *path, int64_t bytes);

nl_status nl_write_file(nl_context *context, const char *path, bool overwrite, const void *data,
                        size_t size);

/* ---- Files that grow: lines of JSON, event files. A record is written whole or not at all, in one write, so that a full
 * disk leaves a file that can be read and grows again later, and that lines of several processes do not mix. */

typedef struct nl_append {
    nl_context *context;
    char *path;
    int fd;
} nl_append;

/* Makes the file when it is not there. Close it also after a failure. */
nl_status nl_append_open(nl_context *context, const char *path, nl_append *file);
nl_status nl_append_write(nl_append *file, const void *data, size_t size);
/* The text, JSON for instance, and a line break behind it. */
nl_status nl_append_line(nl_append *file, const char *text);
nl_status nl_append_sync(nl_append *file); /* waits until the disk has it */
void nl_append_close(nl_append *file);     /* {.fd = -1} and {0} are allowed */

/* ---- Folders */

/* Removes what writers that were killed have left in the folder ("": the current one); those at work keep theirs. */
void nl_remove_temporaries(nl_context *context, const char *folder);

/* The folder is this process's until *lock, or the process, is gone: another one gets NL_ERROR_WRITE. File systems
 * without locks let everybody in. */
nl_status nl_lock_folder(nl_context *context, const char *folder, int *lock);
void nl_unlock_folder(int lock); /* -1 is allowed */

/* Names in a folder, sorted by their bytes. */
typedef struct nl_listing {
    char **names; /* allocated, each of them too */
    int64_t count, capacity;
    int64_t others; /* neither files nor folders: pipes, devices, links that lead nowhere */
} nl_listing;
/* kind: 'd' folders, 'f' regular files, through links. Hidden ones are passed over. A folder that cannot be listed is
 * an error; after a failure too, nl_listing_free is due. */
nl_status nl_list_folder(nl_context *context, const char *folder, char kind, nl_listing *listing);
void nl_listing_free(nl_context *context, nl_listing *listing);

bool nl_path_exists(const char *path);
bool nl_path_is_folder(const char *path);
/* Whether `path`, which need not be there, is the folder, or is or will be something in it or below it. */
bool nl_path_is_within(const char *path, const char *folder);
/* Whether what is opened, or made with its folders, by this path is the folder or something below it: no "..", no link out
 * of it. Who may change the folder meanwhile is not held by it. */
bool nl_path_stays_in(const char *path, const char *folder);
/* Creates the folder and its parents; no error when it is there. */
nl_status nl_make_folder(nl_context *context, const char *path);
/* The same of the folder that the file `path` lies in. */
nl_status nl_make_parent(nl_context *context, const char *path);
/* Allocated "folder/name". */
nl_status nl_path_join(nl_context *context, const char *folder, const char *name, char **path);

/* ---- sha256 (FIPS 180-4) */

typedef struct nl_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[64];
} nl_sha256;

void nl_sha256_init(nl_sha256 *sha);
void nl_sha256_update(nl_sha256 *sha, const void *data, size_t size);
void nl_sha256_hex(nl_sha256 *sha, char hex[65]);

#endif
