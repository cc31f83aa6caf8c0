/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance of the first channels. */
#include "nl_cpu.h"

/* prediction [2B, C, H, W] -> y [B, C, H, W] */
nl_status NL_CPU(guide)(nl_device *device, const nl_guide_args *args)
{
    int64_t channels = args->y.shape[1], pixels = args->y.shape[2] * args->y.shape[3];
    int64_t planes = args->y.shape[0] * channels;
    const float *prediction = args->prediction.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, planes *pixels)) schedule(static)
    for (int64_t plane = 0; plane < planes; plane++) {
        const float *conditional = prediction + plane * pixels;
        const float *unconditional = conditional + planes * pixels;
        float *y = (float *)args->y.data + plane * pixels;
        bool guided = plane % channels < args->channels;
#pragma omp simd
        for (int64_t i = 0; i < pixels; i++)
            y[i] = guided ? unconditional[i] + args->scale * (conditional[i] - unconditional[i])
                          : conditional[i];
    }
    return NL_OK;
}
