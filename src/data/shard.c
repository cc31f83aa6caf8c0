/*
 * Shards: safetensors files of a fixed number of pictures of the source, less those that are broken.
 *
 *   images   F16 [n, orientations, K, h, w], as it is and mirrored; or U8 [n, H, W, 3]
 *   labels   I32 [n]
 *   pictures I64 [n], number in the sorted list of the source
 *
 * Metadata: what they depend on, and what was left out. A shard that stands under its name is whole.
 */
#include <math.h>
#include <string.h>

#include "encode.h"

nl_status nl_shard_builder_create(const nl_encode_job *job, nl_shard_builder *builder)
{
    nl_context *context = job->context;
    int64_t n = job->shard_pictures;
    nl_status status;
    void *memory;
    *builder = (nl_shard_builder){0};
    NL_TRY(nl_alloc_array(context, "a shard", n, (size_t)job->sample_bytes, &memory));
    builder->images = memory;
    NL_TRY(nl_alloc_array(context, "a shard's labels", n, sizeof(int32_t), &memory));
    builder->labels = memory;
    NL_TRY(nl_alloc_array(context, "a shard's pictures", n, sizeof(int64_t), &memory));
    builder->numbers = memory;
    builder->broken = cJSON_CreateArray();
    if (!builder->broken)
        status = nl_fail(context, NL_ERROR_MEMORY, "no memory for a list");
cleanup:
    return status;
}

void nl_shard_builder_free(nl_context *context, nl_shard_builder *builder)
{
    nl_free(context, builder->images);
    nl_free(context, builder->labels);
    nl_free(context, builder->numbers);
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
            nl_status status = nl_source_name(job->source, number, &name);
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

nl_status nl_shard_append(const nl_encode_job *job, nl_shard_builder *builder, nl_chunk *chunk)
{
    nl_context *context = job->context;
    uint8_t *to = builder->images + builder->count * job->sample_bytes;
    int64_t planes = chunk->good * job->orientations;
    void *samples = NULL;
    nl_status status = NL_OK;
    if (job->kind == NL_DATA_PIXELS) {
        memcpy(to, chunk->rgb, (size_t)(chunk->good * job->picture_bytes));
    } else if (chunk->good > 0) {
        NL_TRY(nl_alloc_array(context, "samples", planes * job->elements, sizeof(float), &samples));
        NL_TRY(nl_vae_encode_samples(job->options->vae, chunk->rgb, planes, job->height, job->width,
                                     samples));
        NL_TRY(pack(job, chunk, samples, to));
    }
    for (int64_t i = 0; i < chunk->good; i++) {
        builder->numbers[builder->count] = chunk->numbers[i];
        builder->labels[builder->count++] = job->source->pictures[chunk->numbers[i]].label;
    }
    for (cJSON *item; (item = cJSON_DetachItemFromArray(chunk->broken, 0));)
        cJSON_AddItemToArray(builder->broken, item);
cleanup:
    nl_free(context, samples);
    return status;
}

nl_status nl_shard_path(const nl_encode_job *job, int64_t number, char **path)
{
    return nl_format(job->context, path, "%s/shard-%05lld.safetensors", job->options->out,
                     (long long)number);
}

nl_status nl_shard_write(const nl_encode_job *job, int64_t number, const nl_shard_builder *builder)
{
    nl_context *context = job->context;
    nl_safetensors_writer *writer = NULL;
    int64_t n = builder->count;
    bool pixels = job->kind == NL_DATA_PIXELS;
    nl_tensor_header tensors[] = {
        {NL_SHARD_IMAGES,
         NL_F16,
         5,
         {n, job->orientations, job->channels, job->rows, job->columns}},
        {NL_SHARD_PICTURES, NL_I64, 1, {n}},
        {NL_SHARD_LABELS, NL_I32, 1, {n}},
    };
    if (pixels)
        tensors[0] = (nl_tensor_header){NL_SHARD_IMAGES, NL_U8, 4, {n, job->height, job->width, 3}};
    char *path = NULL, *broken = cJSON_PrintUnformatted(builder->broken);
    nl_status status;
    if (!broken)
        return nl_fail(context, NL_ERROR_MEMORY, "no memory for the list of broken pictures");
    const char *metadata[] = {NL_SHARD_ENCODING, job->encoding, NL_SHARD_SKIPPED, broken, NULL};
    NL_TRY(nl_shard_path(job, number, &path));
    NL_TRY(
        nl_safetensors_create(context, path, true, metadata, tensors, NL_COUNT(tensors), &writer));
    NL_TRY(nl_safetensors_write(writer, builder->images, n * job->sample_bytes));
    NL_TRY(nl_safetensors_write(writer, builder->numbers, n * (int64_t)sizeof(int64_t)));
    NL_TRY(nl_safetensors_write(writer, builder->labels, n * (int64_t)sizeof(int32_t)));
    NL_TRY(nl_safetensors_commit(&writer));
cleanup:
    nl_safetensors_abort(&writer);
    cJSON_free(broken);
    nl_free(context, path);
    return status;
}

static nl_status read_broken(const nl_encode_job *job, const nl_checkpoint *file, cJSON **broken)
{
    nl_context *context = job->context;
    const char *text = nl_checkpoint_metadata(file, NL_SHARD_SKIPPED);
    const cJSON *item;
    nl_status status =
        nl_json_parse(context, file->path, text ? text : "[]", text ? strlen(text) : 2, broken);
    if (status != NL_OK)
        return status;
    bool good = cJSON_IsArray(*broken);
    cJSON_ArrayForEach(item, *broken)
    {
        good = good && cJSON_IsArray(item) && cJSON_IsString(item->child) && item->child->next &&
               cJSON_IsString(item->child->next);
        if (good && job->options->strict)
            return nl_fail(context, NL_ERROR_INPUT, "left out earlier: %s",
                           item->child->next->valuestring);
    }
    return good ? NL_OK
                : nl_fail(context, NL_ERROR_INPUT, "%s: damaged: delete it, and it is made again",
                          file->path);
}

nl_status nl_shard_find(const nl_encode_job *job, int64_t number, int64_t *count, cJSON **broken)
{
    nl_context *context = job->context;
    nl_checkpoint *file = NULL;
    char *path = NULL;
    nl_status status;
    *count = -1;
    *broken = NULL;
    NL_TRY(nl_shard_path(job, number, &path));
    if (job->options->force || !nl_path_exists(path))
        goto cleanup;
    NL_TRY(nl_checkpoint_open(context, path, &file));
    NL_TRY(nl_encoding_compare(job, path, nl_checkpoint_metadata(file, NL_SHARD_ENCODING)));
    const nl_entry *labels = nl_checkpoint_find(file, NL_SHARD_LABELS);
    if (!labels || labels->ndim != 1 || labels->shape[0] > job->shard_pictures)
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT, "%s: damaged: delete it, and it is made again", path));
    NL_TRY(read_broken(job, file, broken));
    *count = labels->shape[0];
cleanup:
    if (status != NL_OK) {
        cJSON_Delete(*broken);
        *broken = NULL;
    }
    nl_checkpoint_close(file);
    nl_free(context, path);
    return status;
}
