/* SPDX-License-Identifier: MIT */
/* The FID network of an evaluation, with how it is used; kept over several evaluations. */
#ifndef NL_NETWORK_H
#define NL_NETWORK_H

#include "nl_json.h"
#include "nl_measure.h"

typedef struct nl_fid_network {
    nl_context *context;
    nl_checkpoint *checkpoint;
    nl_inception *net;
    char sha256[65]; /* of the checkpoint */
    nl_metric_options options;
} nl_fid_network;

/* Features that an evaluation can be of; ended by NULL. */
extern const char *const nl_feature_choices[];

/* Of `options` what is about the network and the metrics. What can be refused without the network is refused before it is
 * loaded. *network needs no closing after a failure. */
nl_status nl_fid_network_open(nl_context *context, const nl_evaluation_options *options,
                              nl_fid_network *network);
void nl_fid_network_close(nl_fid_network *network); /* {0} is allowed */

/* nl_evaluate with this network. */
nl_status nl_evaluate_with(nl_fid_network *network, const nl_evaluation_options *options,
                           nl_evaluation *evaluation);

/* Pictures of options->model, made while they are looked at. */
typedef struct nl_model_pictures nl_model_pictures;
nl_status nl_model_pictures_open(nl_context *context, const nl_evaluation_options *options,
                                 nl_model_pictures **pictures);
/* Of the network, for the pictures made so far. */
int64_t nl_model_pictures_evaluations(const nl_model_pictures *pictures);
void nl_model_pictures_close(nl_model_pictures *pictures); /* NULL is allowed */
/* Can run once. */
nl_picture_source nl_model_pictures_source(nl_model_pictures *pictures);

/* ---- Reports */

/* Numbers of the features that the metric is of; 0: those of papers, or its own. */
int64_t nl_metric_width(const nl_evaluation *evaluation, nl_metric metric);
/* Of the whole work. */
double nl_evaluation_seconds(const nl_evaluation *evaluation);

/* sampling: how the samples were made, or NULL; the report takes a copy. */
nl_status nl_evaluation_json(nl_context *context, const nl_evaluation_options *options,
                             const char *samples, const cJSON *sampling,
                             const nl_evaluation *evaluation, cJSON **report);

/* ---- A training run, each checkpoint of which is evaluated once */

typedef struct nl_watch_options {
    const char *run; /* the folder of the run */
    bool once;       /* the checkpoints that are there; otherwise until RUN/done is there */
    const char *reference;
    const cJSON
        *asked; /* options of sampling: a line of metrics.jsonl with others counts as none */
    /* Evaluates a checkpoint; *report: to be deleted by the caller. NL_ERROR_INPUT of one that is no longer there is let
     * pass. */
    nl_status (*evaluate)(void *user, const char *path, cJSON **report);
    /* One is done, and `line` was added to metrics.jsonl. */
    nl_status (*done)(void *user, const char *name, const char *line, const cJSON *report);
    void *user;
} nl_watch_options;

nl_status nl_watch_run(const nl_fid_network *network, const nl_watch_options *options);

#endif
