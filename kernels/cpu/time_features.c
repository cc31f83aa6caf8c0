/* SPDX-License-Identifier: MIT */
/* Sines and cosines of the time, as the public code rounds them. */
#include "nl_cpu.h"

#include <math.h>

/* t [B] -> features [B, 2 half]; every step in fp32 as the public code, where t = 999 rounds the
 * angle. */
nl_status NL_CPU(time_features)(nl_device *device, const nl_time_features_args *args)
{
    int64_t half = args->features.shape[1] / 2;
    float divisor = args->divisor > 0 ? args->divisor : (float)half;
    const float *t = args->t.data;
    (void)device;
    for (int64_t image = 0; image < args->features.shape[0]; image++) {
        float *features = nl_cpu_row_out(&args->features, image);
        for (int64_t i = 0; i < half; i++) {
            float angle = t[image] * expf(-9.210340371976184f * (float)i / divisor);
            features[i] = cosf(angle);
            features[half + i] = sinf(angle);
        }
    }
    return NL_OK;
}
