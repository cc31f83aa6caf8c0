/* SPDX-License-Identifier: MIT */
/* Whether a state holds NaN or infinity. */
#include "reference.h"

nl_status nl_reference_finite(nl_device *device, const nl_finite_args *args)
{
    int32_t *found = args->found.data;
    (void)device;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++)
        if (!isfinite(nl_at(&args->x, i)) && *found == 0)
            *found = args->mark;
    return NL_OK;
}
