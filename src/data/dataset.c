/* SPDX-License-Identifier: MIT */
/* Opening a data set: dataset.json and its shards, checked before anything depends on them. */
#include <math.h>
#include <string.h>

#include "data.h"

const char *const nl_data_kind_names[] = {"pixels", "latents", "moments", NULL};
static const char *const autoencoder_names[] = {"none", "tiny", "kl", NULL}; /* by kind */

enum { MAX_CLASSES = 1 << 20, MAX_SHARDS = 1 << 20 };

static const char *const known_keys[] = {
    "format",       "version",      "kind",    "count",        "image_size",
    "shape",        "flips",        "crops",   "autoencoder",  "autoencoder_sha256",
    "latent_scale", "latent_shift", "classes", "class_counts", "shards",
    "skipped",      "encoding",     NULL};

static nl_status bad(const nl_json *json, const char *key, const char *expected)
{
    return nl_fail(json->context, NL_ERROR_INPUT, "%s: \"%s\": expected %s", json->where, key,
                   expected);
}

/* An array of `count` whole numbers from 1 to `high`. */
static nl_status read_sizes(const nl_json *json, const char *key, int count, int high, int *sizes)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json->object, key);
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != count)
        return bad(json, key, count == 2 ? "[height, width]" : "[channels, height, width]");
    for (int i = 0; i < count; i++) {
        double x = cJSON_GetNumberValue(cJSON_GetArrayItem(array, i));
        if (!(x >= 1 && x <= high) || x != (int)x)
            return bad(json, key, "sizes from 1 to 16384");
        sizes[i] = (int)x;
    }
    return NL_OK;
}

/* The items of an array of pairs: `first` a string, `second` a string or NULL for a number. */
static bool pair(const cJSON *item, const char **first, const cJSON **second)
{
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsString(item->child))
        return false;
    *first = item->child->valuestring;
    *second = item->child->next;
    return true;
}

static nl_status read_classes(nl_dataset *dataset, const nl_json *json)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json->object, "classes"), *item,
                *name = NULL;
    nl_context *context = dataset->context;
    int count = cJSON_IsArray(array) ? cJSON_GetArraySize(array) : -1, i = 0;
    if (count < 0 || count > MAX_CLASSES)
        return bad(json, "classes", "a list of [folder, name]");
    dataset->info.classes = count;
    NL_CHECK(NL_NEW_ARRAY(context, "names of classes", count, &dataset->class_ids));
    NL_CHECK(NL_NEW_ARRAY(context, "names of classes", count, &dataset->class_names));
    NL_CHECK(NL_NEW_ZEROS(context, "counts of classes", count, &dataset->class_counts));
    cJSON_ArrayForEach(item, array)
    {
        if (!pair(item, &dataset->class_ids[i], &name) || !cJSON_IsString(name))
            NL_CHECK(bad(json, "classes", "a list of [folder, name]"));
        dataset->class_names[i++] = name->valuestring;
    }
    dataset->info.class_ids = dataset->class_ids;
    dataset->info.class_names = dataset->class_names;
    dataset->info.class_counts = dataset->class_counts;
    return NL_OK;
}

static nl_status read_shards(nl_dataset *dataset, const nl_json *json)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json->object, "shards"), *item,
                *number = NULL;
    nl_context *context = dataset->context;
    nl_status status = NL_OK;
    int64_t first = 0;
    int count = cJSON_IsArray(array) ? cJSON_GetArraySize(array) : 0;
    if (count < 1 || count > MAX_SHARDS)
        return bad(json, "shards", "a list of [file, samples]");
    NL_TRY(NL_NEW_ZEROS(context, "shards", count, &dataset->shards));
    cJSON_ArrayForEach(item, array)
    {
        nl_shard *shard = &dataset->shards[dataset->shard_count];
        const char *name = NULL;
        if (!pair(item, &name, &number) || !cJSON_IsNumber(number) ||
            !(number->valuedouble >= 1 && number->valuedouble <= 0x1p40) ||
            number->valuedouble != (double)(int64_t)number->valuedouble)
            NL_TRY(bad(json, "shards", "a list of [file, samples]"));
        if (!name[0] || name[0] == '.' || strchr(name, '/'))
            NL_TRY(bad(json, "shards", "names of files in the same folder"));
        *shard = (nl_shard){.first = first, .count = (int64_t)number->valuedouble};
        dataset->shard_count++;
        NL_TRY(nl_strdup(context, name, &shard->name));
        first += shard->count; /* at most 2^60 */
    }
    if (first != dataset->info.count)
        status = nl_fail(context, NL_ERROR_INPUT,
                         "%s: \"count\" is %lld and the shards hold %lld %s together", json->where,
                         (long long)dataset->info.count, (long long)first,
                         nl_plural(first, "sample", "samples"));
