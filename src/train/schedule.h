/* SPDX-License-Identifier: MIT */
/* Numbers that change from step to step by a rule. */
#ifndef NL_SCHEDULE_H
#define NL_SCHEDULE_H

#include "nl_train.h"
#include "ops.h"

/* Learning rate of step number `step` (from 0); done in [0, 1]: how much of the run lies behind it. */
double nl_train_rate(const nl_train_options *options, int64_t step, double done);

/* ---- Moving averages: of one decay, or of a power function (EDM2, Karras et al. 2024, appendix C), in which the weights
 * after step k of n count as k^g. Its width stays the same part of the run, however long that is: sigma_rel, the
 * standard deviation of k in the average / n. */
typedef struct nl_average {
    double decay;     /* in (0, 1); 0: a power function */
    double sigma_rel; /* in (0, NL_MOST_SIGMA_REL]; 0: none */
} nl_average;

#define NL_MOST_SIGMA_REL 0.28867513459481287 /* g = 0: all steps alike */

/* Exponent g >= 0 of the power function: sigma_rel^2 = (g + 1) / ((g + 2)^2 (g + 3)). */
double nl_power_exponent(double sigma_rel);
/* Decay behind the update of step number `step` (from 0): of a power function (1 - 1/k)^(g + 1), k = step + 1. */
double nl_train_ema_decay(const nl_train_options *options, const nl_average *average, int64_t step);
/* The averages of a run: "0.9999,power:0.1", at most NL_MAX_EMA ("auto": 0.9999); with snapshot_every and no power
 * function there also power:0.05 and power:0.1. */
nl_status nl_train_averages(nl_context *context, const nl_train_options *options,
                            nl_average *averages, int *count);

/* ---- What is due by the clock in a run whose length is a time. */
typedef struct nl_due {
    int passed;   /* so many were due; -1: it goes by steps */
    double began; /* the last one, in seconds of the run; 0: none */
    double ended; /* as far as is known: the first time asked after it; 0: not yet */
} nl_due;

/* Whether one of `times` is due where `done` of the run, of which it is `seconds`, lies behind it; the end has its own. What takes
 * long becomes fewer: no more than `share` of the time goes into it. */
bool nl_due_now(nl_due *due, int times, double share, double done, double seconds);

/* ---- What follows from the length of a run where it was not given: in place of "auto" and of negative numbers. steps: of
 * the whole run; 0: not known. */
void nl_train_follow_length(nl_train_options *options, int64_t steps);
/* The part of an average that the first weights still are after so many steps. */
double nl_train_first_part(const nl_train_options *options, const nl_average *average,
                           int64_t steps);

#endif
