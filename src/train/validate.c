/* SPDX-License-Identifier: MIT */
/* The loss of the moving average on held-out data, at times and with noise that are the same every time. */
#include <math.h>

#include "trainer.h"

enum {
    SEED = 0x5eed
}; /* of times and noise: another one for every sample, the same for every run */

typedef struct nl_validation {
    nl_trainer *trainer;
    nl_feed feed;
    nl_device *device; /* the trainer's or a measuring one */
    nl_noised noised;
    nl_tensor loss; /* [b] */
} nl_validation;

static nl_status forward(nl_validation *validation)
{
    nl_trainer *trainer = validation->trainer;
    const nl_config *config = &trainer->config;
    nl_device *device = validation->device;
    nl_feed *feed = &validation->feed;
    NL_CHECK(nl_noised_mix(feed, trainer->state.model, device, &validation->noised));
    NL_CHECK(nl_dit_forward(trainer->state.model, device, &validation->noised.x,
                            nl_noised_times(feed), &feed->labels, nl_feed_crop(feed),
                            &validation->noised.prediction, NULL));
    return nl_noised_loss(feed, config, device, &validation->noised, &validation->loss, NULL, 0);
}

static nl_status take_memory(nl_validation *validation)
{
    NL_CHECK(nl_noised_take(&validation->feed, &validation->trainer->config, validation->device,
                            &validation->noised));
    return nl_arena_tensor(validation->device, NL_F32, 1, &validation->feed.size,
                           &validation->loss);
}

static nl_status reserve(nl_validation *validation)
{
    nl_device measuring;
    nl_status status = NL_OK;
    nl_device_measuring(validation->trainer->device, &measuring);
    validation->device = &measuring;
    NL_TRY(take_memory(validation));
    NL_TRY(forward(validation));
    validation->device = validation->trainer->device;
    NL_TRY(nl_arena_reserve(validation->device, measuring.arena_peak));
cleanup:
    validation->device = validation->trainer->device;
    return status;
}

/* Sums over this rank's samples below `count`. losses: room for a batch. */
static nl_status add_batch(nl_validation *validation, int64_t count, float *losses, double *sum,
                           double *number)
{
    nl_feed *feed = &validation->feed;
    nl_device *device = validation->device;
    NL_CHECK(nl_feed_next(feed));
    NL_CHECK(nl_noised_draw(feed, device, SEED, &validation->noised));
    NL_CHECK(forward(validation));
    NL_CHECK(device->ops->download(device, losses, validation->loss.data,
                                   nl_tensor_bytes(&validation->loss)));
    for (int64_t i = 0; i < feed->size; i++)
        if (nl_feed_samples(feed)[i] < count) {
            *sum += losses[i];
            ++*number;
        }
    return NL_OK;
}

