/* SPDX-License-Identifier: MIT */
/* What is one for all kinds of sources: names of classes, parts of a data set, the list of pictures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "source.h"

nl_status nl_source_reserve(nl_source *source)
{
    nl_source_picture *pictures;
    if (source->count < source->capacity)
        return NL_OK;
    int64_t capacity = source->capacity ? 2 * source->capacity : 1024;
    NL_CHECK(NL_NEW_ARRAY(source->context, "the list of pictures", capacity, &pictures));
    if (source->count)
        memcpy(pictures, source->pictures, (size_t)source->count * sizeof(*source->pictures));
    nl_free(source->context, source->pictures);
    source->pictures = pictures;
    source->capacity = capacity;
    return NL_OK;
}

uint64_t nl_source_stamp(const char *path, int64_t *size)
{
    struct stat info = {.st_size = -1};
    bool there = stat(path, &info) == 0;
    *size = (int64_t)info.st_size;
    if (!there)
        return 0;
    const uint64_t parts[] = {(uint64_t)info.st_mtim.tv_sec, (uint64_t)info.st_mtim.tv_nsec,
                              (uint64_t)info.st_ctim.tv_sec, (uint64_t)info.st_ctim.tv_nsec,
                              (uint64_t)info.st_ino};
    uint64_t stamp = 14695981039346656037u; /* FNV-1a, a word at a time */
    for (int i = 0; i < NL_COUNT(parts); i++)
        stamp = (stamp ^ parts[i]) * 1099511628211u;
    return stamp;
}

nl_status nl_source_number_classes(nl_source *source, int classes)
{
    NL_CHECK(NL_NEW_ZEROS(source->context, "names of classes", classes, &source->class_ids));
    source->classes = classes;
    for (int i = 0; i < classes; i++)
        NL_CHECK(nl_format(source->context, &source->class_ids[i], "%d", i));
    return NL_OK;
}

nl_status nl_source_one_class(nl_source *source)
{
    static const char *const endings[] = {".tar", ".zip"};
    const char *slash = strrchr(source->path, '/');
    const char *name = slash && slash[1]            ? slash + 1
                       : !slash && source->archives ? source->path
                                                    : "pictures";
    size_t length = strlen(name);
    NL_CHECK(NL_NEW(source->context, "names of classes", &source->class_ids));
    for (int i = 0; i < NL_COUNT(endings) && source->archives; i++)
        if (length > 4 && !strcmp(name + length - 4, endings[i]))
            length -= 4;
    source->classes = 1;
    return nl_format(source->context, &source->class_ids[0], "%.*s", (int)length, name);
}

void nl_source_drop_classes(nl_source *source)
{
    for (int i = 0; i < source->classes; i++)
        nl_free(source->context, source->class_ids[i]);
    nl_free(source->context, source->class_ids);
    source->class_ids = NULL;
    source->classes = 0;
    for (int64_t i = 0; i < source->count; i++)
        source->pictures[i].label = 0;
}

void nl_source_warn_of_numbers(const nl_source *source)
{
    double least = INFINITY; /* of the folders behind */
    int first = -1;
    for (int i = source->classes - 1; i >= 0; i--) {
        const char *id = source->class_ids[i];
        if (!id[0] || id[strspn(id, "0123456789")])
            return;
        double number = strtod(id, NULL);
        first = number > least ? i : first;
        least = NL_MIN(least, number);
    }
    if (first >= 0)
        nl_log(
            source->context, NL_LOG_WARNING,
            "%s: the class folders are numbers and are sorted as text, as torchvision does: class "
            "%d is the folder %s. Names of one length, such as 007, keep their order",
            source->path, first, source->class_ids[first]);
}

static const char *const split_names[] = {"train", "training",   "val",
                                          "valid", "validation", "test"};

static bool is_split(const char *name)
{
    for (int i = 0; i < NL_COUNT(split_names); i++)
        if (!strcmp(name, split_names[i]))
            return true;
    return false;
}

nl_status nl_source_check_splits(const nl_source *source, char *const *names, int64_t count)
{
    int64_t splits = 0;
    for (int64_t i = 0; i < count; i++)
        splits += is_split(names[i]);
    if (splits == 0 || splits < count)
        return NL_OK;
    return nl_fail(
        source->context, NL_ERROR_USAGE,
        "%s: holds '%s'%s%s%s, which are parts of a data set and not classes: choose one "
        "with --split %s",
        source->path, names[0], count > 1 ? " and '" : "", count > 1 ? names[1] : "",
        count > 1 ? "'" : "", names[0]);
}
