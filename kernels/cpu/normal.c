/* SPDX-License-Identifier: MIT */
/*
 * Philox4x32-10 and Box-Muller for LANES blocks at a time. The numbers are nl_philox_normal4's to a
 * few ulp, for which products and sums round as there: this file is compiled without fused
 * multiply-adds.
 */
#include "nl_cpu.h"
#include "vector_math.h"

enum { LANES = 16, STEP = 4 * LANES }; /* blocks, and their elements */

typedef struct words {
    uint32_t word[4][LANES];
} words;

static void philox_rounds(uint64_t seed, words *c)
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            uint64_t product0 = (uint64_t)0xD2511F53 * c->word[0][i];
            uint64_t product1 = (uint64_t)0xCD9E8D57 * c->word[2][i];
            c->word[0][i] = (uint32_t)(product1 >> 32) ^ c->word[1][i] ^ key0;
            c->word[1][i] = (uint32_t)product1;
            c->word[2][i] = (uint32_t)(product0 >> 32) ^ c->word[3][i] ^ key1;
            c->word[3][i] = (uint32_t)product0;
        }
    }
}

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
    words c;
    float normals[4][LANES];
    uint64_t subsequence = (uint64_t)image;
    uint64_t block = ((args->stream << 34) + (uint64_t)first) / 4;
    for (int i = 0; i < LANES; i++) {
        c.word[0][i] = (uint32_t)(block + (uint64_t)i);
        c.word[1][i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c.word[2][i] = (uint32_t)subsequence;
        c.word[3][i] = (uint32_t)(subsequence >> 32);
    }
    philox_rounds(args->seed, &c);
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
