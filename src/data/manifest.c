/* SPDX-License-Identifier: MIT */
/* dataset.json as it is written, and the description of an encoding that every shard carries. */
#include <stdio.h>
#include <string.h>

#include "encode.h"

static const char *autoencoder_name(const nl_encode_job *job)
{
    static const char *const names[] = {"none", "tiny", "kl"};
    return names[job->kind];
}

static bool add_sizes(cJSON *object, const char *key, const int *sizes, int count)
{
    return cJSON_AddItemToObject(object, key, cJSON_CreateIntArray(sizes, count));
}

static nl_status no_memory(nl_context *context)
{
    return nl_fail(context, NL_ERROR_MEMORY, "no memory for " NL_DATASET_FILE);
}

/* ---- The encoding */

/* Of the times of change and inodes of the pictures. Encodings of earlier versions have none. */
static const char stamps_key[] = "source_stamps";

nl_status nl_encoding_text(const nl_encode_job *job, char **text)
{
    const nl_encode_options *o = job->options;
    char source[65], stamps[65];
    nl_status status = nl_source_sha256(job->source, source, stamps);
    if (status != NL_OK)
        return status;
    cJSON *root = cJSON_CreateObject();
    char *printed = NULL;
    const nl_device *device = job->context->device;
    bool good =
        root && cJSON_AddStringToObject(root, "source_sha256", source) &&
        (!stamps[0] || cJSON_AddStringToObject(root, stamps_key, stamps)) &&
        (!o->turn || cJSON_AddTrueToObject(root, "exif_orientation")) &&
        cJSON_AddNumberToObject(root, "pictures", (double)job->source->count) &&
        add_sizes(root, "image_size", (int[]){job->height, job->width}, 2) &&
        cJSON_AddStringToObject(root, "preprocessing", "box halving, bicubic, centre crop") &&
        cJSON_AddBoolToObject(root, "flips", !o->no_flips) &&
        (!nl_encode_crops(job) ||
         (cJSON_AddNumberToObject(root, "crops", (double)o->crops) &&
          cJSON_AddStringToObject(root, "parts", "to half the side, enlarged to 1.5"))) &&
        cJSON_AddStringToObject(root, "autoencoder", autoencoder_name(job)) &&
        cJSON_AddStringToObject(root, "autoencoder_sha256", o->vae ? o->vae_sha256 : "") &&
        cJSON_AddStringToObject(root, "arithmetic",
                                !o->vae                    ? "none"
                                : device->dtype == NL_BF16 ? "bf16"
                                                           : "f32") &&
        cJSON_AddNumberToObject(root, "shard_pictures", (double)job->shard_pictures) &&
        (printed = nl_json_print(root, false));
    status = good ? nl_strdup(job->context, printed, text) : no_memory(job->context);
    cJSON_free(printed);
    cJSON_Delete(root);
    return status;
}

/* The first key whose values differ, or NULL. */
static const char *difference(const cJSON *ours, const cJSON *theirs)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, ours)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(theirs, item->string);
        if (!cJSON_Compare(item, other, true) && (other || strcmp(item->string, stamps_key) != 0))
            return item->string;
    }
    cJSON_ArrayForEach(item,
                       theirs) if (!cJSON_HasObjectItem(ours, item->string)) return item->string;
    return NULL;
}

nl_status nl_encoding_compare(const nl_encode_job *job, const char *path, const char *found)
{
    nl_context *context = job->context;
    cJSON *ours = NULL, *theirs = NULL;
    const char *key = "encoding";
    nl_status status = NL_OK;
    if (found && !strcmp(found, job->encoding))
        return NL_OK;
    NL_TRY(nl_json_parse(context, path, job->encoding, strlen(job->encoding), &ours));
    if (found && nl_json_parse(context, path, found, strlen(found), &theirs) == NL_OK)
        key = difference(ours, theirs);
    if (theirs && !key)
        goto cleanup;
    if (key && !strcmp(key, stamps_key))
        key = "times of change of the pictures";
    status =
        nl_fail(context, NL_ERROR_WRITE,
                "%s: belongs to another encoding (\"%s\" differs): choose another folder, or begin "
                "anew with --force",
                path, key ? key : "encoding");
cleanup:
    cJSON_Delete(ours);
    cJSON_Delete(theirs);
    return status;
}

