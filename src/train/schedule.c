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

static double width(double g)
{
    return sqrt((g + 1) / (g + 3)) / (g + 2);
}

double nl_power_exponent(double sigma_rel)
{
    double low = 0, high = 1;
    while (width(high) > sigma_rel)
        high *= 2;
    for (int i = 0; i < 200; i++) { /* it falls with g */
        double middle = (low + high) / 2;
        *(width(middle) > sigma_rel ? &low : &high) = middle;
    }
    return (low + high) / 2;
}

double nl_train_ema_decay(const nl_train_options *options, const nl_average *average, int64_t step)
{
    double k = 1.0 + (double)step;
    if (average->sigma_rel > 0)
        return pow(1 - 1 / k, nl_power_exponent(average->sigma_rel) + 1);
    return options->ema_warmup ? fmin(average->decay, k / (9 + k)) : average->decay;
}

/* A round number of steps, 1, 2 or 5 times a power of ten, that goes about `times` into the run; at least `least`, at most
 * `most`, which is also that of a run whose length is not known. */
static int64_t share(int64_t steps, int64_t times, int64_t least, int64_t most)
{
    int64_t every = 1, wanted = steps ? steps / times : most;
    for (int i = 0; i < 3 * 12; i++) {
        static const int64_t digits[] = {1, 2, 5};
        int64_t next = digits[i % 3] * (int64_t)pow(10, i / 3);
        every = next <= wanted ? next : every;
    }
    return NL_MAX(least, NL_MIN(every, most));
}

void nl_train_follow_length(nl_train_options *options, int64_t steps)
{
    if (options->log_every < 0)
        options->log_every = share(steps, 10, 10, 100);
    if (options->validate_every < 0)
        options->validate_every = share(steps, 10, 100, 5000);
    if (options->save_every < 0)
        options->save_every = share(steps, 4, 100, 5000);
    if (options->sample_every < 0)
        options->sample_every = share(steps, 10, 100, 10000);
    if (options->ema && !strcmp(options->ema, "auto")) {
        options->ema = "0.9999";
        options->ema_warmup = true; /* from step 90,000 on there is no difference */
    }
}

double nl_train_first_part(const nl_train_options *options, const nl_average *average,
                           int64_t steps)
{
    if (average->sigma_rel > 0 || options->ema_warmup)
        return 0;
    return pow(average->decay, (double)steps);
}

static const char power[] = "power:";

/* "0.9999" or "power:0.1"; returns what stands behind it, or NULL. */
static const char *read_average(const char *text, nl_average *average)
{
    bool decays = strncmp(text, power, sizeof(power) - 1) != 0;
    const char *number = text + (decays ? 0 : sizeof(power) - 1);
    char *end;
    double value = strtod(number, &end);
    *average = decays ? (nl_average){.decay = value} : (nl_average){.sigma_rel = value};
    bool fits = value > 0 && (decays ? value < 1 : value >= 0.001 && value <= NL_MOST_SIGMA_REL);
    return end > number && fits && (!*end || *end == ',') ? end : NULL;
}

static nl_status parse_ema(nl_context *context, const char *text, nl_average *averages, int *count)
{
    const char *at = strcmp(text, "auto") ? text : "0.9999";
    for (*count = 0; *count < NL_MAX_EMA;) {
        at = read_average(at, &averages[(*count)++]);
        if (!at)
            break;
        if (!*at)
            return NL_OK;
        at++;
    }
    return nl_fail(context, NL_ERROR_USAGE,
                   "ema %s: expected 1 to %d decays between 0 and 1, such as 0.9999,0.999, or "
                   "widths of power functions from 0.001 to 0.288, such as power:0.1",
                   text, NL_MAX_EMA);
}

bool nl_due_now(nl_due *due, int times, double share, double done, double seconds)
{
    if (due->began > 0 && due->ended == 0 && seconds > due->began)
        due->ended = seconds;
    bool known = due->began == 0 || due->ended > 0;
    int now = (int)(times * done);
    if (now <= due->passed || !known || (seconds - due->began) * share < due->ended - due->began)
        return false;
    due->passed = now;
    if (now >= times)
        return false;
    due->began = seconds;
    due->ended = 0;
    return true;
}

nl_status nl_train_averages(nl_context *context, const nl_train_options *options,
                            nl_average *averages, int *count)
{
    static const double of_snapshots[] = {0.05, 0.1};
    bool any = false;
    *count = 0;
    if (options->ema) {
        NL_CHECK(parse_ema(context, options->ema, averages, count));
    }
    for (int i = 0; i < *count; i++)
        any |= averages[i].sigma_rel > 0;
    if (!options->snapshot_every || any)
        return NL_OK;
    if (*count + NL_COUNT(of_snapshots) > NL_MAX_EMA)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--snapshot-every keeps two averages beside --ema %s, and a run has %d at "
                       "most: name fewer, or those of the snapshots among them (power:0.05)",
                       options->ema, NL_MAX_EMA);
    for (int i = 0; i < NL_COUNT(of_snapshots); i++)
        averages[(*count)++] = (nl_average){.sigma_rel = of_snapshots[i]};
    return NL_OK;
}
