/* SPDX-License-Identifier: MIT */
/* Files that say the classes of the pictures beside them: EDM's dataset.json, Hugging Face's metadata.jsonl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_json.h"
#include "source.h"

static const char edm_file[] = "dataset.json";
static const char *const label_files[] = {"metadata.jsonl", "metadata.csv", "metadata.parquet",
                                          "labels.csv",     "labels.txt",   "labels.json"};

bool nl_is_label_file(void *user, const char *name)
{
    bool found = !strcmp(name, edm_file);
    (void)user;
    for (int i = 0; i < NL_COUNT(label_files) && !found; i++)
        found = !strcmp(name, label_files[i]);
    return found;
}

/* ---- EDM's dataset.json: {"labels": [["00000/img00000000.png", 7], ...]} */

static int by_picture_name(const void *a, const void *b)
{
    return strcmp(((const nl_source_picture *)a)->name, ((const nl_source_picture *)b)->name);
}

static nl_source_picture *find_picture(const nl_source *source, const char *name)
{
    int64_t low = 0, high = source->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(source->pictures[middle].name, name);
        if (order == 0)
            return &source->pictures[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void drop_labels(nl_source *source)
{
    if (source->count)
        qsort(source->pictures, (size_t)source->count, sizeof(*source->pictures), by_picture_name);
    for (int64_t i = 0; i < source->count; i++)
        source->pictures[i].label = -1;
}

static nl_status set_label(nl_source *source, const char *where, const char *name, int label)
{
    nl_source_picture *picture = find_picture(source, name);
    if (!picture)
        return nl_fail(source->context, NL_ERROR_INPUT, "%s: %s is not there, or no picture", where,
                       name);
    picture->label = label;
    return NL_OK;
}

static nl_status check_labels(const nl_source *source, const char *where)
{
    for (int64_t i = 0; i < source->count; i++)
        if (source->pictures[i].label < 0)
            return nl_fail(source->context, NL_ERROR_INPUT, "%s: there is no label for %s", where,
                           source->pictures[i].name);
    return NL_OK;
}

static bool is_label(const cJSON *item, int64_t *label)
{
    return nl_json_whole(item, label) && *label >= 0 && *label < NL_SOURCE_CLASSES;
}

static nl_status take_labels(nl_source *source, const nl_json *json, const cJSON *labels)
{
    const cJSON *item;
    int64_t label, classes = 0;
    drop_labels(source);
    cJSON_ArrayForEach(item, labels)
    {
        const char *name = cJSON_IsArray(item) ? cJSON_GetStringValue(item->child) : NULL;
        if (!name || !is_label(item->child->next, &label))
            return nl_fail(
                source->context, NL_ERROR_INPUT,
                "%s: \"labels\": expected [picture, class] with a whole number from 0 on",
                json->where);
        NL_CHECK(set_label(source, json->where, name, (int)label));
        classes = NL_MAX(classes, label + 1);
    }
    NL_CHECK(check_labels(source, json->where));
    return nl_source_number_classes(source, (int)classes);
}

nl_status nl_source_take_labels(nl_source *source, const char *where, const char *text,
                                int64_t size, bool unconditional)
{
    nl_context *context = source->context;
    cJSON *root = NULL;
    nl_status status;
    NL_TRY(nl_json_parse(context, where, text, (size_t)size, &root));
    nl_json json = {context, where, root};
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(root, "labels");
    if (cJSON_GetObjectItemCaseSensitive(root, "format"))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: training data that is encoded already: give it to 'nalagen train'",
                       source->path));
    if (!cJSON_IsArray(labels) && !unconditional)
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT,
                    "%s: expected EDM's \"labels\", a list of [picture, class]; pictures without "
                    "classes are taken with --unconditional",
                    where));
    if (cJSON_IsArray(labels))
        NL_TRY(take_labels(source, &json, labels));
cleanup:
    cJSON_Delete(root);
    return status;
}

nl_status nl_source_add_labelled(nl_source *source, bool unconditional, nl_picture_walk *walk,
                                 bool *found)
{
    nl_context *context = source->context;
    nl_mapping file = {0};
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, source->path, edm_file, &path));
    *found = nl_path_exists(path);
    if (!*found)
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &file));
    source->format = "pictures with EDM's dataset.json";
    NL_TRY(nl_walk_pictures(context, source->path, "", true, walk));
    NL_TRY(nl_source_take_labels(source, path, (const char *)file.data, file.size, unconditional));
cleanup:
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}

