/* SPDX-License-Identifier: MIT */
/*
 * Training: a run folder, made by `nalagen train` and resumed by the same command.
 *
 *   config.json      the model, the options, the data
 *   log.jsonl        a line every log_every steps
 *   metrics.jsonl    a line for each validation
 *   checkpoints/     step-XXXXXXX.safetensors, everything that a run needs to resume
 *   samples/         step-XXXXXXX.png
 *   snapshots/       sigma-S/step-XXXXXXX.safetensors, of averages
 *   events.out.tfevents...   the same numbers and pictures for TensorBoard
 *   model.safetensors, done  when it is over
 *
 * Everything drawn at random is a function of the seed and the number of the sample since the start, so a run
 * that was stopped and resumed is the one that was not, bit by bit.
 */
#ifndef NL_TRAIN_H
#define NL_TRAIN_H

#include "nl_core.h"

/* What nl_train_recipe sets. */
extern const nl_train_options nl_train_defaults;
/* Of a distillation. */
extern const nl_train_options nl_distill_defaults;
extern const char *const nl_train_schedules[], *const nl_train_times[],
                                                   *const nl_train_weightings[];

/* ---- Likelihood */

typedef struct nl_likelihood_options {
    const char *model, *key, *config, *data;
    int64_t count; /* images; 0: all */
    int64_t batch;
    int64_t steps;  /* of the trapezoidal rule */
    int64_t probes; /* of Hutchinson's estimate for each image */
    uint64_t seed;
} nl_likelihood_options;

/* Bits for one number of a picture (one of 256 levels) or of a latent (a density: may be negative). */
typedef struct nl_likelihood_result {
    double bits_per_dimension;
    double standard_error; /* over the images */
    int64_t count;
} nl_likelihood_result;

nl_status nl_measure_likelihood(nl_context *context, const nl_likelihood_options *options,
                                nl_likelihood_result *result);

#endif
