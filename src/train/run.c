/* The loop: steps, and what is due between them. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "schedule.h"
#include "trainer.h"
#include "work.h"

double nl_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double seconds_so_far(const nl_trainer *trainer)
{
    return trainer->point.seconds + nl_now() - trainer->started;
}

double nl_trainer_done(const nl_trainer *trainer)
{
    double minutes = trainer->options->minutes, done = 0;
    if (trainer->steps)
        done = (double)trainer->point.step / (double)trainer->steps;
    if (minutes > 0)
        done = fmax(done, seconds_so_far(trainer) / (60 * minutes));
    return fmin(done, 1);
}

nl_status nl_trainer_step(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    int64_t step = trainer->point.step;
    float hyper[NL_HYPER_COLUMNS] = {
        [NL_HYPER_RATE] = (float)nl_train_rate(options, step, nl_trainer_done(trainer)),
        [NL_HYPER_BETA1] = (float)options->beta1,
        [NL_HYPER_BETA2] = (float)options->beta2,
        [NL_HYPER_EPS] = (float)options->epsilon,
        [NL_HYPER_DECAY] = (float)options->decay,
        [NL_HYPER_CLIP] = (float)options->clip,
    };
    for (int i = 0; i < trainer->point.ema_count; i++)
        hyper[NL_HYPER_EMA + i] =
            (float)nl_train_ema_decay(options, trainer->point.ema_decay[i], step);
    nl_status status = NL_OK;
    if (trainer->stepper.used == trainer->stepper.slots)
        NL_TRY(nl_trainer_collect(trainer));
    NL_TRY(nl_stepper_run(&trainer->stepper, hyper));
    trainer->point.step++;
cleanup:
    return status;
}

nl_status nl_trainer_collect(nl_trainer *trainer)
{
    int count;
    nl_run_point *point = &trainer->point;
    nl_status status = nl_stepper_collect(&trainer->stepper, trainer->reports, &count);
    if (status != NL_OK)
        return status;
    for (int i = 0; i < count; i++) {
        const nl_step_report *report = &trainer->reports[i];
        point->applied = report->applied;
        point->skipped_now = report->skipped;
        if (report->skipped) {
            point->skipped++;
            trainer->bad_steps++;
            if (report->skipped >= trainer->options->max_skipped)
                return nl_trainer_give_up(trainer, report->skipped);
        } else {
            trainer->loss_sum += report->loss;
            trainer->norm_sum += report->norm;
            trainer->finite_steps++;
        }
    }
    return NL_OK;
}

/* ---- What is due between steps */

static nl_status write_log(nl_trainer *trainer)
{
    nl_status status = nl_trainer_collect(trainer);
    if (status != NL_OK)
        return status;
    const nl_run_point *point = &trainer->point;
    char of[24] = "";
    double now = nl_now(), finite = (double)trainer->finite_steps;
    double rate = (double)((point->step - trainer->clock_step) * point->batch) /
                  fmax(now - trainer->clock, 1e-9);
    double peak = nl_peak_flops(trainer->device) * trainer->group->size;
    nl_number numbers[] = {
        {"epoch", (double)point->step * (double)point->batch / (double)point->samples},
        {"loss", trainer->loss_sum / finite},
        {"grad_norm", trainer->norm_sum / finite},
        {"lr", nl_train_rate(trainer->options, point->step - 1, nl_trainer_done(trainer))},
        {"images_per_second", rate},
        {"mfu", peak > 0 ? 3 * nl_forward_flops(&trainer->config) * rate / peak : NAN},
        {"memory", (double)trainer->context->memory_used},
        {"skipped", (double)point->skipped},
        {"seconds", seconds_so_far(trainer)},
    };
    if (trainer->bad_steps)
        nl_log(trainer->context, NL_LOG_WARNING,
               "step %lld: %lld of the last %lld steps were not finite and changed nothing",
               (long long)point->step, (long long)trainer->bad_steps,
               (long long)(trainer->bad_steps + trainer->finite_steps));
    if (trainer->steps)
        snprintf(of, sizeof(of), "/%lld", (long long)trainer->steps);
    nl_log(trainer->context, NL_LOG_INFO,
           "step %lld%s  loss %.5f  grad norm %.4f  %.1f images/s", (long long)point->step, of,
           numbers[1].value, numbers[2].value, rate);
    if (trainer->group->rank == 0)
        nl_record_log(&trainer->record, point->step, numbers, NL_COUNT(numbers));
    trainer->clock = now;
    trainer->clock_step = point->step;
    trainer->loss_sum = trainer->norm_sum = 0;
    trainer->finite_steps = trainer->bad_steps = 0;
    return NL_OK;
}

