/* SPDX-License-Identifier: MIT */
/* dropout, by a mask that is a function of seed, sample and element. */
#include "nl_random.h"
#include "reference.h"

/* x [M, N] in place, samples [M / rows_per_image] */
nl_status nl_reference_dropout(nl_device *device, const nl_dropout_args *args)
{
    const int64_t *samples = args->samples.data;
    int64_t columns = args->x.shape[1], count = args->rows_per_image * columns;
    double limit = ldexp(args->probability, 32);
    (void)device;
    for (int64_t image = 0; image < args->samples.shape[0]; image++)
        for (int64_t i = 0; i < count; i++) {
            uint32_t words[4];
            int64_t row = image * args->rows_per_image + i / columns;
            nl_philox(args->seed, (uint64_t)samples[image], args->stream, args->first + (uint64_t)i,
                      words);
            double x = nl_get(&args->x, row, i % columns) / (1 - (double)args->probability);
            nl_put(&args->x, row, i % columns, words[i % 4] < limit ? 0 : x);
        }
    return NL_OK;
}
