/* SPDX-License-Identifier: MIT */
/* What MLPs share: dropout of the hidden layer. */
#ifndef NL_MLP_H
#define NL_MLP_H

#include "network.h"

/* In training, x [B T, columns] of branch `number` loses a part of its elements; the gradient of x the same ones. */
nl_status nl_drop(nl_device *device, const nl_dropout *dropout, int64_t tokens, int number,
                  const nl_tensor *x);

#endif
