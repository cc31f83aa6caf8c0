/* SPDX-License-Identifier: MIT */
/* Floats to bytes of a picture. */
#include "reference.h"

/* Rounded like the public code: product and sum each in fp32, clamped, truncated. NaN becomes 0. */
nl_status nl_reference_to_uint8(nl_device *device, const nl_to_uint8_args *args)
{
    uint8_t *y = args->y.data;
    (void)device;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++) {
        float value = args->scale * (float)nl_at(&args->x, i) + args->shift;
        y[i] = value >= 255 ? 255 : value > 0 ? (uint8_t)value : 0;
    }
    return NL_OK;
}
