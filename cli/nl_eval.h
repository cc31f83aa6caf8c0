/* SPDX-License-Identifier: MIT */
/* `nalagen eval`, `nalagen stats` and `nalagen nearest`: what their option tables and runs share. */
#ifndef NL_EVAL_H
#define NL_EVAL_H

#include "nl_command.h"
#include "nl_network.h"
#include "nl_sample.h"

extern const nl_command nl_eval_command, nl_stats_command, nl_nearest_command;

/* The network and how it is run. */
typedef struct nl_network_options {
    nl_machine_options machine;
    const char *weights, *preset, *precision;
} nl_network_options;

/* For the tables of commands, of a member of type nl_network_options. */
extern const nl_option nl_network_rows[];

/* A context for the network. */
nl_status nl_eval_take_device(nl_command_line *line, const nl_network_options *options);
/* The options that the three commands share, on top of the defaults. */
nl_evaluation_options nl_eval_options_of(const nl_network_options *options);

/* ---- `nalagen eval` */

typedef struct nl_eval_options {
    nl_network_options network;
    nl_sample_options sample; /* of a model: those of nl_sampling_options, dtype and batch */
    bool json, allow_small, fid_infinity, once;
    const char *ref, *features, *metrics, *distances, *watch, *gpus;
    int64_t kid_subsets, kid_subset_size, is_split, bootstrap;
} nl_eval_options;

typedef struct nl_report {
    nl_context *context;
    const nl_evaluation *evaluation;
    const char *samples, *reference;
    const cJSON *sampling; /* how the samples were made, or NULL: not known */
    int processes;         /* that shared the pictures */
} nl_report;

nl_status nl_report_table(const nl_report *report);
/* "step-0001000.safetensors  fid_768 12.3456  sfid 7.8901" on standard output, of a report in JSON. */
nl_status nl_report_line(nl_context *context, const char *name, const cJSON *report);

#endif
