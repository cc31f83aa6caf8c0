/* SPDX-License-Identifier: MIT */
/* The mean of a batch of losses. */
#include "reference.h"

/* x [B] -> y [1] */
nl_status nl_reference_mean(nl_device *device, const nl_mean_args *args)
{
    double sum = 0;
    (void)device;
    for (int64_t i = 0; i < args->x.shape[0]; i++)
        sum += nl_at(&args->x, i);
    nl_put(&args->y, 0, 0, sum / args->x.shape[0]);
    return NL_OK;
}
