/* SPDX-License-Identifier: MIT */
/* Tokens of the head back to a picture, without the channels that a SiT drops. */
#include "nl_cpu.h"

/* tokens [B * T, p * p * C_head] -> x [B, C, H, W] */
nl_status NL_CPU(unpatchify)(nl_device *device, const nl_unpatchify_args *args)
{
    int64_t channels = args->x.shape[1], height = args->x.shape[2], width = args->x.shape[3];
    int64_t patch = args->patch, columns = width / patch, tokens = height / patch * columns;
    int64_t lines = args->x.shape[0] * channels * height;
#pragma omp parallel for num_threads(nl_cpu_team(device, lines *width)) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        int64_t image = line / (channels * height), c = line / height % channels, y = line % height;
        int64_t first = image * tokens + y / patch * columns;
        float *x = nl_cpu_row_out(&args->x, line);
        for (int64_t column = 0; column < columns; column++) {
            const float *token = nl_cpu_row(&args->tokens, first + column) +
                                 y % patch * patch * args->head_channels + c;
            for (int64_t v = 0; v < patch; v++)
                x[column * patch + v] = token[v * args->head_channels];
        }
    }
    return NL_OK;
}
