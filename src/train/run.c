/* SPDX-License-Identifier: MIT */
/* The loop: steps, and what is due between them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "schedule.h"
#include "trainer.h"
#include "work.h"

enum { LEAST_GRID = 100 }; /* steps of a run that ends with a grid unasked */

/* ---- What is due between steps */

/* Images a second since the last line of the log. */
static double rate_now(const nl_trainer *trainer)
{
    const nl_run_point *point = &trainer->point;
    return (double)((point->step - trainer->clock_step) * point->batch) /
           fmax(nl_seconds() - trainer->clock, 1e-9);
}

/* NaN of none. */
static double mean(double sum, int64_t count)
{
    return count ? sum / (double)count : NAN;
}

/* The means since then, of what was collected. */
static void tell(const nl_trainer *trainer, double rate)
{
    const nl_run_point *point = &trainer->point;
    char of[24] = "", loss[32] = "", match[32] = "", fake[32] = "", discriminator[40] = "",
         figure[NL_FIGURE];
    if (trainer->steps)
        snprintf(of, sizeof(of), "/%lld", (long long)trainer->steps);
    if (!trainer->options->one_step)
        snprintf(loss, sizeof(loss), "  loss %.5f", mean(point->loss_sum, point->finite_steps));
    if (point->matched_steps)
        snprintf(match, sizeof(match), "  match %.5f",
                 mean(point->match_sum, point->matched_steps));
    if (point->fake_updates)
        snprintf(fake, sizeof(fake), "  fake %.5f", mean(point->fake_sum, point->fake_updates));
    if (point->fake_updates && trainer->options->adversarial > 0)
        snprintf(discriminator, sizeof(discriminator), "  discriminator %.4f",
                 mean(point->discriminator_sum, point->fake_updates));
    nl_log(trainer->context, NL_LOG_INFO, "step %lld%s%s  grad norm %.4f%s%s%s  %s",
           (long long)point->step, of, loss, mean(point->norm_sum, point->finite_steps), match,
           fake, discriminator, nl_rate_text(rate, "image", figure));
}

static nl_status write_log(nl_trainer *trainer)
{
    NL_CHECK(nl_trainer_collect(trainer));
    nl_run_point *point = &trainer->point;
    enum { OF_MATCHING = 3, NUMBERS = 9 + OF_MATCHING };
    double rate = rate_now(trainer), match = mean(point->match_sum, point->matched_steps);
    double peak = nl_peak_flops(trainer->device) * trainer->group->size;
    nl_number numbers[NUMBERS] = {
        {"epoch", (double)point->step * (double)point->batch / (double)point->samples},
        {"loss", trainer->options->one_step ? match : mean(point->loss_sum, point->finite_steps)},
        {"grad_norm", mean(point->norm_sum, point->finite_steps)},
        {"lr", nl_train_rate(trainer->options, point->step - 1, nl_trainer_done(trainer))},
        {"images_per_second", rate},
        {"mfu", peak > 0 ? 3 * nl_forward_flops(&trainer->config) * rate / peak : NAN},
        {"memory", (double)trainer->context->memory_used},
        {"skipped", (double)point->skipped},
        {"seconds", nl_trainer_seconds(trainer)},
        {"match_loss", match},
        {"fake_loss", mean(point->fake_sum, point->fake_updates)},
        {"discriminator_loss", mean(point->discriminator_sum, point->fake_updates)},
    };
    int count = NL_COUNT(numbers) - (point->matches ? 0 : OF_MATCHING) -
                (point->matches && !(trainer->options->adversarial > 0));
    if (point->bad_steps)
        nl_log(trainer->context, NL_LOG_WARNING,
               "step %lld: %lld of the last %lld steps %s not finite and changed nothing",
               (long long)point->step, (long long)point->bad_steps,
               (long long)(point->bad_steps + point->finite_steps),
               nl_plural(point->bad_steps, "was", "were"));
    tell(trainer, rate);
    if (trainer->group->rank == 0)
        nl_record_log(&trainer->record, point->step, numbers, count);
    trainer->clock = nl_seconds();
    trainer->clock_step = point->step;
    point->loss_sum = point->norm_sum = 0;
    point->finite_steps = point->bad_steps = 0;
    point->match_sum = point->fake_sum = point->discriminator_sum = 0;
    point->matched_steps = point->fake_updates = 0;
    return NL_OK;
}

