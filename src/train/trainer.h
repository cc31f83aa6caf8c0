/* SPDX-License-Identifier: MIT */
/* A run under way, as the parts of src/train share it. */
#ifndef NL_TRAINER_H
#define NL_TRAINER_H

#include "checkpoint.h"
#include "nl_pipeline.h"
#include "nl_run.h"
#include "nl_train.h"
#include "record.h"
#include "step.h"

typedef struct nl_trainer {
    nl_context *context;
    nl_device *device;
    const nl_train_options *options;
    nl_train_options own; /* the same, with what follows from the rest */
    char *drawn;          /* folder of the teacher's own samples */
    nl_group *group;
    nl_dataset *data, *validation;
    nl_config config;
    nl_loss *loss;
    nl_train_state state;
    nl_dit *teacher;     /* of a distillation */
    nl_train_state fake; /* of distribution matching; {0}: none */
    nl_feed feed;
    nl_matcher matcher;
    nl_stepper stepper;
    nl_run_point point; /* point.step: steps done */
    int64_t first_step; /* where this process began */
    int64_t steps;      /* of the whole run; 0: not known */
    int64_t arena;      /* bytes that a step takes */
    double started;     /* of this process' work, by nl_seconds */
    double elapsed;     /* seconds of the whole run that all ranks go by */
    bool agreed;        /* on them, once at least */
    bool stopping;      /* one of the ranks was asked to stop, and all know */
    double clock;       /* when the last log line was written, and what was not steps since */
    int64_t clock_step;
    int slots;               /* steps between two collections at most */
    nl_step_result *results; /* [slots] */
    nl_record record;
    int lock;           /* of RUN; -1: none */
    bool settled;       /* a distillation that began from a flow map */
    bool folder_is_new; /* RUN was not there */
    nl_model *sampler;  /* around the network, for grids; NULL: none */
    bool sampler_tried;
    bool last_grid; /* one at the end, whatever the interval: that follows from the length */
    nl_due clock_grids, clock_saves;
    bool save_failed;                  /* the last checkpoint: tried again soon */
    double last_loss, validation_loss; /* NaN: none */
    bool finished;                     /* model.safetensors is written */
    int64_t saved_step;                /* of the last one that this process wrote; -1: none */
} nl_trainer;

/* A distillation whose student is an ordinary model of another network: it learns the teacher's predictions. */
static inline bool nl_converts(const nl_train_options *options)
{
    return options->teacher && options->student_config && !options->flow_map;
}

/* setup.c: the configuration by the options and the data; data, loss, group. *config owns nothing after a failure. */
nl_status nl_trainer_configure(nl_context *context, const nl_train_options *options,
                               const nl_dataset_info *data, const nl_checkpoint *init,
                               nl_config *config);
nl_status nl_trainer_check(nl_context *context, const nl_train_options *options);

/* setup.c: refuses a network, of the file, that cannot be made one of two times. */
nl_status nl_trainer_check_flow_map(nl_context *context, const char *file, const nl_config *config);

/* teacher.c: what no data and no student need be known for; before samples are drawn. */
nl_status nl_trainer_check_teacher(nl_trainer *trainer, const nl_checkpoint *checkpoint);
/* teacher.c: trainer->teacher from its file, where it is of the kind that the student is, and classes mean the same. */
nl_status nl_trainer_take_teacher(nl_trainer *trainer, const nl_checkpoint *checkpoint);

/* teacher_data.c: the data set trainer->options->data from the teacher's own samples, unless it is there. */
nl_status nl_trainer_draw_data(nl_trainer *trainer, const nl_checkpoint *checkpoint);

/* RUN/config.json */
nl_status nl_trainer_write_config(const nl_trainer *trainer);

/* validate.c. Takes the memory of a validation and gives it back: what is missing is found before the first step. */
nl_status nl_trainer_try_validation(nl_trainer *trainer);
/* A line of metrics.jsonl, unless it has this one (`again`). Changes nothing but, with patience, which average is the best
 * and how long ago. */
nl_status nl_trainer_validate(nl_trainer *trainer, bool again);
/* snapshot.c: folders for the averages of power functions, with --snapshot-every; what later steps left there is set
 * aside. */
nl_status nl_trainer_begin_snapshots(nl_trainer *trainer);
/* Writes them; what cannot be written is complained about. */
nl_status nl_trainer_snapshot(nl_trainer *trainer);
/* samples.c: whether grids can be drawn as asked, before the first step. */
nl_status nl_trainer_check_samples(const nl_trainer *trainer);
/* samples.c: samples/step-XXXXXXX.png. */
nl_status nl_trainer_sample(nl_trainer *trainer);
/* health.c: writes the state down and names the first bad tensor; returns NL_ERROR_NOT_FINITE. */
nl_status nl_trainer_give_up(nl_trainer *trainer, int64_t skipped);
/* dump.c: dump.safetensors. */
nl_status nl_trainer_dump(nl_trainer *trainer);
/* estimate.c: steps, and the seconds that one takes, of the slowest rank. */
nl_status nl_trainer_time(nl_trainer *trainer, int steps, double *seconds);
nl_status nl_trainer_dry_run(nl_trainer *trainer);
/* From now on every step has the whole of distribution matching, where the run has any: for looking at what it takes. */
void nl_trainer_match_now(nl_trainer *trainer);
/* profile.c */
nl_status nl_trainer_profile(nl_trainer *trainer);

/* run.c: everything between the first step and done. */
nl_status nl_trainer_run(nl_trainer *trainer);
bool nl_trainer_is_over(const nl_trainer *trainer);

/* steps.c. Seconds of work in the whole run so far. */
double nl_trainer_seconds(const nl_trainer *trainer);
/* Whether one of the ranks was asked to stop. Waits for all of them. */
nl_status nl_trainer_ask_stop(nl_trainer *trainer, bool *stop);
/* How much of the run lies behind, 0 to 1; 0 when it has no end. */
double nl_trainer_done(const nl_trainer *trainer);
/* The next step, queued. */
nl_status nl_trainer_step(nl_trainer *trainer);
/* Waits, and adds up what the steps said. */
nl_status nl_trainer_collect(nl_trainer *trainer);

#endif
