/* SPDX-License-Identifier: MIT */
/* What nalagen itself makes, as info tells it: training data and its shards, runs, archives of pictures; and pictures to be encoded. */
#include "nl_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_arrays.h"
#include "nl_data.h"
#include "nl_encode.h"
#include "nl_run.h"

static nl_status read_json(nl_context *context, const char *folder, const char *name, cJSON **json)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    char *path = NULL;
    *json = NULL;
    NL_TRY(nl_path_join(context, folder, name, &path));
    if (!nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &file));
    NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, json));
cleanup:
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}

static void add_numbers(cJSON *object, const char *key, int count, const int64_t *numbers)
{
    cJSON *array = cJSON_AddArrayToObject(object, key);
    for (int i = 0; i < count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)numbers[i]));
}

/* What of a JSON object is there under these keys (ended by NULL), as it is. */
static void add_copies(cJSON *object, const cJSON *from, const char *const *keys)
{
    for (int i = 0; keys[i]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, keys[i]);
        if (item)
            cJSON_AddItemToObject(object, keys[i], cJSON_Duplicate(item, true));
    }
}

static void add_counts(cJSON *object, const char *key, int classes, const char *const *names,
                       const int64_t *counts)
{
    cJSON *numbers = cJSON_AddObjectToObject(object, key);
    for (int i = 0; i < classes; i++)
        cJSON_AddNumberToObject(numbers, names[i], (double)counts[i]);
}

nl_status nl_info_source(nl_context *context, const char *path, cJSON *object)
{
    nl_source_facts facts;
    NL_CHECK(nl_source_describe(context, path, &facts));
    cJSON_AddStringToObject(object, "kind", "pictures for nalagen encode");
    cJSON_AddStringToObject(object, "format", facts.format);
    cJSON_AddNumberToObject(object, "pictures", (double)facts.count);
    if (facts.height)
        add_numbers(object, "picture_size", 2, (int64_t[]){facts.height, facts.width});
    cJSON_AddNumberToObject(object, "classes", facts.classes);
    if (facts.classes)
        add_counts(object, "pictures_of_classes", facts.classes,
                   (const char *const *)facts.class_ids, facts.class_counts);
    nl_source_facts_free(context, &facts);
    return NL_OK;
}

nl_status nl_info_dataset(nl_context *context, const char *path, cJSON *object)
{
    nl_dataset *dataset = NULL;
    cJSON *json = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_dataset_open(context, path, &dataset));
    NL_TRY(read_json(context, path, NL_DATASET_FILE, &json));
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    cJSON_AddStringToObject(object, "kind", "training data of nalagen encode");
    cJSON_AddNumberToObject(object, "samples", (double)info->count);
    cJSON_AddStringToObject(object, "samples_are", nl_data_kind_names[info->kind]);
    add_numbers(object, "picture_size", 2, (int64_t[]){info->image_height, info->image_width});
    add_numbers(object, "model_input", 3, (int64_t[]){info->channels, info->height, info->width});
    cJSON_AddBoolToObject(object, "flips", info->flips);
    cJSON_AddStringToObject(object, "autoencoder", info->autoencoder);
    if (*info->autoencoder_sha256)
        cJSON_AddStringToObject(object, "autoencoder_sha256", info->autoencoder_sha256);
    cJSON_AddNumberToObject(object, "latent_scale", info->latent_scale);
    cJSON_AddNumberToObject(object, "latent_shift", info->latent_shift);
    int shards = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "shards"));
    int broken = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "skipped"));
    cJSON_AddNumberToObject(object, "shards", shards);
    cJSON_AddNumberToObject(object, "broken_pictures_left_out", broken);
    add_copies(object, json, (const char *const[]){"encoding", NULL});
    cJSON_AddNumberToObject(object, "classes", info->classes);
    if (info->classes)
        add_counts(object, "samples_of_classes", info->classes, info->class_names,
                   info->class_counts);
cleanup:
    cJSON_Delete(json);
    nl_dataset_close(dataset);
    return status;
}

/* The last line of a file of JSON lines that is whole; NULL: none. */
static nl_status last_line(nl_context *context, const char *folder, const char *name, cJSON **json)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    char *path = NULL;
    *json = NULL;
    NL_TRY(nl_path_join(context, folder, name, &path));
    if (!nl_path_exists(path) || nl_map_file(context, path, &file) != NL_OK || !file.size)
        goto cleanup;
    const char *text = (const char *)file.data, *end = text + file.size;
    while (end > text && end[-1] != '\n') /* torn */
        end--;
    const char *start = end - (end > text);
    while (start > text && start[-1] != '\n')
        start--;
    if (end > start)
        NL_TRY(nl_json_parse(context, path, start, (size_t)(end - start), json));
cleanup:
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}

