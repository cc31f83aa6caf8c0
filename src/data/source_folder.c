/* SPDX-License-Identifier: MIT */
/*
 * Folders of pictures: one folder a class, or all pictures in one. Names are sorted by their bytes, which is
 * the order of torchvision's ImageFolder.
 */
#include <string.h>

#include "source.h"

/* What pictures are added to, and the label they get. */
typedef struct nl_adding {
    nl_source *source;
    int label;
} nl_adding;

static nl_status add_picture(void *user, const char *name)
{
    const nl_adding *adding = user;
    nl_source *source = adding->source;
    nl_context *context = source->context;
    int64_t size;
    char *path = NULL, *copy = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_source_reserve(source));
    NL_TRY(nl_path_join(context, source->path, name, &path));
    NL_TRY(nl_strdup(context, name, &copy));
    uint64_t stamp = nl_source_stamp(path, &size);
    source->pictures[source->count++] =
        (nl_source_picture){.name = copy, .size = size, .stamp = stamp, .label = adding->label};
cleanup:
    nl_free(context, path);
    return status;
}

static void drop_strays(nl_context *context, nl_listing *folders)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < folders->count; i++)
        if (nl_is_stray_folder(folders->names[i]))
            nl_free(context, folders->names[i]);
        else
            folders->names[kept++] = folders->names[i];
    folders->count = kept;
}

/* Goes into the split, or asks for one. */
static nl_status choose_split(nl_source *source, const char *split)
{
    nl_context *context = source->context;
    nl_listing folders = {0};
    nl_status status;
    char *path;
    NL_TRY(nl_list_folder(context, source->path, 'd', &folders));
    drop_strays(context, &folders);
    if (!split) {
        NL_TRY(nl_source_check_splits(source, folders.names, folders.count));
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
static nl_status add_classes(nl_source *source, nl_listing *folders, bool empty_classes,
                             nl_picture_walk *walk)
{
    nl_context *context = source->context;
    nl_adding *adding = walk->user;
    if (folders->count > NL_SOURCE_CLASSES)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %lld class folders, at most %d are taken",
                       source->path, (long long)folders->count, NL_SOURCE_CLASSES);
    source->format = "class folders";
    source->classes = (int)folders->count;
    source->class_ids = folders->names;
    *folders = (nl_listing){0};
    nl_source_warn_of_numbers(source);
    for (int i = 0; i < source->classes; i++) {
        int64_t before = source->count;
        adding->label = i;
        NL_CHECK(nl_walk_pictures(context, source->path, source->class_ids[i], true, walk));
        if (source->count > before)
            continue;
        if (!empty_classes)
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s/%s: a class without pictures: take the folder away, or keep the "
                           "class with --empty-classes",
                           source->path, source->class_ids[i]);
        nl_log(context, NL_LOG_WARNING, "%s/%s: a class without pictures", source->path,
               source->class_ids[i]);
    }
    return NL_OK;
}

nl_status nl_source_open_folder(nl_source *source, const nl_source_options *options)
{
    nl_context *context = source->context;
    nl_listing folders = {0};
    nl_adding adding = {.source = source};
    nl_picture_walk walk = {.take = add_picture, .ignore = nl_is_label_file, .user = &adding};
    bool labelled;
    nl_status status;
    NL_TRY(choose_split(source, options->split));
    NL_TRY(nl_source_add_labelled(source, options->unconditional, &walk, &labelled));
    if (!labelled) {
        NL_TRY(nl_walk_pictures(context, source->path, "", false, &walk));
        NL_TRY(nl_list_folder(context, source->path, 'd', &folders));
        drop_strays(context, &folders);
    }
    if (source->count > 0 && folders.count > 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: holds pictures and folders: expected either a folder for each class or "
                       "pictures alone",
                       source->path));
    if (folders.count > 0) {
        status = add_classes(source, &folders, options->empty_classes, &walk);
        if (status == NL_ERROR_INPUT && source->count == 0)
            NL_TRY(nl_source_name_format(source)); /* no picture anywhere: a better reason */
        NL_TRY(status);
    } else if (!labelled) {
        if (!options->unconditional && source->count > 0)
            NL_TRY(nl_source_add_listed(source, &labelled));
        if (!options->unconditional && source->count > 0 && !labelled)
            NL_TRY(nl_source_check_label_files(source));
        if (!labelled) {
            source->format = "pictures";
            NL_TRY(nl_source_one_class(source));
        }
    }
    if (source->count == 0)
        NL_TRY(nl_source_name_format(source));
    if (source->count == 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no PNG, JPEG or WebP there%s%s", source->path,
                       walk.others ? ", but such files as " : "", walk.first_other));
    nl_picture_walk_warn(context, source->path, &walk);
    if (options->unconditional)
        nl_source_drop_classes(source);
cleanup:
    nl_listing_free(context, &folders);
    return status;
}
