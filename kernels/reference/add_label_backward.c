/* SPDX-License-Identifier: MIT */
/* Gradients of that sum: the rows of the table collect those of their labels. */
#include "reference.h"

/* c, dy [B, D], labels [B], crop [B, K] -> dtime [B, D]; dtable [classes + 1, D], dcrop_weight [D, K] are added to */
nl_status nl_reference_add_label_backward(nl_device *device, const nl_add_label_backward_args *args)
{
    const int32_t *labels = args->labels.data;
    (void)device;
    for (int64_t image = 0; image < args->c.shape[0]; image++)
        for (int64_t i = 0; i < args->c.shape[1]; i++) {
            double dtime = nl_get(&args->dy, image, i) *
                           nl_reference_activation_slope(NL_ACT_SILU, nl_get(&args->c, image, i));
            nl_put(&args->dtime, image, i, dtime);
            nl_add(&args->dtable, labels[image], i, dtime);
            for (int64_t k = 0; args->crop.data && k < args->crop.shape[1]; k++)
                nl_add(&args->dcrop_weight, i, k, dtime * nl_get(&args->crop, image, k));
        }
    return NL_OK;
}
