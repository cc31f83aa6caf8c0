/* SPDX-License-Identifier: MIT */
/*
 * Folders as diffusers and transformers write them:
 *
 *   config.json
 *   diffusion_pytorch_model.safetensors, or .bin, or model.safetensors, pytorch_model.bin;
 *   in parts: diffusion_pytorch_model.safetensors.index.json, {"weight_map": {tensor: file, ...}}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_checkpoint.h"
#include "nl_json.h"

enum { CONFIG_LIMIT = 1 << 20 };

static const char *const names[] = {"diffusion_pytorch_model.safetensors", "model.safetensors",
                                    "diffusion_pytorch_model.bin", "pytorch_model.bin"};

static nl_status open_shard(nl_checkpoint *folder, const char *name)
{
    nl_status status;
    char *path = NULL;
    nl_checkpoint **shard = &folder->shards[folder->shard_count];
    NL_TRY(nl_path_join(folder->context, folder->path, name, &path));
    NL_TRY(nl_checkpoint_open_shard(folder->context, path, folder->key, shard));
    folder->shard_count++;
cleanup:
    nl_free(folder->context, path);
    return status;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different files of the map, in order. */
static nl_status list_files(const nl_checkpoint *folder, const char *path, const cJSON *map,
                            const char ***files, int *count)
{
    nl_status status;
    const cJSON *item;
    int total = 0;
    NL_TRY(NL_NEW_ARRAY(folder->context, "names of files", cJSON_GetArraySize(map), files));
    cJSON_ArrayForEach(item, map)
    {
        const char *name = cJSON_GetStringValue(item);
        if (!name || !name[0] || strchr(name, '/') || name[0] == '.') {
            status = nl_fail(folder->context, NL_ERROR_INPUT,
                             "%s: %s: expected the name of a file in the same folder", path,
                             item->string);
            goto cleanup;
        }
        (*files)[total++] = name;
    }
    if (total > 0)
        qsort(*files, (size_t)total, sizeof(char *), compare_texts);
    *count = 0;
    for (int i = 0; i < total; i++)
        if (i == 0 || strcmp((*files)[i - 1], (*files)[i]) != 0)
            (*files)[(*count)++] = (*files)[i];
cleanup:
    return status;
}

static const nl_checkpoint *shard_named(const nl_checkpoint *folder, const char *name)
{
    for (int i = 0; i < folder->shard_count; i++) {
        const char *slash = strrchr(folder->shards[i]->path, '/');
        if (strcmp(slash ? slash + 1 : folder->shards[i]->path, name) == 0)
            return folder->shards[i];
    }
    return NULL;
}

static bool holds(const nl_checkpoint *shard, const char *name)
{
    for (int64_t i = 0; shard && i < shard->count; i++)
        if (strcmp(shard->entries[i].name, name) == 0)
            return true;
    return false;
}

/* Every tensor is in the file that the index says. */
static nl_status check_map(const nl_checkpoint *folder, const char *path, const cJSON *map)
{
    nl_problems problems = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, map)
    {
        if (!holds(shard_named(folder, item->valuestring), item->string))
            nl_problem(&problems, "%s is not in %s", item->string, item->valuestring);
    }
    if (problems.count == 0)
        return NL_OK;
    return nl_fail(folder->context, NL_ERROR_INPUT, "%s: %d %s missing:%s", path, problems.count,
                   nl_plural(problems.count, "tensor is", "tensors are"), problems.text);
}

static nl_status open_parts(nl_checkpoint *folder, const char *path)
{
    nl_context *context = folder->context;
    nl_status status;
    nl_mapping file = {0};
    cJSON *index = NULL;
    const cJSON *map;
    const char **files = NULL;
    int count = 0;
    NL_TRY(nl_map_file(context, path, &file));
    NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, &index));
    map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    if (!cJSON_IsObject(map) || !map->child) {
        status = nl_fail(context, NL_ERROR_INPUT, "%s: there is no \"weight_map\"", path);
        goto cleanup;
    }
    NL_TRY(list_files(folder, path, map, &files, &count));
    NL_TRY(NL_NEW_ZEROS(context, "shards", count, &folder->shards));
    for (int i = 0; i < count; i++)
        NL_TRY(open_shard(folder, files[i]));
    NL_TRY(check_map(folder, path, map));
cleanup:
    nl_free(context, files);
    cJSON_Delete(index);
    nl_unmap(context, &file);
    return status;
}

static nl_status open_whole(nl_checkpoint *folder, const char *name)
{
    NL_CHECK(NL_NEW(folder->context, "shards", &folder->shards));
    return open_shard(folder, name);
}

