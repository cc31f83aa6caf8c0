/* SPDX-License-Identifier: MIT */
/* rope, which is its own gradient the other way round. */
#include "reference.h"

/* x [B T, n d] in place, table [T, d] */
nl_status nl_reference_rope(nl_device *device, const nl_rope_args *args)
{
    int64_t tokens = args->table.shape[0], size = args->table.shape[1], half = size / 2;
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        for (int64_t first = 0; first < args->x.shape[1]; first += size)
            for (int64_t i = 0; i < half; i++) {
                double c = nl_get(&args->table, m % tokens, i);
                double s = nl_get(&args->table, m % tokens, half + i) * (args->back ? -1 : 1);
                double a = nl_get(&args->x, m, first + 2 * i);
                double b = nl_get(&args->x, m, first + 2 * i + 1);
                nl_put(&args->x, m, first + 2 * i, a * c - b * s);
                nl_put(&args->x, m, first + 2 * i + 1, b * c + a * s);
            }
    return NL_OK;
}