cleanup:
    return status;
}

static nl_status read_autoencoder(nl_dataset_info *info, const nl_json *json)
{
    int kind = 0;
    info->autoencoder_sha256 = "";
    info->latent_scale = 1;
    NL_CHECK(nl_json_choice(json, "autoencoder", autoencoder_names, &kind));
    if (kind != (int)info->kind)
        NL_CHECK(bad(json, "autoencoder",
                     "\"none\" for pixels, \"tiny\" for latents, \"kl\" for moments"));
    info->autoencoder = autoencoder_names[kind];
    NL_CHECK(nl_json_string(json, "autoencoder_sha256", &info->autoencoder_sha256));
    NL_CHECK(nl_json_double(json, "latent_scale", 1e-6, 1e6, &info->latent_scale));
    return nl_json_double(json, "latent_shift", -1e6, 1e6, &info->latent_shift);
}

/* Whether an encode made parts of pictures, and did not say which in older versions. */
static bool was_cropped(const nl_json *json)
{
    const cJSON *encoding = cJSON_GetObjectItemCaseSensitive(json->object, "encoding");
    return cJSON_HasObjectItem(encoding, "crops");
}

/* Of the source: each of its crops counts from there anew. */
static nl_status read_pictures(nl_dataset *dataset, const nl_json *json)
{
    const cJSON *encoding = cJSON_GetObjectItemCaseSensitive(json->object, "encoding");
    const cJSON *pictures = cJSON_GetObjectItemCaseSensitive(encoding, "pictures");
    double count = pictures ? cJSON_GetNumberValue(pictures) : 0;
    if (!(count >= 0 && count <= 0x1p40) || count != (double)(int64_t)count)
        return bad(json, "encoding", "whole numbers of \"pictures\"");
    dataset->pictures = (int64_t)count;
    return NL_OK;
}

/* Sizes, and that they belong together. */
static nl_status read_geometry(nl_dataset *dataset, const nl_json *json)
{
    nl_dataset_info *info = &dataset->info;
    int image[2], shape[3];
    NL_CHECK(nl_json_bool(json, "flips", &info->flips));
    NL_CHECK(nl_json_bool(json, "crops", &dataset->crops));
    info->crops_known = dataset->crops || !was_cropped(json);
    NL_CHECK(read_pictures(dataset, json));
    NL_CHECK(read_sizes(json, "image_size", 2, NL_DATA_MAX_SIDE, image));
    NL_CHECK(read_sizes(json, "shape", 3, NL_DATA_MAX_SIDE, shape));
    info->image_height = image[0];
    info->image_width = image[1];
    info->channels = shape[0];
    info->height = shape[1];
    info->width = shape[2];
    info->sample_channels = shape[0] * (info->kind == NL_DATA_MOMENTS ? 2 : 1);
    bool pixels = info->kind == NL_DATA_PIXELS;
    if (pixels && (shape[0] != 3 || shape[1] != image[0] || shape[2] != image[1]))
        NL_CHECK(bad(json, "shape", "[3, height, width] of \"image_size\" for pixels"));
    if (pixels && !info->flips)
        NL_CHECK(bad(json, "flips", "true for pixels"));
    /* at most 2^43 and 2^45 */
    dataset->elements = (int64_t)info->sample_channels * info->height * info->width;
    dataset->sample_bytes = pixels ? dataset->elements : dataset->elements * (info->flips ? 4 : 2);
    return NL_OK;
}

