/* SPDX-License-Identifier: MIT */
/* The noised state that training predicts from: a combination of data and noise at each sample's time. */
#include "reference.h"

/* data, noise [B, ...], coefficients [B, NL_LOSS_COLUMNS] -> y [B, ...] */
nl_status nl_reference_diffuse(nl_device *device, const nl_diffuse_args *args)
{
    int64_t count = nl_tensor_count(&args->y), per_image = count / args->y.shape[0];
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        int64_t image = i / per_image;
        nl_put(&args->y, 0, i,
               nl_get(&args->coefficients, image, NL_LOSS_DATA) * nl_at(&args->data, i) +
                   nl_get(&args->coefficients, image, NL_LOSS_NOISE) * nl_at(&args->noise, i));
    }
    return NL_OK;
}
