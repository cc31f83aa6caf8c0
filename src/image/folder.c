/* SPDX-License-Identifier: MIT */
/* Which files of a folder are pictures: the one rule for training data and evaluations. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "pixels.h"

enum { MAX_DEPTH = 32 };

nl_image_kind nl_image_kind_of(const uint8_t *bytes, int64_t size)
{
    if (size >= NL_PNG_SIGNATURE_SIZE && !memcmp(bytes, nl_png_signature, NL_PNG_SIGNATURE_SIZE))
        return NL_IMAGE_PNG;
    if (size >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
        return NL_IMAGE_JPEG;
    if (size >= 12 && !memcmp(bytes, "RIFF", 4) && !memcmp(bytes + 8, "WEBP", 4))
        return NL_IMAGE_WEBP;
    return NL_IMAGE_NONE;
}

bool nl_is_picture_name(const char *name)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp"};
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && i < NL_COUNT(endings); i++)
        if (!strcasecmp(dot, endings[i]))
            return true;
    return false;
}

/* What is named as one is taken for one (if it is none, it is a broken picture when it is read); of all else the first
 * bytes decide. */
static bool is_picture(const char *path, const char *name)
{
    uint8_t start[12];
    if (nl_is_picture_name(name))
        return true;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, start, sizeof(start));
    if (fd >= 0)
        close(fd);
    return nl_image_kind_of(start, got) != NL_IMAGE_NONE;
}

bool nl_is_stray_folder(const char *name)
{
    static const char *const names[] = {
        "__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information",
        "#recycle"};
    for (int i = 0; i < NL_COUNT(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

void nl_picture_walk_skip(nl_picture_walk *walk, const char *name)
{
    if (!walk->others++)
        snprintf(walk->first_other, sizeof(walk->first_other), "%s", name);
}

static nl_status walk_folder(nl_context *context, const char *root, const char *below, int depth,
                             bool deep, nl_picture_walk *walk)
{
    nl_listing files = {0}, folders = {0};
    char *folder = NULL, *name = NULL, *path = NULL;
    nl_status status;
    if (depth > MAX_DEPTH)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s/%s: folders more than %d deep: does a link lead back?", root, below,
                       MAX_DEPTH);
    NL_TRY(nl_path_join(context, root, below, &folder));
    NL_TRY(nl_list_folder(context, folder, 'f', &files));
    for (int64_t i = 0; i < files.count; i++) {
        NL_TRY(nl_format(context, &name, "%s%s%s", below, below[0] ? "/" : "", files.names[i]));
        NL_TRY(nl_path_join(context, folder, files.names[i], &path));
        if (is_picture(path, files.names[i]))
            NL_TRY(walk->take(walk->user, name));
        else if (!walk->ignore || !walk->ignore(walk->user, name))
            nl_picture_walk_skip(walk, name);
        nl_free(context, name);
        nl_free(context, path);
        name = path = NULL;
    }
    for (int64_t i = 0; i < files.others; i++)
        nl_picture_walk_skip(walk, "a pipe, a device or a link that leads nowhere");
    if (deep)
        NL_TRY(nl_list_folder(context, folder, 'd', &folders));
    for (int64_t i = 0; i < folders.count; i++) {
        if (nl_is_stray_folder(folders.names[i]))
            continue;
        NL_TRY(nl_format(context, &name, "%s%s%s", below, below[0] ? "/" : "", folders.names[i]));
        NL_TRY(walk_folder(context, root, name, depth + 1, true, walk));
        nl_free(context, name);
        name = NULL;
    }
cleanup:
    nl_listing_free(context, &files);
    nl_listing_free(context, &folders);
    nl_free(context, folder);
    nl_free(context, name);
    nl_free(context, path);
    return status;
}

nl_status nl_walk_pictures(nl_context *context, const char *root, const char *below, bool deep,
                           nl_picture_walk *walk)
{
    return walk_folder(context, root, below, 0, deep, walk);
}

void nl_picture_walk_warn(nl_context *context, const char *root, const nl_picture_walk *walk)
{
    if (walk->others)
        nl_log(context, NL_LOG_WARNING,
               "%s: left out: %lld %s not PNG, JPEG or WebP (the first: %s)", root,
               (long long)walk->others, nl_plural(walk->others, "file that is", "files that are"),
               walk->first_other);
}