/* ---- metadata.jsonl of Hugging Face's ImageFolder: {"file_name": "0001.png", "label": 3 or "cat"} a line */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The lines as an array of objects that have both keys. */
static nl_status read_lines(nl_context *context, const char *path, cJSON *rows)
{
    nl_mapping file = {0};
    cJSON *row = NULL;
    char where[512];
    int64_t number = 0;
    nl_status status;
    NL_TRY(nl_map_file(context, path, &file));
    const char *text = (const char *)file.data, *end = text + file.size;
    for (const char *stop; text < end; text = stop + 1) {
        stop = memchr(text, '\n', (size_t)(end - text));
        stop = stop ? stop : end;
        snprintf(where, sizeof(where), "%s:%lld", path, (long long)++number);
        if (stop == text)
            continue;
        NL_TRY(nl_json_parse(context, where, text, (size_t)(stop - text), &row));
        const cJSON *label = cJSON_GetObjectItemCaseSensitive(row, "label");
        if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(row, "file_name")) || !label)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: expected \"file_name\" and \"label\"; pictures without classes are "
                           "taken with --unconditional",
                           where));
        cJSON_AddItemToArray(rows, row);
        row = NULL;
    }
cleanup:
    cJSON_Delete(row);
    nl_unmap(context, &file);
    return status;
}

/* Labels that are names: the classes are these in the order of their bytes. */
static nl_status name_classes(nl_source *source, const char *where, const cJSON *rows)
{
    nl_context *context = source->context;
    const cJSON *row;
    const char **names = NULL;
    int64_t count = 0, unique = 0;
    nl_status status;
    NL_TRY(NL_NEW_ARRAY(context, "labels", cJSON_GetArraySize(rows), &names));
    cJSON_ArrayForEach(row, rows)
    {
        names[count] = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "label"));
        if (!names[count++])
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: \"label\": expected names alone, or whole numbers from 0 on",
                           where));
    }
    qsort(names, (size_t)count, sizeof(*names), by_text);
    for (int64_t i = 0; i < count; i++)
        if (!i || strcmp(names[i], names[unique - 1]) != 0)
            names[unique++] = names[i];
    if (unique > NL_SOURCE_CLASSES)
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT, "%s: more than %d labels", where, NL_SOURCE_CLASSES));
    NL_TRY(NL_NEW_ZEROS(context, "names of classes", unique, &source->class_ids));
    source->classes = (int)unique;
    for (int64_t i = 0; i < unique; i++)
        NL_TRY(nl_strdup(context, names[i], &source->class_ids[i]));
    cJSON_ArrayForEach(row, rows)
    {
        const char *name = cJSON_GetObjectItemCaseSensitive(row, "label")->valuestring;
        const char **found = bsearch(&name, names, (size_t)unique, sizeof(*names), by_text);
        NL_TRY(set_label(source, where,
                         cJSON_GetObjectItemCaseSensitive(row, "file_name")->valuestring,
                         (int)(found - names)));
    }
cleanup:
    nl_free(context, names);
    return status;
}

nl_status nl_source_add_listed(nl_source *source, bool *found)
{
    nl_context *context = source->context;
    cJSON *rows = cJSON_CreateArray();
    const cJSON *row;
    char *path = NULL;
    int64_t label, numbers = 0, classes = 0;
    nl_status status;
    NL_TRY(nl_path_join(context, source->path, label_files[0], &path));
    *found = nl_path_exists(path);
    if (!*found)
        goto cleanup;
    source->format = "pictures with metadata.jsonl";
    NL_TRY(read_lines(context, path, rows));
    drop_labels(source);
    cJSON_ArrayForEach(row, rows) numbers +=
        is_label(cJSON_GetObjectItemCaseSensitive(row, "label"), &label);
    if (numbers < cJSON_GetArraySize(rows)) {
        NL_TRY(name_classes(source, path, rows));
    } else {
        cJSON_ArrayForEach(row, rows)
        {
            (void)is_label(cJSON_GetObjectItemCaseSensitive(row, "label"), &label);
            NL_TRY(set_label(source, path,
                             cJSON_GetObjectItemCaseSensitive(row, "file_name")->valuestring,
                             (int)label));
            classes = NL_MAX(classes, label + 1);
        }
        NL_TRY(nl_source_number_classes(source, (int)classes));
    }
    NL_TRY(check_labels(source, path));
cleanup:
    cJSON_Delete(rows);
    nl_free(context, path);
    return status;
}

nl_status nl_source_check_label_files(const nl_source *source)
{
    nl_status status = NL_OK;
    for (int i = 0; i < NL_COUNT(label_files) && status == NL_OK; i++) {
        char *path = NULL;
        status = nl_path_join(source->context, source->path, label_files[i], &path);
        if (status == NL_OK && nl_path_exists(path))
            status =
                nl_fail(source->context, NL_ERROR_INPUT,
                        "%s: tells of the pictures beside it and is not read: put them into a "
                        "folder for each class, or take them without classes (--unconditional)",
                        path);
        nl_free(source->context, path);
    }
    return status;
}