static nl_status add_state(nl_context *context, const char *path, cJSON *object)
{
    nl_status status = NL_OK;
    char *done = NULL, *folder = NULL, **points = NULL, *model = NULL;
    int count = 0;
    NL_TRY(nl_path_join(context, path, NL_RUN_DONE, &done));
    NL_TRY(nl_path_join(context, path, NL_RUN_CHECKPOINTS, &folder));
    NL_TRY(nl_list_points(context, folder, &points, &count));
    cJSON_AddStringToObject(object, "state",
                            nl_path_exists(done) ? "finished" : "under way, or stopped");
    if (count) {
        cJSON_AddNumberToObject(object, "step", (double)nl_point_step(points[0]));
        cJSON_AddNumberToObject(object, "checkpoints", count);
    }
    if (nl_run_find_model(context, path, &model) == NL_OK)
        cJSON_AddStringToObject(object, "model_file", model);
cleanup:
    nl_free_points(context, points, count);
    nl_free(context, folder);
    nl_free(context, done);
    nl_free(context, model);
    return status;
}

nl_status nl_info_run(nl_context *context, const char *path, cJSON *object)
{
    nl_status status = NL_OK;
    cJSON *config = NULL, *log = NULL, *metrics = NULL;
    cJSON_AddStringToObject(object, "kind", "run of nalagen train");
    NL_TRY(add_state(context, path, object));
    NL_TRY(read_json(context, path, NL_RUN_CONFIG, &config));
    NL_TRY(last_line(context, path, NL_RUN_LOG, &log));
    NL_TRY(last_line(context, path, NL_RUN_METRICS, &metrics));
    if (log)
        cJSON_AddItemToObject(object, "last_log", cJSON_Duplicate(log, true));
    if (metrics)
        cJSON_AddItemToObject(object, "last_metrics", cJSON_Duplicate(metrics, true));
    add_copies(object, config, (const char *const[]){"training", "data", "version", "model", NULL});
cleanup:
    cJSON_Delete(config);
    cJSON_Delete(log);
    cJSON_Delete(metrics);
    return status;
}

nl_status nl_info_shard(const nl_checkpoint *checkpoint, cJSON *object)
{
    const char *text = nl_checkpoint_metadata(checkpoint, NL_SHARD_ENCODING);
    cJSON *encoding = NULL, *shapes = cJSON_AddObjectToObject(object, "arrays");
    nl_status status =
        nl_json_parse(checkpoint->context, checkpoint->path, text, strlen(text), &encoding);
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        char shape[64], whole[96];
        snprintf(whole, sizeof(whole), "%s %s", nl_dtype_name(entry->dtype),
                 nl_shape_text(entry->ndim, entry->shape, shape, sizeof(shape)));
        cJSON_AddStringToObject(shapes, entry->name, whole);
    }
    if (status == NL_OK)
        cJSON_AddItemToObject(object, "encoding", encoding);
    return status;
}

/* Pictures of nalagen sample, or of others; statistics of nalagen stats. */
static const char *kind_of(const nl_arrays *arrays)
{
    return nl_arrays_has(arrays, "mu")      ? "statistics of pictures"
           : nl_arrays_has(arrays, "arr_0") ? "pictures"
                                            : "arrays";
}

static void add_array(nl_arrays *arrays, const char *name, cJSON *object)
{
    nl_array array;
    nl_array_stream *stream = NULL;
    char shape[64], whole[96];
    if (nl_array_open(arrays, name, &array, &stream) == NL_OK) {
        snprintf(whole, sizeof(whole), "%s %s", nl_dtype_name(array.dtype),
                 nl_shape_text(array.ndim, array.shape, shape, sizeof(shape)));
        cJSON_AddStringToObject(object, name, whole);
    } else {
        cJSON_AddStringToObject(object, name, nl_last_error(nl_arrays_context(arrays)));
    }
    nl_array_close(stream);
}

nl_status nl_info_archive(nl_context *context, const char *path, cJSON *object)
{
    nl_status status = NL_OK;
    nl_arrays *arrays = NULL;
    cJSON *comment = NULL;
    char *names = NULL;
    int64_t size;
    NL_TRY(nl_arrays_open(context, path, &arrays));
    cJSON_AddStringToObject(object, "kind", kind_of(arrays));
    cJSON *shapes = cJSON_AddObjectToObject(object, "arrays");
    NL_TRY(nl_strdup(context, nl_arrays_names(arrays), &names));
    for (char *rest = NULL, *name = strtok_r(names, ", ", &rest); name;
         name = strtok_r(NULL, ", ", &rest))
        add_array(arrays, name, shapes);
    const char *text = nl_arrays_comment(arrays, &size);
    if (size > 0 && nl_json_parse(context, path, text, (size_t)size, &comment) == NL_OK)
        cJSON_AddItemToObject(object, "parameters", comment);
cleanup:
    nl_free(context, names);
    nl_arrays_close(arrays);
    return status;
}
