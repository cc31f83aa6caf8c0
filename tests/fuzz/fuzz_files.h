/* SPDX-License-Identifier: MIT */
/* For readers that take files by name: a folder of this process, emptied at its end, and an input cut into several files. */
#ifndef NL_FUZZ_FILES_H
#define NL_FUZZ_FILES_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_fuzz.h"

static char fuzz_folder[64];

static void fuzz_leave(void)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -rf %s", fuzz_folder);
    FUZZ_CHECK(system(command) == 0);
}

/* "FOLDER/name"; the folder is made by the first call. */
static inline const char *fuzz_path(const char *name, char path[256])
{
    if (!fuzz_folder[0]) {
        const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(fuzz_folder, sizeof(fuzz_folder), "%s/nalagen_fuzz_XXXXXX", memory);
        FUZZ_CHECK(mkdtemp(fuzz_folder));
        atexit(fuzz_leave);
    }
    snprintf(path, 256, "%s/%s", fuzz_folder, name);
    return path;
}

static inline void fuzz_write(const char *name, const void *data, size_t size)
{
    char path[256];
    int fd = open(fuzz_path(name, path), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static inline void fuzz_remove(const char *name)
{
    char path[256];
    unlink(fuzz_path(name, path));
}

/* Takes a part off the input: up to the first byte 0xff, which is no text's, or all that is left. */
static inline const uint8_t *fuzz_part(const uint8_t **data, size_t *size, size_t *part)
{
    const uint8_t *begin = *data, *end = *size ? memchr(begin, 0xff, *size) : NULL;
    *part = end ? (size_t)(end - begin) : *size;
    *data = begin + *part + (end != NULL);
    *size -= *part + (end != NULL);
    return begin;
}

#endif
