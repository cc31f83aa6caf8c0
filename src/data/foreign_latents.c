/* SPDX-License-Identifier: MIT */
/*
 * Latents of the Stable Diffusion VAE, or one like it, that other programs have written, a file for each picture:
 *   fast-DiT: FOLDER/X_features/N.npy, float [1, C, h, w], one draw, times the scale; FOLDER/X_labels/N.npy, int64 [1]
 *   REPA, EDM2: FOLDER/dataset.json, {"labels": [["00000/img-mean-std-00000000.npy", 7], ...]}, each file float [2 C, h, w]:
 *   the posterior's mean and standard deviation, not scaled
 * They become moments; of a draw the mean, with the smallest log variance, so that every draw is the same again.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "nl_latents.h"
#include "nl_npy.h"

enum { MOST_CHANNELS = 256 };

static const char repa_file[] = "dataset.json", npy[] = ".npy";

typedef struct nl_taken {
    char *name; /* of the file below the folder of latents */
    int64_t number;
    int32_t label;
} nl_taken;

typedef struct nl_taking {
    nl_context *context;
    const nl_encode_options *options;
    nl_encode_result *result;
    char *folder, *labels; /* labels: the folder of fast-DiT's, or NULL */
    nl_taken *files;
    int64_t count;
    int classes;
    nl_latents_options out;
    float *room;        /* [NL_LATENTS_SHARD, elements] */
    int32_t *of_shard;  /* [NL_LATENTS_SHARD] */
    char **class_names; /* [classes] */
} nl_taking;

static bool ends(const char *name, const char *text)
{
    size_t n = strlen(name), m = strlen(text);
    return n >= m && !strcmp(name + n - m, text);
}

/* ---- What is there */

static int by_number(const void *one, const void *other)
{
    const nl_taken *a = one, *b = other;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Two folders that differ in their endings alone. */
static nl_status find_features(nl_taking *t, const char *source, bool *found)
{
    static const char features[] = "_features";
    nl_listing folders = {0};
    char *labels = NULL;
    nl_status status;
    NL_TRY(nl_list_folder(t->context, source, 'd', &folders));
    for (int64_t i = 0; i < folders.count && !*found; i++) {
        const char *name = folders.names[i];
        size_t stem = strlen(name) - NL_MIN(strlen(name), sizeof(features) - 1);
        if (!ends(name, features))
            continue;
        NL_TRY(nl_format(t->context, &labels, "%s/%.*s_labels", source, (int)stem, name));
        *found = nl_path_is_folder(labels);
        if (*found) {
            t->labels = labels;
            labels = NULL;
            NL_TRY(nl_path_join(t->context, source, name, &t->folder));
        }
        nl_free(t->context, labels);
        labels = NULL;
    }
cleanup:
    nl_listing_free(t->context, &folders);
    return status;
}

static nl_status list_features(nl_taking *t)
{
    nl_listing files = {0};
    nl_status status;
    NL_TRY(nl_list_folder(t->context, t->folder, 'f', &files));
    NL_TRY(NL_NEW_ZEROS(t->context, "the list of latents", files.count, &t->files));
    for (int64_t i = 0; i < files.count; i++) {
        const char *name = files.names[i];
        size_t digits = strspn(name, "0123456789");
        if (!digits || digits > 15 || strcmp(name + digits, npy))
            NL_TRY(nl_fail(t->context, NL_ERROR_INPUT, "%s/%s: expected files 0.npy, 1.npy, ...",
                           t->folder, name));
        t->files[t->count++] = (nl_taken){.name = files.names[i], .number = atoll(name)};
        files.names[i] = NULL;
    }
    if (t->count)
        qsort(t->files, (size_t)t->count, sizeof(*t->files), by_number);
cleanup:
    nl_listing_free(t->context, &files);
    return status;
}

static nl_status take_pair(nl_taking *t, const char *where, const cJSON *pair)
{
    const char *name = cJSON_IsArray(pair) ? cJSON_GetStringValue(pair->child) : NULL;
    int64_t label;
    if (!name || !nl_json_whole(pair->child->next, &label) || label < 0 ||
        label >= NL_SOURCE_CLASSES || !ends(name, npy) || *name == '/' || strstr(name, ".."))
        return nl_fail(t->context, NL_ERROR_INPUT,
                       "%s: \"labels\": expected [file, class], the file an .npy below the folder, "
                       "the class a whole number from 0 on",
                       where);
    t->files[t->count] = (nl_taken){.number = t->count, .label = (int32_t)label};
    t->classes = NL_MAX(t->classes, (int)label + 1);
    return nl_strdup(t->context, name, &t->files[t->count++].name);
}

/* dataset.json whose first name is one of numpy's. */
static nl_status find_repa(nl_taking *t, const char *source, bool *found)
{
    nl_context *context = t->context;
    nl_mapping file = {0};
    cJSON *root = NULL;
    const cJSON *pair;
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, source, repa_file, &path));
    if (!nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_map_file(context, path, &file));
    NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, &root));
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(root, "labels");
    const cJSON *first = cJSON_IsArray(labels) ? labels->child : NULL;
    const char *name = cJSON_IsArray(first) ? cJSON_GetStringValue(first->child) : NULL;
    *found = name && ends(name, npy);
    if (!*found)
        goto cleanup;
    NL_TRY(nl_strdup(context, source, &t->folder));
    NL_TRY(NL_NEW_ZEROS(context, "the list of latents", cJSON_GetArraySize(labels), &t->files));
    cJSON_ArrayForEach(pair, labels) NL_TRY(take_pair(t, path, pair));
