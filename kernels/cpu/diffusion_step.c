/* SPDX-License-Identifier: MIT */
/* One step of DDPM or DDIM, from the prediction to the next state. */
#include "nl_cpu.h"
#include "vector_math.h"

/* Elements [0, size) of one image; v: the prediction's variance part, noise: NULL for none. */
static void step_image(const nl_diffusion_step_args *args, int64_t size, const float *x,
                       const float *prediction, const float *v, const float *noise, float *y)
{
    float limit = args->clip ? 1.0f : INFINITY;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        float x_0 = args->predicts_x_start
                        ? prediction[i]
                        : args->x_0_from_x * x[i] - args->x_0_from_eps * prediction[i];
        x_0 = x_0 > limit ? limit : x_0;
        x_0 = x_0 < -limit ? -limit : x_0;
        float z = noise ? noise[i] : 0;
        if (args->ddim) {
            float eps = (args->x_0_from_x * x[i] - x_0) / args->x_0_from_eps;
            y[i] = args->ddim_x_0 * x_0 + args->ddim_eps * eps + args->ddim_noise * z;
        } else {
            float f = v ? (v[i] + 1) / 2 : 0;
            float log_variance =
                v ? f * args->log_beta + (1 - f) * args->log_posterior : args->log_variance;
            y[i] = args->mean_from_x_0 * x_0 + args->mean_from_x * x[i] +
                   args->noise_scale * nlv_exp(log_variance / 2) * z;
        }
    }
}

/* x [B, C, ...], prediction [B, C or 2C, ...], noise [B, C, ...] -> y [B, C, ...] */
nl_status NL_CPU(diffusion_step)(nl_device *device, const nl_diffusion_step_args *args)
{
    int64_t images = args->x.shape[0], size = nl_tensor_count(&args->x) / images;
    int64_t predicted = nl_tensor_count(&args->prediction) / images;
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size)) schedule(static)
    for (int64_t image = 0; image < images; image++) {
        const float *prediction = (const float *)args->prediction.data + image * predicted;
        step_image(args, size, (const float *)args->x.data + image * size, prediction,
                   args->learned_range ? prediction + size : NULL,
                   args->noise.data ? (const float *)args->noise.data + image * size : NULL,
                   (float *)args->y.data + image * size);
    }
    return NL_OK;
}
