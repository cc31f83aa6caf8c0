/* SPDX-License-Identifier: MIT */
/*
 * Averages chosen afterwards (EDM2: Karras et al. 2024, "Analyzing and improving the training dynamics of diffusion
 * models", section 3): a run keeps averages of two power functions and writes snapshots of both; any other power
 * function, of the last step or of an earlier one, is a combination of these whose coefficients solve a least squares
 * problem over functions of time.
 */
#ifndef NL_AVERAGE_H
#define NL_AVERAGE_H

#include "nl_core.h"
#include "nl_tensor.h"

/* Weights k^g of the steps k <= step: see schedule.h. */
typedef struct nl_profile {
    double step;
    double exponent; /* g >= 0 */
} nl_profile;

/* coefficients [count], with the sum 1, of the combination of `given` that is next to `wanted`; what adds nothing to
 * those before it gets 0. *error: the length of the difference, as a part of the length of `wanted`. */
nl_status nl_average_solve(nl_context *context, const nl_profile *given, int count,
                           const nl_profile *wanted, double *coefficients, double *error);

typedef struct nl_average_options {
    const char *run; /* its folder */
    double sigma_rel;
    int64_t step; /* 0: that of the last snapshot */
    const char *out;
    nl_dtype dtype; /* of matrices: F32, BF16 or F16 */
    bool overwrite;
} nl_average_options;

typedef struct nl_average_result {
    int64_t step, images;
    int snapshots;  /* files with a coefficient */
    double error;   /* see nl_average_solve */
    double largest; /* of the coefficients' magnitudes */
} nl_average_result;

/* Writes the average as a model. Refused: a run without snapshots, snapshots of different models, numbers that are not
 * finite (NL_ERROR_INPUT); a width or a step that they do not give, with an error above NL_MOST_AVERAGE_ERROR
 * (NL_ERROR_USAGE). Progress has the stage "averaging" (step of steps: tensors). */
nl_status nl_average_run(nl_context *context, const nl_average_options *options,
                         nl_average_result *result);

#define NL_MOST_AVERAGE_ERROR 0.1

#endif