cleanup:
    cJSON_Delete(root);
    nl_unmap(context, &file);
    nl_free(context, path);
    return status;
}

/* ---- Reading one */

/* The latent of file `index` into to[elements]: as a sampler has it, or mean and log variance. to NULL: its shape alone. */
static nl_status read_latent(nl_taking *t, int64_t index, float *to)
{
    nl_context *context = t->context;
    nl_latents_options *o = &t->out;
    nl_npy array = {0};
    char *path = NULL, found[128];
    nl_status status;
    NL_TRY(nl_path_join(context, t->folder, t->files[index].name, &path));
    NL_TRY(nl_npy_open(context, path, &array));
    int first = array.ndim == 4 && array.shape[0] == 1, halves = o->moments ? 2 : 1;
    const int64_t *s = array.shape + first;
    bool floats = array.dtype == NL_F32 || array.dtype == NL_F16 || array.dtype == NL_F64;
    bool fits = floats && array.ndim - first == 3 && s[0] >= halves && s[0] % halves == 0 &&
                s[0] <= MOST_CHANNELS && s[1] > 0 && s[2] > 0 && s[1] <= NL_DATA_MAX_SIDE &&
                s[2] <= NL_DATA_MAX_SIDE;
    if (!fits || (to && (s[0] / halves != o->channels || s[1] != o->height || s[2] != o->width)))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: expected %s of floats%s, found %s %s", path,
                       o->moments ? "mean and deviation [2 C, h, w]" : "a latent [1, C, h, w]",
                       to ? ", of the size of the first" : "", nl_dtype_name(array.dtype),
                       nl_shape_text(array.ndim, array.shape, found, sizeof(found))));
    if (!to) {
        o->channels = (int)(s[0] / halves);
        o->height = (int)s[1];
        o->width = (int)s[2];
        goto cleanup;
    }
    int64_t half = (int64_t)o->channels * o->height * o->width;
    nl_convert_to_float(array.data, array.dtype, half * halves, to);
    for (int64_t i = half; i < half * halves; i++) {
        if (to[i] < 0)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: a deviation is negative", path));
        to[i] = to[i] > 0 ? fminf(fmaxf(2 * logf(to[i]), -30), 20) : -30;
    }
    for (int64_t i = 0; i < half * halves; i++)
        if (!isfinite(to[i]))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: holds NaN or infinity", path));
cleanup:
    nl_npy_close(context, &array);
    nl_free(context, path);
    return status;
}

