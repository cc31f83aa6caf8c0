/* SPDX-License-Identifier: MIT */
/* Data sets of latents that a network has made. */
#include "nl_latents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data.h"

int64_t nl_latents_shards(int64_t count)
{
    return (count + NL_LATENTS_SHARD - 1) / NL_LATENTS_SHARD;
}

static int64_t shard_count(const nl_latents_options *o, int64_t number)
{
    return NL_MIN(NL_LATENTS_SHARD, o->count - number * NL_LATENTS_SHARD);
}

static bool is_pixels(const nl_latents_options *o)
{
    return !strcmp(o->autoencoder, "none");
}

static bool is_moments(const nl_latents_options *o)
{
    return !strcmp(o->autoencoder, "kl");
}

static void shard_name(int64_t number, char name[40])
{
    snprintf(name, 40, "shard-%05lld.safetensors", (long long)number);
}

static nl_status shard_path(nl_context *context, const nl_latents_options *o, int64_t number,
                            char **path)
{
    char name[40];
    shard_name(number, name);
    return nl_path_join(context, o->out, name, path);
}

/* One sample as it is stored: bytes of a picture; or what the autoencoder would have made, in 16 bits, for moments with the
 * smallest log variance, so that every draw is the mean. */
static void store(const nl_latents_options *o, const float *latent, float *room, uint8_t *to)
{
    int64_t plane = (int64_t)o->height * o->width, elements = o->channels * plane;
    if (is_pixels(o)) {
        for (int64_t i = 0; i < plane; i++)
            for (int c = 0; c < o->channels; c++) {
                float byte = 127.5f * (latent[c * plane + i] + 1) + 0.5f;
                *to++ = (uint8_t)(byte < 0 ? 0 : byte > 255 ? 255 : byte);
            }
        return;
    }
    if (o->moments) {
        nl_convert_from_float(latent, 2 * elements, NL_F16, to);
        return;
    }
    for (int64_t i = 0; i < elements; i++)
        room[i] = (float)(latent[i] / o->scale + o->shift);
    for (int64_t i = 0; is_moments(o) && i < elements; i++)
        room[elements + i] = -30;
    nl_convert_from_float(room, is_moments(o) ? 2 * elements : elements, NL_F16, to);
}

nl_status nl_latents_write_shard(nl_context *context, const nl_latents_options *options,
                                 int64_t number, const float *latents, const int32_t *labels)
{
    const nl_latents_options *o = options;
    nl_status status = NL_OK;
    nl_safetensors_writer *writer = NULL;
    char *path = NULL;
    uint8_t *stored = NULL;
    float *room = NULL;
    int64_t n = shard_count(o, number), channels = o->channels * (is_moments(o) ? 2 : 1);
    int64_t elements = (int64_t)o->channels * o->height * o->width;
    int64_t bytes = is_pixels(o) ? elements : 2 * channels * o->height * o->width;
    int64_t given = o->moments ? 2 * elements : elements;
    nl_tensor_header tensors[] = {
        {NL_SHARD_IMAGES, NL_F16, 5, {n, 1, channels, o->height, o->width}},
        {NL_SHARD_LABELS, NL_I32, 1, {n}}};
    if (is_pixels(o))
        tensors[0] =
            (nl_tensor_header){NL_SHARD_IMAGES, NL_U8, 4, {n, o->height, o->width, o->channels}};
    for (int64_t i = 0; i < n * given; i++)
        if (!isfinite(latents[i]))
            return nl_fail(context, NL_ERROR_NOT_FINITE, "%s: sample %lld holds NaN or infinity",
                           o->out, (long long)(number * NL_LATENTS_SHARD + i / given));
    NL_TRY(NL_NEW_SIZED(context, "a shard", n, (size_t)bytes, &stored));
    NL_TRY(NL_NEW_ARRAY(context, "a sample", 2 * elements, &room));
    for (int64_t i = 0; i < n; i++)
        store(o, latents + i * given, room, stored + i * bytes);
    NL_TRY(shard_path(context, o, number, &path));
    NL_TRY(nl_safetensors_create(context, path, true, NULL, tensors, NL_COUNT(tensors), &writer));
    NL_TRY(nl_safetensors_write(writer, stored, n * bytes));
    NL_TRY(nl_safetensors_write(writer, labels, n * (int64_t)sizeof(*labels)));
    NL_TRY(nl_safetensors_commit(&writer));
cleanup:
    nl_safetensors_abort(&writer);
    nl_free(context, stored);
    nl_free(context, room);
    nl_free(context, path);
    return status;
}

