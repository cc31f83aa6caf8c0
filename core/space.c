/* SPDX-License-Identifier: MIT */
/* Free space of a file system, asked before the work whose result will lie there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "nl_io.h"

/* Of the file system where `path` is or will be; false where that is not known. */
static bool find_system(const char *path, struct statvfs *system)
{
    char folder[4096];
    struct stat info;
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder) || !strcmp(path, "-"))
        return false;
    while (stat(folder, &info) != 0) { /* a folder above it */
        char *slash = strrchr(folder, '/');
        if (errno != ENOENT || !strcmp(folder, "."))
            return false;
        if (!slash)
            strcpy(folder, ".");
        else
            slash[slash == folder] = '\0';
    }
    return (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) && statvfs(folder, system) == 0 &&
           system->f_blocks != 0; /* one that says */
}

int64_t nl_space_left(const char *path)
{
    struct statvfs system;
    int64_t bytes;
    return find_system(path, &system) &&
                   nl_mul_size((int64_t)system.f_bavail, (int64_t)system.f_frsize, &bytes)
               ? bytes
               : INT64_MAX;
}

nl_status nl_fail_space(nl_context *context, const char *path, int64_t bytes)
{
    return nl_fail(context, NL_ERROR_WRITE,
                   "%s: the disk is too full: need %.1f MiB, have %.1f MiB", path,
                   (double)bytes / (1 << 20), (double)nl_space_left(path) / (1 << 20));
}

nl_status nl_check_space(nl_context *context, const char *path, int64_t bytes)
{
    return bytes > nl_space_left(path) ? nl_fail_space(context, path, bytes) : NL_OK;
}

nl_status nl_check_space_for_files(nl_context *context, const char *path, int64_t files,
                                   int64_t bytes)
{
    enum {
        LEAST = 512
    }; /* not f_frsize, which is 1 MiB over NFS whatever the disk behind it has */
    struct statvfs system;
    int64_t least, most, have = nl_space_left(path);
    const char *name = *path ? path : ".";
    if (find_system(path, &system) && system.f_files != 0 &&
        (uint64_t)files > (uint64_t)system.f_favail)
        return nl_fail(context, NL_ERROR_WRITE,
                       "%s: the disk is too full: need %lld files, have room for %llu", name,
                       (long long)files, (unsigned long long)system.f_favail);
    if (!nl_mul_size(files, LEAST, &least))
        least = INT64_MAX;
    if (!nl_mul_size(files, bytes, &most))
        most = INT64_MAX;
    nl_status status = nl_check_space(context, name, least);
    if (status == NL_OK && most > have)
        nl_log(
            context, NL_LOG_WARNING,
            "%s: the disk may become too full: %lld %s of up to %.1f MiB together, have %.1f MiB",
            name, (long long)files, nl_plural(files, "file", "files"), (double)most / (1 << 20),
            (double)have / (1 << 20));
    return status;
}
