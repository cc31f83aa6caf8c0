/* SPDX-License-Identifier: MIT */
/*
 * Shards: safetensors files of a fixed number of pictures of the source, less those that are broken.
 *
 *   images   F16 [n, orientations, K, h, w], as it is and mirrored; or U8 [n, H, W, 3]
 *   labels   I32 [n]
 *   pictures I64 [n], number in the sorted list of the source
 *   crops    F32 [n, 3], what part of its picture each is: NL_CROP_SCALE, _DOWN, _RIGHT; with crops alone
 *
 * Metadata: what they depend on, what was left out, and how many pictures of the source that is. A shard that
 * stands under its name is whole; "shard-00012.part" is the beginning of one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"

nl_status nl_shard_builder_create(const nl_encode_job *job, nl_shard_builder *builder)
{
    nl_context *context = job->context;
    int64_t n = job->shard_pictures;
    *builder = (nl_shard_builder){0};
    NL_CHECK(NL_NEW_SIZED(context, "a shard", n, (size_t)job->sample_bytes, &builder->images));
    NL_CHECK(NL_NEW_ARRAY(context, "a shard's labels", n, &builder->labels));
    NL_CHECK(NL_NEW_ARRAY(context, "a shard's pictures", n, &builder->numbers));
    if (nl_encode_crops(job))
        NL_CHECK(NL_NEW_ARRAY(context, "a shard's crops", n * NL_CROP_STORED, &builder->crops));
    return NL_OK;
}

void nl_shard_builder_free(nl_context *context, nl_shard_builder *builder)
{
    nl_free(context, builder->images);
    nl_free(context, builder->labels);
    nl_free(context, builder->numbers);
    nl_free(context, builder->crops);
    cJSON_Delete(builder->broken);
    *builder = (nl_shard_builder){0};
}

/* samples [count, orientations, K, h, w] -> F16. The log variance is clamped as the public code does it
 * when it draws. */
static nl_status pack(const nl_encode_job *job, const nl_chunk *chunk, float *samples, uint8_t *to)
{
    int64_t planes = chunk->good * job->orientations, count = planes * job->elements;
    for (int64_t i = 0; job->kind == NL_DATA_MOMENTS && i < planes; i++) {
        float *logvar = samples + i * job->elements + job->elements / 2;
        for (int64_t j = 0; j < job->elements / 2; j++) /* NaN stays */
            logvar[j] = logvar[j] < -30 ? -30 : logvar[j] > 20 ? 20 : logvar[j];
    }
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(samples[i]) < 65504)) {
            char *name = NULL;
            int64_t number = chunk->numbers[i / (job->elements * job->orientations)];
            nl_status status = nl_source_name(job->source, nl_encode_source(job, number), &name);
            if (status == NL_OK)
                status = nl_fail(job->context, NL_ERROR_NOT_FINITE,
                                 "%s: the autoencoder makes %g of it, which does not fit 16 bits",
                                 name, (double)samples[i]);
            nl_free(job->context, name);
            return status;
        }
    nl_convert_from_float(samples, count, NL_F16, to);
    return NL_OK;
}

/* Batch by batch, and tells of each: a chunk may take minutes. samples [good, orientations, elements]. */
static nl_status encode(const nl_encode_job *job, const nl_chunk *chunk, float *samples)
{
    const nl_vae *vae = job->options->vae;
    int64_t planes = chunk->good * job->orientations, bytes = 3 * (int64_t)job->height * job->width;
    int64_t batch;
    NL_CHECK(nl_vae_encode_batch(vae, job->height, job->width, &batch));
    for (int64_t first = 0; first < planes; first += batch) {
        NL_CHECK(nl_vae_encode_samples(vae, chunk->rgb + first * bytes,
                                       NL_MIN(batch, planes - first), job->height, job->width,
                                       samples + first * job->elements));
        NL_CHECK(nl_encode_report(job, NL_MIN(first + batch, planes) / job->orientations));
    }
    return NL_OK;
}

