/* SPDX-License-Identifier: MIT */
/*
 * From a source of pictures to a data set. The work is cut into shards of a fixed range of the source; a run
 * that was stopped resumes with the first shard that is not there, or with the part of it that is. Within a
 * shard a thread reads the next chunk of pictures while the device encodes the present one.
 */
#include <stdio.h>
#include <string.h>

#include "encode.h"
#include "nl_failure.h"
#include "nl_thread.h"

enum {
    SHARD_BYTES = 64 << 20,
    MAX_SHARD = 8192, /* pictures */
    CHUNK_BYTES = 32 << 20,
    MAX_CHUNK = 256,        /* pictures */
    MAX_ENCODED_CHUNK = 32, /* the same with an autoencoder: what a run that is stopped loses */
    KEEP_SECONDS = 30,
    DEFAULT_SIDE = 256
};

/* ---- What is to be done */

static nl_status plan_sizes(nl_encode_job *job)
{
    const nl_encode_options *o = job->options;
    const nl_source *source = job->source;
    job->height = o->height ? o->height : source->height ? source->height : DEFAULT_SIDE;
    job->width = o->width ? o->width : source->width ? source->width : DEFAULT_SIDE;
    int factor = o->vae ? nl_vae_factor(o->vae) : 1;
    if (job->height > NL_DATA_MAX_SIDE || job->width > NL_DATA_MAX_SIDE || job->height % factor ||
        job->width % factor)
        return nl_fail(
            job->context, NL_ERROR_USAGE,
            "pictures of %d x %d: expected multiples of %d, the autoencoder's factor, up to "
            "%d: choose with --size",
            job->width, job->height, factor, NL_DATA_MAX_SIDE);
    nl_vae_kind kind = o->vae ? nl_vae_get_kind(o->vae) : NL_VAE_NONE;
    job->kind = kind == NL_VAE_KL     ? NL_DATA_MOMENTS
                : kind == NL_VAE_TINY ? NL_DATA_LATENTS
                                      : NL_DATA_PIXELS;
    job->channels = o->vae ? nl_vae_sample_channels(o->vae) : 3;
    job->rows = job->height / factor;
    job->columns = job->width / factor;
    job->elements = job->channels * job->rows * job->columns;
    job->orientations = job->kind == NL_DATA_PIXELS || o->no_flips ? 1 : 2;
    job->picture_bytes = 3 * (int64_t)job->height * job->width * job->orientations;
    job->sample_bytes = job->kind == NL_DATA_PIXELS
                            ? job->picture_bytes
                            : job->elements * job->orientations * (int64_t)sizeof(uint16_t);
    job->shard_pictures = o->shard_pictures
                              ? o->shard_pictures
                              : NL_MAX(1, NL_MIN(SHARD_BYTES / job->sample_bytes, MAX_SHARD));
    job->pictures = source->count * NL_MAX(o->crops, 1);
    job->shard_count = (job->pictures + job->shard_pictures - 1) / job->shard_pictures;
    int64_t most = o->vae ? MAX_ENCODED_CHUNK : MAX_CHUNK;
    job->chunk_pictures = NL_MAX(1, NL_MIN(CHUNK_BYTES / job->picture_bytes, most));
    if (o->chunk_pictures)
        job->chunk_pictures = o->chunk_pictures;
    job->chunk_pictures = NL_MIN(job->chunk_pictures, job->shard_pictures);
    return NL_OK;
}

/* ---- A thread that reads ahead */

typedef struct nl_reader {
    const nl_encode_job *job;
    nl_chunk chunks[2];
    int current; /* the one that was read last, or is being read */
    pthread_t thread;
    bool running;
    nl_failure failure; /* of the thread */
} nl_reader;

static void *run_reader(void *user)
{
    nl_reader *reader = user;
    nl_status status = nl_chunk_read(reader->job, &reader->chunks[reader->current]);
    nl_failure_keep(reader->job->context, status, &reader->failure);
    return NULL;
}

/* Begins to read at most `count` pictures from `first` into the other chunk. */
static nl_status start_reading(nl_reader *reader, int64_t first, int64_t count)
{
    reader->current = 1 - reader->current;
    nl_chunk *chunk = &reader->chunks[reader->current];
    chunk->first = first;
    chunk->count = NL_MIN(count, reader->job->chunk_pictures);
    int error = nl_start_thread(&reader->thread, run_reader, reader);
    reader->running = error == 0;
    return error ? nl_fail(reader->job->context, NL_ERROR_MEMORY,
                           "no thread for reading pictures: %s", strerror(error))
                 : NL_OK;
}

static nl_status finish_reading(nl_reader *reader, nl_chunk **chunk)
{
    if (reader->running)
        pthread_join(reader->thread, NULL);
    reader->running = false;
    *chunk = &reader->chunks[reader->current];
    return nl_failure_tell(reader->job->context, &reader->failure);
}