/* fast-DiT's label of file `index`. */
static nl_status read_label(nl_taking *t, int64_t index)
{
    nl_npy array = {0};
    char *path = NULL;
    nl_status status;
    int64_t label = -1;
    NL_TRY(nl_path_join(t->context, t->labels, t->files[index].name, &path));
    NL_TRY(nl_npy_open(t->context, path, &array));
    int64_t count = 1;
    for (int i = 0; i < array.ndim; i++)
        count *= array.shape[i] == 1 ? 1 : 2;
    if (array.dtype == NL_I64 && count == 1)
        memcpy(&label, array.data, sizeof(label));
    if (label < 0 || label >= NL_SOURCE_CLASSES)
        NL_TRY(nl_fail(t->context, NL_ERROR_INPUT,
                       "%s: expected one label as a whole number (int64) from 0 on", path));
    t->files[index].label = (int32_t)label;
    t->classes = NL_MAX(t->classes, (int)label + 1);
cleanup:
    nl_npy_close(t->context, &array);
    nl_free(t->context, path);
    return status;
}

/* ---- Taking all */

/* Of the autoencoder that was given, or else of the Stable Diffusion VAE. */
static nl_status set_scale(nl_taking *t)
{
    const nl_encode_options *options = t->options;
    nl_latents_options *o = &t->out;
    bool kl = options->vae && nl_vae_get_kind(options->vae) == NL_VAE_KL;
    o->autoencoder = "kl";
    o->factor = kl ? nl_vae_factor(options->vae) : 8;
    o->scale = kl ? options->latent_scale : NL_SD_LATENT_SCALE;
    o->shift = kl ? options->latent_shift : 0;
    o->autoencoder_sha256 = kl ? options->vae_sha256 : NULL;
    int channels = kl ? nl_vae_latent_channels(options->vae) : 4;
    if (channels == o->channels)
        return NL_OK;
    return nl_fail(t->context, NL_ERROR_INPUT,
                   "%s: latents of %d channels, and %s has %d: give the autoencoder that made them "
                   "with --vae",
                   t->folder, o->channels,
                   kl ? "the autoencoder" : "the Stable Diffusion VAE, which is taken for theirs,",
                   channels);
}

static nl_status check_options(const nl_taking *t)
{
    const nl_encode_options *o = t->options;
    const char *what = o->crops > 1                                              ? "--crops"
                       : o->split                                                ? "--split"
                       : o->height && o->height != t->out.height * t->out.factor ? "--size"
                       : o->class_names                                          ? "--class-names"
                                                                                 : NULL;
    if (nl_path_is_within(o->out, o->source))
        return nl_fail(t->context, NL_ERROR_USAGE,
                       "--out %s lies in %s, where the latents are: choose a folder elsewhere",
                       o->out, o->source);
    return what ? nl_fail(t->context, NL_ERROR_USAGE,
                          "%s: %s is for pictures; these are latents already", o->source, what)
                : NL_OK;
}

static nl_status describe(const nl_taking *t, char **about)
{
    char hex[65];
    nl_sha256 sha;
    nl_sha256_init(&sha);
    for (int64_t i = 0; i < t->count; i++) {
        int64_t size;
        char *path = NULL;
        NL_CHECK(nl_path_join(t->context, t->folder, t->files[i].name, &path));
        uint64_t stamp = nl_source_stamp(path, &size);
        nl_sha256_update(&sha, t->files[i].name, strlen(t->files[i].name) + 1);
        nl_sha256_update(&sha, &stamp, sizeof(stamp));
        nl_sha256_update(&sha, &size, sizeof(size));
        nl_free(t->context, path);
    }
    nl_sha256_hex(&sha, hex);
    return nl_format(t->context, about,
                     "{\"latents_sha256\":\"%s\",\"pictures\":%lld,\"unconditional\":%s,"
                     "\"latent_scale\":%.17g,\"latent_shift\":%.17g,\"autoencoder_sha256\":\"%s\"}",
                     hex, (long long)t->count, t->options->unconditional ? "true" : "false",
                     t->out.scale, t->out.shift,
                     t->out.autoencoder_sha256 ? t->out.autoencoder_sha256 : "");
}

