/* SPDX-License-Identifier: MIT */
/* Data sets in formats that are not read: recognised, so that the message can name them and the way out. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "source.h"

enum { START = 512 };

typedef struct nl_foreign {
    const char *magic;
    int size, offset;
    const char *what;
} nl_foreign;

#define MAGIC(text) text, (int)sizeof(text) - 1

static const nl_foreign by_content[] = {
    {MAGIC("ustar"), 257,
     "a tar archive among other files: give it by itself, or a folder of tars"},
    {MAGIC("PAR1"), 0, "parquet: make a tar of its pictures with python/parquet_to_tar.py"},
    {MAGIC("\xde\xc0\xef\xbe"), 16, "an LMDB: write its pictures into a folder for each class"},
    {MAGIC("PK\003\004"), 0, "a zip archive among other files: give it by itself"},
    {MAGIC("\x1f\x8b"), 0, "packed by gzip: unpack it (gunzip); a tar is read as it is"},
    {MAGIC("\x28\xb5\x2f\xfd"), 0, "packed by zstd: unpack it (unzstd); a tar is read as it is"},
    {MAGIC("\x93NUMPY"), 0,
     "a numpy array: pictures are taken from an .npz (arr_0, arr_1), latents from the folder that "
     "holds fast-DiT's features and labels, or REPA's with its dataset.json"},
    {MAGIC("\x89HDF"), 0, "HDF5: write its pictures into a folder for each class"},
    {MAGIC("\x80\x02}"), 0,
     "a pickle: of CIFAR's Python version the folder is taken (cifar-10-batches-py)"},
    {MAGIC("\x80\x03}"), 0, "a pickle: write its pictures into a folder for each class"},
    {MAGIC("\x80\x04\x95"), 0, "a pickle: write its pictures into a folder for each class"},
};

static const char *foreign_file(const char *path)
{
    char start[START];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, start, sizeof(start));
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < NL_COUNT(by_content); i++)
        if (got >= by_content[i].offset + by_content[i].size &&
            !memcmp(start + by_content[i].offset, by_content[i].magic, (size_t)by_content[i].size))
            return by_content[i].what;
    return NULL;
}

/* Names the first file of the folder, or of those in it, that is known. */
static nl_status search(nl_context *context, const char *folder, int depth)
{
    nl_listing files = {0}, folders = {0};
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_list_folder(context, folder, 'f', &files));
    for (int64_t i = 0; i < files.count; i++) {
        NL_TRY(nl_path_join(context, folder, files.names[i], &path));
        const char *what = foreign_file(path);
        if (what)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s is %s", path, what));
        nl_free(context, path);
        path = NULL;
    }
    if (depth < 2)
        NL_TRY(nl_list_folder(context, folder, 'd', &folders));
    for (int64_t i = 0; i < folders.count; i++) {
        NL_TRY(nl_path_join(context, folder, folders.names[i], &path));
        NL_TRY(search(context, path, depth + 1));
        nl_free(context, path);
        path = NULL;
    }
cleanup:
    nl_listing_free(context, &files);
    nl_listing_free(context, &folders);
    nl_free(context, path);
    return status;
}

nl_status nl_source_name_format(const nl_source *source)
{
    if (nl_path_is_folder(source->path))
        return search(source->context, source->path, 0);
    const char *what = foreign_file(source->path);
    return what ? nl_fail(source->context, NL_ERROR_INPUT, "%s is %s", source->path, what) : NL_OK;
}