static nl_status read_json(nl_dataset *dataset, const nl_json *json)
{
    nl_dataset_info *info = &dataset->info;
    const char *format = NULL;
    int64_t version = 0;
    int kind = -1;
    NL_CHECK(nl_json_string(json, "format", &format));
    if (!format || strcmp(format, NL_DATASET_FORMAT) != 0)
        NL_CHECK(bad(json, "format",
                     "\"" NL_DATASET_FORMAT "\": encode pictures with 'nalagen encode'"));
    NL_CHECK(nl_json_int(json, "version", 1, INT32_MAX, &version));
    if (version != NL_DATASET_VERSION)
        return nl_fail(
            json->context, NL_ERROR_INPUT,
            "%s: version %lld of the format, this nalagen reads %d: encode again, or take "
            "a nalagen of the same age",
            json->where, (long long)version, NL_DATASET_VERSION);
    NL_CHECK(nl_json_known_keys(json, known_keys));
    NL_CHECK(nl_json_choice(json, "kind", nl_data_kind_names, &kind));
    if (kind < 0)
        NL_CHECK(bad(json, "kind", "\"pixels\", \"latents\" or \"moments\""));
    info->kind = (nl_data_kind)kind;
    NL_CHECK(nl_json_int(json, "count", 1, INT64_C(1) << 40, &info->count));
    NL_CHECK(read_geometry(dataset, json));
    NL_CHECK(read_autoencoder(info, json));
    NL_CHECK(read_classes(dataset, json));
    return read_shards(dataset, json);
}

nl_status nl_dataset_parse(nl_context *context, const char *path, const char *text, int64_t size,
                           nl_dataset **out)
{
    nl_dataset *dataset = NULL;
    nl_status status;
    char *where = NULL;
    *out = NULL;
    NL_TRY(NL_NEW(context, "a data set", &dataset));
    dataset->context = context;
    NL_TRY(nl_strdup(context, path, &dataset->path));
    NL_TRY(nl_path_join(context, path, NL_DATASET_FILE, &where));
    NL_TRY(nl_json_parse(context, where, text, (size_t)size, &dataset->root));
    if (!cJSON_IsObject(dataset->root))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: expected an object", where));
    NL_TRY(read_json(dataset, &(nl_json){context, where, dataset->root}));
    *out = dataset;
    dataset = NULL;
cleanup:
    nl_free(context, where);
    nl_dataset_close(dataset);
    return status;
}

/* A tensor of a shard, of the type and shape that dataset.json tells of. */
static nl_status find_tensor(const nl_dataset *dataset, const nl_checkpoint *file, const char *name,
                             nl_dtype dtype, int ndim, const int64_t *shape, const uint8_t **data)
{
    const nl_entry *entry = nl_checkpoint_find(file, name);
    char expected[64], found[64];
    bool fits = entry && entry->dtype == dtype && entry->ndim == ndim && !entry->strides &&
                !entry->parts && memcmp(entry->shape, shape, (size_t)ndim * sizeof(*shape)) == 0;
    if (!fits)
        return nl_fail(dataset->context, NL_ERROR_INPUT,
                       "%s: tensor %s: expected %s %s as " NL_DATASET_FILE " says, found %s %s",
                       file->path, name, nl_dtype_name(dtype),
                       nl_shape_text(ndim, shape, expected, sizeof(expected)),
                       entry ? nl_dtype_name(entry->dtype) : "none",
                       entry ? nl_shape_text(entry->ndim, entry->shape, found, sizeof(found)) : "");
    *data = entry->data;
    return NL_OK;
}

static int label_at(const nl_shard *shard, int64_t index)
{
    int32_t label;
    memcpy(&label, shard->labels + index * (int64_t)sizeof(label), sizeof(label));
    return label;
}

