/* SPDX-License-Identifier: MIT */
/*
 * Folders of PNG and JPEG: one folder a class, or all pictures in one. Names are sorted by their bytes, which is
 * the order of torchvision's ImageFolder.
 */
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "source.h"

enum { MAX_DEPTH = 32, MAX_CLASSES = 1 << 20 };

static const char *const split_names[] = {"train", "training",   "val",
                                          "valid", "validation", "test"};

static bool is_picture(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot &&
           (!strcasecmp(dot, ".png") || !strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg"));
}

static bool is_split(const char *name)
{
    for (int i = 0; i < NL_COUNT(split_names); i++)
        if (!strcmp(name, split_names[i]))
            return true;
    return false;
}

static nl_status grow(nl_source *source)
{
    nl_source_picture *pictures;
    int64_t capacity = source->capacity ? 2 * source->capacity : 1024;
    nl_status status = NL_NEW_ARRAY(source->context, "the list of pictures", capacity, &pictures);
    if (status != NL_OK)
        return status;
    if (source->count)
        memcpy(pictures, source->pictures, (size_t)source->count * sizeof(*source->pictures));
    nl_free(source->context, source->pictures);
    source->pictures = pictures;
    source->capacity = capacity;
    return NL_OK;
}

/* Takes `name`, below source->path, over. */
static nl_status add_picture(nl_source *source, char *name, int label)
{
    nl_context *context = source->context;
    struct stat info;
    char *path = NULL;
    nl_status status = NL_OK;
    if (source->count == source->capacity)
        NL_TRY(grow(source));
    NL_TRY(nl_path_join(context, source->path, name, &path));
    source->pictures[source->count++] = (nl_source_picture){
        .name = name,
        .size = stat(path, &info) == 0 ? (int64_t)info.st_size : -1,
        .label = label,
    };
    name = NULL;
cleanup:
    nl_free(context, path);
    nl_free(context, name);
    return status;
}

/* Pictures in the folder `below` source->path ("": itself); deep: and below it. *others: files that
 * are no pictures by their names. */
static nl_status add_folder(nl_source *source, const char *below, int label, int depth, bool deep,
                            int64_t *others)
{
    nl_context *context = source->context;
    nl_listing files = {0}, folders = {0};
    char *folder = NULL, *name = NULL;
    nl_status status;
    if (depth > MAX_DEPTH)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s/%s: folders more than %d deep: does a link lead back?", source->path,
                       below, MAX_DEPTH);
    NL_TRY(nl_path_join(context, source->path, below, &folder));
    NL_TRY(nl_list_folder(context, folder, 'f', &files));
    for (int64_t i = 0; i < files.count; i++) {
        if (!is_picture(files.names[i])) {
            ++*others;
            continue;
        }
        NL_TRY(nl_format(context, &name, "%s%s%s", below, below[0] ? "/" : "", files.names[i]));
        NL_TRY(add_picture(source, name, label));
    }
    if (deep)
        NL_TRY(nl_list_folder(context, folder, 'd', &folders));
    for (int64_t i = 0; i < folders.count; i++) {
        NL_TRY(nl_format(context, &name, "%s/%s", below, folders.names[i]));
        status = add_folder(source, name, label, depth + 1, true, others);
        nl_free(context, name);
        NL_TRY(status);
    }
cleanup:
    nl_listing_free(context, &files);
    nl_listing_free(context, &folders);
    nl_free(context, folder);
    return status;
}

/* Goes into the split, or asks for one. */
static nl_status choose_split(nl_source *source, const char *split)
{
    nl_context *context = source->context;
    nl_listing folders = {0};
    nl_status status;
    char *path;
    NL_TRY(nl_list_folder(context, source->path, 'd', &folders));
    if (!split) {
        int64_t splits = 0;
        for (int64_t i = 0; i < folders.count; i++)
            splits += is_split(folders.names[i]);
        if (splits > 0 && splits == folders.count)
            NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                           "%s: holds '%s'%s%s%s, which are parts of a data set and not classes: "
                           "choose one with --split %s",
                           source->path, folders.names[0], splits > 1 ? " and '" : "",
                           splits > 1 ? folders.names[1] : "", splits > 1 ? "'" : "",
                           folders.names[0]));
        goto cleanup;
    }
    if (!split[0] || split[0] == '.' || strchr(split, '/'))
        NL_TRY(
            nl_fail(context, NL_ERROR_USAGE, "--split %s: expected the name of a folder", split));
    NL_TRY(nl_path_join(context, source->path, split, &path));
    nl_free(context, source->path);
    source->path = path;
    if (!nl_path_is_folder(path))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no such folder for --split %s", path, split));
cleanup:
    nl_listing_free(context, &folders);
    return status;
}

/* One class a folder; takes the names of the listing over. */
static nl_status add_classes(nl_source *source, nl_listing *folders, int64_t *others)
{
    nl_context *context = source->context;
    if (folders->count > MAX_CLASSES)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %lld class folders, at most %d are taken",
                       source->path, (long long)folders->count, MAX_CLASSES);
    source->format = "class folders";
    source->classes = (int)folders->count;
    source->class_ids = folders->names;
    *folders = (nl_listing){0};
    for (int i = 0; i < source->classes; i++) {
        int64_t before = source->count;
        nl_status status = add_folder(source, source->class_ids[i], i, 1, true, others);
        if (status != NL_OK)
            return status;
        if (source->count == before)
            nl_log(context, NL_LOG_WARNING, "%s/%s: a class without pictures", source->path,
                   source->class_ids[i]);
    }
    return NL_OK;
}

/* All pictures of the folder are one class, named like it. */
static nl_status add_one_class(nl_source *source)
{
    nl_context *context = source->context;
    const char *slash = strrchr(source->path, '/');
    const char *name = slash && slash[1] ? slash + 1 : "pictures";
    nl_status status = NL_NEW(context, "names of classes", &source->class_ids);
    if (status != NL_OK)
        return status;
    source->classes = 1;
    return nl_strdup(context, name, &source->class_ids[0]);
}

static void drop_classes(nl_source *source)
{
    for (int i = 0; i < source->classes; i++)
        nl_free(source->context, source->class_ids[i]);
    nl_free(source->context, source->class_ids);
    source->class_ids = NULL;
    source->classes = 0;
    for (int64_t i = 0; i < source->count; i++)
        source->pictures[i].label = 0;
}

nl_status nl_source_open_folder(nl_source *source, const char *split, bool unconditional)
{
    nl_context *context = source->context;
    nl_listing folders = {0};
    int64_t others = 0;
    nl_status status;
    NL_TRY(choose_split(source, split));
    NL_TRY(add_folder(source, "", 0, 0, false, &others));
    NL_TRY(nl_list_folder(context, source->path, 'd', &folders));
    if (source->count > 0 && folders.count > 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: holds pictures and folders: expected either a folder for each class or "
                       "pictures alone",
                       source->path));
    if (folders.count > 0) {
        NL_TRY(add_classes(source, &folders, &others));
    } else {
        source->format = "pictures";
        NL_TRY(add_one_class(source));
    }
    if (source->count == 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: no PNG or JPEG there (by their names: .png, .jpg, .jpeg)%s",
                       source->path, others ? "; convert the pictures to one of them" : ""));
    if (others)
        nl_log(context, NL_LOG_WARNING,
               "%s: %lld files that are not .png, .jpg or .jpeg are left out", source->path,
               (long long)others);
    if (unconditional)
        drop_classes(source);
cleanup:
    nl_listing_free(context, &folders);
    return status;
}
