/* SPDX-License-Identifier: MIT */
/*
 * The file writer. A regular file is written under another name in its own folder and takes its name
 * at the very end, so that a crash, a full disk or Ctrl-C leaves the old file or none. Pipes and
 * devices cannot be replaced: they are written as they are.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nl_io.h"

#define TEMPORARY ".nalagen-"

struct nl_writer {
    nl_context *context;
    char *path;      /* of the messages and of the finished file, symbolic links followed */
    char *temporary; /* NULL: `path` itself is written */
    int fd;
    bool overwrite;
    nl_status status; /* of the first failure; nothing is written after it */
};

static nl_status fail_writer(nl_writer *writer, const char *what, int error)
{
    return writer->status = nl_fail(writer->context, NL_ERROR_WRITE, "%s: %s: %s", writer->path,
                                    what, strerror(error));
}

static nl_status refuse_existing(nl_context *context, const char *path)
{
    return nl_fail(context, NL_ERROR_WRITE,
                   "%s: exists already and is not overwritten unless that is asked for", path);
}

/* A name that cannot be looked up, but is there. */
static bool leads_nowhere(const char *path)
{
    int error = errno;
    struct stat info;
    bool link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
    errno = error;
    return link;
}

static nl_status refuse_link(nl_context *context, const char *path)
{
    return nl_fail(context, NL_ERROR_WRITE,
                   "%s: it is a link that leads nowhere: remove it, or choose another name", path);
}

/* Counts one step that a disk can refuse. The test hook makes it fail. */
static nl_status begin_step(nl_writer *writer)
{
    nl_context *context = writer->context;
    int64_t number = atomic_fetch_add(&context->writes, 1) + 1;
    if (context->fail_write && number == context->fail_write)
        return fail_writer(writer, "cannot be written in full", ENOSPC);
    return NL_OK;
}

/* "folder/" of path, or "" for the current one. */
static nl_status folder_of(nl_context *context, const char *path, char **folder)
{
    const char *slash = strrchr(path, '/');
    return nl_format(context, folder, "%.*s", slash ? (int)(slash + 1 - path) : 0, path);
}

/* Locks a temporary file, which says that its writer lives. False: somebody who took the writer for dead has removed it
 * in between. File systems without locks have no such somebody. */
static bool hold(int fd)
{
    struct stat info;
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    return fstat(fd, &info) != 0 || info.st_nlink > 0;
}

/* mode: of the file to be replaced, or 0. */
static nl_status open_temporary(nl_writer *writer, mode_t mode)
{
    nl_context *context = writer->context;
    nl_status status = NL_OK;
    char *folder = NULL;
    NL_TRY(folder_of(context, writer->path, &folder));
    for (int attempt = 0; writer->fd < 0; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        nl_free(context, writer->temporary);
        NL_TRY(nl_format(context, &writer->temporary, "%s" TEMPORARY "%ld-%09ld-%d.tmp", folder,
                         (long)getpid(), now.tv_nsec, attempt));
        /* Not mkstemp: its 0600 is not what the user's umask says. */
        writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (writer->fd >= 0 && !hold(writer->fd)) {
            close(writer->fd);
            writer->fd = -1;
            errno = EEXIST;
        }
        if (writer->fd < 0 && (errno != EEXIST || attempt == 100)) {
            int error = errno;
            nl_free(context, writer->temporary); /* nothing of ours to remove under that name */
            writer->temporary = NULL;
            NL_TRY(fail_writer(writer, "cannot be made in its folder", error));
        }
    }
    if (mode)
        fchmod(writer->fd, mode & 07777); /* as good as the file system allows */
cleanup:
    nl_free(context, folder);
    return status;
}

