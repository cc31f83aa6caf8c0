/* SPDX-License-Identifier: MIT */
/* NCHW to NHWC and back, scaled and shifted. */
#include "reference.h"

/* x [B, C, H, W] -> y [B, H, W, C], or the other way round */
nl_status nl_reference_layout(nl_device *device, const nl_layout_args *args)
{
    const nl_tensor *planar = args->to_nhwc ? &args->x : &args->y;
    int64_t channels = planar->shape[1], pixels = planar->shape[2] * planar->shape[3];
    (void)device;
    for (int64_t image = 0; image < planar->shape[0]; image++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t pixel = 0; pixel < pixels; pixel++) {
                int64_t in_planes = (image * channels + c) * pixels + pixel;
                int64_t in_pixels = (image * pixels + pixel) * channels + c;
                double x = nl_at(&args->x, args->to_nhwc ? in_planes : in_pixels);
                nl_put(&args->y, 0, args->to_nhwc ? in_pixels : in_planes,
                       args->scale * x + args->shift);
            }
    return NL_OK;
}
