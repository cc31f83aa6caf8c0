/* SPDX-License-Identifier: MIT */
/*
 * Philox4x32-10 and Box-Muller for LANES blocks at a time. The numbers are nl_philox_normal4's to a
 * few ulp, for which products and sums round as there: this file is compiled without fused
 * multiply-adds.
 */
#include "nl_cpu.h"
#include "philox.h"
#include "vector_math.h"

enum { LANES = NL_PHILOX_LANES, STEP = NL_PHILOX_STEP };

static void box_muller(const uint32_t *x, const uint32_t *y, float *even, float *odd)
{
    const float unit = 0x1p-32f * 6.2831855f; /* 2 pi 2^-32 */
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        float radius = sqrtf(-2.0f * nlv_log((float)x[i] * 0x1p-32f + 0x1p-33f));
        float sine, cosine;
        nlv_sincos((float)y[i] * unit + unit / 2, &sine, &cosine);
        even[i] = radius * sine;
        odd[i] = radius * cosine;
    }
}

/* Elements [first, first + STEP) of one image and stream; first % 4 == 0. */
static void normal_step(const nl_normal_args *args, int64_t image, int64_t first, float *y)
{
    nl_words c = nl_philox_words(args->seed, (uint64_t)image, args->stream, (uint64_t)first);
    float normals[4][LANES];
    box_muller(c.word[0], c.word[1], normals[0], normals[1]);
    box_muller(c.word[2], c.word[3], normals[2], normals[3]);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++)
            y[4 * i + j] = normals[j][i];
}

/* y [B, ...] */
nl_status NL_CPU(normal)(nl_device *device, const nl_normal_args *args)
{
    int64_t images = args->y.shape[0], size = nl_tensor_count(&args->y) / images;
    int64_t steps = (size + STEP - 1) / STEP;
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size * 8)) schedule(static)
    for (int64_t i = 0; i < images * steps; i++) {
        int64_t first = i % steps * STEP, count = NL_MIN(STEP, size - first);
        float *y = (float *)args->y.data + i / steps * size + first, last[STEP];
        normal_step(args, args->images[i / steps], first, count == STEP ? y : last);
        for (int64_t j = 0; count < STEP && j < count; j++)
            y[j] = last[j];
    }
    return NL_OK;
}
