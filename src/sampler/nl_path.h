/* SPDX-License-Identifier: MIT */
/*
 * Probability paths from noise x_0 (t = 0) to data x_1 (t = 1): x_t = alpha x_1 + sigma x_0, and what
 * they make of a network's output (docs/public-code.md B2, B3, B5). Velocity, score and SDE drift are all linear
 * in the state x and the prediction f, so a sampler needs nothing but two numbers at each time.
 */
#ifndef NL_PATH_H
#define NL_PATH_H

#include "nl_sampler.h"

typedef struct nl_path_point {
    double alpha, sigma;
    double ratio;     /* r = alpha / alpha' */
    double rho;       /* alpha' / alpha; the forward drift is -rho x */
    double variance;  /* sigma^2 - r sigma' sigma: 1 - t on the linear path, 1 on the others */
    double drift_var; /* rho sigma^2 - sigma sigma' = rho variance */
} nl_path_point;

/* Infinite where the path divides by zero; NaN on the VP path beyond t = 1. */
nl_path_point nl_path_at(nl_path path, double t);

/* The time at which sigma / alpha is `ratio`, from 0 (data) to infinity (noise; on the VP path that lies before t = 0). */
double nl_path_time(nl_path path, double ratio);

/* From `first` to `last`, both above 0, evenly in the power 1 / rho (Karras 2022, equation 5): where `fraction`, 0 to 1, lies. */
double nl_rho_between(double first, double last, double rho, double fraction);

/* x * state + f * prediction */
typedef struct nl_linear_form {
    double x, f;
} nl_linear_form;

/* Of the probability flow: dx/dt. */
nl_linear_form nl_path_velocity(nl_path path, nl_prediction prediction, double t);
/* Gradient of log p_t. */
nl_linear_form nl_path_score(nl_path path, nl_prediction prediction, double t);
/* w(t) of dx = (v + w s) dt + sqrt(2 w) dW. */
double nl_path_diffusion(nl_path path, nl_sde_form form, double norm, double t);

/* Where sampling starts and ends. eps < 0: the default of B3; last_step_size 0: no last step. */
void nl_path_interval(nl_path path, nl_prediction prediction, bool sde, nl_sde_form form,
                      double eps, double last_step_size, double *t0, double *t1);

#endif