/* A checkpoint that cannot be written is tried again at the next interval; training goes on. */
static nl_status save(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_context *context = trainer->context;
    char *folder = NULL;
    nl_run_point point;
    NL_TRY(nl_trainer_collect(trainer));
    point = trainer->point;
    point.seconds = seconds_so_far(trainer);
    if (trainer->group->rank == 0) {
        NL_TRY(nl_path_join(context, trainer->options->out, "checkpoints", &folder));
        nl_status saved =
            nl_save_point(&trainer->state, &point, folder, trainer->options->keep);
        if (saved != NL_OK && saved != NL_ERROR_WRITE)
            NL_TRY(saved);
        if (saved != NL_OK)
            nl_log(context, NL_LOG_ERROR,
                   "step %lld: the checkpoint was not written, training goes on: %s",
                   (long long)point.step, nl_last_error(context));
        else if (trainer->save_failed)
            nl_log(context, NL_LOG_INFO, "step %lld: the checkpoint is written again",
                   (long long)point.step);
        trainer->save_failed = saved != NL_OK;
    }
    NL_TRY(nl_group_barrier(trainer->group));
cleanup:
    nl_free(context, folder);
    return status;
}

static bool due(const nl_trainer *trainer, int64_t every)
{
    return every > 0 && trainer->point.step % every == 0;
}

/* Whether somebody wants to stop, known to all ranks at the same step. */
static nl_status asked_to_stop(nl_trainer *trainer, bool *stop)
{
    enum { ASK_EVERY = 8 }; /* steps: the ranks wait for each other */
    bool alone = trainer->group->size == 1;
    *stop = false;
    if (!alone && trainer->point.step % ASK_EVERY)
        return NL_OK;
    int64_t wish = nl_check_cancelled(trainer->context) == NL_CANCELLED;
    nl_status status = nl_group_maximum(trainer->group, &wish);
    *stop = wish > 0;
    return status;
}

static bool is_over(const nl_trainer *trainer)
{
    bool over = trainer->steps && trainer->point.step >= trainer->steps;
    return over ||
           (trainer->options->minutes > 0 &&
            seconds_so_far(trainer) >= 60 * trainer->options->minutes);
}

static nl_status between_steps(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_status status = NL_OK;
    if (due(trainer, options->log_every))
        NL_TRY(write_log(trainer));
    if (trainer->validation && due(trainer, options->validate_every))
        NL_TRY(nl_trainer_validate(trainer));
    if (due(trainer, options->sample_every))
        NL_TRY(nl_trainer_sample(trainer));
    if (due(trainer, options->save_every))
        NL_TRY(save(trainer));
cleanup:
    return status;
}