/* After another failure, which is the one that is told, whatever the pictures under way come to. */
static void drop_reading(nl_reader *reader, nl_status status)
{
    nl_failure failure;
    nl_chunk *chunk;
    nl_failure_keep(reader->job->context, status, &failure);
    (void)finish_reading(reader, &chunk);
    (void)nl_failure_tell(reader->job->context, &failure);
}

/* ---- Shards */

nl_status nl_encode_report(const nl_encode_job *job, int64_t more)
{
    int64_t done = job->result->count + job->result->skipped + more;
    return nl_report_progress(
        job->context, &(nl_progress){.stage = "encoding", .image = done, .images = job->pictures});
}

/* Reads and encodes what the shard lacks. What was done is kept from time to time, and when it is stopped. */
static nl_status fill_shard(const nl_encode_job *job, nl_reader *reader, nl_shard_builder *builder,
                            int64_t number)
{
    int64_t first = number * job->shard_pictures, share = nl_shard_share(job, number);
    double kept = nl_seconds();
    nl_chunk *chunk;
    nl_status status = NL_OK;
    if (builder->done < share)
        NL_TRY(start_reading(reader, first + builder->done, share - builder->done));
    while (builder->done < share) {
        int64_t after = builder->done + reader->chunks[reader->current].count;
        NL_TRY(finish_reading(reader, &chunk));
        NL_TRY(nl_check_cancelled(job->context));
        if (after < share)
            NL_TRY(start_reading(reader, first + after, share - after));
        int64_t good = chunk->good;
        NL_TRY(nl_shard_append(job, builder, chunk));
        job->result->count += good;
        job->result->skipped += chunk->count - good;
        NL_TRY(nl_encode_report(job, 0));
        if (builder->done < share && nl_seconds() - kept > KEEP_SECONDS) {
            NL_TRY(nl_shard_write(job, number, builder));
            kept = nl_seconds();
        }
    }
cleanup:
    if (reader->running)
        drop_reading(reader, status);
    return status;
}

static nl_status make_shard(const nl_encode_job *job, nl_reader *reader, nl_shard_builder *builder,
                            int64_t number)
{
    nl_status status;
    NL_TRY(nl_shard_begin(job, number, builder));
    job->result->there += builder->count;
    job->result->count += builder->count;
    job->result->skipped += builder->done - builder->count;
    NL_TRY(nl_encode_report(job, 0));
    status = fill_shard(job, reader, builder, number);
    if (status == NL_OK || (status == NL_CANCELLED && builder->done > 0)) {
        nl_status written = nl_shard_write(job, number, builder);
        status = written == NL_OK ? status : written;
    }
cleanup:
    return status;
}

/* counts [shard_count]; skipped: an array. */
static nl_status make_shards(const nl_encode_job *job, int64_t *counts, cJSON *skipped)
{
    nl_context *context = job->context;
    nl_reader reader = {.job = job};
    nl_shard_builder builder = {0};
    cJSON *found = NULL;
    nl_status status;
    NL_TRY(nl_chunk_create(job, &reader.chunks[0]));
    NL_TRY(nl_chunk_create(job, &reader.chunks[1]));
    NL_TRY(nl_shard_builder_create(job, &builder));
    for (int64_t i = 0; i < job->shard_count; i++) {
        NL_TRY(nl_shard_find(job, i, &counts[i], &found));
        cJSON *broken = found;
        if (found) {
            job->result->there += counts[i];
            job->result->count += counts[i];
            job->result->skipped += cJSON_GetArraySize(found);
            NL_TRY(nl_encode_report(job, 0));
        } else {
            NL_TRY(make_shard(job, &reader, &builder, i));
            counts[i] = builder.count;
            broken = builder.broken;
        }
        for (cJSON *item; (item = cJSON_DetachItemFromArray(broken, 0));)
            cJSON_AddItemToArray(skipped, item);
        cJSON_Delete(found);
        found = NULL;
    }
cleanup:
    cJSON_Delete(found);
    nl_chunk_free(context, &reader.chunks[0]);
    nl_chunk_free(context, &reader.chunks[1]);
    nl_shard_builder_free(context, &builder);
    return status;
}

