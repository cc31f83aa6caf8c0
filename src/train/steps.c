/* SPDX-License-Identifier: MIT */
/* Steps one after the other: queued, waited for and added up, and whether to go on. */
#include <math.h>
#include <string.h>

#include "schedule.h"
#include "trainer.h"

double nl_trainer_seconds(const nl_trainer *trainer)
{
    return trainer->point.seconds + nl_seconds() - trainer->started;
}

double nl_trainer_done(const nl_trainer *trainer)
{
    double minutes = trainer->options->minutes, done = 0;
    if (trainer->steps)
        done = (double)trainer->point.step / (double)trainer->steps;
    if (minutes > 0)
        done = fmax(done, trainer->elapsed / (60 * minutes));
    return fmin(done, 1);
}

nl_status nl_trainer_step(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    int64_t step = trainer->point.step;
    double done = nl_trainer_done(trainer);
    nl_train_options of_fake = *options;
    nl_step_numbers numbers = {
        .student = {[NL_HYPER_RATE] = (float)nl_train_rate(options, step, done),
                    [NL_HYPER_BETA1] = (float)options->beta1,
                    [NL_HYPER_BETA2] = (float)options->beta2,
                    [NL_HYPER_EPS] = (float)options->epsilon,
                    [NL_HYPER_DECAY] = (float)options->decay,
                    [NL_HYPER_CLIP] = (float)options->clip},
        .stage = nl_matching_stage_at(&trainer->matcher.options, done)};
    memcpy(numbers.fake, numbers.student, sizeof(numbers.fake));
    of_fake.rate = options->fake_rate > 0 ? options->fake_rate : options->rate;
    numbers.fake[NL_HYPER_RATE] = (float)nl_train_rate(&of_fake, step, done);
    for (int i = 0; i < trainer->point.ema_count; i++)
        numbers.student[NL_HYPER_EMA + i] =
            (float)nl_train_ema_decay(options, &trainer->point.ema[i], step);
    if (trainer->stepper.used == trainer->stepper.slots)
        NL_CHECK(nl_trainer_collect(trainer));
    trainer->feed.done = done;
    NL_CHECK(nl_stepper_run(&trainer->stepper, &numbers));
    trainer->point.step++;
    return NL_OK;
}

/* What a step says of matching; whether the fake is to be given up. */
static bool add_matching(nl_trainer *trainer, const nl_step_result *result)
{
    nl_run_point *point = &trainer->point;
    if (result->stage == NL_MATCHING_NONE)
        return false;
    point->fake_applied = result->fake.applied;
    point->fake_skipped_now = result->fake.skipped;
    if (!result->fake.skipped) {
        point->fake_sum += result->fake.loss;
        point->discriminator_sum += result->discriminator;
        point->fake_updates++;
    }
    if (result->stage == NL_MATCHING_BOTH && !result->student.skipped) {
        point->match_sum += result->match;
        point->matched_steps++;
    }
    return result->fake.skipped >= trainer->options->max_skipped;
}

nl_status nl_trainer_collect(nl_trainer *trainer)
{
    int count;
    nl_run_point *point = &trainer->point;
    NL_CHECK(nl_stepper_collect(&trainer->stepper, trainer->results, &count));
    for (int i = 0; i < count; i++) {
        const nl_step_report *report = &trainer->results[i].student;
        if (add_matching(trainer, &trainer->results[i]))
            return nl_trainer_give_up(trainer, trainer->results[i].fake.skipped);
        point->applied = report->applied;
        point->skipped_now = report->skipped;
        if (report->skipped) {
            point->skipped++;
            point->bad_steps++;
            if (report->skipped >= trainer->options->max_skipped)
                return nl_trainer_give_up(trainer, report->skipped);
        } else {
            trainer->last_loss =
                trainer->options->one_step ? trainer->results[i].match : report->loss;
            point->loss_sum += report->loss;
            point->norm_sum += report->norm;
            point->finite_steps++;
        }
    }
    return NL_OK;
}

nl_status nl_trainer_ask_stop(nl_trainer *trainer, bool *stop)
{
    int64_t wish = nl_check_cancelled(trainer->context) == NL_CANCELLED;
    nl_status status = nl_group_maximum(trainer->group, &wish);
    *stop = status == NL_OK && wish;
    trainer->stopping = trainer->stopping || *stop;
    return status;
}