/* model.safetensors: the first moving average (or the weights), as nalagen sample takes it; then done. */
static nl_status finish(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_context *context = trainer->context;
    const char *out = trainer->options->out;
    nl_train_state *state = &trainer->state;
    nl_dit *best = state->ema_count ? state->ema[0] : state->master;
    char *model = NULL, *done = NULL;
    NL_TRY(nl_path_join(context, out, "model.safetensors", &model));
    NL_TRY(nl_path_join(context, out, "done", &done));
    best->config.images_seen = trainer->point.step * trainer->point.batch;
    best->config.ema_decay = state->ema_count ? trainer->point.ema_decay[0] : 0;
    NL_TRY(nl_dit_save(best, model, true, NL_BF16));
    NL_TRY(nl_write_file(context, done, true, "", 0));
    nl_log(context, NL_LOG_INFO, "%s: %lld steps, %lld images", model,
           (long long)trainer->point.step, (long long)best->config.images_seen);
cleanup:
    nl_free(context, model);
    nl_free(context, done);
    return status;
}

static nl_status run(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    bool stop = false;
    while (!is_over(trainer)) {
        NL_TRY(asked_to_stop(trainer, &stop));
        if (stop)
            break;
        NL_TRY(nl_arena_reserve(trainer->device, trainer->arena));
        NL_TRY(nl_trainer_step(trainer));
        status = between_steps(trainer);
        if (status == NL_CANCELLED) { /* while pictures were drawn, say */
            stop = true;
            break;
        }
        NL_TRY(status);
    }
    NL_TRY(nl_trainer_collect(trainer));
    NL_TRY(save(trainer));
    if (stop)
        status = nl_fail(trainer->context, NL_CANCELLED, "stopped at step %lld; the same command goes on",
                         (long long)trainer->point.step);
    else if (trainer->group->rank == 0)
        status = trainer->save_failed
                     ? nl_fail(trainer->context, NL_ERROR_WRITE,
                               "the last checkpoint of %s was not written; the same command goes on "
                               "from the one before",
                               trainer->options->out)
                     : finish(trainer);
cleanup:
    return status;
}

/* ---- Beginning */

static nl_status open_data(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *path = NULL;
    NL_TRY(nl_dataset_open(context, options->data, &trainer->data));
    const nl_dataset_info *info = nl_dataset_get_info(trainer->data);
    if (options->overfit > info->count)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--overfit %lld: %s has %lld samples",
                       (long long)options->overfit, options->data, (long long)info->count));
    trainer->point.samples = options->overfit ? options->overfit : info->count;
    NL_TRY(nl_path_join(context, options->data, "dataset.json", &path));
    NL_TRY(nl_file_sha256(context, path, trainer->point.data_sha256));
    if (options->validation) {
        NL_TRY(nl_dataset_open(context, options->validation, &trainer->validation));
        const nl_dataset_info *held_out = nl_dataset_get_info(trainer->validation);
        if (held_out->sample_channels != info->sample_channels || held_out->height != info->height ||
            held_out->width != info->width || held_out->classes != info->classes)
            NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                           "%s and %s are not of one kind: %d x %d x %d and %d classes there, "
                           "%d x %d x %d and %d here",
                           options->data, options->validation, info->sample_channels, info->height,
                           info->width, info->classes, held_out->sample_channels,
                           held_out->height, held_out->width, held_out->classes));
    }
cleanup:
    nl_free(context, path);
    return status;
}

/* The run's own numbers against those of the checkpoint. */
static nl_status check_same_run(const nl_trainer *trainer, const char *path,
                                const nl_run_point *found)
{
    const nl_run_point *point = &trainer->point;
    nl_context *context = trainer->context;
    if (found->seed == point->seed && found->batch == point->batch &&
        found->samples == point->samples && !strcmp(found->data_sha256, point->data_sha256))
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE,
                   "%s: made with seed %llu, batch %lld and %lld samples%s, asked for are %llu, "
                   "%lld and %lld: such a run cannot be gone on with; to start from its weights, "
                   "give it as --init with another --out",
                   path, (unsigned long long)found->seed, (long long)found->batch,
                   (long long)found->samples,
                   strcmp(found->data_sha256, point->data_sha256) ? " of other data" : "",
                   (unsigned long long)point->seed, (long long)point->batch,
                   (long long)point->samples);
}

