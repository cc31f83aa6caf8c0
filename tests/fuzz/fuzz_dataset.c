/* SPDX-License-Identifier: MIT */
/* A data set: dataset.json, a zero byte, and the bytes of a shard that stands for all of them. What opens can be read
 * to the last sample. */
#include "data.h"
#include "nl_fuzz.h"

static void read_all(const nl_dataset *dataset)
{
    nl_context *context = dataset->context;
    float *x;
    if (NL_NEW_ARRAY(context, "a sample", dataset->elements, &x) != NL_OK)
        return;
    for (int64_t i = 0; i < NL_MIN(dataset->info.count, 100); i++) {
        (void)nl_dataset_read(dataset, i, i % 2 && dataset->info.flips, x);
        (void)nl_dataset_label(dataset, i);
    }
    (void)nl_dataset_read(dataset, dataset->info.count - 1, dataset->info.flips, x);
    nl_free(context, x);
}

static nl_status attach(nl_dataset *dataset, nl_shard *shard, const uint8_t *data, int64_t size)
{
    nl_checkpoint *file = NULL;
    nl_status status = nl_checkpoint_open_memory(dataset->context, shard->name, data, size, &file);
    if (status == NL_OK)
        status = nl_dataset_attach(dataset, shard, file);
    if (status != NL_OK)
        nl_checkpoint_close(file);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    int64_t text_size = zero ? zero - data : (int64_t)size;
    nl_dataset *dataset;
    nl_status status = nl_dataset_parse(context, "fuzz", (const char *)data, text_size, &dataset);
    if (status == NL_OK) {
        int64_t rest = zero ? (int64_t)size - text_size - 1 : 0;
        for (int64_t i = 0; status == NL_OK && i < dataset->shard_count; i++)
            status = attach(dataset, &dataset->shards[i], zero ? zero + 1 : data, rest);
        if (status == NL_OK) {
            nl_dataset_count(dataset);
            read_all(dataset);
            status = nl_dataset_hold_out(dataset, 0.5, size % 2);
            if (status == NL_OK)
                read_all(dataset);
            if (status == NL_ERROR_USAGE) /* no class has two pictures */
                status = NL_OK;
        }
        nl_dataset_close(dataset);
    }
    fuzz_end(context, used, status);
    return 0;
}