nl_status nl_shard_append(const nl_encode_job *job, nl_shard_builder *builder, nl_chunk *chunk)
{
    nl_context *context = job->context;
    uint8_t *to = builder->images + builder->count * job->sample_bytes;
    int64_t planes = chunk->good * job->orientations;
    float *samples = NULL;
    nl_status status = NL_OK;
    if (job->kind == NL_DATA_PIXELS) {
        memcpy(to, chunk->rgb, (size_t)(chunk->good * job->picture_bytes));
    } else if (chunk->good > 0) {
        NL_TRY(NL_NEW_ARRAY(context, "samples", planes * job->elements, &samples));
        NL_TRY(encode(job, chunk, samples));
        NL_TRY(pack(job, chunk, samples, to));
    }
    for (int64_t i = 0; i < chunk->good; i++) {
        if (builder->crops)
            memcpy(builder->crops + builder->count * NL_CROP_STORED, chunk->notes[i].crop,
                   sizeof(chunk->notes[i].crop));
        builder->numbers[builder->count] = chunk->numbers[i];
        builder->labels[builder->count++] =
            job->source->pictures[nl_encode_source(job, chunk->numbers[i])].label;
    }
    builder->done += chunk->count;
    for (cJSON *item; (item = cJSON_DetachItemFromArray(chunk->broken, 0));)
        cJSON_AddItemToArray(builder->broken, item);
cleanup:
    nl_free(context, samples);
    return status;
}

int64_t nl_shard_share(const nl_encode_job *job, int64_t number)
{
    return NL_MIN(job->shard_pictures, job->pictures - number * job->shard_pictures);
}

nl_status nl_shard_path(const nl_encode_job *job, int64_t number, bool part, char **path)
{
    return nl_format(job->context, path, "%s/shard-%05lld.%s", job->options->out, (long long)number,
                     part ? "part" : "safetensors");
}

/* The tensors of a shard of n samples; how many. */
enum { IMAGES, PICTURES, LABELS, CROPS, TENSORS };
static int describe(const nl_encode_job *job, int64_t n, nl_tensor_header tensors[TENSORS])
{
    tensors[IMAGES] = (nl_tensor_header){
        NL_SHARD_IMAGES, NL_F16, 5, {n, job->orientations, job->channels, job->rows, job->columns}};
    if (job->kind == NL_DATA_PIXELS)
        tensors[IMAGES] =
            (nl_tensor_header){NL_SHARD_IMAGES, NL_U8, 4, {n, job->height, job->width, 3}};
    tensors[PICTURES] = (nl_tensor_header){NL_SHARD_PICTURES, NL_I64, 1, {n}};
    tensors[LABELS] = (nl_tensor_header){NL_SHARD_LABELS, NL_I32, 1, {n}};
    tensors[CROPS] = (nl_tensor_header){NL_SHARD_CROPS, NL_F32, 2, {n, NL_CROP_STORED}};
    return nl_encode_crops(job) ? TENSORS : CROPS;
}

nl_status nl_shard_write(const nl_encode_job *job, int64_t number, const nl_shard_builder *builder)
{
    nl_context *context = job->context;
    nl_safetensors_writer *writer = NULL;
    nl_tensor_header tensors[TENSORS];
    int64_t n = builder->count;
    bool whole = builder->done == nl_shard_share(job, number);
    char *path = NULL, *broken = nl_json_print(builder->broken, false), done[32];
    nl_status status;
    if (!broken)
        return nl_fail(context, NL_ERROR_MEMORY, "no memory for the list of broken pictures");
    snprintf(done, sizeof(done), "%lld", (long long)builder->done);
    const char *metadata[] = {
        NL_SHARD_ENCODING, job->encoding, NL_SHARD_SKIPPED, broken, NL_SHARD_DONE, done, NULL};
    int count = describe(job, n, tensors);
    NL_TRY(nl_shard_path(job, number, !whole, &path));
    NL_TRY(nl_safetensors_create(context, path, true, metadata, tensors, count, &writer));
    NL_TRY(nl_safetensors_write(writer, builder->images, n * job->sample_bytes));
    NL_TRY(nl_safetensors_write(writer, builder->numbers, n * (int64_t)sizeof(int64_t)));
    NL_TRY(nl_safetensors_write(writer, builder->labels, n * (int64_t)sizeof(int32_t)));
    if (builder->crops)
        NL_TRY(nl_safetensors_write(writer, builder->crops,
                                    n * NL_CROP_STORED * (int64_t)sizeof(float)));
    NL_TRY(nl_safetensors_commit(&writer));
    if (whole) {
        nl_free(context, path);
        path = NULL;
        NL_TRY(nl_shard_path(job, number, true, &path));
        (void)remove(path);
    }
cleanup:
    nl_safetensors_abort(&writer);
    cJSON_free(broken);
    nl_free(context, path);
    return status;
}

static nl_status damaged(const nl_encode_job *job, const char *path)
{
    return nl_fail(job->context, NL_ERROR_INPUT, "%s: damaged: delete it, and it is made again",
                   path);
}

