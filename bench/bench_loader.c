/* SPDX-License-Identifier: MIT */
/*
 * Batches a second of the loader.
 *
 *   nl_bench_loader DATA [SECONDS]    a data set; made-up latents of 4 x 32 x 32 in a temporary folder
 *   nl_bench_loader                   where none is given
 *
 * Twice: made when asked for, which is what one thread can do, and with batches made ahead and a caller
 * that only takes them. Batches of 256, shuffled, mirrored.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nl_checkpoint.h"
#include "nl_data.h"

enum { BATCH = 256, SHARDS = 4, SHARD = 4096, CHANNELS = 4, SIDE = 32 };

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static nl_status write_shard(nl_context *context, const char *path, const uint16_t *images,
                             const int32_t *labels)
{
    nl_tensor_header tensors[] = {
        {"images", NL_F16, 5, {SHARD, 2, CHANNELS, SIDE, SIDE}},
        {"labels", NL_I32, 1, {SHARD}},
    };
    nl_safetensors_writer *writer = NULL;
    nl_status status;
    NL_TRY(nl_safetensors_create(context, path, false, NULL, tensors, 2, &writer));
    NL_TRY(nl_safetensors_write(writer, images, INT64_C(4) * SHARD * CHANNELS * SIDE * SIDE));
    NL_TRY(nl_safetensors_write(writer, labels, SHARD * (int64_t)sizeof(*labels)));
    NL_TRY(nl_safetensors_commit(&writer));
cleanup:
    nl_safetensors_abort(&writer);
    return status;
}

/* 268 MB of numbers of the size of latents. */
static nl_status make_data(nl_context *context, const char *folder)
{
    int64_t count = INT64_C(2) * SHARD * CHANNELS * SIDE * SIDE;
    int32_t *labels = NULL;
    uint16_t *images = NULL;
    char path[256], text[1024];
    int length = 0;
    nl_status status;
    NL_TRY(NL_NEW_ARRAY(context, "a shard", count, &images));
    NL_TRY(NL_NEW_ZEROS(context, "labels", SHARD, &labels));
    for (int64_t i = 0; i < count; i++)
        images[i] = nl_float_to_f16((float)(i * 2654435761 % 4001) / 1000 - 2);
    length += snprintf(
        text, sizeof(text),
        "{\"format\": \"nalagen dataset\", \"version\": 1, \"kind\": \"latents\", \"count\": %d, "
        "\"image_size\": [%d, %d], \"shape\": [%d, %d, %d], \"flips\": true, "
        "\"autoencoder\": \"tiny\", \"classes\": [[\"a\", \"a\"]], \"shards\": [",
        SHARDS * SHARD, 8 * SIDE, 8 * SIDE, CHANNELS, SIDE, SIDE);
    for (int i = 0; i < SHARDS; i++) {
        snprintf(path, sizeof(path), "%s/%d.safetensors", folder, i);
        NL_TRY(write_shard(context, path, images, labels));
        length += snprintf(text + length, sizeof(text) - (size_t)length,
                           "%s[\"%d.safetensors\", %d]", i ? ", " : "", i, SHARD);
    }
    length += snprintf(text + length, sizeof(text) - (size_t)length, "]}");
    snprintf(path, sizeof(path), "%s/dataset.json", folder);
    NL_TRY(nl_write_file(context, path, false, text, (size_t)length));
cleanup:
    nl_free(context, images);
    nl_free(context, labels);
    return status;
}

static void remove_data(const char *folder)
{
    char path[256];
    for (int i = 0; i <= SHARDS; i++) {
        if (i < SHARDS)
            snprintf(path, sizeof(path), "%s/%d.safetensors", folder, i);
        else
            snprintf(path, sizeof(path), "%s/dataset.json", folder);
        unlink(path);
    }
    rmdir(folder);
}

static nl_status measure(const nl_dataset *dataset, int prefetch, double limit)
{
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    nl_loader_options options = {
        .batch = BATCH, .flip = info->flips, .label_dropout = 0.1, .prefetch = prefetch};
    nl_loader *loader = NULL;
    nl_batch batch;
    int64_t warm = (info->count + BATCH - 1) / BATCH, count = 0;
    nl_status status;
    NL_TRY(nl_loader_create(dataset, &options, &loader));
    for (int64_t i = 0; i < NL_MIN(warm, 1000); i++) /* one epoch: into the page cache */
        NL_TRY(nl_loader_next(loader, &batch));
    double began = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), passed;
    do {
        NL_TRY(nl_loader_next(loader, &batch));
        count += batch.size;
        passed = seconds(CLOCK_MONOTONIC) - began;
    } while (passed < limit);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    double bytes = (double)info->sample_channels * info->height * info->width * 4;
    printf("%d ahead: %8.0f samples/s, %8.0f for a second of one core, %5.2f GB/s of floats\n",
           prefetch, (double)count / passed, (double)count / cpu,
           (double)count * bytes / passed * 1e-9);
cleanup:
    nl_loader_destroy(loader);
    return status;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/nalagen_bench_XXXXXX";
    const char *path = argc > 1 ? argv[1] : mkdtemp(folder);
    double limit = argc > 2 ? atof(argv[2]) : 3;
    nl_context *context = NULL;
    nl_dataset *dataset = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_core_context_create(NULL, &context));
    if (argc < 2)
        NL_TRY(path ? make_data(context, path)
                    : nl_fail(context, NL_ERROR_WRITE, "no temporary folder"));
    NL_TRY(nl_dataset_open(context, path, &dataset));
    const nl_dataset_info *info = nl_dataset_get_info(dataset);
    printf("%lld samples of %d x %d x %d\n", (long long)info->count, info->sample_channels,
           info->height, info->width);
    NL_TRY(measure(dataset, 0, limit));
    NL_TRY(measure(dataset, 4, limit));
cleanup:
    if (status != NL_OK && context)
        fprintf(stderr, "%s\n", nl_last_error(context));
    nl_dataset_close(dataset);
    nl_core_context_destroy(context);
    if (argc < 2 && path)
        remove_data(path);
    return status;
}
