/* SPDX-License-Identifier: MIT */
/* Numbers by step, or by another number, out of a run's files. */
#ifndef NL_CURVES_H
#define NL_CURVES_H

#include "nl_core.h"

typedef struct nl_curve {
    int64_t count;
    double *points; /* [count, 2]: x, y */
} nl_curve;

/* What the lines of a JSON lines file say under `key`, by what they say under `over`, where they say both and they are
 * finite; empty when there is no such file. A line that is no JSON is left out with a warning. */
nl_status nl_curve_read(nl_context *context, const char *path, const char *over, const char *key,
                        nl_curve *curve);
void nl_curve_free(nl_context *context, nl_curve *curve);
/* Exponential moving average, weight of what came before, without the bias of its start. */
void nl_curve_smooth(nl_curve *curve, double weight);
/* At most `most` points: means of runs of neighbours. */
void nl_curve_thin(nl_curve *curve, int64_t most);

#endif
