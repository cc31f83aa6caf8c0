/* SPDX-License-Identifier: MIT */
/* The L2 norm of a flat gradient. */
#include "reference.h"

/* x [n] -> norm [1] */
nl_status nl_reference_gradient_norm(nl_device *device, const nl_gradient_norm_args *args)
{
    double sum = 0;
    (void)device;
    for (int64_t i = 0; i < args->x.shape[0]; i++)
        sum += nl_at(&args->x, i) * nl_at(&args->x, i);
    nl_put(&args->norm, 0, 0, sqrt(sum));
    return NL_OK;
}
