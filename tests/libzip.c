/* SPDX-License-Identifier: MIT */
/* Reading archives with libzip, where it was found. */
#include "libzip.h"

#ifdef NL_LIBZIP
#include <stdio.h>
#include <zip.h>

bool libzip_there(void)
{
    return true;
}

long libzip_read(const char *path, const char *name, void *data, size_t room, char *comment,
                 size_t comment_room)
{
    zip_stat_t info;
    long size = -1;
    int error;
    zip_t *zip = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, &error);
    if (!zip)
        return -1;
    const char *text = zip_get_archive_comment(zip, NULL, 0);
    snprintf(comment, comment_room, "%s", text ? text : "");
    zip_file_t *file = zip_fopen(zip, name, 0);
    if (file && zip_stat(zip, name, 0, &info) == 0 && info.comp_method == ZIP_CM_STORE &&
        info.size <= room && zip_get_num_entries(zip, 0) == 2)
        size = (long)zip_fread(file, data, room + 1); /* up to the end, where it is checked */
    if (file && zip_fclose(file) != 0)
        size = -1;
    zip_discard(zip);
    return size;
}
#else
bool libzip_there(void)
{
    return false;
}

long libzip_read(const char *path, const char *name, void *data, size_t room, char *comment,
                 size_t comment_room)
{
    (void)path, (void)name, (void)data, (void)room, (void)comment, (void)comment_room;
    return -1;
}
#endif
