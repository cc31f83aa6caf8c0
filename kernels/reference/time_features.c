/* SPDX-License-Identifier: MIT */
/* Sines and cosines of the time, as the public code rounds them. */
#include "reference.h"

/* t [B] -> features [B, 2 half], every step in fp32 as the public code: at t = 999 the rounding of
 * the product moves the angle by up to 3e-5, so a more exact result would be a different one. */
nl_status nl_reference_time_features(nl_device *device, const nl_time_features_args *args)
{
    int64_t half = args->features.shape[1] / 2;
    float divisor = args->divisor > 0 ? args->divisor : (float)half;
    (void)device;
    for (int64_t image = 0; image < args->features.shape[0]; image++)
        for (int64_t i = 0; i < half; i++) {
            float frequency = expf(-9.210340371976184f * (float)i / divisor);
            float angle = (float)nl_at(&args->t, image) * frequency;
            nl_put(&args->features, image, i, cosf(angle));
            nl_put(&args->features, image, half + i, sinf(angle));
        }
    return NL_OK;
}