/* The folder is ours alone. With force: what would contradict the new shards goes first. */
static nl_status open_folder(const nl_encode_job *job, int *lock)
{
    nl_context *context = job->context;
    char *path = NULL;
    nl_status status;
    NL_TRY(nl_make_folder(context, job->options->out));
    NL_TRY(nl_lock_folder(context, job->options->out, lock));
    nl_remove_temporaries(context, job->options->out);
    if (!job->options->force)
        goto cleanup;
    NL_TRY(nl_path_join(context, job->options->out, NL_DATASET_FILE, &path));
    (void)remove(path);
    bool found = true;
    for (int64_t i = 0; i < job->shard_count || found; i++) {
        found = false;
        for (int part = 0; part < 2; part++) {
            nl_free(context, path);
            path = NULL;
            NL_TRY(nl_shard_path(job, i, part, &path));
            found = remove(path) == 0 || found;
        }
    }
cleanup:
    nl_free(context, path);
    return status;
}

static nl_status read_class_names(nl_encode_job *job)
{
    nl_context *context = job->context;
    nl_mapping file = {0};
    nl_status status;
    NL_TRY(nl_map_file(context, job->options->class_names, &file));
    NL_TRY(NL_NEW_ZEROS(context, "names of classes", job->source->classes, &job->class_names));
    NL_TRY(nl_class_names_parse(job, (const char *)file.data, (size_t)file.size, job->class_names));
cleanup:
    nl_unmap(context, &file);
    return status;
}

/* For the shards that are not there: samples, their numbers and labels. */
static nl_status check_space(const nl_encode_job *job)
{
    nl_context *context = job->context;
    char *path = NULL;
    int64_t pictures = job->pictures, bytes;
    nl_status status = NL_OK;
    for (int64_t i = 0; i < job->shard_count; i++) {
        NL_TRY(nl_shard_path(job, i, false, &path));
        if (!nl_path_exists(path)) /* nor are those behind it: they are made in their order */
            break;
        pictures -= nl_shard_share(job, i);
        nl_free(context, path);
        path = NULL;
    }
    if (!nl_mul_size(pictures, job->sample_bytes + (int64_t)(sizeof(int64_t) + sizeof(int32_t)),
                     &bytes))
        bytes = INT64_MAX;
    status = nl_check_space(context, job->options->out, bytes);
cleanup:
    nl_free(context, path);
    return status;
}

nl_status nl_encode_dataset(nl_context *context, const nl_encode_options *options,
                            nl_encode_result *result)
{
    nl_encode_job job = {.context = context, .options = options, .result = result};
    int lock = -1;
    cJSON *skipped = cJSON_CreateArray();
    int64_t *counts = NULL;
    nl_status status;
    bool latents;
    *result = (nl_encode_result){0};
    if (options->unconditional && (options->class_names || options->empty_classes))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--unconditional: without classes there is no %s",
                       options->class_names ? "--class-names" : "--empty-classes"));
    NL_TRY(nl_encode_latents(context, options, result, &latents));
    if (latents)
        goto cleanup;
    NL_TRY(nl_source_open(context, options->source,
                          &(nl_source_options){.split = options->split,
                                               .unconditional = options->unconditional,
                                               .empty_classes = options->empty_classes},
                          &job.source));
    if (job.source->pictures && nl_path_is_within(options->out, job.source->path))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--out %s lies in %s, where the pictures are: choose a folder elsewhere",
                       options->out, job.source->path));
    NL_TRY(plan_sizes(&job));
    nl_log(context, NL_LOG_INFO, "%s: %lld %s, %s, %d %s; to %s of [%d, %d, %d]", job.source->path,
           (long long)job.source->count, nl_plural(job.source->count, "picture", "pictures"),
           job.source->format, job.source->classes,
           nl_plural(job.source->classes, "class", "classes"), nl_data_kind_names[job.kind],
           (int)job.channels, (int)job.rows, (int)job.columns);
    NL_TRY(nl_encoding_text(&job, &job.encoding));
    if (options->class_names)
        NL_TRY(read_class_names(&job));
    NL_TRY(open_folder(&job, &lock));
    NL_TRY(check_space(&job));
    NL_TRY(NL_NEW_ARRAY(context, "counts of shards", job.shard_count, &counts));
    if (!skipped)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for a list"));
    NL_TRY(make_shards(&job, counts, skipped));
    if (result->count == 0)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no picture can be read (%lld tried)",
                       job.source->path, (long long)job.source->count));
    NL_TRY(nl_manifest_write(&job, counts, skipped));
    if (result->limited > 0)
        nl_log(
            context, NL_LOG_INFO,
            "%lld %s larger than asked for: the picture is too small, and a part of half the side "
            "would be enlarged more than 1.5 times",
            (long long)result->limited, nl_plural(result->limited, "part is", "parts are"));
cleanup:
    cJSON_Delete(skipped);
    nl_free(context, counts);
    nl_free(context, job.encoding);
    for (int i = 0; job.class_names && i < job.source->classes; i++)
        nl_free(context, job.class_names[i]);
    nl_free(context, job.class_names);
    nl_source_close(job.source);
    nl_unlock_folder(lock);
    return status;
}
