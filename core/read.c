/* SPDX-License-Identifier: MIT */
/* Whole files as memory: mapped where they are regular, read where they are pipes; advice to the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_io.h"

static const char
    nothing[1]; /* what an empty file is: arithmetic with NULL is undefined, even + 0 */

static nl_status cannot_read(nl_context *context, const char *name)
{
    return nl_fail(context, NL_ERROR_INPUT, "%s: cannot be read: %s", name, strerror(errno));
}

/* Waits until somebody writes into a pipe that has a name, which was opened without waiting; not for ever. */
static nl_status wait_for_writer(nl_context *context, const char *name, int fd)
{
    enum { TRIES = 20, MILLISECONDS = 100 };
    struct pollfd events = {.fd = fd, .events = POLLIN};
    for (int i = 0; i < TRIES; i++) {
        if (poll(&events, 1, MILLISECONDS) > 0)
            return NL_OK;
        NL_CHECK(nl_check_cancelled(context));
    }
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s: expected a file, found a pipe that nobody writes into", name);
}

/* All that a pipe, a device or a file of unknown size gives, in one allocation. */
static nl_status read_all(nl_context *context, const char *name, int fd, nl_mapping *mapping)
{
    nl_status status = NL_OK;
    uint8_t *data = NULL, *larger;
    int64_t size = 0, capacity = 0;
    for (;;) {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            NL_TRY(NL_NEW_ARRAY(context, name, capacity, &larger));
            if (size > 0)
                memcpy(larger, data, (size_t)size);
            nl_free(context, data);
            data = larger;
        }
        ssize_t got = read(fd, data + size, (size_t)(capacity - size));
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            NL_TRY(nl_check_cancelled(context));
        else if (got < 0)
            NL_TRY(cannot_read(context, name));
        else
            size += got;
    }
    if (size == 0) {
        nl_free(context, data);
        data = (void *)nothing;
    }
    *mapping = (nl_mapping){.data = data, .size = size};
    return NL_OK;
cleanup:
    nl_free(context, data);
    return status;
}

/* A descriptor that this process was given, behind which somebody writes: "/dev/stdin", a shell's <(...). */
static bool is_inherited(const char *path)
{
    return !strcmp(path, "/dev/stdin") || !strncmp(path, "/dev/fd/", 8) ||
           !strncmp(path, "/proc/self/fd/", 14);
}

static nl_status map_descriptor(nl_context *context, const char *name, int fd, nl_mapping *mapping)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return cannot_read(context, name);
    if (S_ISDIR(info.st_mode))
        return nl_fail(context, NL_ERROR_INPUT, "%s: expected a file, found a folder", name);
    /* A device such as /dev/zero may have no end. */
    bool device = S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode);
    if (device && !isatty(fd))
        return nl_fail(context, NL_ERROR_INPUT, "%s: expected a file, found a device", name);
    if (S_ISFIFO(info.st_mode) && fd != STDIN_FILENO && !is_inherited(name)) {
        NL_CHECK(wait_for_writer(context, name, fd));
    }
    /* Opened without waiting; reading waits. */
    if (!S_ISREG(info.st_mode) && fd != STDIN_FILENO)
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    /* Files in /proc say that they are empty. */
    if (S_ISREG(info.st_mode) && info.st_size > 0 && fd != STDIN_FILENO) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data != MAP_FAILED) {
            *mapping = (nl_mapping){.data = data, .size = info.st_size, .mapped = true};
            return NL_OK;
        }
    }
    return read_all(context, name, fd, mapping);
}

nl_status nl_map_file(nl_context *context, const char *path, nl_mapping *mapping)
{
    *mapping = (nl_mapping){0};
    if (strcmp(path, "-") == 0)
        return map_descriptor(context, "standard input", STDIN_FILENO, mapping);
    int fd;
    while ((fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
        if (errno != EINTR)
            return cannot_read(context, path);
        NL_CHECK(nl_check_cancelled(context));
    }
    nl_status status = map_descriptor(context, path, fd, mapping);
    close(fd);
    return status;
}

void nl_unmap(nl_context *context, nl_mapping *mapping)
{
    if (mapping->mapped)
        munmap((void *)mapping->data, (size_t)mapping->size);
    else if (mapping->data != (const void *)nothing)
        nl_free(context, (void *)mapping->data);
    *mapping = (nl_mapping){0};
}

/* Whole pages within the range, or those that touch it. */
static void advise(const nl_mapping *mapping, const void *data, int64_t size, int advice,
                   bool whole)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data;
    uintptr_t end = begin + (uintptr_t)size;
    begin = (begin + (whole ? page - 1 : 0)) / page * page;
    end = end / page * page;
    if (mapping->mapped && end > begin)
        (void)madvise((void *)begin, end - begin, advice);
}

void nl_map_ahead(const nl_mapping *mapping, const void *data, int64_t size)
{
    advise(mapping, data, size, MADV_WILLNEED, false);
}

void nl_map_release(const nl_mapping *mapping, const void *data, int64_t size)
{
    advise(mapping, data, size, MADV_DONTNEED, true);
}

void nl_map_random(const nl_mapping *mapping)
{
    advise(mapping, mapping->data, mapping->size, MADV_RANDOM, false);
}
