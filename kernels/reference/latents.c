/* SPDX-License-Identifier: MIT */
/* Latents from what a data set stores: scaled, or drawn from the posterior's mean and log variance. */
#include "reference.h"

static double stored(const nl_tensor *x, int64_t i)
{
    float value;
    nl_convert_to_float((const char *)x->data + i * nl_dtype_size(x->dtype), x->dtype, 1, &value);
    return value;
}

/* x [B, C or 2C, H, W], noise [B, C, H, W] -> y [B, C, H, W] */
nl_status nl_reference_latents(nl_device *device, const nl_latents_args *args)
{
    int64_t count = nl_tensor_count(&args->y), per_image = count / args->y.shape[0];
    bool moments = args->x.shape[1] != args->y.shape[1];
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i / per_image * (moments ? 2 * per_image : per_image) + i % per_image;
        double value = stored(&args->x, at);
        if (moments)
            value += exp(stored(&args->x, at + per_image) / 2) * nl_at(&args->noise, i);
        nl_put(&args->y, 0, i, args->scale * value + args->shift);
    }
    return NL_OK;
}
