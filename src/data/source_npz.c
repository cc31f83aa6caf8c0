/* SPDX-License-Identifier: MIT */
/*
 * Pictures in one .npz, as samples for an evaluation are written: arr_0, uint8 [N, height, width, 3], and arr_1, N labels
 * (uint8, int32 or int64); or the same under the names `images` and `labels`.
 */
#include <stdio.h>
#include <string.h>

#include "nl_bytes.h"
#include "nl_npy.h"
#include "source.h"

enum { MAX_SIDE = 1 << 14 };

static const nl_zip_entry *find(const nl_zip *zip, const char *name)
{
    return nl_zip_find(zip, name, (int64_t)strlen(name));
}

/* The array of an entry: where it lies, or unpacked into file->unpacked. */
static nl_status open_array(nl_context *context, const nl_zip *zip, const nl_zip_entry *entry,
                            nl_source_file *file, nl_array *array)
{
    int64_t offset;
    char name[200];
    file->data = entry->data;
    if (entry->deflated) {
        NL_CHECK(NL_NEW_ARRAY(context, zip->where, entry->size, &file->unpacked));
        NL_CHECK(nl_zip_read(zip, entry, file->unpacked));
        file->data = file->unpacked;
    }
    snprintf(name, sizeof(name), "%.150s: %.*s", zip->where, (int)NL_MIN(entry->name_size, 40),
             entry->name);
    NL_CHECK(
        nl_npy_read_header(context, name, file->data, entry->size, entry->size, array, &offset));
    file->data += offset;
    file->size = entry->size - offset;
    return NL_OK;
}

static int64_t label_of(const nl_array *array, const uint8_t *data, int64_t index)
{
    int size = nl_dtype_size(array->dtype);
    uint64_t value = nl_little(data + index * size, size);
    return array->dtype == NL_I32 ? (int32_t)(uint32_t)value : (int64_t)value;
}

static nl_status take_labels(nl_source *source, const nl_zip *zip, const nl_zip_entry *entry)
{
    nl_context *context = source->context;
    nl_source_file file = {0};
    nl_array array;
    nl_status status;
    int64_t classes = 1;
    NL_TRY(open_array(context, zip, entry, &file, &array));
    if (array.ndim != 1 || array.shape[0] != source->count ||
        (array.dtype != NL_I64 && array.dtype != NL_I32 && array.dtype != NL_U8))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: %.*s: expected %lld labels as whole numbers",
                       source->path, (int)NL_MIN(entry->name_size, 40), entry->name,
                       (long long)source->count));
    for (int64_t i = 0; i < source->count; i++) {
        int64_t label = label_of(&array, file.data, i);
        if (label < 0 || label >= NL_SOURCE_CLASSES)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: the label of picture %lld is %lld, expected 0 to %d", source->path,
                           (long long)i, (long long)label, NL_SOURCE_CLASSES - 1));
        source->pictures[i].label = (int32_t)label;
        classes = NL_MAX(classes, label + 1);
    }
    NL_TRY(nl_source_number_classes(source, (int)classes));
cleanup:
    nl_free(context, file.unpacked);
    return status;
}

static nl_status open_pictures(nl_source *source, const nl_zip *zip, const nl_zip_entry *entry)
{
    nl_context *context = source->context;
    nl_source_file *file = source->files;
    nl_array array;
    char found[128];
    NL_CHECK(open_array(context, zip, entry, file, &array));
    const int64_t *s = array.shape;
    if (array.dtype != NL_U8 || array.ndim != 4 || s[3] != 3 || s[0] < 1 || s[1] < 1 || s[2] < 1 ||
        s[1] > MAX_SIDE || s[2] > MAX_SIDE)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: %.*s is %s %s, expected U8 [N, height, width, 3]: RGB pictures%s",
                       source->path, (int)NL_MIN(entry->name_size, 40), entry->name,
                       nl_dtype_name(array.dtype),
                       nl_shape_text(array.ndim, s, found, sizeof(found)),
                       array.ndim == 4 && s[1] == 3 ? " (not channels first)" : "");
    file->count = source->count = s[0];
    source->height = (int)s[1];
    source->width = (int)s[2];
    source->record = 3 * s[1] * s[2];
    source->layout = NL_INTERLEAVED;
    source->format = "arrays";
    return NL_NEW_ZEROS(context, "the list of pictures", source->count, &source->pictures);
}

nl_status nl_source_open_npz(nl_source *source, bool unconditional, bool *found)
{
    static const char *const names[][2] = {{"arr_0.npy", "arr_1.npy"},
                                           {"images.npy", "labels.npy"}};
    nl_context *context = source->context;
    nl_zip zip = {0};
    nl_mapping mapping = {0};
    const nl_zip_entry *pictures = NULL, *labels = NULL;
    nl_status status;
    *found = false;
    NL_TRY(nl_map_file(context, source->path, &mapping));
    size_t length = strlen(source->path);
    if (length < 4 || strcmp(source->path + length - 4, ".npz") || mapping.size < 4 ||
        memcmp(mapping.data, "PK", 2))
        goto cleanup;
    *found = true;
    NL_TRY(NL_NEW_ZEROS(context, "a list of files", 1, &source->files));
    source->file_count = 1;
    NL_TRY(nl_strdup(context, source->path, &source->files->path));
    source->files->mapping = mapping;
    mapping = (nl_mapping){0};
    NL_TRY(nl_zip_open(context, source->path, source->files->mapping.data,
                       source->files->mapping.size, &zip));
    for (int i = 0; i < NL_COUNT(names) && !pictures; i++) {
        pictures = find(&zip, names[i][0]);
        labels = find(&zip, names[i][1]);
    }
    if (!pictures)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected pictures as arr_0 (and labels as arr_1), or as images (and "
                       "labels)",
                       source->path));
    NL_TRY(open_pictures(source, &zip, pictures));
    if (labels && !unconditional)
        NL_TRY(take_labels(source, &zip, labels));
    else if (!unconditional)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: no labels in it (arr_1): add them, or use --unconditional",
                       source->path));
cleanup:
    nl_zip_close(&zip);
    nl_unmap(context, &mapping);
    return status;
}
