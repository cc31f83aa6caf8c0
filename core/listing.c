/* SPDX-License-Identifier: MIT */
/* What a folder holds, in the order of the names' bytes. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nl_io.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static nl_status append(nl_context *context, nl_listing *listing, const char *name)
{
    if (listing->count == listing->capacity) {
        char **names;
        int64_t capacity = listing->capacity ? 2 * listing->capacity : 64;
        NL_CHECK(NL_NEW_ARRAY(context, "names of files", capacity, &names));
        if (listing->count)
            memcpy(names, listing->names, (size_t)listing->count * sizeof(char *));
        nl_free(context, listing->names);
        listing->names = names;
        listing->capacity = capacity;
    }
    nl_status status = nl_strdup(context, name, &listing->names[listing->count]);
    listing->count += status == NL_OK;
    return status;
}

/* 'd': a folder, 'f': a regular file, '?': a pipe, a device, a link that leads nowhere. Links are followed. */
static char kind_of(const char *folder, const struct dirent *entry, char *path, size_t size)
{
    struct stat info;
    if (entry->d_type == DT_DIR || entry->d_type == DT_REG)
        return entry->d_type == DT_DIR ? 'd' : 'f';
    int length = snprintf(path, size, "%s/%s", folder, entry->d_name);
    if (length < 0 || (size_t)length >= size || stat(path, &info) != 0)
        return '?';
    return S_ISDIR(info.st_mode) ? 'd' : S_ISREG(info.st_mode) ? 'f' : '?';
}

nl_status nl_list_folder(nl_context *context, const char *folder, char kind, nl_listing *listing)
{
    nl_status status = NL_OK;
    char path[4096];
    *listing = (nl_listing){0};
    DIR *directory = opendir(folder);
    if (!directory)
        return nl_fail(context, NL_ERROR_INPUT, "%s: cannot be listed: %s", folder,
                       strerror(errno));
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (!entry && errno)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: cannot be listed: %s", folder,
                           strerror(errno)));
        if (!entry)
            break;
        if (entry->d_name[0] == '.')
            continue;
        NL_TRY(nl_check_cancelled(context));
        char found = kind_of(folder, entry, path, sizeof(path));
        listing->others += found == '?';
        if (found == kind)
            NL_TRY(append(context, listing, entry->d_name));
    }
    if (listing->count)
        qsort(listing->names, (size_t)listing->count, sizeof(char *), by_name);
cleanup:
    closedir(directory);
    return status;
}

void nl_listing_free(nl_context *context, nl_listing *listing)
{
    for (int64_t i = 0; i < listing->count; i++)
        nl_free(context, listing->names[i]);
    nl_free(context, listing->names);
    *listing = (nl_listing){0};
}