static nl_status load(nl_trainer *trainer, const char *path)
{
    nl_run_point found;
    nl_status status = nl_load_point(&trainer->state, path, &found);
    if (status == NL_OK)
        status = check_same_run(trainer, path, &found);
    if (status != NL_OK)
        return status;
    memcpy(found.ema_decay, trainer->point.ema_decay, sizeof(found.ema_decay));
    trainer->point = found;
    nl_log(trainer->context, NL_LOG_INFO, "%s: going on at step %lld", path,
           (long long)found.step);
    return NL_OK;
}

/* The newest checkpoint that is whole. */
static nl_status resume_newest(nl_trainer *trainer, char **paths, int count, bool *resumed)
{
    nl_status status = NL_OK;
    for (int i = 0; i < count; i++) {
        status = load(trainer, paths[i]);
        *resumed = status == NL_OK;
        if (status != NL_ERROR_INPUT)
            return status;
        nl_log(trainer->context, NL_LOG_WARNING, "%s%s", nl_last_error(trainer->context),
               i + 1 < count ? "; trying the one before" : "");
    }
    if (count)
        return nl_fail(trainer->context, NL_ERROR_INPUT,
                       "%s: none of %d checkpoints can be read; start anew with another --out",
                       trainer->options->out, count);
    return NL_OK;
}

static nl_status start_weights(nl_trainer *trainer, const nl_checkpoint *init)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *folder = NULL, **paths = NULL;
    int count = 0;
    bool resumed = false;
    if (init)
        NL_TRY(nl_state_take_weights(&trainer->state, init));
    NL_TRY(nl_path_join(context, options->out, "checkpoints", &folder));
    NL_TRY(nl_list_points(context, folder, &paths, &count));
    if (!strcmp(options->resume, "auto"))
        NL_TRY(resume_newest(trainer, paths, count, &resumed));
    else if (strcmp(options->resume, "none") != 0)
        NL_TRY(load(trainer, options->resume));
    else if (count && !options->dry_run && !options->profile)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s holds a run that has come to %s: --resume none wants a new folder",
                       options->out, paths[0]));
cleanup:
    nl_free_points(context, paths, count);
    nl_free(context, folder);
    return status;
}

static int find_choice(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    return 0;
}

/* The loader begins behind the steps that are done. */
static nl_status open_steps(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    int slots = (int)NL_MAX(options->log_every, 100);
    nl_feed_options feed = {.loader = {.seed = options->seed,
                                       .batch = options->batch,
                                       .rank = trainer->group->rank,
                                       .ranks = trainer->group->size,
                                       .first_step = trainer->point.step,
                                       .flip = !options->no_flip &&
                                               nl_dataset_get_info(trainer->data)->flips,
                                       .label_dropout = trainer->config.class_dropout_prob,
                                       .count = options->overfit},
                            .parts = (int)options->accumulate,
                            .times_seed = options->seed};
    NL_TRY(nl_feed_open(trainer->device, trainer->data, trainer->loss, &feed, &trainer->feed));
    NL_TRY(nl_stepper_open(trainer->group, &trainer->state, &trainer->feed, options->seed,
                           options->checkpointing, slots, &trainer->stepper));
    NL_TRY(nl_alloc_array(context, "reports of steps", slots, sizeof(*trainer->reports),
                          (void **)&trainer->reports));
    NL_TRY(nl_stepper_measure(&trainer->stepper, &trainer->arena));
cleanup:
    return status;
}

