/* SPDX-License-Identifier: MIT */
/* swiglu and its gradients. */
#include "reference.h"

/* x [M, 2K] -> y [M, K] */
nl_status nl_reference_swiglu(nl_device *device, const nl_swiglu_args *args)
{
    int64_t size = args->y.shape[1];
    (void)device;
    for (int64_t m = 0; m < args->y.shape[0]; m++)
        for (int64_t i = 0; i < size; i++)
            nl_put(&args->y, m, i, nl_silu(nl_get(&args->x, m, i)) * nl_get(&args->x, m, size + i));
    return NL_OK;
}

/* x [M, 2K], dy [M, K] -> dx [M, 2K], y [M, K] */
nl_status nl_reference_swiglu_backward(nl_device *device, const nl_swiglu_backward_args *args)
{
    int64_t size = args->dy.shape[1];
    (void)device;
    for (int64_t m = 0; m < args->dy.shape[0]; m++)
        for (int64_t i = 0; i < size; i++) {
            double x1 = nl_get(&args->x, m, i), x2 = nl_get(&args->x, m, size + i);
            double dy = nl_get(&args->dy, m, i);
            nl_put(&args->dx, m, i, dy * x2 * nl_reference_activation_slope(NL_ACT_SILU, x1));
            nl_put(&args->dx, m, size + i, dy * nl_silu(x1));
            if (args->y.data)
                nl_put(&args->y, m, i, nl_silu(x1) * x2);
        }
    return NL_OK;
}
