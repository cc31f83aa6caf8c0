/* SPDX-License-Identifier: MIT */
/*
 * Batches in a ring of slots: batch k stands in slot k mod slots. The one handed out last belongs to the
 * caller, those behind it are ready, and a thread fills the rest.
 */
#include <string.h>

#include "data.h"
#include "nl_failure.h"
#include "nl_random.h"
#include "nl_thread.h"

enum { ALIGNMENT = 64, MAX_PREFETCH = 1024 };

/* Where the parts of a slot begin, in bytes. */
typedef struct nl_slot_layout {
    int64_t x, indices, samples, labels, flipped, crops, size;
} nl_slot_layout;

struct nl_loader {
    const nl_dataset *dataset;
    nl_loader_options options;
    nl_context *context;
    int64_t count, size; /* samples drawn from; of one batch of this rank */
    int slots;
    nl_slot_layout layout;
    uint8_t *memory;
    void *owned; /* memory, when it is ours */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    int64_t made, given; /* batches since the beginning */
    nl_failure failed;   /* of batch `made`; the thread waits until it was reported */
    bool stop;
};

static int ranks_of(const nl_loader_options *options)
{
    return options->ranks ? options->ranks : 1;
}

static const char *find_mistake(const nl_dataset *dataset, const nl_loader_options *options)
{
    int ranks = ranks_of(options);
    if (ranks < 1 || options->rank < 0 || options->rank >= ranks)
        return "the rank must be below the number of ranks";
    if (options->batch < 1 || options->batch > INT32_MAX || options->batch % ranks)
        return "the batch must be a positive multiple of the number of ranks";
    if (options->first_step < 0 || options->first_step > INT64_MAX / 4 / options->batch)
        return "the step is out of range";
    if (options->count < 0 || options->count > dataset->info.count)
        return "there are not so many samples";
    if (!(options->label_dropout >= 0 && options->label_dropout <= 1))
        return "the label dropout must be in [0, 1]";
    if (options->prefetch < 0 || options->prefetch > MAX_PREFETCH)
        return "at most 1024 batches can be made ahead";
    if (options->flip && !dataset->info.flips)
        return "the data was encoded without mirrored pictures: train without flips, or encode "
               "again";
    return NULL;
}

/* Puts `count` items behind the slot's present end. */
static bool place(nl_slot_layout *layout, int64_t count, int64_t item, int64_t *offset)
{
    int64_t bytes;
    *offset = layout->size;
    return nl_mul_size(count, item, &bytes) && nl_add_size(bytes, ALIGNMENT - 1, &bytes) &&
           nl_add_size(layout->size, bytes / ALIGNMENT * ALIGNMENT, &layout->size);
}

static bool lay_out(const nl_dataset *dataset, int64_t size, nl_slot_layout *layout)
{
    int64_t elements;
    *layout = (nl_slot_layout){0};
    return nl_mul_size(size, dataset->elements, &elements) &&
           place(layout, elements, sizeof(float), &layout->x) &&
           place(layout, size, sizeof(int64_t), &layout->indices) &&
           place(layout, size, sizeof(int64_t), &layout->samples) &&
           place(layout, size, sizeof(int32_t), &layout->labels) &&
           place(layout, size, sizeof(bool), &layout->flipped) &&
           place(layout, size, NL_CROP_NUMBERS * sizeof(float), &layout->crops);
}

int64_t nl_loader_bytes(const nl_dataset *dataset, const nl_loader_options *options)
{
    nl_slot_layout layout;
    int64_t bytes;
    if (find_mistake(dataset, options) ||
        !lay_out(dataset, options->batch / ranks_of(options), &layout) ||
        !nl_mul_size(layout.size, options->prefetch + 1, &bytes))
        return 0;
    return bytes;
}

/* ---- One batch */

static nl_batch batch_at(const nl_loader *loader, int64_t number)
{
    uint8_t *slot = loader->memory + number % loader->slots * loader->layout.size;
    return (nl_batch){.step = loader->options.first_step + number,
                      .size = loader->size,
                      .x = (float *)(slot + loader->layout.x),
                      .labels = (int32_t *)(slot + loader->layout.labels),
                      .indices = (int64_t *)(slot + loader->layout.indices),
                      .samples = (int64_t *)(slot + loader->layout.samples),
                      .flipped = (bool *)(slot + loader->layout.flipped),
                      .crops = (float *)(slot + loader->layout.crops)};
}

/* What is drawn for one sample. */
static void draw(const nl_loader *loader, int64_t sample, int64_t *index, bool *flipped)
{
    const nl_loader_options *o = &loader->options;
    uint32_t words[4];
    *index = o->in_order ? sample % loader->count : nl_data_order(o->seed, loader->count, sample);
    *flipped = false;
    if (o->flip) {
        nl_philox(o->seed, (uint64_t)sample, NL_STREAM_FLIP, 0, words);
        *flipped = words[0] >> 31;
    }
}

static int64_t first_sample(const nl_loader *loader, int64_t step)
{
    return step * loader->options.batch + loader->options.rank * loader->size;
}