static nl_status open_trainer(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_checkpoint *init = NULL;
    char name[64];
    NL_TRY(nl_trainer_check(context, options));
    trainer->point.seed = options->seed;
    trainer->point.batch = options->batch;
    if (options->ema)
        NL_TRY(nl_train_parse_ema(context, options->ema, NL_MAX_EMA, trainer->point.ema_decay,
                                  &trainer->point.ema_count));
    NL_TRY(nl_group_create(context, &trainer->group));
    if (options->batch % ((int64_t)trainer->group->size * options->accumulate))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--batch %lld is not a multiple of %d processes times %lld parts",
                       (long long)options->batch, trainer->group->size,
                       (long long)options->accumulate));
    NL_TRY(open_data(trainer));
    if (options->init)
        NL_TRY(nl_open_backbone(context, options->init, NULL, &init));
    NL_TRY(nl_trainer_configure(context, options, nl_dataset_get_info(trainer->data), init,
                                &trainer->config));
    nl_loss_options loss = {
        .times = (nl_times)find_choice(options->times, nl_train_times),
        .times_mean = options->times_mean,
        .times_deviation = options->times_deviation,
        .weighting = (nl_weighting)find_choice(options->weighting, nl_train_weightings),
        .min_snr = options->min_snr};
    NL_TRY(nl_loss_create(context, &trainer->config, &loss, &trainer->loss));
    NL_TRY(nl_state_create(trainer->device, &trainer->config, trainer->point.ema_count,
                           options->seed, &trainer->state));
    NL_TRY(start_weights(trainer, init));
    trainer->steps = options->steps;
    if (options->epochs) {
        int64_t steps = (options->epochs * trainer->point.samples + options->batch - 1) /
                        options->batch;
        trainer->steps = trainer->steps ? NL_MIN(trainer->steps, steps) : steps;
    }
    NL_TRY(open_steps(trainer));
    nl_log(context, NL_LOG_INFO, "%s, %lld parameters, %lld samples of %d classes, batch %lld, %s",
           nl_config_name(&trainer->config, name, sizeof(name)),
           (long long)nl_dit_parameter_count(trainer->state.model),
           (long long)trainer->point.samples, trainer->config.num_classes,
           (long long)options->batch, trainer->device->name);
cleanup:
    nl_checkpoint_close(init);
    return status;
}

static void close_trainer(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    nl_record_close(&trainer->record);
    nl_model_leave(trainer->sampler);
    nl_stepper_close(&trainer->stepper);
    nl_feed_close(&trainer->feed);
    nl_state_free(&trainer->state);
    nl_loss_destroy(trainer->loss);
    nl_config_free(context, &trainer->config);
    nl_dataset_close(trainer->validation);
    nl_dataset_close(trainer->data);
    nl_free(context, trainer->reports);
    nl_group_destroy(trainer->group);
}

/* Once it is clear that the run can begin. */
static nl_status open_folder(nl_trainer *trainer)
{
    const char *out = trainer->options->out;
    nl_status status = NL_OK;
    char *done = NULL;
    if (trainer->group->rank > 0)
        return NL_OK;
    NL_TRY(nl_make_folder(trainer->context, out));
    NL_TRY(nl_path_join(trainer->context, out, "done", &done));
    if (!is_over(trainer))
        unlink(done); /* of a shorter run */
    NL_TRY(nl_trainer_write_config(trainer));
    NL_TRY(nl_record_open(trainer->context, out, trainer->point.step, &trainer->record));
cleanup:
    nl_free(trainer->context, done);
    return status;
}

nl_status nl_train(nl_context *context, const nl_train_options *options)
{
    nl_status status = NL_OK;
    nl_trainer trainer = {.context = context, .device = context->device, .options = options};
    nl_config_init(&trainer.config);
    NL_TRY(open_trainer(&trainer));
    NL_TRY(nl_arena_reserve(trainer.device, trainer.arena));
    trainer.started = trainer.clock = nl_now();
    trainer.clock_step = trainer.point.step;
    if (options->dry_run) {
        status = nl_trainer_dry_run(&trainer);
    } else if (options->profile) {
        status = nl_trainer_profile(&trainer);
    } else {
        NL_TRY(open_folder(&trainer));
        status = run(&trainer);
    }
cleanup:
    if (status != NL_OK && status != NL_CANCELLED)
        nl_group_abort(trainer.group, status);
    close_trainer(&trainer);
    return status;
}