static nl_status sum_over_ranks(nl_trainer *trainer, double *sum, double *number)
{
    nl_status status = NL_OK;
    nl_device *device = trainer->device;
    nl_tensor both;
    float values[2] = {(float)(*sum / fmax(*number, 1)), (float)*number};
    int64_t mark = nl_arena_mark(device);
    if (trainer->group->size == 1)
        return NL_OK;
    /* Every rank has the same number of batches; the mean of means by their sizes. */
    values[0] *= values[1];
    NL_TRY(nl_arena_tensor(device, NL_F32, 1, (int64_t[]){2}, &both));
    NL_TRY(device->ops->upload(device, both.data, values, sizeof(values)));
    NL_TRY(nl_group_all_reduce_sum(trainer->group, &both));
    NL_TRY(nl_group_join(trainer->group));
    NL_TRY(device->ops->download(device, values, both.data, sizeof(values)));
    *sum = values[0];
    *number = values[1];
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status open_validation(nl_trainer *trainer, nl_validation *validation)
{
    nl_status status = NL_OK;
    const nl_train_options *options = trainer->options;
    nl_feed_options feed = {.loader = {.seed = SEED,
                                       .batch = options->batch / options->accumulate,
                                       .rank = trainer->group->rank,
                                       .ranks = trainer->group->size,
                                       .in_order = true},
                            .parts = 1,
                            .times_seed = SEED,
                            .crops = trainer->config.crop_conditioning,
                            .teacher = trainer->teacher,
                            .converts = nl_converts(options),
                            .distill = trainer->feed.options.distill};
    *validation = (nl_validation){.trainer = trainer, .device = trainer->device};
    NL_TRY(nl_feed_open(trainer->device, trainer->validation, trainer->loss, &feed,
                        &validation->feed));
    validation->feed.done = 1;
    NL_TRY(reserve(validation));
cleanup:
    if (status != NL_OK)
        nl_feed_close(&validation->feed);
    return status;
}

nl_status nl_trainer_try_validation(nl_trainer *trainer)
{
    nl_validation validation;
    nl_status status = open_validation(trainer, &validation);
    if (status == NL_OK)
        nl_feed_close(&validation.feed);
    return status;
}

static nl_status measure_loss(nl_trainer *trainer, double *loss)
{
    nl_status status = NL_OK;
    const nl_train_options *options = trainer->options;
    int64_t all = nl_dataset_get_info(trainer->validation)->count;
    int64_t count = options->validation_count ? options->validation_count : all;
    int64_t batch = options->batch / options->accumulate, mark = nl_arena_mark(trainer->device);
    nl_validation validation;
    double sum = 0, number = 0;
    float *losses = NULL;
    bool stop;
    status = open_validation(trainer, &validation);
    if (status != NL_OK)
        return status;
    NL_TRY(NL_NEW_ARRAY(trainer->context, "losses", validation.feed.size, &losses));
    NL_TRY(take_memory(&validation));
    for (int64_t first = 0; first < count; first += batch) {
        NL_TRY(nl_trainer_ask_stop(trainer, &stop));
        if (stop) /* a signal does not wait for the rest */
            NL_TRY(nl_fail(trainer->context, NL_CANCELLED, "cancelled"));
        NL_TRY(add_batch(&validation, count, losses, &sum, &number));
    }
    NL_TRY(sum_over_ranks(trainer, &sum, &number));
    *loss = sum / number;
cleanup:
    nl_arena_release(trainer->device, mark);
    nl_feed_close(&validation.feed);
    nl_free(trainer->context, losses);
    return status;
}

/* Whether the average is better than all before it. */
static nl_status judge(nl_trainer *trainer, double loss)
{
    nl_run_point *point = &trainer->point;
    int64_t better = point->best_step ? loss < point->best_loss : isfinite(loss);
    if (!trainer->state.best)
        return NL_OK;
    NL_CHECK(nl_group_maximum(trainer->group,
                              &better)); /* one word for all, whatever the sum's last bit */
    point->worse++;
    if (!better)
        return NL_OK;
    NL_CHECK(nl_dit_copy(trainer->state.ema[0], trainer->state.best));
    point->best_step = point->step;
    point->best_loss = loss;
    point->worse = 0;
    return NL_OK;
}

nl_status nl_trainer_validate(nl_trainer *trainer, bool again)
{
    nl_status status = NL_OK;
    double loss = NAN;
    NL_TRY(nl_trainer_collect(trainer));
    if (trainer->state.ema_count)
        NL_TRY(nl_state_show_average(&trainer->state, 0));
    status = measure_loss(trainer, &loss);
    nl_status back = nl_state_show_weights(&trainer->state);
    if (status == NL_CANCELLED && back == NL_OK) { /* first a checkpoint, then stop */
        nl_cancel(trainer->context);
        return NL_OK;
    }
    NL_TRY(status);
    NL_TRY(back);
    NL_TRY(judge(trainer, loss));
    trainer->validation_loss = loss;
    if (again)
        return NL_OK;
    nl_log(trainer->context, NL_LOG_INFO, "step %lld  validation loss %.5f",
           (long long)trainer->point.step, loss);
    nl_number numbers[] = {
        {"epoch", (double)trainer->point.step * (double)trainer->point.batch /
                      (double)trainer->point.samples},
        {"val_loss", loss},
    };
    if (trainer->group->rank == 0)
        nl_record_metrics(&trainer->record, trainer->point.step, numbers, NL_COUNT(numbers));
cleanup:
    return status;
}