/* "diffusion_pytorch_model.fp16.safetensors": whether a file is a variant of the names above, whole or its index. */
static bool is_variant(const char *file, bool *index)
{
    size_t length = strlen(file);
    static const char *const stems[] = {"diffusion_pytorch_model.", "model.", "pytorch_model."};
    static const char *const kinds[] = {".safetensors", ".bin"};
    *index = strstr(file, ".index.") != NULL && length > 5 && !strcmp(file + length - 5, ".json");
    for (int i = 0; i < NL_COUNT(stems); i++)
        for (int j = 0; j < NL_COUNT(kinds); j++) {
            size_t stem = strlen(stems[i]), kind = strlen(kinds[j]);
            if (strncmp(file, stems[i], stem) == 0 &&
                (*index || (length > stem + kind && !strcmp(file + length - kind, kinds[j]) &&
                            !strstr(file, "-of-"))))
                return true;
        }
    return false;
}

/* One variant is taken; of several the user chooses. */
static nl_status open_variant(nl_checkpoint *folder)
{
    nl_context *context = folder->context;
    nl_status status = NL_OK;
    nl_listing files = {0};
    char *path = NULL;
    const char *found = NULL;
    bool index, found_index = false;
    NL_TRY(nl_list_folder(context, folder->path, 'f', &files));
    for (int64_t i = 0; i < files.count; i++) {
        if (!is_variant(files.names[i], &index))
            continue;
        if (found)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: holds %s and %s: name the file that is meant", folder->path, found,
                           files.names[i]));
        found = files.names[i];
        found_index = index;
    }
    if (!found)
        goto cleanup;
    nl_log(context, NL_LOG_INFO, "%s: taken is the variant %s", folder->path, found);
    NL_TRY(nl_path_join(context, folder->path, found, &path));
    NL_TRY(found_index ? open_parts(folder, path) : open_whole(folder, found));
cleanup:
    nl_free(context, path);
    nl_listing_free(context, &files);
    return status;
}

/* "_class_name" of a JSON file in the folder: allocated, or NULL. */
static char *class_in(const nl_checkpoint *folder, const char *name)
{
    char *path = NULL, *copy = NULL;
    nl_mapping file = {0};
    cJSON *object = NULL;
    if (nl_path_join(folder->context, folder->path, name, &path) == NL_OK && nl_path_exists(path) &&
        nl_map_file(folder->context, path, &file) == NL_OK && file.size <= CONFIG_LIMIT)
        (void)nl_json_parse(folder->context, path, (const char *)file.data, (size_t)file.size,
                            &object);
    const char *class =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
    if (class && nl_strdup(folder->context, class, &copy) != NL_OK)
        copy = NULL;
    cJSON_Delete(object);
    nl_unmap(folder->context, &file);
    nl_free(folder->context, path);
    return copy;
}

static nl_status nothing_found(const nl_checkpoint *folder)
{
    nl_context *context = folder->context;
    char *pipeline = class_in(folder, "model_index.json"), *class = class_in(folder, "config.json");
    char *index = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, folder->path, "model_index.json", &index));
    if (nl_path_exists(index))
        status = nl_fail(context, NL_ERROR_INPUT,
                         "%s: the folder of a whole pipeline: give the one of its parts, "
                         "transformer or vae%s%.60s%s",
                         folder->path, pipeline ? " (it is a " : "", pipeline ? pipeline : "",
                         pipeline ? "; nalagen has DiT and autoencoders)" : "");
    else
        status = nl_fail(context, NL_ERROR_INPUT,
                         "%s: a folder without %s, %s, %s, %s or an index of their parts%s%.60s%s: "
                         "name the checkpoint's file",
                         folder->path, names[0], names[1], names[2], names[3],
                         class ? " (its config.json is that of a " : "", class ? class : "",
                         class ? ")" : "");
cleanup:
    nl_free(context, index);
    nl_free(context, pipeline);
    nl_free(context, class);
    return status;
}

static nl_status open_files(nl_checkpoint *folder)
{
    nl_context *context = folder->context;
    nl_status status = NL_OK;
    char *whole = NULL, *index = NULL;
    for (int i = 0; i < NL_COUNT(names) && !folder->shards; i++) {
        NL_TRY(nl_path_join(context, folder->path, names[i], &whole));
        NL_TRY(nl_format(context, &index, "%s.index.json", whole));
        if (nl_path_exists(whole))
            NL_TRY(open_whole(folder, names[i]));
        else if (nl_path_exists(index))
            NL_TRY(open_parts(folder, index));
        nl_free(context, whole);
        nl_free(context, index);
        whole = index = NULL;
    }
    if (!folder->shards)
        NL_TRY(open_variant(folder));
    if (!folder->shards)
        status = nothing_found(folder);
cleanup:
    nl_free(context, whole);
    nl_free(context, index);
    return status;
}

