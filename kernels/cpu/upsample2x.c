/* SPDX-License-Identifier: MIT */
/* Nearest neighbour, twice as high and wide. */
#include "nl_cpu.h"

#include <string.h>

/* x [B, H, W, C] -> y [B, 2H, 2W, C] */
nl_status NL_CPU(upsample2x)(nl_device *device, const nl_upsample2x_args *args)
{
    int64_t width = args->x.shape[2], channels = args->x.shape[3];
    int64_t rows = args->y.shape[0] * args->y.shape[1];
    int64_t bytes = channels * nl_dtype_size(args->x.dtype);
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *width *channels)) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < width; column++) {
            /* y's rows 2i and 2i + 1 both come from row i, also across images. */
            const char *x = (const char *)args->x.data + (row / 2 * width + column) * bytes;
            char *y = (char *)args->y.data + (row * width + column) * 2 * bytes;
            memcpy(y, x, (size_t)bytes);
            memcpy(y + bytes, x, (size_t)bytes);
        }
    return NL_OK;
}
