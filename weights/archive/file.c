/* SPDX-License-Identifier: MIT */
/* Reading, writing and locking at offsets: whole or not at all. */
#include "npz.h"

#include <errno.h>
#include <unistd.h>

nl_status nl_npz_step(nl_context *context, const char *path)
{
    int64_t number = atomic_fetch_add(&context->writes, 1) + 1;
    if (context->fail_write && number == context->fail_write)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be written in full: %s", path,
                       strerror(ENOSPC));
    return NL_OK;
}

nl_status nl_npz_put(const nl_npz_file *file, const void *data, size_t size, int64_t offset)
{
    const uint8_t *next = data;
    nl_status status = nl_npz_step(file->context, file->path);
    while (status == NL_OK && size > 0) {
        ssize_t written = pwrite(file->fd, next, size, offset);
        if (written < 0 && errno != EINTR)
            return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be written in full: %s",
                           file->path, strerror(errno));
        if (written > 0) {
            next += written;
            offset += written;
            size -= (size_t)written;
        }
    }
    return status;
}

nl_status nl_npz_get(const nl_npz_file *file, void *data, size_t size, int64_t offset)
{
    uint8_t *next = data;
    while (size > 0) {
        ssize_t got = pread(file->fd, next, size, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return nl_fail(file->context, NL_ERROR_INPUT, "%s: cannot be read at byte %lld: %s",
                           file->path, (long long)offset,
                           got < 0 ? strerror(errno) : "the file ends before it");
        next += got;
        offset += got;
        size -= (size_t)got;
    }
    return NL_OK;
}

/* Some file systems cannot sync, and say EINVAL. */
nl_status nl_npz_sync(const nl_npz_file *file)
{
    nl_status status = nl_npz_step(file->context, file->path);
    if (status == NL_OK && fsync(file->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be written in full: %s",
                       file->path, strerror(errno));
    return status;
}

nl_status nl_npz_reserve(const nl_npz_file *file, int64_t size)
{
    int error = 0;
    NL_CHECK(nl_npz_step(file->context, file->path));
    while (fallocate(file->fd, 0, 0, size) != 0)
        if ((error = errno) != EINTR)
            break;
    /* Where room cannot be kept (NFS 3, FAT), what is free now has to do. */
    if (error == EOPNOTSUPP || error == ENOSYS) {
        error = nl_space_left(file->path) < size ? ENOSPC : 0;
        if (!error && ftruncate(file->fd, size) != 0)
            error = errno;
    }
    if (error == ENOSPC)
        return nl_fail_space(file->context, file->path, size);
    if (error && error != EINTR)
        return nl_fail(file->context, NL_ERROR_WRITE, "%s: no room for %.1f MiB: %s", file->path,
                       (double)size / (1 << 20), strerror(error));
    return NL_OK;
}

static int set_lock(const nl_npz_file *file, short kind, int command, int64_t start, int64_t length)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(file->fd, command, &lock);
}

nl_status nl_npz_lock(const nl_npz_file *file, int64_t start, int64_t length, bool wait,
                      bool *locked)
{
    *locked = false;
    while (set_lock(file, F_WRLCK, wait ? F_OFD_SETLKW : F_OFD_SETLK, start, length) != 0) {
        if (!wait && (errno == EAGAIN || errno == EACCES))
            return NL_OK;
        if (errno != EINTR)
            return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be locked: %s", file->path,
                           strerror(errno));
        NL_CHECK(nl_check_cancelled(file->context));
    }
    *locked = true;
    return NL_OK;
}

void nl_npz_unlock(const nl_npz_file *file, int64_t start, int64_t length)
{
    set_lock(file, F_UNLCK, F_OFD_SETLK, start, length);
}