static void read_ahead(const nl_loader *loader, int64_t step)
{
    for (int64_t i = 0; i < loader->size; i++) {
        int64_t index;
        bool flipped;
        draw(loader, first_sample(loader, step) + i, &index, &flipped);
        nl_dataset_ahead(loader->dataset, index, flipped);
    }
}

static nl_status make_batch(const nl_loader *loader, const nl_batch *batch)
{
    const nl_loader_options *o = &loader->options;
    const nl_dataset *dataset = loader->dataset;
    for (int64_t i = 0; i < batch->size; i++) {
        int64_t sample = first_sample(loader, batch->step) + i, index;
        draw(loader, sample, &index, &batch->flipped[i]);
        NL_CHECK(
            nl_dataset_read(dataset, index, batch->flipped[i], batch->x + i * dataset->elements));
        bool drop = o->label_dropout > 0 &&
                    (double)nl_philox_uniform(o->seed, (uint64_t)sample, NL_STREAM_DROPOUT, 0) <=
                        o->label_dropout;
        batch->labels[i] = drop ? dataset->info.classes : nl_dataset_label(dataset, index);
        batch->indices[i] = index;
        batch->samples[i] = sample;
        nl_dataset_crop(dataset, index, batch->flipped[i], batch->crops + i * NL_CROP_NUMBERS);
    }
    return NL_OK;
}

/* ---- The thread */

/* Free slots, the caller's batch aside. */
static bool may_make(const nl_loader *loader)
{
    return !loader->failed.status && loader->made - NL_MAX(loader->given - 1, 0) < loader->slots;
}

static void *run_thread(void *user)
{
    nl_loader *loader = user;
    read_ahead(loader, loader->options.first_step);
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop) {
        if (!may_make(loader)) {
            pthread_cond_wait(&loader->changed, &loader->mutex);
            continue;
        }
        nl_batch batch = batch_at(loader, loader->made);
        pthread_mutex_unlock(&loader->mutex);
        read_ahead(loader, batch.step + 1);
        nl_status status = make_batch(loader, &batch);
        pthread_mutex_lock(&loader->mutex);
        if (status == NL_OK)
            loader->made++;
        else
            nl_failure_keep(loader->context, status, &loader->failed);
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

static nl_status start_thread(nl_loader *loader)
{
    int error = nl_start_thread(&loader->thread, run_thread, loader);
    loader->started = error == 0;
    return error ? nl_fail(loader->context, NL_ERROR_MEMORY, "no thread for loading data: %s",
                           strerror(error))
                 : NL_OK;
}

nl_status nl_loader_create(const nl_dataset *dataset, const nl_loader_options *options,
                           nl_loader **out)
{
    nl_context *context = dataset->context;
    nl_loader *loader = NULL;
    nl_status status;
    *out = NULL;
    const char *mistake = find_mistake(dataset, options);
    if (mistake)
        return nl_fail(context, NL_ERROR_USAGE, "%s: %s (batch %lld, rank %d of %d)", dataset->path,
                       mistake, (long long)options->batch, options->rank, ranks_of(options));
    NL_TRY(NL_NEW(context, "a loader", &loader));
    loader->dataset = dataset;
    loader->options = *options;
    loader->context = context;
    loader->count = options->count ? options->count : dataset->info.count;
    loader->size = options->batch / ranks_of(options);
    loader->slots = options->prefetch + 1;
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    int64_t bytes = nl_loader_bytes(dataset, options);
    if (bytes == 0)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "%s: a batch of %lld does not fit any memory",
                       dataset->path, (long long)options->batch));
    (void)lay_out(dataset, loader->size, &loader->layout);
    loader->memory = options->memory;
    if (!options->memory) {
        NL_TRY(NL_NEW_SIZED(context, "batches", bytes, 1, &loader->owned));
        loader->memory = loader->owned;
    }
    if (options->prefetch > 0)
        NL_TRY(start_thread(loader));
    *out = loader;
    loader = NULL;
cleanup:
    nl_loader_destroy(loader);
    return status;
}

void nl_loader_destroy(nl_loader *loader)
{
    if (!loader)
        return;
    if (loader->started) {
        pthread_mutex_lock(&loader->mutex);
        loader->stop = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->mutex);
        pthread_join(loader->thread, NULL);
    }
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    nl_free(loader->context, loader->owned);
    nl_free(loader->context, loader);
}

nl_status nl_loader_next(nl_loader *loader, nl_batch *batch)
{
    nl_status status = NL_OK;
    *batch = batch_at(loader, loader->given);
    if (!loader->started) {
        status = make_batch(loader, batch);
        loader->given += status == NL_OK;
        return status;
    }
    pthread_mutex_lock(&loader->mutex);
    while (loader->made == loader->given && !loader->failed.status)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    if (loader->made > loader->given) {
        loader->given++;
    } else {
        status = nl_failure_tell(loader->context, &loader->failed);
        loader->failed.status = NL_OK;
    }
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    return status;
}
