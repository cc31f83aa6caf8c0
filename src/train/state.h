/* SPDX-License-Identifier: MIT */
/* Everything that a training step changes: the model, its master weights, what the optimiser keeps. */
#ifndef NL_STATE_H
#define NL_STATE_H

#include "nl_dit_train.h"

/* What a step says about itself, side by side on the device; four bytes each. */
typedef struct nl_step_report {
    float loss;      /* mean of this rank's samples; summed over the ranks */
    float norm;      /* of the gradient */
    int32_t applied; /* steps so far */
    int32_t skipped; /* steps in a row, up to this one */
} nl_step_report;

typedef struct nl_train_state {
    nl_device *device;
    nl_dit *model;                              /* what the network runs on: the device's types */
    nl_dit *master, *first, *second, *gradient; /* twins: F32 */
    nl_dit *ema[NL_MAX_EMA];
    nl_dit *best; /* the first average where the validation loss was best; NULL: not kept */
    struct nl_train_state
        *fake; /* of distribution matching (matching.h), its owner's; NULL: none */
    int ema_count;
    nl_segment *segments;
    int segment_count;
    nl_tensor segment_table, hyper, loss, norm, counter; /* the last three: an nl_step_report */
    void *memory;                                        /* on the device, of these */
    int64_t bytes;
} nl_train_state;

/* Initial weights by the seed; everything else zero, the averages equal to the weights. query_scale: see
 * nl_train_options. keeps_best: with room for one average more. */
nl_status nl_state_create(nl_device *device, const nl_config *config, int ema_count,
                          bool keeps_best, uint64_t seed, double query_scale,
                          nl_train_state *state);
void nl_state_free(nl_train_state *state);

/* Weights of another model of the same kind: what has another shape because classes or channels are others keeps
 * its initial value, and the log says so. */
nl_status nl_state_take_weights(nl_train_state *state, const nl_checkpoint *checkpoint,
                                const nl_config *from);
/* Model and averages from the master, after that has its first weights. */
nl_status nl_state_start(nl_train_state *state);
/* inherit.c: from a teacher of another network, what fits in place and shape; says what does not. */
nl_status nl_state_inherit(nl_train_state *state, const nl_checkpoint *checkpoint);
/* Of the fake: the configuration of a network of one time beside this student. Shares what that owns. Its middle head, the
 * discriminator's, stands deeper, behind the blocks that see t in the student: there it tells more apart. */
nl_config nl_state_fake_config(const nl_config *student);

/* Queues the optimiser's step: norm, AdamW, averages. hyper: see NL_HYPER_COLUMNS, already on the device. */
nl_status nl_state_update(nl_train_state *state);

/* The network becomes the average (or the master weights) rounded to the device's type. Waits. */
nl_status nl_state_show_average(nl_train_state *state, int index);
nl_status nl_state_show_weights(nl_train_state *state);

#endif
