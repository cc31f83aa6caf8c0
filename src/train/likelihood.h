/* SPDX-License-Identifier: MIT */
/* Likelihood of data under a SiT: the probability-flow ODE from data to noise, with the divergence of its drift by
 * Hutchinson's estimate (docs/public-code.md B6). */
#ifndef NL_LIKELIHOOD_H
#define NL_LIKELIHOOD_H

#include "nl_dit_train.h"

/* Drift v(x, t) = form.x x + form.f prediction and e . dv/dx e, for a batch of images at one time. */
typedef struct nl_flow {
    const nl_dit *dit;
    nl_dit *gradients; /* a twin: what the backward pass leaves there is not used */
    nl_device *device; /* the model's or a measuring one */
    nl_tensor t;       /* [B] */
    nl_tensor labels;  /* [B] */
    nl_tensor crop;    /* [B, NL_CROP_NUMBERS] of a network with crop_conditioning, or left out */
    nl_tensor probe;   /* [B, C, H, W] e */
    nl_tensor dx;      /* [B, C, H, W]: e . d prediction/dx */
    float *host;       /* [2, B C H W] */
} nl_flow;

/* prediction [B, C, H, W]; estimate [B] on the host: e . d prediction/dx e. Waits. */
nl_status nl_flow_evaluate(nl_flow *flow, const nl_tensor *x, double t, const nl_tensor *prediction,
                           double *estimate);

#endif
