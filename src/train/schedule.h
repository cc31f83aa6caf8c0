/* SPDX-License-Identifier: MIT */
/* Numbers that change from step to step by a rule. */
#ifndef NL_SCHEDULE_H
#define NL_SCHEDULE_H

#include "nl_train.h"

/* Learning rate of step number `step` (from 0); done in [0, 1]: how much of the run lies behind it. */
double nl_train_rate(const nl_train_options *options, int64_t step, double done);
/* Decay of a moving average behind the update of step number `step`. */
double nl_train_ema_decay(const nl_train_options *options, double decay, int64_t step);
/* "0.9999,0.999" -> decays in (0, 1); *count at most `most`. */
nl_status nl_train_parse_ema(nl_context *context, const char *text, int most, double *decays,
                             int *count);

#endif
