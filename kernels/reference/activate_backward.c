/* SPDX-License-Identifier: MIT */
/* The gradient of an activation function, by its slope. */
#include "reference.h"

nl_status nl_reference_activate_backward(nl_device *device, const nl_activate_backward_args *args)
{
    (void)device;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++)
        nl_put(&args->dx, 0, i,
               nl_at(&args->dy, i) *
                   nl_reference_activation_slope(args->activation, nl_at(&args->x, i)));
    return NL_OK;
}
