/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance of the first channels. */
#include "reference.h"

/* prediction [2B, C, H, W] -> y [B, C, H, W] */
nl_status nl_reference_guide(nl_device *device, const nl_guide_args *args)
{
    int64_t count = nl_tensor_count(&args->y);
    int64_t channels = args->y.shape[1], pixels = args->y.shape[2] * args->y.shape[3];
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        double conditional = nl_at(&args->prediction, i);
        double unconditional = nl_at(&args->prediction, count + i);
        bool guided = i / pixels % channels < args->channels;
        nl_put(&args->y, 0, i,
               guided ? unconditional + args->scale * (conditional - unconditional) : conditional);
    }
    return NL_OK;
}
