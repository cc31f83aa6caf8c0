/* SPDX-License-Identifier: MIT */
/* Files that grow by whole lines or records: a failed write leaves no half of one behind. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_io.h"

nl_status nl_append_open(nl_context *context, const char *path, nl_append *file)
{
    *file = (nl_append){.context = context, .fd = -1};
    NL_CHECK(nl_strdup(context, path, &file->path));
    file->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be opened for writing: %s", path,
                       strerror(errno));
    return NL_OK;
}

static nl_status write_all(nl_append *file, const char *data, size_t size)
{
    nl_context *context = file->context;
    if (atomic_fetch_add(&context->writes, 1) + 1 == context->fail_write)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be written in full: %s", file->path,
                       strerror(ENOSPC));
    while (size > 0) {
        ssize_t written = write(file->fd, data, size);
        if (written < 0 && errno != EINTR)
            return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be written in full: %s", file->path,
                           strerror(errno));
        data += NL_MAX(written, 0);
        size -= (size_t)NL_MAX(written, 0);
    }
    return NL_OK;
}

nl_status nl_append_write(nl_append *file, const void *data, size_t size)
{
    struct stat before;
    if (fstat(file->fd, &before) != 0)
        return nl_fail(file->context, NL_ERROR_WRITE, "%s: %s", file->path, strerror(errno));
    nl_status status = write_all(file, data, size);
    /* A part of a record would spoil those that come after it. */
    if (status != NL_OK && ftruncate(file->fd, before.st_size) != 0)
        nl_log(file->context, NL_LOG_WARNING, "%s ends with a part of a record", file->path);
    return status;
}

nl_status nl_append_line(nl_append *file, const char *text)
{
    char *line;
    nl_status status = nl_format(file->context, &line, "%s\n", text);
    if (status == NL_OK)
        status = nl_append_write(file, line, strlen(line));
    nl_free(file->context, line);
    return status;
}

nl_status nl_append_sync(nl_append *file)
{
    if (fsync(file->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return nl_fail(file->context, NL_ERROR_WRITE, "%s: cannot be written in full: %s",
                       file->path, strerror(errno));
    return NL_OK;
}

void nl_append_close(nl_append *file)
{
    if (file->path && file->fd >= 0)
        close(file->fd);
    if (file->context)
        nl_free(file->context, file->path);
    *file = (nl_append){.fd = -1};
}