/* A pipe or device. A FIFO that nobody reads for two seconds is refused: opening it would wait for ever. */
static nl_status open_stream(nl_writer *writer)
{
    enum { TRIES = 100 };
    const struct timespec pause = {.tv_nsec = 20000000};
    for (int i = 0; (writer->fd = open(writer->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0; i++) {
        if (errno == ENXIO && i >= TRIES)
            return nl_fail(writer->context, NL_ERROR_WRITE,
                           "%s: a pipe that nobody reads: start its reader first, or name a file",
                           writer->path);
        if (errno == ENXIO)
            nanosleep(&pause, NULL);
        else if (errno != EINTR)
            return fail_writer(writer, "cannot be opened for writing", errno);
        NL_CHECK(nl_check_cancelled(writer->context));
    }
    (void)fcntl(writer->fd, F_SETFL, fcntl(writer->fd, F_GETFL) & ~O_NONBLOCK);
    return NL_OK;
}

static nl_status open_target(nl_writer *writer)
{
    nl_context *context = writer->context;
    struct stat info;
    if (stat(writer->path, &info) != 0)
        return leads_nowhere(writer->path) ? refuse_link(context, writer->path)
                                           : open_temporary(writer, 0);
    if (S_ISDIR(info.st_mode))
        return nl_fail(context, NL_ERROR_WRITE, "%s: expected a file to write, found a folder",
                       writer->path);
    if (!S_ISREG(info.st_mode))
        return open_stream(writer);
    if (!writer->overwrite)
        return refuse_existing(context, writer->path);
    /* A symbolic link stays one: what it points at is replaced. */
    char *real = realpath(writer->path, NULL);
    if (real) {
        char *copy;
        nl_status status = nl_strdup(context, real, &copy);
        free(real);
        if (status != NL_OK)
            return status;
        nl_free(context, writer->path);
        writer->path = copy;
    }
    return open_temporary(writer, info.st_mode);
}

static nl_status fail_empty(nl_context *context)
{
    return nl_fail(context, NL_ERROR_USAGE, "the name of a file to write is empty");
}

nl_status nl_writer_check(nl_context *context, const char *path)
{
    nl_status status = NL_OK;
    struct stat info;
    char *real = NULL, *folder = NULL;
    if (path[0] == '\0')
        return fail_empty(context);
    if (!strcmp(path, "-"))
        return NL_OK;
    bool exists = stat(path, &info) == 0;
    if (!exists && leads_nowhere(path))
        return refuse_link(context, path);
    if (!exists && errno != ENOENT)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be made: %s", path, strerror(errno));
    if (exists && S_ISDIR(info.st_mode))
        return nl_fail(context, NL_ERROR_WRITE, "%s: expected a file to write, found a folder",
                       path);
    if (exists && !S_ISREG(info.st_mode))
        return NL_OK;
    real = exists ? realpath(path, NULL) : NULL;
    NL_TRY(folder_of(context, real ? real : path, &folder));
    if (faccessat(AT_FDCWD, *folder ? folder : ".", W_OK | X_OK, AT_EACCESS) != 0)
        NL_TRY(nl_fail(context, NL_ERROR_WRITE, "%s: cannot be made in its folder: %s", path,
                       strerror(errno)));
cleanup:
    free(real);
    nl_free(context, folder);
    return status;
}

nl_status nl_writer_open(nl_context *context, const char *path, bool overwrite, nl_writer **writer)
{
    nl_status status = NL_OK;
    nl_writer *opened = NULL;
    *writer = NULL;
    if (path[0] == '\0')
        return fail_empty(context);
    NL_TRY(NL_NEW(context, "a file writer", &opened));
    opened->context = context;
    opened->fd = -1;
    opened->overwrite = overwrite;
    if (strcmp(path, "-") == 0) {
        NL_TRY(nl_strdup(context, "standard output", &opened->path));
        opened->fd = STDOUT_FILENO;
    } else {
        NL_TRY(nl_strdup(context, path, &opened->path));
        NL_TRY(open_target(opened));
    }
    *writer = opened;
    return NL_OK;
cleanup:
    nl_writer_abort(&opened);
    return status;
}

/* write(), without the SIGPIPE that ends the process. A pipe raises it also when it took a part before
 * its reader went away, so it is looked for whatever write() says. */
static ssize_t write_quietly(int fd, const void *data, size_t size)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    ssize_t written = write(fd, data, size);
    int error = errno;
    if (!sigismember(&pending, SIGPIPE)) {
        struct timespec no_wait = {0};
        while (sigtimedwait(&pipe_signal, NULL, &no_wait) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

nl_status nl_writer_write(nl_writer *writer, const void *data, size_t size)
{
    if (writer->status != NL_OK)
        return writer->status;
    if (begin_step(writer) != NL_OK)
        return writer->status;
    const char *next = data;
    while (size > 0) {
        ssize_t written = write_quietly(writer->fd, next, size);
        if (written >= 0) {
            next += written;
            size -= (size_t)written;
        } else if (errno == EINTR) {
            if ((writer->status = nl_check_cancelled(writer->context)) != NL_OK)
                return writer->status;
        } else if (errno == EAGAIN) { /* somebody made the pipe non-blocking */
            poll(&(struct pollfd){.fd = writer->fd, .events = POLLOUT}, 1, -1);
        } else {
            return fail_writer(writer, "cannot be written in full", errno);
        }
    }
    return NL_OK;
}

bool nl_writer_goes_back(const nl_writer *writer)
{
    return writer->temporary != NULL;
}

nl_status nl_writer_overwrite(nl_writer *writer, int64_t offset, const void *data, size_t size)
{
    if (writer->status != NL_OK)
        return writer->status;
    if (begin_step(writer) != NL_OK)
        return writer->status;
    const char *next = data;
    while (size > 0) {
        ssize_t written = pwrite(writer->fd, next, size, offset);
        if (written < 0 && errno != EINTR)
            return fail_writer(writer, "cannot be written in full", errno);
        written = NL_MAX(written, 0);
        next += written;
        offset += written;
        size -= (size_t)written;
    }
    return NL_OK;
}

nl_status nl_writer_printf(nl_writer *writer, const char *format, ...)
{
    if (writer->status != NL_OK)
        return writer->status;
    char *text;
    va_list arguments;
    va_start(arguments, format);
    writer->status = nl_vformat(writer->context, &text, format, arguments);
    va_end(arguments);
    if (writer->status == NL_OK)
        nl_writer_write(writer, text, strlen(text));
    nl_free(writer->context, text);
    return writer->status;
}

/* Some file systems cannot sync, and say EINVAL. */
static nl_status sync_descriptor(nl_writer *writer, int fd)
{
    if (begin_step(writer) != NL_OK)
        return writer->status;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return fail_writer(writer, "cannot be written in full", errno);
    return NL_OK;
}

static nl_status close_descriptor(nl_writer *writer)
{
    int fd = writer->fd;
    writer->fd = -1;
    if (fd != STDOUT_FILENO && close(fd) != 0 && errno != EINTR)
        return fail_writer(writer, "cannot be written in full", errno);
    return NL_OK;
}

/* Gives the temporary file its name; without `overwrite` only if nobody has that name by now. */
static nl_status take_name(nl_writer *writer)
{
    if (begin_step(writer) != NL_OK)
        return writer->status;
    const char *from = writer->temporary, *to = writer->path;
    int failed;
    if (writer->overwrite) {
        failed = rename(from, to);
    } else {
        failed = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
        if (failed && (errno == EINVAL || errno == ENOSYS) && !(failed = link(from, to)))
            unlink(from);
    }
    if (failed && errno == EEXIST)
        return writer->status = refuse_existing(writer->context, to);
    if (failed)
        return fail_writer(writer, "cannot take its name", errno);
    nl_free(writer->context, writer->temporary);
    writer->temporary = NULL;
    return NL_OK;
}

static nl_status sync_folder(nl_writer *writer, const char *folder)
{
    nl_status status = NL_OK;
    int fd = open(folder[0] ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return NL_OK; /* a folder may be writable and not readable */
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = fail_writer(writer, "its folder cannot be synced", errno);
    close(fd);
    return status;
}

nl_status nl_writer_commit(nl_writer **writer)
{
    nl_writer *w = *writer;
    bool replaces = w->temporary != NULL;
    nl_status status = w->status;
    char *folder = NULL; /* made while a failure still leaves nothing at the path */
    if (status == NL_OK && replaces)
        status = folder_of(w->context, w->path, &folder);
    if (status == NL_OK && replaces)
        status = sync_descriptor(w, w->fd);
    if (status == NL_OK)
        status = close_descriptor(w);
    if (status == NL_OK && replaces)
        status = take_name(w);
    if (status == NL_OK && replaces)
        status = sync_folder(w, folder);
    nl_free(w->context, folder);
    nl_writer_abort(writer);
    return status;
}

void nl_writer_abort(nl_writer **writer)
{
    nl_writer *w = *writer;
    *writer = NULL;
    if (!w)
        return;
    if (w->fd >= 0 && w->fd != STDOUT_FILENO)
        close(w->fd);
    if (w->temporary)
        unlink(w->temporary);
    nl_free(w->context, w->temporary);
    nl_free(w->context, w->path);
    nl_free(w->context, w);
}

nl_status nl_write_file(nl_context *context, const char *path, bool overwrite, const void *data,
                        size_t size)
{
    nl_writer *writer;
    NL_CHECK(nl_writer_open(context, path, overwrite, &writer));
    nl_writer_write(writer, data, size);
    return nl_writer_commit(&writer);
}

static bool is_temporary(const char *name)
{
    size_t length = strlen(name), start = sizeof(TEMPORARY) - 1;
    return length > start + 4 && !strncmp(name, TEMPORARY, start) &&
           !strcmp(name + length - 4, ".tmp");
}

/* Removes a temporary file whose lock nobody holds. */
static bool remove_abandoned(int folder, const char *name)
{
    int fd = openat(folder, name, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    bool removed = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, name, 0) == 0;
    if (fd >= 0)
        close(fd);
    return removed;
}

void nl_remove_temporaries(nl_context *context, const char *folder)
{
    struct dirent *entry;
    DIR *directory = opendir(*folder ? folder : ".");
    while (directory && (entry = readdir(directory)))
        if (is_temporary(entry->d_name) && remove_abandoned(dirfd(directory), entry->d_name))
            nl_log(context, NL_LOG_DEBUG, "%s/%s: of a process that was killed: removed",
                   *folder ? folder : ".", entry->d_name);
    if (directory)
        closedir(directory);
}

nl_status nl_lock_folder(nl_context *context, const char *folder, int *lock)
{
    *lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be opened: %s", folder,
                       strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        nl_unlock_folder(*lock);
        *lock = -1;
        return nl_fail(context, NL_ERROR_WRITE,
                       "%s: another process is writing there: wait for its end, or choose another "
                       "folder",
                       folder);
    }
    return NL_OK;
}

void nl_unlock_folder(int lock)
{
    if (lock >= 0)
        close(lock);
}
