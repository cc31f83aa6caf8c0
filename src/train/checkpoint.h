/* SPDX-License-Identifier: MIT */
/* RUN/checkpoints: where a run stands, whole, in one file. */
#ifndef NL_TRAIN_CHECKPOINT_H
#define NL_TRAIN_CHECKPOINT_H

#include "state.h"

/* What is not a tensor. The first four decide which samples come: a run goes on with the same ones alone. */
typedef struct nl_run_point {
    uint64_t seed;
    int64_t batch;             /* of all processes */
    int64_t samples;           /* of the data set, or of its part that is trained on */
    char data_sha256[65];      /* of dataset.json */
    int64_t step;              /* steps done */
    int64_t applied;           /* that changed the weights */
    int64_t skipped;           /* not finite, in all */
    int64_t skipped_now;       /* the same, in a row up to now */
    double seconds;            /* of work so far */
    double loss_sum, norm_sum; /* of finite steps since the last line of the log */
    int64_t finite_steps, bad_steps;
    int ema_count;
    double ema_decay[NL_MAX_EMA];
} nl_run_point;

/* step-XXXXXXX.safetensors in `folder`; then the oldest go, so that `keep` stay (0: all). Tensors: the master
 * weights under their names, "ema.", "ema2.", ..., "adam.m.", "adam.v."; metadata: "nalagen" (the configuration) and
 * "nalagen.training". */
nl_status nl_save_point(const nl_train_state *state, const nl_run_point *point, const char *folder,
                        int64_t keep);
/* The state of a file; *point is what the file says. NL_ERROR_INPUT: it is not whole. NL_ERROR_USAGE: it is of another
 * model or has another number of averages. */
nl_status nl_load_point(nl_train_state *state, const char *path, nl_run_point *point);

/* Names of the checkpoints in `folder`, the newest first: allocated, each and the list. */
nl_status nl_list_points(nl_context *context, const char *folder, char ***paths, int *count);
/* Renames checkpoints of later steps to NAME.old: what a run that goes on at `step` writes must not be older. */
nl_status nl_set_aside_points(nl_context *context, const char *folder, int64_t step);
void nl_free_points(nl_context *context, char **paths, int count);

#endif