static nl_status read_broken(const nl_encode_job *job, const nl_checkpoint *file, cJSON **broken)
{
    nl_context *context = job->context;
    const char *text = nl_checkpoint_metadata(file, NL_SHARD_SKIPPED);
    const cJSON *item;
    NL_CHECK(
        nl_json_parse(context, file->path, text ? text : "[]", text ? strlen(text) : 2, broken));
    bool good = cJSON_IsArray(*broken);
    cJSON_ArrayForEach(item, *broken)
    {
        good = good && cJSON_IsArray(item) && cJSON_IsString(item->child) && item->child->next &&
               cJSON_IsString(item->child->next);
        if (good && job->options->strict)
            return nl_fail(context, NL_ERROR_INPUT, "left out earlier: %s",
                           item->child->next->valuestring);
    }
    return good ? NL_OK : damaged(job, file->path);
}

/* Opens what an earlier run has written, of this encoding; *file NULL: it is not there. broken: allocated. */
static nl_status open_earlier(const nl_encode_job *job, int64_t number, bool part,
                              nl_checkpoint **file, int64_t *done, cJSON **broken)
{
    nl_context *context = job->context;
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_shard_path(job, number, part, &path));
    if (job->options->force || !nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_checkpoint_open(context, path, file));
    NL_TRY(nl_encoding_compare(job, path, nl_checkpoint_metadata(*file, NL_SHARD_ENCODING)));
    const char *text = nl_checkpoint_metadata(*file, NL_SHARD_DONE);
    *done = text ? strtoll(text, NULL, 10) : 0;
    int64_t share = nl_shard_share(job, number);
    if (*done < 1 || *done > share || (!part && *done != share))
        NL_TRY(damaged(job, path));
    NL_TRY(read_broken(job, *file, broken));
cleanup:
    nl_free(context, path);
    return status;
}

/* The tensors are as they were described, with as many samples as there must be. */
static nl_status check_tensors(const nl_encode_job *job, const nl_checkpoint *file, int64_t samples,
                               const nl_entry *entries[TENSORS])
{
    nl_tensor_header tensors[TENSORS];
    int count = describe(job, samples, tensors);
    for (int i = 0; i < count; i++) {
        entries[i] = nl_checkpoint_find(file, tensors[i].name);
        if (!entries[i] || entries[i]->dtype != tensors[i].dtype ||
            entries[i]->ndim != tensors[i].ndim ||
            memcmp(entries[i]->shape, tensors[i].shape,
                   (size_t)tensors[i].ndim * sizeof(int64_t)) != 0)
            return damaged(job, file->path);
    }
    return NL_OK;
}

nl_status nl_shard_find(const nl_encode_job *job, int64_t number, int64_t *count, cJSON **broken)
{
    nl_checkpoint *file = NULL;
    const nl_entry *entries[TENSORS];
    int64_t done = 0;
    nl_status status;
    *count = -1;
    *broken = NULL;
    NL_TRY(open_earlier(job, number, false, &file, &done, broken));
    if (!file)
        goto cleanup;
    NL_TRY(check_tensors(job, file, done - cJSON_GetArraySize(*broken), entries));
    *count = done - cJSON_GetArraySize(*broken);
cleanup:
    if (status != NL_OK) {
        cJSON_Delete(*broken);
        *broken = NULL;
    }
    nl_checkpoint_close(file);
    return status;
}

nl_status nl_shard_begin(const nl_encode_job *job, int64_t number, nl_shard_builder *builder)
{
    nl_context *context = job->context;
    nl_checkpoint *file = NULL;
    const nl_entry *entries[TENSORS];
    cJSON *broken = NULL;
    int64_t done = 0, first = number * job->shard_pictures;
    nl_status status;
    builder->count = builder->done = 0;
    cJSON_Delete(builder->broken);
    builder->broken = cJSON_CreateArray();
    if (!builder->broken)
        return nl_fail(context, NL_ERROR_MEMORY, "no memory for a list");
    NL_TRY(open_earlier(job, number, true, &file, &done, &broken));
    if (!file)
        goto cleanup;
    int64_t count = done - cJSON_GetArraySize(broken);
    NL_TRY(check_tensors(job, file, count, entries));
    nl_entry_copy(entries[IMAGES], builder->images);
    nl_entry_copy(entries[PICTURES], builder->numbers);
    nl_entry_copy(entries[LABELS], builder->labels);
    if (builder->crops)
        nl_entry_copy(entries[CROPS], builder->crops);
    for (int64_t i = 0; i < count; i++)
        if (builder->numbers[i] < first || builder->numbers[i] >= first + done)
            NL_TRY(damaged(job, file->path));
    cJSON_Delete(builder->broken);
    builder->broken = broken;
    broken = NULL;
    builder->count = count;
    builder->done = done;
cleanup:
    cJSON_Delete(broken);
    nl_checkpoint_close(file);
    return status;
}
