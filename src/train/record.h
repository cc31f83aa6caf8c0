/* SPDX-License-Identifier: MIT */
/* What a run writes about itself: log.jsonl, metrics.jsonl, TensorBoard's events. A file that cannot be written
 * is complained about, and the run continues. */
#ifndef NL_RECORD_H
#define NL_RECORD_H

#include "events.h"

typedef struct nl_record {
    nl_context *context;
    nl_append log, metrics, events;
    bool failing; /* said so already */
} nl_record;

typedef struct nl_number {
    const char *name;
    double value; /* not finite: null */
} nl_number;

/* Of a run that stands at `step`: lines of later steps, which a killed run left, go. */
nl_status nl_record_open(nl_context *context, const char *folder, int64_t step, nl_record *record);
void nl_record_close(nl_record *record); /* {0} is allowed */

/* A line of log.jsonl, or of metrics.jsonl; the same as scalars "train/NAME" or "val/NAME". */
void nl_record_log(nl_record *record, int64_t step, const nl_number *numbers, int count);
void nl_record_metrics(nl_record *record, int64_t step, const nl_number *numbers, int count);
void nl_record_image(nl_record *record, int64_t step, int height, int width, const uint8_t *png,
                     size_t size);

#endif
