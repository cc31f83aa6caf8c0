/* SPDX-License-Identifier: MIT */
/* Discrete diffusion: noise schedules and their respacing (docs/public-code.md A4), in double. */
#ifndef NL_DIFFUSION_H
#define NL_DIFFUSION_H

#include "nl_config.h"

typedef struct nl_diffusion_level {
    int timestep; /* in the full schedule: what the network sees */
    double beta, alpha_bar;
    double alpha_bar_before; /* of the level below, 1 under the lowest */
    double posterior_variance;
    double posterior_log_variance;     /* clipped: the lowest level takes that of the one above */
    double mean_from_x_0, mean_from_x; /* posterior mean */
} nl_diffusion_level;

typedef struct nl_noise_schedule {
    nl_schedule schedule;
    int steps;                   /* levels of the full schedule */
    double beta_start, beta_end; /* 0: the usual ones; not of the cosine schedule */
} nl_noise_schedule;

/* Kept levels of a schedule, ascending, with betas made anew for what was kept.
 * respacing: "250", "10,15,20" (sections), "ddim50", "leading50", "leading50+1" (an offset), "trailing50" or
 * "linspace50" ("50" but for halves, which that adds up as the public code does); NULL keeps all. Freed with nl_free. */
nl_status nl_diffusion_levels(nl_context *context, const nl_noise_schedule *schedule,
                              const char *respacing, nl_diffusion_level **levels, int *count);

#endif
