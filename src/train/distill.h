/* SPDX-License-Identifier: MIT */
/*
 * Distilling a velocity into a flow map u(x, t, s), the average velocity from t to s (x(s) = x + (s - t) u): what a
 * sample's target is. With m = t + a (s - t) and x_m = x_t + (m - t) v, where v is the teacher's guided velocity at x_t,
 *
 *     target = a v + (1 - a) u'(x_m, m, s)
 *
 * and u' are the student's present weights without a gradient: flow matching at a = 1, which falls to a floor over the
 * run (discrete alpha-Flow). Where s = t the target is v. The gradient of an image is divided by sqrt(e + adaptive), e
 * its mean squared error. docs/training.md says what this is made of and how it was chosen.
 */
#ifndef NL_DISTILL_H
#define NL_DISTILL_H

#include "nl_dit.h"

typedef struct nl_distill_options {
    double guidance;  /* scale of the teacher's classifier-free guidance; 1: none */
    double low, high; /* where it acts: low <= t <= high; both 0: everywhere */
    double internal;  /* scale of its internal guidance, which acts everywhere; 0 or 1: none */
    double floor;     /* of a */
    bool settled;     /* a is at its floor from the first step */
    double adaptive;
} nl_distill_options;

/* What one step of distillation needs of the host, beside a batch's data: rows of NL_LOSS_COLUMNS. */
typedef struct nl_distill_rows {
    float *times;            /* [2, n]: t, then s */
    float *later;            /* [2, n]: m, then s */
    float *teacher_times;    /* [2 n]: t twice */
    int32_t *teacher_labels; /* [2 n]: the labels, then the null class */
    float *
        guide; /* v = data w + noise (1 - w) of the teacher's conditional and unconditional output */
    float *move;   /* x_m = data + (m - t) noise of x_t and v */
    float *target; /* target = a data + (1 - a) noise of v and u' */
} nl_distill_rows;

/* a at this part of the run, 0 to 1. */
double nl_distill_alpha(const nl_distill_options *options, double done);

/* Times of samples by (seed, sample number), Philox stream NL_STREAM_TIME: two fifths with s = t, t logit-normal; of the
 * others 10 % with s = 1 and 30 % on the grids of 1, 2 and 4 equal steps, the rest two logit-normal times in order.
 * t, s [count]. */
void nl_distill_times(uint64_t seed, const int64_t *samples, int64_t count, double *t, double *s);

/* Rows for samples at times t <= s. labels [count]; null_class: of the teacher. */
void nl_distill_fill(const nl_distill_options *options, double alpha, const double *t,
                     const double *s, const int32_t *labels, int32_t null_class, int64_t count,
                     const nl_distill_rows *rows);

/* The teacher at x [n, C, H, W], guided where `guide` says so: its conditional and unconditional output in one pass. */
typedef struct nl_guided {
    const nl_dit *teacher;
    nl_tensor times, labels; /* [2 n]: t twice; the labels, then the null class */
    nl_tensor guide;         /* [n, NL_LOSS_COLUMNS] */
    double internal;         /* scale of the teacher's internal guidance; 0 or 1: none */
    nl_tensor both, of_both; /* [2 n, C, H, W] of the arena; both left out: not guided by classes */
} nl_guided;
/* Room for it at the top of device's arena. x: the shape. Where guidance is 1 there is none. */
nl_status nl_guided_take(double guidance, nl_device *device, const nl_tensor *x, nl_guided *guided);
/* velocity, as x, is overwritten. */
nl_status nl_guided_velocity(const nl_guided *guided, nl_device *device, const nl_tensor *x,
                             const nl_tensor *velocity);
/* The row that guides at time t. */
void nl_guided_row(double guidance, double low, double high, double t, float *row);

#endif
