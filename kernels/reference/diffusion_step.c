/* SPDX-License-Identifier: MIT */
/* One step of DDPM or DDIM, the formulas of ops.h in double. */
#include "reference.h"

static double clamp_to_one(double x)
{
    return x < -1 ? -1 : x > 1 ? 1 : x; /* NaN stays */
}

/* x [B, C, ...], prediction [B, C or 2C, ...], noise [B, C, ...] -> y [B, C, ...] */
nl_status nl_reference_diffusion_step(nl_device *device, const nl_diffusion_step_args *args)
{
    int64_t count = nl_tensor_count(&args->x), per_image = count / args->x.shape[0];
    int64_t prediction_per_image = nl_tensor_count(&args->prediction) / args->x.shape[0];
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        int64_t predicted = i / per_image * prediction_per_image + i % per_image;
        double x = nl_at(&args->x, i), prediction = nl_at(&args->prediction, predicted);
        double noise = nl_at_or_zero(&args->noise, i), y;
        double x_0 = args->predicts_x_start
                         ? prediction
                         : args->x_0_from_x * x - args->x_0_from_eps * prediction;
        if (args->clip)
            x_0 = clamp_to_one(x_0);
        if (args->ddim) {
            double eps = (args->x_0_from_x * x - x_0) / args->x_0_from_eps;
            y = args->ddim_x_0 * x_0 + args->ddim_eps * eps + args->ddim_noise * noise;
        } else {
            double log_variance = args->log_variance;
            if (args->learned_range) {
                double f = (nl_at(&args->prediction, predicted + per_image) + 1) / 2;
                log_variance = f * args->log_beta + (1 - f) * args->log_posterior;
            }
            y = args->mean_from_x_0 * x_0 + args->mean_from_x * x +
                args->noise_scale * exp(log_variance / 2) * noise;
        }
        nl_put(&args->y, 0, i, y);
    }
    return NL_OK;
}