static nl_status write_shards(nl_taking *t)
{
    nl_latents_options *o = &t->out;
    int64_t elements = (int64_t)o->channels * o->height * o->width * (o->moments ? 2 : 1);
    NL_CHECK(NL_NEW_ARRAY(t->context, "latents", NL_LATENTS_SHARD * elements, &t->room));
    NL_CHECK(NL_NEW_ARRAY(t->context, "labels", NL_LATENTS_SHARD, &t->of_shard));
    for (int64_t shard = 0; shard < nl_latents_shards(t->count); shard++) {
        int64_t first = shard * NL_LATENTS_SHARD, n = NL_MIN(t->count - first, NL_LATENTS_SHARD);
        for (int64_t i = 0; i < n; i++) {
            NL_CHECK(nl_check_cancelled(t->context));
            NL_CHECK(read_latent(t, first + i, t->room + i * elements));
            if (t->labels && !t->options->unconditional)
                NL_CHECK(read_label(t, first + i));
            t->of_shard[i] = t->options->unconditional ? 0 : t->files[first + i].label;
        }
        NL_CHECK(nl_latents_write_shard(t->context, o, shard, t->room, t->of_shard));
        t->result->count = first + n;
        NL_CHECK(nl_report_progress(
            t->context,
            &(nl_progress){.stage = "encoding", .image = first + n, .images = t->count}));
    }
    return NL_OK;
}

/* Classes "0", "1", ... and what they are called: the same. */
static nl_status finish(nl_taking *t)
{
    nl_status status;
    int classes = t->options->unconditional ? 0 : t->classes;
    NL_TRY(NL_NEW_ZEROS(t->context, "names of classes", classes, &t->class_names));
    for (int i = 0; i < classes; i++)
        NL_TRY(nl_format(t->context, &t->class_names[i], "%d", i));
    t->out.classes = classes;
    t->out.class_ids = t->out.class_names = (const char *const *)t->class_names;
    NL_TRY(nl_latents_finish(t->context, &t->out));
cleanup:
    for (int i = 0; t->class_names && i < classes; i++)
        nl_free(t->context, t->class_names[i]);
    nl_free(t->context, t->class_names);
    return status;
}

static nl_status take_all(nl_taking *t)
{
    nl_context *context = t->context;
    const nl_encode_options *options = t->options;
    nl_latents_options *o = &t->out;
    nl_status status;
    char *about = NULL, *path = NULL;
    bool done = false;
    int lock = -1;
    *o = (nl_latents_options){.out = options->out, .moments = !t->labels, .count = t->count};
    if (!t->count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no latents there", t->folder));
    NL_TRY(read_latent(t, 0, NULL));
    NL_TRY(set_scale(t));
    NL_TRY(check_options(t));
    NL_TRY(describe(t, &about));
    o->about = about;
    nl_log(context, NL_LOG_INFO, "%s: %lld latents of [%d, %d, %d], %s", t->folder,
           (long long)t->count, o->channels, o->height, o->width,
           t->labels ? "one draw of each picture (fast-DiT)" : "mean and deviation (REPA, EDM2)");
    NL_TRY(nl_make_folder(context, options->out));
    NL_TRY(nl_lock_folder(context, options->out, &lock));
    nl_remove_temporaries(context, options->out);
    NL_TRY(nl_path_join(context, options->out, NL_DATASET_FILE, &path));
    if (options->force)
        (void)remove(path);
    NL_TRY(nl_latents_find(context, o, &done));
    if (done) {
        t->result->count = t->result->there = t->count;
        goto cleanup;
    }
    NL_TRY(write_shards(t));
    NL_TRY(finish(t));
cleanup:
    nl_unlock_folder(lock);
    nl_free(context, about);
    nl_free(context, path);
    return status;
}

nl_status nl_encode_latents(nl_context *context, const nl_encode_options *options,
                            nl_encode_result *result, bool *found)
{
    nl_taking t = {.context = context, .options = options, .result = result};
    nl_status status = NL_OK;
    *found = false;
    if (!nl_path_is_folder(options->source))
        return NL_OK;
    NL_TRY(find_features(&t, options->source, found));
    if (*found)
        NL_TRY(list_features(&t));
    else
        NL_TRY(find_repa(&t, options->source, found));
    if (*found)
        NL_TRY(take_all(&t));
cleanup:
    for (int64_t i = 0; i < t.count; i++)
        nl_free(context, t.files[i].name);
    nl_free(context, t.files);
    nl_free(context, t.folder);
    nl_free(context, t.labels);
    nl_free(context, t.room);
    nl_free(context, t.of_shard);
    return status;
}
