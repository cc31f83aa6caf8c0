/* SPDX-License-Identifier: MIT */
/* dropout, by a mask that is a function of seed, sample and element. */
#include "nl_cpu.h"
#include "philox.h"

/* x [M, N] in place, samples [M / rows_per_image] */
nl_status NL_CPU(dropout)(nl_device *device, const nl_dropout_args *args)
{
    const int64_t *samples = args->samples.data;
    int64_t images = args->samples.shape[0], size = args->rows_per_image * args->x.shape[1];
    int64_t steps = (size + NL_PHILOX_STEP - 1) / NL_PHILOX_STEP;
    uint32_t limit = nl_dropout_limit(args->probability);
    float scale = 1.0f / (1.0f - args->probability);
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size * 4)) schedule(static)
    for (int64_t step = 0; step < images * steps; step++) {
        int64_t image = step / steps, first = step % steps * NL_PHILOX_STEP;
        int64_t count = NL_MIN(NL_PHILOX_STEP, size - first);
        float *x = (float *)args->x.data + image * size + first;
        nl_words c = nl_philox_words(args->seed, (uint64_t)samples[image], args->stream,
                                     args->first + (uint64_t)first);
        for (int64_t i = 0; i < count; i++)
            x[i] = c.word[i % 4][i / 4] < limit ? 0 : x[i] * scale;
    }
    return NL_OK;
}
