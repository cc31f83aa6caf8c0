/* SPDX-License-Identifier: MIT */
/* `nalagen eval` and `nalagen stats`: what their option tables and runs share. */
#ifndef NL_EVAL_H
#define NL_EVAL_H

#include "nl_command.h"
#include "nl_evaluate.h"
#include "nl_sample.h"

extern const nl_command nl_eval_command, nl_stats_command, nl_nearest_command;

/* The network and how it is run. */
typedef struct nl_network_options {
    nl_machine_options machine;
    const char *weights, *preset, *precision;
} nl_network_options;

/* For the tables of commands, of a member of type nl_network_options. */
extern const nl_option nl_network_rows[];

extern const char *const nl_feature_choices[];

typedef struct nl_eval_session {
    nl_console *console;
    nl_context *context;
    nl_checkpoint *checkpoint; /* of the network */
    nl_inception *net;
    char sha256[65];
    nl_evaluation_options options;
    const char *stage; /* of the progress line, when it began, how far it is */
    double stage_started;
    int64_t stage_done;
} nl_eval_session;

/* Context and preset: what can be refused without the network is refused then. Next, the network. */
nl_status nl_eval_open(nl_command_line *line, const nl_network_options *options,
                       nl_eval_session *session);
nl_status nl_eval_load(const nl_network_options *options, nl_eval_session *session);
void nl_eval_close(nl_eval_session *session);
/* One of nl_feature_choices, when the weights give it; NULL: as it is. */
nl_status nl_eval_choose_feature(nl_eval_session *session, const char *name);

/* The progress line: "samples 640/50000  8.3/s  1:23:45 left", pictures. Always true. */
bool nl_eval_progress(void *session, const char *what, int64_t done, int64_t count);

/* ---- Samples of a model, made while they are evaluated */

typedef struct nl_generated nl_generated;

/* `options` and the session outlive it. Both contexts may take network->machine.max_memory. */
nl_status nl_generated_open(nl_eval_session *session, const nl_network_options *network,
                            const nl_sample_options *options, nl_generated **generated);
void nl_generated_close(nl_generated *generated); /* NULL is allowed */
/* Can run once. */
nl_picture_source nl_generated_source(nl_generated *generated);
/* How they are made, as pictures say it of themselves. */
nl_status nl_generated_facts(nl_generated *generated, cJSON **facts);

/* ---- `nalagen eval` */

typedef struct nl_eval_options {
    nl_network_options network;
    nl_sample_options sample; /* of a model: those of nl_sampling_options, dtype and batch */
    bool json, allow_small, fid_infinity, once;
    const char *ref, *features, *metrics, *distances, *watch;
    int64_t kid_subsets, kid_subset_size, is_split, bootstrap;
} nl_eval_options;

/* Evaluates samples of the model that options->sample names. object: takes the report; NULL: it is printed as a
 * table. */
nl_status nl_eval_model(nl_eval_session *session, const nl_eval_options *options, cJSON **object);
/* --watch: each checkpoint of the run. */
nl_status nl_eval_watch(nl_eval_session *session, const nl_eval_options *options);

/* ---- Reports */

typedef struct nl_report {
    const nl_eval_session *session;
    const nl_evaluation *evaluation;
    const char *samples, *reference;
    const cJSON *sampling;     /* how the samples were made, or NULL: not known */
    char reference_sha256[65]; /* "" of a folder */
} nl_report;

nl_status nl_report_table(const nl_report *report);
nl_status nl_report_json(const nl_report *report, cJSON **object);
/* "step-0001000.safetensors  fid_768 12.3456  sfid 7.8901" on standard output, of a report in JSON. */
nl_status nl_report_line(nl_context *context, const char *name, const cJSON *report);

#endif
