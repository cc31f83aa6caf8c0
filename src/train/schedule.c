/* SPDX-License-Identifier: MIT */
/* The learning rate and the decay of averages at a step. */
#include "schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const nl_train_schedules[] = {"constant", "cosine", "cooldown", NULL};

double nl_train_rate(const nl_train_options *options, int64_t step, double done)
{
    const double pi = 3.14159265358979323846;
    double part = 1; /* of the way from the last rate to the full one */
    if (!strcmp(options->schedule, "cosine"))
        part = (1 + cos(pi * done)) / 2;
    else if (!strcmp(options->schedule, "cooldown") && done > 1 - options->cooldown)
        part = (1 - done) / options->cooldown;
    double rate = options->rate * (options->last_rate + (1 - options->last_rate) * part);
    if (step < options->warmup)
        rate *= (double)(step + 1) / (double)options->warmup;
    return rate;
}

double nl_train_ema_decay(const nl_train_options *options, double decay, int64_t step)
{
    return options->ema_warmup ? fmin(decay, (1.0 + (double)step) / (10.0 + (double)step)) : decay;
}

nl_status nl_train_parse_ema(nl_context *context, const char *text, int most, double *decays,
                             int *count)
{
    const char *at = text;
    for (*count = 0; *count < most;) {
        char *end;
        double decay = strtod(at, &end);
        if (end == at || !(decay > 0 && decay < 1) || (*end && *end != ','))
            break;
        decays[(*count)++] = decay;
        if (!*end)
            return NL_OK;
        at = end + 1;
    }
    return nl_fail(context, NL_ERROR_USAGE,
                   "ema %s: expected 1 to %d decays between 0 and 1, such as 0.9999,0.999", text,
                   most);
}
