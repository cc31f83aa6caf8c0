/* SPDX-License-Identifier: MIT */
/* The three paths between noise and data, and velocity, score and drift on them. */
#include "nl_path.h"

#include <math.h>

static const double pi = 3.14159265358979323846;
static const double vp_min = 0.1, vp_max = 20; /* beta */

static nl_path_point linear_at(double t)
{
    return (nl_path_point){.alpha = t, .sigma = 1 - t, .ratio = t, .rho = 1 / t, .variance = 1 - t};
}

static nl_path_point gvp_at(double t)
{
    double sine = sin(pi / 2 * t);
    double cosine = t == 1 ? 0 : cos(pi / 2 * t); /* cos(pi / 2) is 6e-17 in double */
    return (nl_path_point){.alpha = sine,
                           .sigma = cosine,
                           .ratio = 2 / pi * sine / cosine,
                           .rho = pi / 2 * cosine / sine,
                           .variance = 1};
}

/* log alpha = -(1 - t)^2 (max - min) / 4 - (1 - t) min / 2, beta(t) = min + (1 - t)(max - min) */
static nl_path_point vp_at(double t)
{
    double s = 1 - t;
    double log_alpha = -0.25 * s * s * (vp_max - vp_min) - 0.5 * s * vp_min;
    double half_beta = 0.5 * (s * (vp_max - vp_min) + vp_min);
    return (nl_path_point){.alpha = exp(log_alpha),
                           .sigma = sqrt(-expm1(2 * log_alpha)),
                           .ratio = 1 / half_beta,
                           .rho = half_beta,
                           .variance = 1};
}

nl_path_point nl_path_at(nl_path path, double t)
{
    nl_path_point point = path == NL_PATH_LINEAR ? linear_at(t)
                          : path == NL_PATH_GVP  ? gvp_at(t)
                                                 : vp_at(t);
    point.drift_var = point.rho * point.variance;
    return point;
}

double nl_path_time(nl_path path, double ratio)
{
    if (path == NL_PATH_LINEAR)
        return 1 / (1 + ratio);
    if (path == NL_PATH_GVP)
        return 2 / pi * atan(1 / ratio);
    /* -log alpha = log(1 + ratio^2) / 2 is a quadratic in 1 - t */
    double rise = vp_max - vp_min;
    return 1 - (sqrt(vp_min * vp_min + 2 * rise * log1p(ratio * ratio)) - vp_min) / rise;
}

double nl_rho_between(double first, double last, double rho, double fraction)
{
    double from = pow(first, 1 / rho), to = pow(last, 1 / rho);
    return pow(from + fraction * (to - from), rho);
}

nl_linear_form nl_path_velocity(nl_path path, nl_prediction prediction, double t)
{
    if (prediction == NL_PREDICTION_VELOCITY)
        return (nl_linear_form){0, 1};
    nl_path_point p = nl_path_at(path, t);
    if (prediction == NL_PREDICTION_NOISE)
        return (nl_linear_form){p.rho, -p.drift_var / p.sigma};
    return (nl_linear_form){p.rho, p.drift_var};
}

nl_linear_form nl_path_score(nl_path path, nl_prediction prediction, double t)
{
    if (prediction == NL_PREDICTION_SCORE)
        return (nl_linear_form){0, 1};
    nl_path_point p = nl_path_at(path, t);
    if (prediction == NL_PREDICTION_NOISE)
        return (nl_linear_form){0, -1 / p.sigma};
    return (nl_linear_form){-1 / p.variance, p.ratio / p.variance};
}

double nl_path_diffusion(nl_path path, nl_sde_form form, double norm, double t)
{
    double root;
    switch (form) {
    case NL_SDE_CONSTANT:
        return norm;
    case NL_SDE_SBDM:
        return norm * nl_path_at(path, t).drift_var;
    case NL_SDE_SIGMA:
        return norm * nl_path_at(path, t).sigma;
    case NL_SDE_LINEAR:
        return norm * (1 - t);
    case NL_SDE_DECREASING:
        root = (norm * cos(pi * t) + 1) / 2;
        return root * root;
    case NL_SDE_INCREASING_DECREASING:
        root = sin(pi * t);
        return norm * root * root;
    }
    return NAN;
}

void nl_path_interval(nl_path path, nl_prediction prediction, bool sde, nl_sde_form form,
                      double eps, double last_step_size, double *t0, double *t1)
{
    bool velocity = path != NL_PATH_VP && prediction == NL_PREDICTION_VELOCITY;
    if (eps < 0)
        eps = velocity ? 0 : 1e-3;
    *t0 = 0;
    *t1 = 1;
    if (velocity && !sde)
        return;
    if (path != NL_PATH_VP && (!velocity || form == NL_SDE_SBDM))
        *t0 = eps;
    *t1 = 1 - (sde && last_step_size > 0 ? last_step_size : eps);
}
