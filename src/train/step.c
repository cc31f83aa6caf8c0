/* SPDX-License-Identifier: MIT */
/* A training step in replayed parts: gradients of each part of the batch, their sum over processes, the update. */
#include "step.h"

#include <string.h>

#include "reduce.h"

nl_status nl_stepper_open(nl_group *group, nl_train_state *state, nl_feed *feed,
                          nl_matcher *matcher, uint64_t seed, bool checkpointing, float dropout,
                          int slots, nl_stepper *stepper)
{
    nl_status status = NL_OK;
    nl_device *device = state->device;
    int64_t part = feed->size, batch = feed->size * feed->options.parts;
    int64_t one = 1, result_bytes = slots * (int64_t)sizeof(nl_step_result);
    *stepper = (nl_stepper){.device = device,
                            .group = group,
                            .state = state,
                            .feed = feed,
                            .matcher = matcher,
                            .seed = seed,
                            .checkpointing = checkpointing,
                            .dropout = dropout,
                            .gradient_scale = 1 / (float)(batch * group->size),
                            .slots = slots};
    stepper->bytes = result_bytes + (2 * part + 3 * batch + 2) * (int64_t)sizeof(float);
    NL_TRY(device->ops->alloc(device, "results of steps", stepper->bytes, &stepper->memory));
    stepper->results = stepper->memory;
    float *losses = (float *)((char *)stepper->memory + result_bytes);
    stepper->losses = nl_tensor_of(losses, NL_F32, 1, &batch);
    stepper->match_losses = nl_tensor_of(losses + batch, NL_F32, 1, &batch);
    stepper->part_loss = nl_tensor_of(losses + 2 * batch, NL_F32, 1, &part);
    stepper->match = nl_tensor_of(losses + 2 * batch + part, NL_F32, 1, &one);
    losses += 2 * batch + part + 1;
    stepper->discriminator_losses = nl_tensor_of(losses, NL_F32, 1, &batch);
    stepper->part_discriminator = nl_tensor_of(losses + batch, NL_F32, 1, &part);
    stepper->discriminator = nl_tensor_of(losses + batch + part, NL_F32, 1, &one);
    NL_TRY(NL_NEW_ARRAY(device->context, "numbers of steps", slots, &stepper->numbers));
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
    nl_free(stepper->device->context, stepper->numbers);
    *stepper = (nl_stepper){0};
}

/* ---- What is replayed: addresses and numbers stay, contents change. */

typedef struct nl_part {
    nl_stepper *stepper;
    nl_device *device; /* the stepper's or a measuring one */
    nl_noised noised;
    nl_matched matched;
    bool zero, reduce; /* the gradient: begun anew, summed over the ranks */
} nl_part;

/* The middle head's loss has this weight beside the head's (internal guidance; docs/training.md). */
static const float middle_weight = 0.5f;

/* Its gradient alone: what is reported is the head's loss. */
static nl_status middle_loss(const nl_part *part, const nl_tensor *dmiddle)
{
    const nl_stepper *stepper = part->stepper;
    nl_noised noised = part->noised;
    nl_tensor loss;
    noised.prediction = noised.middle;
    NL_CHECK(nl_arena_tensor(part->device, NL_F32, 1, stepper->part_loss.shape, &loss));
    return nl_noised_loss(stepper->feed, &stepper->state->model->config, part->device, &noised,
                          &loss, dmiddle, middle_weight * stepper->gradient_scale);
}

