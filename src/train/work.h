/* SPDX-License-Identifier: MIT */
/* How much work a step is, for the share of the device's peak that it reaches (MFU). */
#ifndef NL_WORK_H
#define NL_WORK_H

#include "nl_config.h"
#include "ops.h"

/* Floating point operations (2 for a multiply-add) of the products and attentions of one image's forward pass. A
 * training step is three times as much. */
double nl_forward_flops(const nl_config *config);
/* Dense matrix products a second in the device's type, by its data sheet; 0: not known. */
double nl_peak_flops(const nl_device *device);

#endif
