/* SPDX-License-Identifier: MIT */
/* The next part of a batch on its way to the device, in a ring of pinned slots. */
#include "feed.h"

#include <string.h>

/* The host fills a slot while the device may still read earlier ones, and waits when it comes round. */
enum { SLOTS = 8, PREFETCH = 4, ALIGNMENT = 256 };

static void place(nl_tensor *tensor, nl_dtype dtype, int ndim, const int64_t *shape, char *base,
                  int64_t *used)
{
    *tensor = nl_tensor_of(base ? base + *used : NULL, dtype, ndim, shape);
    *used += (nl_tensor_bytes(tensor) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The tensors of a slot behind `base`; its bytes. */
static int64_t lay_out(nl_feed *feed, const nl_dataset_info *info, char *base)
{
    int64_t used = 0, n = feed->size;
    place(&feed->x, NL_F32, 4, (int64_t[]){n, info->sample_channels, info->height, info->width},
          base, &used);
    place(&feed->t, NL_F32, 1, (int64_t[]){n}, base, &used);
    place(&feed->labels, NL_I32, 1, (int64_t[]){n}, base, &used);
    place(&feed->samples, NL_I64, 1, (int64_t[]){n}, base, &used);
    if (feed->options.crops)
        place(&feed->crops, NL_F32, 2, (int64_t[]){n, NL_CROP_NUMBERS}, base, &used);
    place(&feed->coefficients, NL_F32, 2, (int64_t[]){n, NL_LOSS_COLUMNS}, base, &used);
    place(&feed->variational, NL_F32, 2, (int64_t[]){n, NL_VB_COLUMNS}, base, &used);
    if (!nl_feed_distills(feed))
        return used;
    nl_distill_feed *d = &feed->distill;
    nl_tensor *rows[] = {&d->guide, &d->move, &d->target};
    place(&d->times, NL_F32, 2, (int64_t[]){2, n}, base, &used);
    place(&d->later, NL_F32, 2, (int64_t[]){2, n}, base, &used);
    place(&d->teacher_times, NL_F32, 1, (int64_t[]){2 * n}, base, &used);
    place(&d->teacher_labels, NL_I32, 1, (int64_t[]){2 * n}, base, &used);
    for (int i = 0; i < NL_COUNT(rows); i++)
        place(rows[i], NL_F32, 2, (int64_t[]){n, NL_LOSS_COLUMNS}, base, &used);
    return used;
}

nl_status nl_feed_open(nl_device *device, const nl_dataset *data, const nl_loss *loss,
                       const nl_feed_options *options, nl_feed *feed)
{
    nl_status status = NL_OK;
    const nl_dataset_info *info = nl_dataset_get_info(data);
    int ranks = NL_MAX(options->loader.ranks, 1);
    void *staging;
    *feed = (nl_feed){.device = device, .loss = loss, .options = *options};
    feed->options.loader.prefetch = PREFETCH;
    feed->size = options->loader.batch / ranks / options->parts;
    feed->part = options->parts;
    feed->slot_bytes = lay_out(feed, info, NULL);
    feed->host_bytes = SLOTS * feed->slot_bytes + nl_loader_bytes(data, &feed->options.loader);
    if (!device->measuring) {
        NL_TRY(nl_loader_create(data, &feed->options.loader, &feed->loader));
        NL_TRY(nl_host_memory_alloc(device, "batches on the host", SLOTS * feed->slot_bytes,
                                    &staging));
        feed->staging = memset(staging, 0, (size_t)(SLOTS * feed->slot_bytes));
    }
    NL_TRY(device->ops->alloc(device, "a batch", feed->slot_bytes, &feed->memory));
    lay_out(feed, info, feed->memory);
cleanup:
    if (status != NL_OK)
        nl_feed_close(feed);
    return status;
}

void nl_feed_close(nl_feed *feed)
{
    if (!feed->device)
        return;
    nl_loader_destroy(feed->loader);
    if (feed->memory)
        feed->device->ops->free(feed->device, feed->memory, feed->slot_bytes);
    nl_host_memory_free(feed->device, feed->staging, SLOTS * feed->slot_bytes);
    *feed = (nl_feed){0};
}

/* Where a tensor of the device stands in the slot on the host. */
static void *in_slot(const nl_feed *feed, const nl_tensor *tensor)
{
    return feed->staging + feed->slot * feed->slot_bytes +
           ((char *)tensor->data - (char *)feed->memory);
}

const nl_tensor *nl_feed_crop(const nl_feed *feed)
{
    return feed->crops.data ? &feed->crops : NULL;
}

const int64_t *nl_feed_samples(const nl_feed *feed)
{
    return feed->batch.samples + feed->first;
}

/* Times of the part, and what follows from them, into the slot. */
static nl_status draw_times(nl_feed *feed)
{
    const nl_feed_options *o = &feed->options;
    const int64_t *samples = nl_feed_samples(feed);
    int64_t n = feed->size;
    float *t = in_slot(feed, &feed->t), *coefficients = in_slot(feed, &feed->coefficients);
    float *variational = in_slot(feed, &feed->variational);
    double *times = NULL;
    if (!nl_feed_distills(feed)) {
        nl_loss_draw(feed->loss, o->times_seed, samples, n, t, coefficients, variational);
        for (int64_t i = 0; o->converts && i < n;
             i++) { /* the teacher's prediction stands as data */
            coefficients[i * NL_LOSS_COLUMNS + NL_LOSS_TARGET_DATA] = 1;
            coefficients[i * NL_LOSS_COLUMNS + NL_LOSS_TARGET_NOISE] = 0;
        }
        return NL_OK;
    }
    NL_CHECK(NL_NEW_ARRAY(feed->device->context, "times", 2 * n, &times));
    const nl_distill_feed *d = &feed->distill;
    nl_distill_rows rows = {.times = in_slot(feed, &d->times),
                            .later = in_slot(feed, &d->later),
                            .teacher_times = in_slot(feed, &d->teacher_times),
                            .teacher_labels = in_slot(feed, &d->teacher_labels),
                            .guide = in_slot(feed, &d->guide),
                            .move = in_slot(feed, &d->move),
                            .target = in_slot(feed, &d->target)};
    nl_distill_times(o->times_seed, samples, n, times, times + n);
    nl_loss_rows(feed->loss, times, n, t, coefficients, variational);
    nl_distill_fill(&o->distill, nl_distill_alpha(&o->distill, feed->done), times, times + n,
                    in_slot(feed, &feed->labels), o->teacher->config.num_classes, n, &rows);
    nl_free(feed->device->context, times);
    return NL_OK;
}

nl_status nl_feed_next(nl_feed *feed)
{
    nl_device *device = feed->device;
    if (feed->part == feed->options.parts) {
        NL_CHECK(nl_loader_next(feed->loader, &feed->batch));
        feed->part = 0;
    }
    if (feed->slot == SLOTS) {
        NL_CHECK(device->ops->sync(device));
        feed->slot = 0;
    }
    feed->first = feed->part * feed->size;
    int64_t elements = nl_tensor_count(&feed->x);
    memcpy(in_slot(feed, &feed->x), feed->batch.x + feed->part * elements,
           (size_t)nl_tensor_bytes(&feed->x));
    memcpy(in_slot(feed, &feed->labels), feed->batch.labels + feed->first,
           (size_t)nl_tensor_bytes(&feed->labels));
    memcpy(in_slot(feed, &feed->samples), nl_feed_samples(feed),
           (size_t)nl_tensor_bytes(&feed->samples));
    if (feed->options.crops)
        memcpy(in_slot(feed, &feed->crops), feed->batch.crops + feed->first * NL_CROP_NUMBERS,
               (size_t)nl_tensor_bytes(&feed->crops));
    NL_CHECK(draw_times(feed));
    NL_CHECK(device->ops->upload(device, feed->memory,
                                 feed->staging + feed->slot * feed->slot_bytes, feed->slot_bytes));
    feed->slot++;
    feed->part++;
    return NL_OK;
}
