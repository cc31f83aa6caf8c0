/* SPDX-License-Identifier: MIT */
/* --dry-run: how long a run takes; what it takes has been said before (train.c). */
#include "trainer.h"
#include "work.h"

enum { WARM_UP = 3, TIMED = 10 };

nl_status nl_trainer_time(nl_trainer *trainer, int steps, double *seconds)
{
    nl_device *device = trainer->device;
    bool stop = false;
    NL_CHECK(device->ops->sync(device));
    double start = nl_seconds();
    for (int i = 0; i < steps; i++) {
        if (i == 0 || trainer->group->size == 1) /* ranks wait for each other to ask */
            NL_CHECK(nl_trainer_ask_stop(trainer, &stop));
        if (stop)
            return nl_fail(trainer->context, NL_CANCELLED, "cancelled");
        NL_CHECK(nl_trainer_step(trainer));
    }
    NL_CHECK(device->ops->sync(device));
    int64_t nanoseconds = (int64_t)(1e9 * (nl_seconds() - start) / steps);
    NL_CHECK(nl_group_maximum(trainer->group, &nanoseconds));
    *seconds = 1e-9 * (double)nanoseconds;
    return nl_trainer_collect(trainer);
}

static nl_status time_step(nl_trainer *trainer, double *seconds)
{
    double warm = 0;
    NL_CHECK(nl_trainer_time(trainer, WARM_UP, &warm));
    return nl_trainer_time(trainer, warm > 10 ? 1 : TIMED, seconds);
}

void nl_trainer_match_now(nl_trainer *trainer)
{
    trainer->matcher.options.from = -1; /* the tenth of the fake alone is over, too */
}

nl_status nl_trainer_dry_run(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    double seconds, matching, from = trainer->matcher.options.from;
    char figure[NL_FIGURE], images[NL_FIGURE];
    NL_CHECK(time_step(trainer, &seconds));
    double rate = (double)trainer->point.batch / seconds,
           peak = nl_peak_flops(trainer->device) * trainer->group->size;
    nl_log(context, NL_LOG_INFO, "time: %s a step, %s, %.3g TFLOP/s", nl_time_text(seconds, figure),
           nl_rate_text(rate, "image", images),
           3 * nl_forward_flops(&trainer->config) * rate / 1e12);
    if (peak > 0)
        nl_log(context, NL_LOG_INFO, "MFU: %.1f %% of %.3g TFLOP/s",
               300 * nl_forward_flops(&trainer->config) * rate / peak, peak / 1e12);
    if (trainer->state.fake) {
        nl_trainer_match_now(trainer);
        NL_CHECK(time_step(trainer, &matching));
        nl_log(context, NL_LOG_INFO, "with distribution matching: %s a step, %s",
               nl_time_text(matching, figure),
               nl_rate_text((double)trainer->point.batch / matching, "image", images));
        seconds = from * seconds + (1 - from) * matching;
    }
    if (trainer->steps) {
        nl_log(context, NL_LOG_INFO, "the whole run: %lld %s, %s, without validation and pictures",
               (long long)trainer->steps, nl_plural(trainer->steps, "step", "steps"),
               nl_time_text((double)trainer->steps * seconds, figure));
    }
    return NL_OK;
}