/* Everything that the shards have, as pointers into them. */
static nl_status merge(nl_checkpoint *folder)
{
    nl_context *context = folder->context;
    int64_t count = 0, pairs = 0;
    for (int i = 0; i < folder->shard_count; i++)
        count += folder->shards[i]->count;
    NL_CHECK(NL_NEW_ARRAY(context, "a checkpoint's table", count, &folder->entries));
    for (int i = 0; i < folder->shard_count; i++)
        for (int64_t j = 0; j < folder->shards[i]->count; j++)
            folder->entries[folder->count++] = folder->shards[i]->entries[j];
    const nl_checkpoint *first = folder->shards[0];
    while (first->metadata[2 * pairs])
        pairs++;
    NL_CHECK(NL_NEW_ARRAY(context, "metadata", 2 * pairs + 1, &folder->metadata));
    memcpy(folder->metadata, first->metadata, (2 * (size_t)pairs + 1) * sizeof(char *));
    if (first->taken)
        NL_CHECK(nl_strdup(context, first->taken, &folder->taken));
    if (first->holds)
        NL_CHECK(nl_strdup(context, first->holds, &folder->holds));
    folder->format = first->format;
    folder->key_found = first->key_found;
    return NL_OK;
}

nl_status nl_folder_parse(nl_checkpoint *checkpoint)
{
    nl_status status = open_files(checkpoint);
    return status == NL_OK ? merge(checkpoint) : status;
}

/* Allocated path of a file beside the tensors, `name` "config.json" or "../model_index.json". */
static nl_status beside(const nl_checkpoint *checkpoint, const char *name, char **path)
{
    if (checkpoint->shard_count)
        return nl_path_join(checkpoint->context, checkpoint->path, name, path);
    const char *slash = strrchr(checkpoint->path, '/');
    int folder = slash ? (int)(slash + 1 - checkpoint->path) : 0;
    return nl_format(checkpoint->context, path, "%.*s%s", folder, checkpoint->path, name);
}

static nl_status add_metadata(nl_checkpoint *checkpoint, const char *key, const nl_mapping *text)
{
    char *copy, **metadata;
    int64_t pairs = 0;
    while (checkpoint->metadata[2 * pairs])
        pairs++;
    int64_t key_size = (int64_t)strlen(key) + 1;
    NL_CHECK(NL_OWN_ARRAY(checkpoint, key, key_size + text->size + 1, &copy));
    NL_CHECK(NL_NEW_ZEROS(checkpoint->context, "metadata", (2 * (size_t)pairs + 3), &metadata));
    memcpy(metadata, checkpoint->metadata, 2 * (size_t)pairs * sizeof(char *));
    memcpy(copy, key, (size_t)key_size);
    metadata[2 * pairs] = copy;
    metadata[2 * pairs + 1] = copy + key_size;
    memcpy(metadata[2 * pairs + 1], text->data, (size_t)text->size);
    metadata[2 * pairs + 1][text->size] = '\0';
    nl_free(checkpoint->context, checkpoint->metadata);
    checkpoint->metadata = metadata;
    return NL_OK;
}

static nl_status add_file(nl_checkpoint *checkpoint, const char *name, const char *key)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    char *path = NULL;
    nl_mapping file = {0};
    NL_TRY(beside(checkpoint, name, &path));
    if (!nl_path_exists(path) || nl_path_is_folder(path))
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &file));
    if (file.size > CONFIG_LIMIT)
        nl_log(context, NL_LOG_WARNING, "%s: left out: %lld bytes, more than %d", path,
               (long long)file.size, CONFIG_LIMIT);
    else if (file.size > 0)
        NL_TRY(add_metadata(checkpoint, key, &file));
cleanup:
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}

nl_status nl_folder_config(nl_checkpoint *checkpoint)
{
    if (nl_checkpoint_metadata(checkpoint, "nalagen") || strcmp(checkpoint->path, "-") == 0)
        return NL_OK;
    NL_CHECK(add_file(checkpoint, "config.json", "config.json"));
    NL_CHECK(add_file(checkpoint, "../model_index.json", "model_index.json"));
    if (nl_checkpoint_metadata(checkpoint, "model_index.json"))
        NL_CHECK(
            add_file(checkpoint, "../scheduler/scheduler_config.json", "scheduler_config.json"));
    return NL_OK;
}
