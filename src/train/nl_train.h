/* SPDX-License-Identifier: MIT */
/*
 * Training: a run folder, made by `nalagen train` and gone on with by the same command.
 *
 *   config.json      the model, the options, the data
 *   log.jsonl        a line every log_every steps
 *   metrics.jsonl    a line for each validation
 *   checkpoints/     step-XXXXXXX.safetensors, everything that a run needs to go on
 *   samples/         step-XXXXXXX.png
 *   events.out.tfevents...   the same numbers and pictures for TensorBoard
 *   model.safetensors, done  when it is over
 *
 * Everything drawn at random is a function of the seed and the number of the sample since the start, so a run
 * that was stopped and went on is the one that was not, bit by bit.
 */
#ifndef NL_TRAIN_H
#define NL_TRAIN_H

#include "nl_core.h"

typedef struct nl_train_options {
    /* model: one of them, and a configuration over it */
    const char *model; /* "NaLaSiT-S/2" */
    const char *init;  /* checkpoint whose weights come first; its own model when `model` is NULL */
    const char *config; /* JSON file, or NULL */
    const char *data, *validation, *out;
    /* Distillation into a flow map (distill.h): the model is the teacher's, and starts with its weights. */
    const char
        *teacher; /* a SiT that predicts the velocity on the linear path; NULL: ordinary training */
    double guidance;              /* of the teacher, from now on inside the weights; 1: none */
    double guidance_interval[2];  /* where it acts */
    int64_t teacher_samples;      /* of the teacher's own, the data where none is given */
    int64_t flow_map;             /* first blocks that see t; 0: two thirds */
    double alpha_floor, adaptive; /* see nl_distill_options */
    const char *resume;           /* "auto", "none", or a checkpoint */
    /* how long; what is 0 does not end the run */
    int64_t steps, epochs;
    double minutes;
    /* a step */
    int64_t batch;                                   /* samples, of all processes together */
    int64_t accumulate;                              /* parts that a process takes its samples in */
    bool checkpointing;                              /* less memory, a third more work */
    double rate, beta1, beta2, epsilon, decay, clip; /* clip 0: none */
    const char *schedule;                            /* "constant", "cosine", "cooldown" */
    double cooldown;                                 /* part of the run at its end */
    double last_rate;                                /* of the schedule, as a part of `rate` */
    int64_t warmup;                                  /* steps */
    double
        query_scale; /* s: NaLa's query rows start s times as large and learn at s times the rate. Adam makes that
                           the training of a model whose exponent is lambda (tau + tanh(s |q|)). */
    const char *ema; /* decays: "0.9999", "0.9999,0.999" */
    bool ema_warmup; /* decay at most (1 + step) / (10 + step) */
    /* loss */
    const char *times; /* "uniform", "logit-normal" */
    double times_mean, times_deviation;
    const char *weighting; /* "none", "velocity", "likelihood", "min-snr" */
    double min_snr;
    double dropout;       /* part of the MLPs' hidden layers that is dropped; 0: none */
    double label_dropout; /* negative: the configuration's */
    bool no_flip;
    uint64_t seed;
    int64_t overfit; /* the first so many samples alone; 0: all */
    /* what is said and kept; 0: never */
    int64_t log_every, validate_every, sample_every, save_every;
    int64_t validation_count; /* samples; 0: all */
    int64_t keep;             /* checkpoints; 0: all */
    int64_t samples;          /* pictures of a grid */
    int64_t sample_steps;     /* 0: the sampler's default */
    double cfg_scale;
    const char *vae;     /* for the grids; NULL: the model's own */
    int64_t max_skipped; /* steps in a row that are not finite */
    int64_t dump;        /* steps whose samples are written down */
    bool dry_run, profile;
    const char *record; /* JSON of the options, for config.json; or NULL */
} nl_train_options;

/* The public recipe. */
extern const nl_train_options nl_train_defaults;
/* Of a distillation. */
extern const nl_train_options nl_distill_defaults;
extern const char *const nl_train_schedules[], *const nl_train_times[],
                                                   *const nl_train_weightings[];

/* Trains until the run is over. NL_CANCELLED: stopped by nl_cancel, and saved. */
nl_status nl_train(nl_context *context, const nl_train_options *options);

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
