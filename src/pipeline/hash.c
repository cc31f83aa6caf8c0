/* SPDX-License-Identifier: MIT */
/* sha256 of checkpoints. They may be large, so what was computed is kept in
 * $XDG_CACHE_HOME/nalagen/sha256/, one file for each path, size, inode and times of change (ctime cannot be set, as cp -p
 * sets mtime). The cache is a convenience: when
 * it cannot be read or written nothing is said. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model.h"

enum { SMALL_FILE = 8 << 20 }; /* not worth a cache entry */

static nl_status cache_path(nl_context *context, const char *path, const struct stat *info,
                            char **folder, char **entry)
{
    nl_status status = NL_OK;
    char *key = NULL, *real = realpath(path, NULL);
    char hex[65];
    nl_sha256 sha;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/';
    if (!real || (!own && !(home && home[0] == '/')))
        NL_TRY(NL_ERROR_INPUT);
    NL_TRY(nl_format(context, &key, "%s|%lld|%lld.%09ld|%lld.%09ld|%lld:%lld", real,
                     (long long)info->st_size, (long long)info->st_mtim.tv_sec,
                     info->st_mtim.tv_nsec, (long long)info->st_ctim.tv_sec, info->st_ctim.tv_nsec,
                     (long long)info->st_dev, (long long)info->st_ino));
    nl_sha256_init(&sha);
    nl_sha256_update(&sha, key, strlen(key));
    nl_sha256_hex(&sha, hex);
    NL_TRY(nl_format(context, folder, "%s%s/nalagen/sha256", own ? cache : home,
                     own ? "" : "/.cache"));
    NL_TRY(nl_path_join(context, *folder, hex, entry));
cleanup:
    free(real);
    nl_free(context, key);
    return status;
}

static bool read_entry(const char *entry, char hex[65])
{
    FILE *file = fopen(entry, "r");
    if (!file)
        return false;
    size_t size = fread(hex, 1, 64, file);
    fclose(file);
    hex[64] = '\0';
    return size == 64 && strspn(hex, "0123456789abcdef") == 64;
}

static nl_status compute(nl_context *context, const char *path, char hex[65])
{
    enum { PIECE = 64 << 20 };
    nl_mapping mapping;
    nl_sha256 sha;
    nl_status status = nl_map_file(context, path, &mapping);
    if (status != NL_OK)
        return status;
    nl_sha256_init(&sha);
    for (int64_t at = 0; at < mapping.size && status == NL_OK; at += PIECE) {
        int64_t size = NL_MIN(mapping.size - at, PIECE);
        nl_sha256_update(&sha, mapping.data + at, (size_t)size);
        nl_map_release(&mapping, mapping.data + at, size);
        status = nl_check_cancelled(context);
    }
    nl_sha256_hex(&sha, hex);
    nl_unmap(context, &mapping);
    return status;
}

/* fresh: the file is read, whatever the cache says. */
static nl_status file_sha256(nl_context *context, const char *path, bool fresh, char hex[65])
{
    struct stat info;
    char *folder = NULL, *entry = NULL;
    nl_status status = NL_OK;
    bool cached = stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > SMALL_FILE &&
                  cache_path(context, path, &info, &folder, &entry) == NL_OK;
    if (fresh || !cached || !read_entry(entry, hex)) {
        NL_TRY(compute(context, path, hex));
        if (cached && nl_make_folder(context, folder) == NL_OK) {
            nl_remove_temporaries(context, folder);
            if (nl_write_file(context, entry, true, hex, 64) != NL_OK)
                nl_log(context, NL_LOG_DEBUG, "sha256 not kept: %s", nl_last_error(context));
        }
    }
cleanup:
    nl_free(context, folder);
    nl_free(context, entry);
    return status;
}

nl_status nl_file_sha256(nl_context *context, const char *path, char hex[65])
{
    return file_sha256(context, path, false, hex);
}

static nl_status checkpoint_sha256(const nl_checkpoint *checkpoint, bool fresh, char hex[65])
{
    nl_context *context = checkpoint->context;
    nl_sha256 sha;
    if (checkpoint->shard_count == 0)
        return file_sha256(context, checkpoint->path, fresh, hex);
    if (checkpoint->shard_count == 1)
        return file_sha256(context, checkpoint->shards[0]->path, fresh, hex);
    nl_sha256_init(&sha);
    for (int i = 0; i < checkpoint->shard_count; i++) {
        NL_CHECK(file_sha256(context, checkpoint->shards[i]->path, fresh, hex));
        nl_sha256_update(&sha, hex, 64);
    }
    nl_sha256_hex(&sha, hex);
    return NL_OK;
}

nl_status nl_checkpoint_sha256(const nl_checkpoint *checkpoint, char hex[65])
{
    return checkpoint_sha256(checkpoint, false, hex);
}

nl_status nl_checkpoint_read_sha256(const nl_checkpoint *checkpoint, char hex[65])
{
    return checkpoint_sha256(checkpoint, true, hex);
}

static nl_status folder_sha256(nl_context *context, const char *path, char hex[65])
{
    nl_checkpoint *checkpoint = NULL;
    nl_status status = nl_checkpoint_open(context, path, &checkpoint);
    if (status == NL_OK)
        status = nl_checkpoint_sha256(checkpoint, hex);
    nl_checkpoint_close(checkpoint);
    return status;
}

/* hex: "" until it is known. */
static nl_status weights_sha256(nl_context *context, const char *path, char hex[65])
{
    nl_status status = NL_OK;
    if (!hex[0])
        status = nl_path_is_folder(path) ? folder_sha256(context, path, hex)
                                         : nl_file_sha256(context, path, hex);
    if (status != NL_OK)
        hex[0] = '\0';
    return status;
}

nl_status nl_model_sha256(nl_model *model, const char **hex)
{
    *hex = model->sha256;
    return weights_sha256(model->context, model->path, model->sha256);
}

nl_status nl_model_guide_sha256(nl_model *model, const char **hex)
{
    *hex = model->guide ? model->guide_sha256 : NULL;
    return model->guide ? weights_sha256(model->context, model->guide_path, model->guide_sha256)
                        : NL_OK;
}
