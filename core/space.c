/* SPDX-License-Identifier: MIT */
/* Free space of a file system, asked before the work whose result will lie there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "nl_io.h"

int64_t nl_space_left(const char *path)
{
    char folder[4096];
    struct stat info;
    struct statvfs system;
    int64_t bytes;
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder) || !strcmp(path, "-"))
        return INT64_MAX;
    while (stat(folder, &info) != 0) { /* a folder above it */
        char *slash = strrchr(folder, '/');
        if (errno != ENOENT || !strcmp(folder, "."))
            return INT64_MAX;
        if (!slash)
            strcpy(folder, ".");
        else
            slash[slash == folder] = '\0';
    }
    if ((!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) || statvfs(folder, &system) != 0 ||
        system.f_blocks == 0 /* one that does not say */ ||
        !nl_mul_size((int64_t)system.f_bavail, (int64_t)system.f_frsize, &bytes))
        return INT64_MAX;
    return bytes;
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
