/* SPDX-License-Identifier: MIT */
/* Checkpoints of a run: all that it needs to resume, in one file for each step that is kept. */
#ifndef NL_TRAIN_CHECKPOINT_H
#define NL_TRAIN_CHECKPOINT_H

#include "nl_run.h"
#include "schedule.h"
#include "state.h"

/* The part of a checkpoint that is no tensor. Seed, batch, samples and data_sha256 decide which samples a step takes,
 * teacher_sha256 what they are worth: a run resumes only where these are the same. */
typedef struct nl_run_point {
    uint64_t seed;
    int64_t batch;             /* of all processes */
    int64_t samples;           /* of the data set, or of its part that is trained on */
    char data_sha256[65];      /* of dataset.json */
    char teacher_sha256[65];   /* of a distillation, otherwise "" */
    int64_t step;              /* steps done */
    int64_t applied;           /* that changed the weights */
    int64_t skipped;           /* not finite, in all */
    int64_t skipped_now;       /* the same, in a row up to now */
    double seconds;            /* of work so far */
    double loss_sum, norm_sum; /* of finite steps since the last line of the log */
    int64_t finite_steps, bad_steps;
    /* With distribution matching: updates of the fake, those not finite in a row; sums as above, of its updates and of the
     * student's steps. */
    bool matches;
    int64_t fake_applied, fake_skipped_now, fake_updates, matched_steps;
    double fake_sum, match_sum, discriminator_sum;
    int ema_count;
    nl_average ema[NL_MAX_EMA];
    /* With patience: the step whose validation loss was best (0: none yet), that loss, and validations since. */
    int64_t best_step, worse;
    double best_loss;
} nl_run_point;

/* Writes step-XXXXXXX.safetensors (nl_run.h) into `folder`, then removes the oldest so that `keep` stay (0: all). The
 * file holds the master weights under their names and, with a prefix before these, the moving averages ("ema.", "ema2.",
 * ...), the best of the first one ("best.") and Adam's moments ("adam.m.", "adam.v."); the same three of the fake with
 * "fake." before them; its metadata has "nalagen" (the configuration) and "nalagen.training"
 * (the nl_run_point). */
nl_status nl_save_point(const nl_train_state *state, const nl_run_point *point, const char *folder,
                        int64_t keep);
/* Whether a checkpoint could be written into `folder`, which is made, as far as its size and its place go: before the
 * first step. */
nl_status nl_try_saving(const nl_train_state *state, const char *folder);
/* Whether a run in whose `folder` there are no checkpoints has not come to its first one yet. */
bool nl_never_saved(nl_context *context, const char *folder);
/* Takes the state from a file; *point becomes what the file says. NL_ERROR_INPUT: the file is not whole. NL_ERROR_USAGE:
 * it is of another model, has another number of averages, or a fake where there is none, or the other way round. */
nl_status nl_load_point(nl_train_state *state, const char *path, nl_run_point *point);

/* Says in the model's configuration how many images it has seen and of which average it is (NULL: the weights
 * themselves). */
void nl_describe_average(const nl_run_point *point, const nl_average *average, nl_config *config);

/* What the metadata "nalagen.training" of a checkpoint says; NULL, that it has none, is an error. `path` is for
 * messages. */
nl_status nl_parse_point(nl_context *context, const char *path, const char *text,
                         nl_run_point *point);

/* Renames checkpoints of later steps to NAME.old: what a run that resumes at `step` writes must not be older. */
nl_status nl_set_aside_points(nl_context *context, const char *folder, int64_t step);

#endif