/* The student has no target: its gradient is that of matching. */
static bool matches_alone(const nl_stepper *stepper)
{
    return stepper->matcher && stepper->matcher->options.alone;
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
    nl_dropout dropout = {stepper->dropout, stepper->seed, feed->samples};
    if (part->zero)
        NL_TRY(NL_OP(device, zero, .x = nl_dit_flat(state->gradient)));
    if (matches_alone(stepper))
        return NL_OP(device, zero, .x = stepper->part_loss);
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
    NL_TRY(nl_reduced_backward(part->reduce ? stepper->group : NULL, state->model, device, &saved,
                               &dprediction, noised->middle.data ? &dmiddle : NULL,
                               state->gradient));
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

static nl_status run_match_student(void *user)
{
    const nl_part *part = user;
    nl_stepper *stepper = part->stepper;
    return nl_match_student(stepper->matcher, part->device, &part->matched, &stepper->part_loss,
                            part->reduce ? stepper->group : NULL);
}

static nl_status run_match_fake(void *user)
{
    const nl_part *part = user;
    nl_stepper *stepper = part->stepper;
    if (part->zero)
        NL_CHECK(NL_OP(part->device, zero, .x = nl_dit_flat(stepper->state->fake->gradient)));
    return nl_match_fake(stepper->matcher, part->device, &part->matched, &stepper->part_loss,
                         &stepper->part_discriminator, part->reduce ? stepper->group : NULL);
}

/* mean [1] of losses, summed over the ranks. */
static nl_status sum_losses(nl_stepper *stepper, nl_tensor losses, nl_tensor mean)
{
    NL_CHECK(NL_OP(stepper->device, mean, .x = losses, .y = mean));
    NL_CHECK(nl_group_all_reduce_sum(stepper->group, &mean));
    return nl_group_join(stepper->group);
}

static nl_status run_update(void *user)
{
    nl_stepper *stepper = user;
    NL_CHECK(sum_losses(stepper, stepper->losses, stepper->state->loss));
    return nl_state_update(stepper->state);
}

static nl_status run_update_fake(void *user)
{
    nl_stepper *stepper = user;
    NL_CHECK(sum_losses(stepper, stepper->match_losses, stepper->state->fake->loss));
    if (stepper->matcher->options.adversarial > 0)
        NL_CHECK(sum_losses(stepper, stepper->discriminator_losses, stepper->discriminator));
    return nl_state_update(stepper->state->fake);
}

static nl_status run_match_loss(void *user)
{
    nl_stepper *stepper = user;
    return sum_losses(stepper, stepper->match_losses, stepper->match);
}

/* Everything that the replayed operations depend on besides contents: this stepper's addresses never change. */
typedef struct nl_step_key {
    const nl_stepper *stepper;
    int32_t what;  /* nl_step_work */
    int32_t flags; /* of a part */
    int64_t records;
} nl_step_key;

typedef enum nl_step_work {
    NL_STEP_PART,
    NL_STEP_UPDATE,
    NL_STEP_MATCH_STUDENT,
    NL_STEP_MATCH_LOSS,
    NL_STEP_MATCH_FAKE,
    NL_STEP_UPDATE_FAKE
} nl_step_work;

static nl_status replay(nl_stepper *stepper, nl_step_work what, nl_part *part)
{
    static nl_status (*const work[])(void *user) = {[NL_STEP_PART] = run_part,
                                                    [NL_STEP_UPDATE] = run_update,
                                                    [NL_STEP_MATCH_STUDENT] = run_match_student,
                                                    [NL_STEP_MATCH_LOSS] = run_match_loss,
                                                    [NL_STEP_MATCH_FAKE] = run_match_fake,
                                                    [NL_STEP_UPDATE_FAKE] = run_update_fake};
    nl_step_key key = {stepper, what, part ? part->zero | part->reduce << 1 : 0, stepper->records};
    return nl_replay(stepper->device, &key, sizeof(key), work[what],
                     part ? (void *)part : (void *)stepper);
}

void nl_stepper_record_anew(nl_stepper *stepper)
{
    stepper->records += stepper->group->size > 1;
}

/* Of a part, among those of the rank's batch. */
static nl_status keep_losses(nl_stepper *stepper, const nl_tensor *part, const nl_tensor *losses,
                             int64_t first)
{
    return stepper->device->ops->copy(stepper->device, (float *)losses->data + first, part->data,
                                      nl_tensor_bytes(part));
}

/* reduce: nothing is added to the gradient behind it. */
static nl_status step_part(nl_stepper *stepper, int number, bool reduce)
{
    nl_status status = NL_OK;
    nl_device *device = stepper->device;
    nl_feed *feed = stepper->feed;
    int64_t mark = nl_arena_mark(device);
    nl_part part = {.stepper = stepper, .device = device, .zero = number == 0, .reduce = reduce};
    NL_TRY(nl_feed_next(feed));
    if (!matches_alone(stepper)) {
        NL_TRY(nl_noised_take(feed, &stepper->state->model->config, device, &part.noised));
        NL_TRY(nl_noised_draw(feed, device, stepper->seed, &part.noised));
    }
    NL_TRY(replay(stepper, NL_STEP_PART, &part));
    NL_TRY(keep_losses(stepper, &stepper->part_loss, &stepper->losses, feed->first));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* Draw `draw` of matching, by all parts of the feed's batch: the student's, whose gradient has the target's already, or one
 * of the fake's. */
static nl_status step_draw(nl_stepper *stepper, nl_step_work what, int draw)
{
    nl_status status = NL_OK;
    nl_device *device = stepper->device;
    const nl_feed *feed = stepper->feed;
    nl_matcher *matcher = stepper->matcher;
    int64_t mark = nl_arena_mark(device);
    int parts = feed->options.parts;
    for (int i = 0; i < parts; i++) {
        const int64_t *samples = feed->batch.samples + i * feed->size;
        nl_part part = {
            .stepper = stepper, .device = device, .zero = i == 0, .reduce = i == parts - 1};
        NL_TRY(nl_matcher_next(matcher, samples, feed->batch.labels + i * feed->size,
                               feed->batch.x + i * nl_tensor_count(&feed->x), draw));
        NL_TRY(nl_matched_take(matcher, device, &part.matched));
        NL_TRY(nl_matched_draw(matcher, device, samples, draw, &part.matched));
        NL_TRY(replay(stepper, what, &part));
        NL_TRY(keep_losses(stepper, &stepper->part_loss, &stepper->match_losses, i * feed->size));
        if (what == NL_STEP_MATCH_FAKE && matcher->options.adversarial > 0)
            NL_TRY(keep_losses(stepper, &stepper->part_discriminator,
                               &stepper->discriminator_losses, i * feed->size));
        nl_arena_release(device, mark);
    }
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* The fake's updates first: it follows the student as that is now. */
static nl_status step_matching(nl_stepper *stepper, const nl_step_numbers *numbers)
{
    nl_device *device = stepper->device;
    nl_train_state *fake = stepper->state->fake;
    nl_step_result *result = &stepper->results[stepper->used];
    if (numbers->stage == NL_MATCHING_NONE)
        return NL_OK;
    NL_CHECK(device->ops->upload(device, fake->hyper.data, numbers->fake, sizeof(numbers->fake)));
    for (int i = 0; i < stepper->matcher->options.updates; i++) {
        NL_CHECK(step_draw(stepper, NL_STEP_MATCH_FAKE, 1 + i));
        NL_CHECK(replay(stepper, NL_STEP_UPDATE_FAKE, NULL));
    }
    NL_CHECK(device->ops->copy(device, &result->fake, fake->loss.data, sizeof(result->fake)));
    if (stepper->matcher->options.adversarial > 0)
        NL_CHECK(device->ops->copy(device, &result->discriminator, stepper->discriminator.data,
                                   sizeof(result->discriminator)));
    if (numbers->stage == NL_MATCHING_FAKE)
        return NL_OK;
    NL_CHECK(step_draw(stepper, NL_STEP_MATCH_STUDENT, 0));
    NL_CHECK(replay(stepper, NL_STEP_MATCH_LOSS, NULL));
    return device->ops->copy(device, &result->match, stepper->match.data, sizeof(result->match));
}

nl_status nl_stepper_measure(nl_stepper *stepper, int64_t *bytes)
{
    nl_device measuring;
    nl_device_measuring(stepper->device, &measuring);
    int64_t mark = nl_arena_mark(&measuring);
    nl_part part = {.stepper = stepper, .device = &measuring, .zero = true};
    if (!matches_alone(stepper))
        NL_CHECK(nl_noised_take(stepper->feed, &stepper->state->model->config, &measuring,
                                &part.noised));
    NL_CHECK(run_part(&part));
    nl_arena_release(&measuring, mark);
    if (stepper->matcher) {
        NL_CHECK(nl_matched_take(stepper->matcher, &measuring, &part.matched));
        NL_CHECK(run_match_fake(&part));
        NL_CHECK(run_match_student(&part));
    }
    *bytes = measuring.arena_peak;
    return NL_OK;
}

nl_status nl_stepper_run(nl_stepper *stepper, const nl_step_numbers *given)
{
    nl_device *device = stepper->device;
    int parts = stepper->feed->options.parts;
    if (stepper->used == stepper->slots)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "results of %d steps are not collected",
                       stepper->used);
    nl_step_numbers *numbers = &stepper->numbers[stepper->used];
    *numbers = *given; /* which stays until it is on the device */
    bool both = numbers->stage == NL_MATCHING_BOTH;
    NL_CHECK(device->ops->upload(device, stepper->state->hyper.data, numbers->student,
                                 sizeof(numbers->student)));
    for (int i = 0; i < parts; i++)
        NL_CHECK(step_part(stepper, i, i == parts - 1 && !both));
    NL_CHECK(step_matching(stepper, numbers));
    NL_CHECK(replay(stepper, NL_STEP_UPDATE, NULL));
    NL_CHECK(device->ops->copy(device, &stepper->results[stepper->used].student,
                               stepper->state->loss.data, sizeof(nl_step_report)));
    stepper->used++;
    return NL_OK;
}

nl_status nl_stepper_collect(nl_stepper *stepper, nl_step_result *results, int *count)
{
    nl_device *device = stepper->device;
    float ranks = (float)stepper->group->size;
    *count = stepper->used;
    stepper->used = 0;
    if (!*count)
        return NL_OK;
    nl_status status = device->ops->download(device, results, stepper->results,
                                             *count * (int64_t)sizeof(nl_step_result));
    for (int i = 0; i < *count; i++) {
        results[i].stage = (int32_t)stepper->numbers[i].stage;
        results[i].student.loss /= ranks;
        results[i].fake.loss /= ranks;
        results[i].match /= ranks;
        results[i].discriminator /= ranks;
    }
    return status;
}
