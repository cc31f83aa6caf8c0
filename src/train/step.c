/* SPDX-License-Identifier: MIT */
/* A training step in replayed parts: gradients of each part of the batch, their sum over processes, the update. */
#include "step.h"

#include <string.h>

enum { BUCKET = 6 << 20 /* gradients that are summed over the ranks together, at least */ };

nl_status nl_stepper_open(nl_group *group, nl_train_state *state, nl_feed *feed, uint64_t seed,
                          bool checkpointing, float dropout, int slots, nl_stepper *stepper)
{
    nl_status status = NL_OK;
    nl_device *device = state->device;
    int64_t part = feed->size, batch = feed->size * feed->options.parts;
    int64_t report_bytes = slots * (int64_t)sizeof(nl_step_report);
    *stepper = (nl_stepper){.device = device,
                            .group = group,
                            .state = state,
                            .feed = feed,
                            .seed = seed,
                            .checkpointing = checkpointing,
                            .dropout = dropout,
                            .gradient_scale = 1 / (float)(batch * group->size),
                            .slots = slots};
    stepper->bytes = report_bytes + (part + batch) * (int64_t)sizeof(float);
    NL_TRY(device->ops->alloc(device, "reports of steps", stepper->bytes, &stepper->memory));
    stepper->reports = stepper->memory;
    float *losses = (float *)((char *)stepper->memory + report_bytes);
    stepper->losses = nl_tensor_of(losses, NL_F32, 1, &batch);
    stepper->part_loss = nl_tensor_of(losses + batch, NL_F32, 1, &part);
    NL_TRY(NL_NEW_ARRAY(device->context, "numbers of steps", slots, &stepper->hyper));
cleanup:
    if (status != NL_OK)
        nl_stepper_close(stepper);
    return status;
}

void nl_stepper_close(nl_stepper *stepper)
{
    if (!stepper->device)
        return;
    if (stepper->memory)
        stepper->device->ops->free(stepper->device, stepper->memory, stepper->bytes);
    nl_free(stepper->device->context, stepper->hyper);
    *stepper = (nl_stepper){0};
}

/* ---- Gradients over the ranks, while earlier layers are still at work */

static nl_status reduce_ready(nl_stepper *stepper)
{
    nl_tensor flat = nl_dit_flat(stepper->state->gradient);
    nl_tensor run = nl_tensor_rows(&flat, stepper->ready_first, stepper->ready_count);
    bool any = stepper->ready_count > 0;
    stepper->ready_count = 0;
    return any ? nl_group_all_reduce_sum(stepper->group, &run) : NL_OK;
}

static nl_status gradients_ready(void *user, int64_t first, int64_t count)
{
    nl_stepper *stepper = user;
    nl_status status = NL_OK;
    bool below = first + count == stepper->ready_first;
    bool above = first == stepper->ready_first + stepper->ready_count;
    if (stepper->ready_count > 0 && !below && !above)
        NL_TRY(reduce_ready(stepper));
    if (stepper->ready_count == 0 || below)
        stepper->ready_first = first;
    stepper->ready_count += count;
    if (stepper->ready_count >= BUCKET)
        NL_TRY(reduce_ready(stepper));
cleanup:
    return status;
}

/* ---- What is replayed: addresses and numbers stay, contents change. */

typedef struct nl_part {
    nl_stepper *stepper;
    nl_device *device; /* the stepper's or a measuring one */
    nl_noised noised;
    bool first, last; /* of its batch */
} nl_part;

/* The middle head's loss has this weight beside the head's (internal guidance; docs/training.md). */
static const float middle_weight = 0.5f;

/* Its gradient alone: what is reported is the head's loss. */
static nl_status middle_loss(const nl_part *part, const nl_tensor *dmiddle)
{
    nl_status status;
    const nl_stepper *stepper = part->stepper;
    nl_noised noised = part->noised;
    nl_tensor loss;
    noised.prediction = noised.middle;
    NL_TRY(nl_arena_tensor(part->device, NL_F32, 1, stepper->part_loss.shape, &loss));
    NL_TRY(nl_noised_loss(stepper->feed, &stepper->state->model->config, part->device, &noised,
                          &loss, dmiddle, middle_weight * stepper->gradient_scale));
cleanup:
    return status;
}

