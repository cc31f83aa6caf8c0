/* SPDX-License-Identifier: MIT */
/* Linear combinations of states, terms summed in their order. */
#include "reference.h"

/* x[terms] [B, ...] -> y [B, ...] */
nl_status nl_reference_combine(nl_device *device, const nl_combine_args *args)
{
    int64_t images = args->y.shape[0], count = nl_tensor_count(&args->y);
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        int64_t image = i / (count / images);
        double sum = 0;
        for (int term = 0; term < args->terms; term++)
            sum += args->coefficients[args->per_image ? term * images + image : term] *
                   nl_at(&args->x[term], i);
        nl_put(&args->y, 0, i, sum);
    }
    return NL_OK;
}