static bool add_pairs(const nl_latents_options *o, cJSON *root)
{
    cJSON *classes = cJSON_AddArrayToObject(root, "classes");
    cJSON *shards = cJSON_AddArrayToObject(root, "shards");
    for (int i = 0; classes && i < o->classes; i++) {
        const char *pair[] = {o->class_ids[i], o->class_names[i]};
        if (!cJSON_AddItemToArray(classes, cJSON_CreateStringArray(pair, 2)))
            return false;
    }
    for (int64_t i = 0; shards && i < nl_latents_shards(o->count); i++) {
        char name[40];
        cJSON *pair = cJSON_CreateArray();
        shard_name(i, name);
        if (!cJSON_AddItemToArray(shards, pair) ||
            !cJSON_AddItemToArray(pair, cJSON_CreateString(name)) ||
            !cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)shard_count(o, i))))
            return false;
    }
    return classes && shards;
}

nl_status nl_latents_finish(nl_context *context, const nl_latents_options *options)
{
    const nl_latents_options *o = options;
    nl_status status = NL_OK;
    char *path = NULL, *text = NULL;
    cJSON *root = cJSON_CreateObject(), *about = NULL;
    int shape[] = {o->channels, o->height, o->width};
    int image[] = {o->height * o->factor, o->width * o->factor};
    nl_data_kind kind = is_pixels(o)    ? NL_DATA_PIXELS
                        : is_moments(o) ? NL_DATA_MOMENTS
                                        : NL_DATA_LATENTS;
    NL_TRY(nl_json_parse(context, "encoding", o->about, strlen(o->about), &about));
    bool built = root && cJSON_AddStringToObject(root, "format", NL_DATASET_FORMAT) &&
                 cJSON_AddNumberToObject(root, "version", NL_DATASET_VERSION) &&
                 cJSON_AddStringToObject(root, "kind", nl_data_kind_names[kind]) &&
                 cJSON_AddNumberToObject(root, "count", (double)o->count) &&
                 cJSON_AddItemToObject(root, "image_size", cJSON_CreateIntArray(image, 2)) &&
                 cJSON_AddItemToObject(root, "shape", cJSON_CreateIntArray(shape, 3)) &&
                 cJSON_AddBoolToObject(root, "flips", is_pixels(o)) &&
                 cJSON_AddStringToObject(root, "autoencoder", o->autoencoder) &&
                 cJSON_AddStringToObject(root, "autoencoder_sha256",
                                         o->autoencoder_sha256 ? o->autoencoder_sha256 : "") &&
                 cJSON_AddNumberToObject(root, "latent_scale", o->scale) &&
                 cJSON_AddNumberToObject(root, "latent_shift", o->shift) && add_pairs(o, root) &&
                 cJSON_AddArrayToObject(root, "skipped") &&
                 cJSON_AddItemReferenceToObject(root, "encoding", about) &&
                 (text = nl_json_print(root, true));
    if (!built)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for " NL_DATASET_FILE));
    NL_TRY(nl_path_join(context, o->out, NL_DATASET_FILE, &path));
    NL_TRY(nl_write_file(context, path, true, text, strlen(text)));
cleanup:
    cJSON_free(text);
    cJSON_Delete(root);
    cJSON_Delete(about);
    nl_free(context, path);
    return status;
}

nl_status nl_latents_find(nl_context *context, const nl_latents_options *options, bool *found)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    char *path = NULL;
    cJSON *root = NULL, *about = NULL;
    *found = false;
    NL_TRY(nl_json_parse(context, "encoding", options->about, strlen(options->about), &about));
    NL_TRY(nl_path_join(context, options->out, NL_DATASET_FILE, &path));
    if (!nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &file));
    NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, &root));
    *found = cJSON_Compare(cJSON_GetObjectItemCaseSensitive(root, "encoding"), about, true);
    if (!*found)
        NL_TRY(
            nl_fail(context, NL_ERROR_USAGE,
                    "%s: its samples were made otherwise (another source, teacher, guidance, seed "
                    "or number): choose another folder, or delete this one",
                    options->out));
cleanup:
    cJSON_Delete(about);
    cJSON_Delete(root);
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}
