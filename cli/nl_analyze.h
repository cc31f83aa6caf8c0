/* SPDX-License-Identifier: MIT */
/* `nalagen analyze`. */
#ifndef NL_ANALYZE_H
#define NL_ANALYZE_H

#include "nl_analysis.h"
#include "nl_sample.h"

typedef struct nl_analyze_options {
    nl_sample_options sample; /* out: the folder */
    const char *at, *layers, *queries;
} nl_analyze_options;

extern const nl_command nl_analyze_command;

/* The numbers of the analysis; sampling: how the pictures were made. */
nl_status nl_analysis_json(const nl_analysis *analysis, const cJSON *sampling, cJSON **object);
/* A table of the layers to standard output. */
nl_status nl_analysis_table(const nl_analysis *analysis);

#endif
