/* SPDX-License-Identifier: MIT */
/* A backward pass whose gradients are summed over the ranks while earlier layers are still at work. */
#ifndef NL_REDUCE_H
#define NL_REDUCE_H

#include "nl_dit_train.h"
#include "nl_group.h"

/* nl_dit_backward, after which the whole of `gradients` is the sum over `group`'s ranks, and nothing is under way. group:
 * NULL for none. */
nl_status nl_reduced_backward(nl_group *group, const nl_dit *dit, nl_device *device,
                              const nl_dit_saved *saved, const nl_tensor *dprediction,
                              const nl_tensor *dmiddle, nl_dit *gradients);

#endif
