/* SPDX-License-Identifier: MIT */
/* What the parts of a sampler share. Private to src/sampler. */
#ifndef NL_PLAN_H
#define NL_PLAN_H

#include "nl_diffusion.h"
#include "nl_path.h"

enum { NL_MAX_STAGES = 7 };

/* Explicit Runge-Kutta: k_i = drift(x + h sum_j a_ij k_j, t + c_i h), x' = x + h sum b_i k_i. */
typedef struct nl_tableau {
    int stages;
    double c[NL_MAX_STAGES];
    double a[NL_MAX_STAGES][NL_MAX_STAGES - 1];
    double b[NL_MAX_STAGES];
} nl_tableau;

/* drift(x, t) = form.x * x + form.f * prediction(x, t) */
typedef struct nl_drift {
    double t;
    nl_linear_form form;
} nl_drift;

/* One update of a transport with a fixed step: x' = keep (x + (h + beyond) sum b_i k_i) + noise n, n normal. */
typedef struct nl_move {
    double t, h;
    double beyond,
        keep; /* 0 and 1; flow-sde: how far behind the step what is predicted ends, and what noise then leaves of it */
    const nl_tableau *tableau;
    nl_drift drift[4]; /* of each stage */
    double noise;      /* of an SDE sqrt(2 w h); 0 without noise */
    double
        before; /* Adams: weight of the first drift of the step before, beside 1 - before of this one's; or 0 */
} nl_move;

struct nl_sampler {
    nl_context *context;
    nl_sampler_options options; /* respacing is not kept */
    int steps;                  /* 0 for dopri5 */
    /* diffusion */
    nl_diffusion_level *levels; /* [steps] */
    int *timesteps;             /* [steps] */
    /* transport */
    double t0, t1;
    nl_move *moves; /* [move_count] */
    int move_count;
    nl_drift last; /* x' = last.form.x * x + last.form.f * prediction; SDE with a last step */
};

/* A run under way. */
typedef struct nl_run {
    const nl_sampler *sampler;
    const nl_sample_job *job;
    nl_tensor x; /* the state, the caller's */
    int64_t batch;
    float *t;           /* [batch], as the network sees it */
    float s;            /* of a flow map: where what it predicts ends */
    const bool *active; /* [batch]: images whose evaluations count; NULL: all */
    nl_tensor bad;      /* I32 [1] on the device: the first step that left NaN or infinity, or 0 */
    int32_t seen[2]; /* `bad` after the last step (of even and of odd number) that was waited for */
    double reached[2]; /* t of those steps */
    int queued;        /* the last step, not waited for yet */
} nl_run;

nl_status nl_diffusion_plan(nl_sampler *sampler);
nl_status nl_transport_plan(nl_sampler *sampler);
nl_status nl_diffusion_run(nl_run *run);
nl_status nl_multistep_run(nl_run *run);
nl_status nl_transport_run(nl_run *run);
nl_status nl_dopri5_run(nl_run *run);

/* What the operation takes that leaves the x_0 predicted at level i, clamped if so asked; x, prediction and y are the
 * caller's. And a tensor for the prediction, from the arena. */
nl_diffusion_step_args nl_diffusion_x_0(const nl_sampler *sampler, int i);
nl_status nl_diffusion_prediction(nl_run *run, nl_tensor *prediction);

/* Calls the network with run->t and counts the evaluation. */
nl_status nl_run_evaluate(nl_run *run, const nl_tensor *x, const nl_tensor *prediction);
void nl_run_set_time(nl_run *run, double t);
/* After step number `step` (from 1), which reached t, was queued: waits for the step before it (on a device that
 * does not queue, for this one), then finite, cancelled, the caller's function. */
nl_status nl_run_step_done(nl_run *run, int step, double t);
/* A tensor like the state from the arena. */
nl_status nl_run_tensor(nl_run *run, nl_tensor *tensor);
/* y = sum of weights_i x_i over `count` terms like the state, at most NL_MAX_TERMS. What has weight 0 is not read: it may be
 * left out. y may be one of them. */
nl_status nl_run_combine(nl_run *run, int count, const nl_tensor *x, const double *weights,
                         const nl_tensor *y);

#endif