/* A checkpoint that cannot be written is tried again at the next interval; training continues. */
static nl_status save(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_context *context = trainer->context;
    char *folder = NULL;
    nl_run_point point;
    NL_TRY(nl_trainer_collect(trainer));
    point = trainer->point;
    point.seconds = nl_trainer_seconds(trainer);
    if (trainer->group->rank == 0 && trainer->saved_step != point.step) {
        NL_TRY(nl_path_join(context, trainer->options->out, NL_RUN_CHECKPOINTS, &folder));
        int64_t keep = trainer->options->keep;
        nl_status saved = nl_save_point(&trainer->state, &point, folder, keep);
        if (saved == NL_CANCELLED) { /* a signal while a slow disk wrote: first this, then stop */
            saved = nl_save_point(&trainer->state, &point, folder, keep);
            nl_cancel(context);
        }
        if (saved != NL_OK && saved != NL_ERROR_WRITE)
            NL_TRY(saved);
        if (saved != NL_OK)
            nl_log(context, NL_LOG_ERROR,
                   "step %lld: the checkpoint was not written, training continues: %s",
                   (long long)point.step, nl_last_error(context));
        else if (trainer->save_failed)
            nl_log(context, NL_LOG_INFO, "step %lld: the checkpoint is written again",
                   (long long)point.step);
        trainer->save_failed = saved != NL_OK;
        trainer->saved_step = saved == NL_OK ? point.step : trainer->saved_step;
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

/* A grid takes a CPU minutes, on one that others use too as many as an hour has: the run is there to train. */
static int grids_by_clock(const nl_trainer *trainer)
{
    enum { MINUTES = 5, MOST = 10 };
    return (int)NL_MAX(1, NL_MIN(MOST, trainer->options->minutes / MINUTES));
}

/* What an hour of work has come to should not be lost. */
static int saves_by_clock(const nl_trainer *trainer)
{
    enum { MINUTES = 15, LEAST = 4 };
    return (int)NL_MAX(LEAST, trainer->options->minutes / MINUTES);
}

/* By the clock, which is the same for all ranks, or by steps. */
static bool is_due(const nl_trainer *trainer, nl_due *clock, int times, double share, int64_t every)
{
    return clock->passed < 0
               ? due(trainer, every)
               : nl_due_now(clock, times, share, nl_trainer_done(trainer), trainer->elapsed);
}

/* Of a run that resumes, what was due before. */
static void start_clock(nl_trainer *trainer)
{
    double done = nl_trainer_done(trainer);
    if (trainer->clock_grids.passed == 0)
        trainer->clock_grids.passed = (int)(grids_by_clock(trainer) * done);
    if (trainer->clock_saves.passed == 0)
        trainer->clock_saves.passed = (int)(saves_by_clock(trainer) * done);
}

/* Stops and the clock are the same for all ranks, at the same step: the learning rate may follow the clock. */
static nl_status agree(nl_trainer *trainer, bool *stop)
{
    enum { EVERY = 8 }; /* steps: the ranks wait for each other */
    *stop = false;
    if (trainer->group->size > 1 && trainer->agreed && trainer->point.step % EVERY)
        return NL_OK;
    int64_t microseconds = (int64_t)(1e6 * nl_trainer_seconds(trainer));
    NL_CHECK(nl_trainer_ask_stop(trainer, stop));
    if (trainer->options->minutes > 0)
        NL_CHECK(nl_group_maximum(trainer->group, &microseconds));
    trainer->elapsed = 1e-6 * (double)microseconds;
    trainer->agreed = true;
    return NL_OK;
}

static bool is_out_of_patience(const nl_trainer *trainer)
{
    return trainer->options->patience && trainer->point.worse >= trainer->options->patience;
}

bool nl_trainer_is_over(const nl_trainer *trainer)
{
    bool over = trainer->steps && trainer->point.step >= trainer->steps;
    return over || is_out_of_patience(trainer) ||
           (trainer->options->minutes > 0 && trainer->elapsed >= 60 * trainer->options->minutes);
}

/* Whoever waits sees first numbers soon; the log has them at its intervals alone. */
static bool is_early(const nl_trainer *trainer)
{
    int64_t mine = trainer->point.step - trainer->first_step;
    return (mine == 1 || mine == 10) && trainer->options->log_every > mine;
}

static nl_status between_steps(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_status status = NL_OK;
    bool validate = trainer->validation && due(trainer, options->validate_every);
    bool sample =
        is_due(trainer, &trainer->clock_grids, grids_by_clock(trainer), 0.1, options->sample_every);
    bool store =
        is_due(trainer, &trainer->clock_saves, saves_by_clock(trainer), 1, options->save_every);
    bool snapshot = due(trainer, options->snapshot_every) && trainer->group->rank == 0;
    if (due(trainer, options->log_every))
        NL_TRY(write_log(trainer));
    else if (is_early(trainer) && (status = nl_trainer_collect(trainer)) == NL_OK)
        tell(trainer, rate_now(trainer));
    NL_TRY(status);
    if (!validate && !sample && !store && !snapshot)
        return NL_OK;
    NL_TRY(nl_trainer_collect(trainer));
    double start = nl_seconds();
    if (validate)
        NL_TRY(nl_trainer_validate(trainer, false));
    if (sample)
        NL_TRY(nl_trainer_sample(trainer));
    if (snapshot) /* before the checkpoint, so that a run that resumes from it has them */
        NL_TRY(nl_trainer_snapshot(trainer));
    if (store)
        NL_TRY(save(trainer));
    trainer->clock += nl_seconds() - start; /* images_per_second is that of steps */
cleanup:
    return status;
}

/* model.safetensors: the first moving average (or the weights; with patience the best), as nalagen sample takes it; then
 * done. */
static nl_status finish(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_context *context = trainer->context;
    const char *out = trainer->options->out;
    nl_train_state *state = &trainer->state;
    nl_dit *best = state->ema_count ? state->ema[0] : state->master;
    nl_run_point point = trainer->point;
    char *model = NULL, *done = NULL;
    NL_TRY(nl_path_join(context, out, NL_RUN_MODEL, &model));
    NL_TRY(nl_path_join(context, out, NL_RUN_DONE, &done));
    if (state->best && point.best_step) {
        best = state->best;
        point.step = point.best_step;
        nl_log(context, NL_LOG_INFO, "the best validation loss, %.5f, was that of step %lld%s",
               point.best_loss, (long long)point.step,
               is_out_of_patience(trainer) ? ": the run is over" : "");
    }
    nl_describe_average(&point, state->ema_count ? &point.ema[0] : NULL, &best->config);
    NL_TRY(nl_dit_save(best, model, true, NL_BF16));
    if (trainer->options->snapshot_every && !due(trainer, trainer->options->snapshot_every))
        NL_TRY(nl_trainer_snapshot(trainer));
    NL_TRY(nl_write_file(context, done, true, "", 0));
    trainer->finished = true;
    nl_log(context, NL_LOG_INFO, "%s: %lld %s, %lld images", model, (long long)trainer->point.step,
           nl_plural(trainer->point.step, "step", "steps"), (long long)best->config.images_seen);
cleanup:
    nl_free(context, model);
    nl_free(context, done);
    return status;
}

/* A callback that does not want to go on is heard when all ranks are asked. */
static void report_step(nl_trainer *trainer)
{
    const nl_run_point *point = &trainer->point;
    nl_progress progress = {.stage = "training",
                            .step = point->step,
                            .steps = trainer->steps,
                            .image = point->step * point->batch,
                            .images = trainer->steps * point->batch,
                            .batch = point->batch,
                            .done = nl_trainer_done(trainer)};
    if (nl_report_progress(trainer->context, &progress) != NL_OK)
        nl_cancel(trainer->context);
}

/* A step and what is due after it. Where it is stopped in the midst of one, that one has changed nothing. */
static nl_status advance(nl_trainer *trainer, bool *stop)
{
    nl_status status;
    NL_TRY(nl_arena_reserve(trainer->device, trainer->arena));
    NL_TRY(nl_trainer_step(trainer));
    NL_TRY(between_steps(trainer));
    report_step(trainer);
cleanup:
    if (status == NL_CANCELLED && trainer->device->cancellable) {
        *stop = trainer->stopping = true;
        return NL_OK;
    }
    return status;
}

nl_status nl_trainer_run(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    bool stop = false;
    int64_t first = trainer->point.step;
    start_clock(trainer);
    report_step(trainer);
    for (;;) {
        NL_TRY(agree(trainer, &stop));
        if (stop || nl_trainer_is_over(trainer))
            break;
        NL_TRY(advance(trainer, &stop));
        if (stop)
            break;
    }
    NL_TRY(nl_trainer_collect(trainer));
    NL_TRY(save(trainer));
    /* The last steps of a run that is over, where this process made any; the checkpoint has their sums, should it
     * become longer. */
    bool logged = trainer->point.finite_steps + trainer->point.bad_steps == 0;
    if (!stop && !logged && trainer->clock_step < trainer->point.step)
        NL_TRY(write_log(trainer));
    /* The last weights, whatever the interval: the best may be among them. They are in no checkpoint as that, so that a
     * run that becomes longer is the one that was so long from the first. */
    bool again = first == trainer->point.step;
    bool has_grid = trainer->clock_grids.passed < 0 && due(trainer, trainer->options->sample_every);
    if (!stop && !again && trainer->last_grid && trainer->point.step >= LEAST_GRID && !has_grid)
        NL_TRY(nl_trainer_sample(trainer));
    if (!stop && trainer->validation && (trainer->state.best || !again) &&
        !due(trainer, trainer->options->validate_every))
        NL_TRY(nl_trainer_validate(trainer, again));
    if (stop)
        status = nl_fail(trainer->context, NL_CANCELLED,
                         "stopped at step %lld; run the same command to resume",
                         (long long)trainer->point.step);
    else if (trainer->group->rank == 0)
        status =
            trainer->save_failed
                ? nl_fail(trainer->context, NL_ERROR_WRITE,
                          "the last checkpoint of %s was not written; the same command resumes "
                          "from the one before",
                          trainer->options->out)
                : finish(trainer);
cleanup:
    return status;
}