static nl_status run_part(void *user)
{
    nl_part *part = user;
    nl_stepper *stepper = part->stepper;
    nl_train_state *state = stepper->state;
    nl_feed *feed = stepper->feed;
    nl_device *device = part->device;
    const nl_config *config = &state->model->config;
    const nl_noised *noised = &part->noised;
    nl_status status = NL_OK;
    nl_dit_saved saved = {0};
    nl_tensor dprediction, dmiddle;
    int64_t mark = nl_arena_mark(device);
    bool reduce = part->last && stepper->group->size > 1;
    nl_dropout dropout = {stepper->dropout, stepper->seed, feed->samples};
    if (part->first)
        NL_TRY(NL_OP(device, zero, .x = nl_dit_flat(state->gradient)));
    NL_TRY(nl_noised_mix(feed, state->model, device, noised));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, noised->prediction.shape, &dprediction));
    NL_TRY(nl_dit_forward_saving(state->model, device, &noised->x, nl_noised_times(feed),
                                 &feed->labels, nl_feed_crop(feed), stepper->checkpointing,
                                 &dropout, &noised->prediction,
                                 noised->middle.data ? &noised->middle : NULL, &saved));
    NL_TRY(nl_noised_loss(feed, config, device, noised, &stepper->part_loss, &dprediction,
                          stepper->gradient_scale));
    if (noised->middle.data) {
        NL_TRY(nl_arena_tensor(device, NL_F32, 4, noised->middle.shape, &dmiddle));
        NL_TRY(middle_loss(part, &dmiddle));
    }
    stepper->ready_count = 0;
    NL_TRY(nl_dit_backward(state->model, device, &saved, &dprediction,
                           noised->middle.data ? &dmiddle : NULL, state->gradient, NULL,
                           reduce ? gradients_ready : NULL, stepper));
    if (reduce) {
        NL_TRY(reduce_ready(stepper));
        NL_TRY(nl_group_join(stepper->group)); /* a recording ends with nothing under way */
    }
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

static nl_status run_update(void *user)
{
    nl_stepper *stepper = user;
    nl_status status = NL_OK;
    NL_TRY(NL_OP(stepper->device, mean, .x = stepper->losses, .y = stepper->state->loss));
    NL_TRY(nl_group_all_reduce_sum(stepper->group, &stepper->state->loss));
    NL_TRY(nl_group_join(stepper->group));
    NL_TRY(nl_state_update(stepper->state));
cleanup:
    return status;
}

/* Everything that the replayed operations depend on besides contents: this stepper's addresses never change. */
typedef struct nl_step_key {
    const nl_stepper *stepper;
    int32_t what; /* part: first and last as bits; -1: the update */
    int32_t records;
} nl_step_key;

void nl_stepper_record_anew(nl_stepper *stepper)
{
    stepper->records += stepper->group->size > 1;
}

static nl_status step_part(nl_stepper *stepper, int number)
{
    nl_status status = NL_OK;
    nl_device *device = stepper->device;
    nl_feed *feed = stepper->feed;
    int64_t mark = nl_arena_mark(device);
    nl_part part = {.stepper = stepper,
                    .device = device,
                    .first = number == 0,
                    .last = number == feed->options.parts - 1};
    nl_step_key key = {stepper, part.first | part.last << 1, stepper->records};
    NL_TRY(nl_feed_next(feed));
    NL_TRY(nl_noised_take(feed, &stepper->state->model->config, device, &part.noised));
    NL_TRY(nl_noised_draw(feed, device, stepper->seed, &part.noised));
    NL_TRY(nl_replay(device, &key, sizeof(key), run_part, &part));
    NL_TRY(device->ops->copy(device, (float *)stepper->losses.data + feed->first,
                             stepper->part_loss.data, nl_tensor_bytes(&stepper->part_loss)));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_stepper_measure(nl_stepper *stepper, int64_t *bytes)
{
    nl_status status = NL_OK;
    nl_device measuring;
    nl_device_measuring(stepper->device, &measuring);
    nl_part part = {.stepper = stepper, .device = &measuring, .first = true};
    NL_TRY(nl_noised_take(stepper->feed, &stepper->state->model->config, &measuring, &part.noised));
    NL_TRY(run_part(&part));
    *bytes = measuring.arena_peak;
cleanup:
    return status;
}

nl_status nl_stepper_run(nl_stepper *stepper, const float hyper[NL_HYPER_COLUMNS])
{
    nl_status status = NL_OK;
    nl_device *device = stepper->device;
    nl_step_key key = {stepper, -1, stepper->records};
    if (stepper->used == stepper->slots)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "reports of %d steps are not collected",
                       stepper->used);
    float *row = stepper->hyper[stepper->used];
    memcpy(row, hyper, sizeof(*stepper->hyper));
    NL_TRY(device->ops->upload(device, stepper->state->hyper.data, row, sizeof(*stepper->hyper)));
    for (int i = 0; i < stepper->feed->options.parts; i++)
        NL_TRY(step_part(stepper, i));
    NL_TRY(nl_replay(device, &key, sizeof(key), run_update, stepper));
    NL_TRY(device->ops->copy(device, &stepper->reports[stepper->used], stepper->state->loss.data,
                             sizeof(nl_step_report)));
    stepper->used++;
cleanup:
    return status;
}

nl_status nl_stepper_collect(nl_stepper *stepper, nl_step_report *reports, int *count)
{
    nl_device *device = stepper->device;
    *count = stepper->used;
    stepper->used = 0;
    if (!*count)
        return NL_OK;
    nl_status status = device->ops->download(device, reports, stepper->reports,
                                             *count * (int64_t)sizeof(nl_step_report));
    for (int i = 0; i < *count; i++)
        reports[i].loss /= (float)stepper->group->size;
    return status;
}
