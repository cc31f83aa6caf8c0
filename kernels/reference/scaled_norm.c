/* SPDX-License-Identifier: MIT */
/* The error norm of each image that dopri5 controls its step by. */
#include "reference.h"

/* x, a, b [B, ...] -> rms [B] */
nl_status nl_reference_scaled_norm(nl_device *device, const nl_scaled_norm_args *args)
{
    int64_t images = args->x.shape[0], size = nl_tensor_count(&args->x) / images;
    (void)device;
    for (int64_t image = 0; image < images; image++) {
        double squares = 0;
        for (int64_t i = image * size; i < (image + 1) * size; i++) {
            double largest = fmax(fabs(nl_at(&args->a, i)), fabs(nl_at_or_zero(&args->b, i)));
            double ratio = nl_at(&args->x, i) / (args->atol + args->rtol * largest);
            squares += ratio * ratio;
        }
        args->rms[image] = sqrt(squares / size);
    }
    return NL_OK;
}