static void crop_at(const nl_shard *shard, int64_t index, float crop[NL_CROP_STORED])
{
    const size_t bytes = NL_CROP_STORED * sizeof(float);
    memcpy(crop, shard->crops + (size_t)index * bytes, bytes);
}

static nl_status check_crops(const nl_dataset *dataset, const nl_shard *shard, const char *path)
{
    float crop[NL_CROP_STORED];
    for (int64_t i = 0; shard->crops && i < shard->count; i++) {
        crop_at(shard, i, crop);
        if (!(crop[NL_CROP_SCALE] <= 0 && crop[NL_CROP_SCALE] >= -32 &&
              fabsf(crop[NL_CROP_DOWN]) <= 0.5f && fabsf(crop[NL_CROP_RIGHT]) <= 0.5f))
            return nl_fail(dataset->context, NL_ERROR_INPUT,
                           "%s: crop %lld is %g, %g, %g: expected log2 of a side, -32 to 0, and a "
                           "place from -0.5 to 0.5",
                           path, (long long)i, (double)crop[NL_CROP_SCALE],
                           (double)crop[NL_CROP_DOWN], (double)crop[NL_CROP_RIGHT]);
    }
    return NL_OK;
}

nl_status nl_dataset_attach(nl_dataset *dataset, nl_shard *shard, nl_checkpoint *file)
{
    const nl_dataset_info *info = &dataset->info;
    bool pixels = info->kind == NL_DATA_PIXELS;
    int64_t n = shard->count;
    int64_t latents[] = {n, info->flips ? 2 : 1, info->sample_channels, info->height, info->width};
    int64_t rgb[] = {n, info->height, info->width, 3};
    NL_CHECK(find_tensor(dataset, file, NL_SHARD_IMAGES, pixels ? NL_U8 : NL_F16, pixels ? 4 : 5,
                         pixels ? rgb : latents, &shard->images));
    NL_CHECK(find_tensor(dataset, file, NL_SHARD_LABELS, NL_I32, 1, &n, &shard->labels));
    if (dataset->crops)
        NL_CHECK(find_tensor(dataset, file, NL_SHARD_CROPS, NL_F32, 2,
                             (int64_t[]){n, NL_CROP_STORED}, &shard->crops));
    if (nl_checkpoint_find(file, NL_SHARD_PICTURES))
        NL_CHECK(find_tensor(dataset, file, NL_SHARD_PICTURES, NL_I64, 1, &n, &shard->pictures));
    NL_CHECK(check_crops(dataset, shard, file->path));
    int classes = NL_MAX(info->classes, 1);
    for (int64_t i = 0; i < n; i++)
        if (label_at(shard, i) < 0 || label_at(shard, i) >= classes)
            return nl_fail(dataset->context, NL_ERROR_INPUT,
                           "%s: label %lld is %d, expected 0 to %d", file->path, (long long)i,
                           label_at(shard, i), classes - 1);
    nl_map_random(&file->mapping);
    shard->file = file;
    return NL_OK;
}

void nl_dataset_count(nl_dataset *dataset)
{
    for (int i = 0; i < dataset->info.classes; i++)
        dataset->class_counts[i] = 0;
    dataset->info.pictures = 0;
    for (int64_t i = 0; i < dataset->info.count; i++) {
        dataset->info.pictures += nl_dataset_is_whole(dataset, i);
        if (dataset->info.classes)
            dataset->class_counts[nl_dataset_label(dataset, i)]++;
    }
}

static nl_status open_shard(nl_dataset *dataset, nl_shard *shard)
{
    nl_context *context = dataset->context;
    nl_checkpoint *file = NULL;
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_check_cancelled(context));
    NL_TRY(nl_path_join(context, dataset->path, shard->name, &path));
    NL_TRY(nl_checkpoint_open(context, path, &file));
    NL_TRY(nl_dataset_attach(dataset, shard, file));
    file = NULL;
cleanup:
    nl_checkpoint_close(file);
    nl_free(context, path);
    return status;
}

