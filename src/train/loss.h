/* SPDX-License-Identifier: MIT */
/*
 * What a model is trained on: at which time each sample is looked at, and the coefficients that make its noisy
 * latent, its target and its weight (public-code.md A4 for DiT, B3 for SiT). Computed in double on the host; the operations
 * diffuse, regression_loss and variational_loss do the rest.
 */
#ifndef NL_LOSS_H
#define NL_LOSS_H

#include "nl_config.h"
#include "ops.h"

typedef enum nl_times { NL_TIMES_UNIFORM, NL_TIMES_LOGIT_NORMAL } nl_times;
typedef enum nl_weighting {
    NL_WEIGHTING_NONE,
    NL_WEIGHTING_VELOCITY, /* transports that predict noise or score, as the public SiT */
    NL_WEIGHTING_LIKELIHOOD,
    NL_WEIGHTING_MIN_SNR /* min(SNR, gamma) on x_0 */
} nl_weighting;

typedef struct nl_loss_options {
    nl_times times;
    double times_mean, times_deviation; /* of the normal number before the logistic function */
    nl_weighting weighting;
    double min_snr; /* gamma; 5 is usual */
} nl_loss_options;

typedef struct nl_loss nl_loss;

/* Refuses (NL_ERROR_USAGE) what does not go together. The configuration is not kept. */
nl_status nl_loss_create(nl_context *context, const nl_config *config,
                         const nl_loss_options *options, nl_loss **loss);
void nl_loss_destroy(nl_loss *loss); /* NULL is allowed */

/* Whether variational_loss belongs to it: a DiT that learns its variance. */
bool nl_loss_is_variational(const nl_loss *loss);

/* Times by (seed, sample number), Philox stream NL_STREAM_TIME, and what follows from them. t [count]: as the network
 * sees it; coefficients [count, NL_LOSS_COLUMNS]; variational [count, NL_VB_COLUMNS], zeros without such a term. */
void nl_loss_draw(const nl_loss *loss, uint64_t seed, const int64_t *samples, int64_t count,
                  float *t, float *coefficients, float *variational);
/* The same at given times: t in [0, 1] for transports (kept within the training interval), a whole timestep for
 * DiT. */
void nl_loss_rows(const nl_loss *loss, const double *times, int64_t count, float *t,
                  float *coefficients, float *variational);

#endif
