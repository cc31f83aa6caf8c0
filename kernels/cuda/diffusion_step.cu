/* SPDX-License-Identifier: MIT */
/* One DDPM or DDIM step, elementwise (ops.h has the equations). fp32. */
#include "cuda_common.cuh"

__global__ void diffusion_kernel(const __grid_constant__ nl_diffusion_step_args a, int64_t count,
                                 int64_t per_image, int64_t prediction_per_image)
{
    const float *x = (const float *)a.x.data, *prediction = (const float *)a.prediction.data;
    const float *noise = (const float *)a.noise.data;
    float *y = (float *)a.y.data;
    NL_GRID_LOOP(i, count)
    {
        const int64_t at = i / per_image * prediction_per_image + i % per_image;
        const float p = prediction[at], v = x[i];
        float x_0 = a.predicts_x_start ? p : a.x_0_from_x * v - a.x_0_from_eps * p;
        if (a.clip)
            x_0 = x_0 < -1.f ? -1.f : x_0 > 1.f ? 1.f : x_0; /* keeps NaN */
        const float z = noise ? noise[i] : 0.f;
        if (a.ddim) {
            const float eps = (a.x_0_from_x * v - x_0) / a.x_0_from_eps;
            y[i] = a.ddim_x_0 * x_0 + a.ddim_eps * eps + a.ddim_noise * z;
        } else {
            float log_variance = a.log_variance;
            if (a.learned_range) {
                const float f = (prediction[at + per_image] + 1.f) * 0.5f;
                log_variance = f * a.log_beta + (1.f - f) * a.log_posterior;
            }
            y[i] = a.mean_from_x_0 * x_0 + a.mean_from_x * v +
                   a.noise_scale * expf(0.5f * log_variance) * z;
        }
    }
}

extern "C" nl_status nl_cuda_diffusion_step(nl_device *device, const nl_diffusion_step_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        diffusion_kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            *a, count, count / a->y.shape[0], nl_tensor_count(&a->prediction) / a->y.shape[0]);
    return NL_CUDA_LAUNCHED(device, "diffusion_step");
}