nl_status nl_dataset_open(nl_context *context, const char *path, nl_dataset **out)
{
    nl_dataset *dataset = NULL;
    nl_mapping text = {0};
    char *file = NULL;
    nl_status status;
    *out = NULL;
    NL_TRY(nl_path_join(context, path, NL_DATASET_FILE, &file));
    if (!nl_path_exists(file))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: no " NL_DATASET_FILE
                       " there: expected a folder that 'nalagen encode' has finished",
                       path));
    NL_TRY(nl_map_file(context, file, &text));
    NL_TRY(nl_dataset_parse(context, path, (const char *)text.data, text.size, &dataset));
    for (int64_t i = 0; i < dataset->shard_count; i++)
        NL_TRY(open_shard(dataset, &dataset->shards[i]));
    nl_dataset_count(dataset);
    *out = dataset;
    dataset = NULL;
cleanup:
    nl_dataset_close(dataset);
    nl_unmap(context, &text);
    nl_free(context, file);
    return status;
}

void nl_dataset_close(nl_dataset *dataset)
{
    if (!dataset)
        return;
    nl_context *context = dataset->context;
    for (int64_t i = 0; i < dataset->shard_count; i++) {
        nl_checkpoint_close(dataset->shards[i].file);
        nl_free(context, dataset->shards[i].name);
    }
    nl_free(context, dataset->shards);
    nl_free(context, (void *)dataset->class_ids);
    nl_free(context, (void *)dataset->class_names);
    nl_free(context, dataset->class_counts);
    nl_free(context, dataset->chosen);
    cJSON_Delete(dataset->root);
    nl_free(context, dataset->path);
    nl_free(context, dataset);
}

const nl_dataset_info *nl_dataset_get_info(const nl_dataset *dataset)
{
    return &dataset->info;
}

/* Where a sample stands: the last shard that begins at or before it, and the row there. */
static const nl_shard *find_sample(const nl_dataset *dataset, int64_t index, int64_t *row)
{
    int64_t sample = dataset->chosen ? dataset->chosen[index] : index;
    int64_t low = 0, high = dataset->shard_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (dataset->shards[middle].first <= sample)
            low = middle;
        else
            high = middle;
    }
    *row = sample - dataset->shards[low].first;
    return &dataset->shards[low];
}

int nl_dataset_label(const nl_dataset *dataset, int64_t index)
{
    int64_t row;
    const nl_shard *shard = find_sample(dataset, index, &row);
    return label_at(shard, row);
}

int64_t nl_dataset_picture(const nl_dataset *dataset, int64_t index)
{
    int64_t row, number = index;
    const nl_shard *shard = find_sample(dataset, index, &row);
    if (shard->pictures)
        memcpy(&number, shard->pictures + row * (int64_t)sizeof(number), sizeof(number));
    return number;
}

void nl_dataset_crop(const nl_dataset *dataset, int64_t index, bool flipped,
                     float crop[NL_CROP_NUMBERS])
{
    int64_t row;
    const nl_shard *shard = find_sample(dataset, index, &row);
    memset(crop, 0, NL_CROP_NUMBERS * sizeof(*crop));
    if (shard->crops)
        crop_at(shard, row, crop);
    crop[NL_CROP_MIRRORED] = flipped;
    if (flipped)
        crop[NL_CROP_RIGHT] = -crop[NL_CROP_RIGHT];
}

const uint8_t *nl_dataset_bytes(const nl_dataset *dataset, int64_t index, bool flipped,
                                int64_t *size)
{
    int64_t row;
    const nl_shard *shard = find_sample(dataset, index, &row);
    bool stored = dataset->info.flips && dataset->info.kind != NL_DATA_PIXELS;
    *size = dataset->sample_bytes / (stored ? 2 : 1);
    return shard->images + row * dataset->sample_bytes + (stored && flipped ? *size : 0);
}

void nl_dataset_ahead(const nl_dataset *dataset, int64_t index, bool flipped)
{
    int64_t size, row;
    const uint8_t *bytes = nl_dataset_bytes(dataset, index, flipped, &size);
    nl_map_ahead(&find_sample(dataset, index, &row)->file->mapping, bytes, size);
}