static bool add_classes(const nl_encode_job *job, cJSON *root)
{
    cJSON *classes = cJSON_AddArrayToObject(root, "classes");
    for (int i = 0; classes && i < job->source->classes; i++) {
        const char *id = job->source->class_ids[i];
        const char *pair[] = {id,
                              job->class_names && job->class_names[i] ? job->class_names[i] : id};
        if (!cJSON_AddItemToArray(classes, cJSON_CreateStringArray(pair, 2)))
            return false;
    }
    return classes != NULL;
}

/* ---- dataset.json */

static bool add_shards(const nl_encode_job *job, const int64_t *counts, cJSON *root)
{
    cJSON *shards = cJSON_AddArrayToObject(root, "shards");
    for (int64_t i = 0; shards && i < job->shard_count; i++) {
        char name[64];
        if (counts[i] == 0)
            continue;
        snprintf(name, sizeof(name), "shard-%05lld.safetensors", (long long)i);
        cJSON *pair = cJSON_CreateArray();
        if (!pair || !cJSON_AddItemToArray(shards, pair) ||
            !cJSON_AddItemToArray(pair, cJSON_CreateString(name)) ||
            !cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)counts[i])))
            return false;
    }
    return shards != NULL;
}

static bool fill(const nl_encode_job *job, const int64_t *counts, const cJSON *skipped,
                 cJSON *encoding, cJSON *root)
{
    const nl_encode_options *o = job->options;
    bool moments = job->kind == NL_DATA_MOMENTS;
    int shape[] = {(int)job->channels / (moments ? 2 : 1), (int)job->rows, (int)job->columns};
    int64_t count = 0;
    for (int64_t i = 0; i < job->shard_count; i++)
        count += counts[i];
    return cJSON_AddStringToObject(root, "format", NL_DATASET_FORMAT) &&
           cJSON_AddNumberToObject(root, "version", NL_DATASET_VERSION) &&
           cJSON_AddStringToObject(root, "kind", nl_data_kind_names[job->kind]) &&
           cJSON_AddNumberToObject(root, "count", (double)count) &&
           add_sizes(root, "image_size", (int[]){job->height, job->width}, 2) &&
           add_sizes(root, "shape", shape, 3) &&
           cJSON_AddBoolToObject(root, "flips",
                                 job->kind == NL_DATA_PIXELS || job->orientations == 2) &&
           (!nl_encode_crops(job) || cJSON_AddTrueToObject(root, "crops")) &&
           cJSON_AddStringToObject(root, "autoencoder", autoencoder_name(job)) &&
           cJSON_AddStringToObject(root, "autoencoder_sha256", o->vae ? o->vae_sha256 : "") &&
           cJSON_AddNumberToObject(root, "latent_scale", o->vae ? o->latent_scale : 1) &&
           cJSON_AddNumberToObject(root, "latent_shift", o->vae ? o->latent_shift : 0) &&
           add_classes(job, root) && add_shards(job, counts, root) &&
           cJSON_AddItemToObject(root, "skipped", cJSON_Duplicate(skipped, true)) &&
           cJSON_AddItemReferenceToObject(root, "encoding", encoding);
}

nl_status nl_manifest_write(const nl_encode_job *job, const int64_t *counts, const cJSON *skipped)
{
    nl_context *context = job->context;
    char *path = NULL, *text = NULL;
    cJSON *root = cJSON_CreateObject(), *encoding = NULL;
    nl_status status;
    NL_TRY(nl_json_parse(context, "encoding", job->encoding, strlen(job->encoding), &encoding));
    if (!root || !fill(job, counts, skipped, encoding, root) || !(text = nl_json_print(root, true)))
        NL_TRY(no_memory(context));
    NL_TRY(nl_path_join(context, job->options->out, NL_DATASET_FILE, &path));
    NL_TRY(nl_write_file(context, path, true, text, strlen(text)));
cleanup:
    cJSON_free(text);
    cJSON_Delete(root);
    cJSON_Delete(encoding);
    nl_free(context, path);
    return status;
}
