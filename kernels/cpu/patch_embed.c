/* SPDX-License-Identifier: MIT */
/* Patches of a picture through the embedding, plus the position table. */
#include "nl_cpu.h"

/* One token: out [D] = bias + position + patch through weight [C * p * p, D]. */
static void embed(const nl_patch_embed_args *args, const float *weight, int64_t image,
                  int64_t token, float *restrict out)
{
    const int64_t *shape = args->x.shape; /* B, C, H, W */
    int64_t size = args->weight.shape[0], patch = args->weight.shape[3];
    int64_t columns = shape[3] / patch;
    int64_t top = token / columns * patch, left = token % columns * patch;
    const float *bias = args->bias.data, *position = nl_cpu_row(&args->position, token);
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        out[i] = bias[i] + position[i];
    for (int64_t c = 0; c < shape[1]; c++)
        for (int64_t u = 0; u < patch; u++)
            for (int64_t v = 0; v < patch; v++, weight += size) {
                float x =
                    nl_cpu_row(&args->x, (image * shape[1] + c) * shape[2] + top + u)[left + v];
#pragma omp simd
                for (int64_t i = 0; i < size; i++)
                    out[i] += x * weight[i];
            }
}

/* x [B, C, H, W], weight [D, C, p, p], position [T, D] -> tokens [B * T, D] */
nl_status NL_CPU(patch_embed)(nl_device *device, const nl_patch_embed_args *args)
{
    int64_t size = args->weight.shape[0], tokens = args->position.shape[0];
    int64_t taps = args->weight.shape[1] * args->weight.shape[2] * args->weight.shape[3];
    int64_t rows = args->x.shape[0] * tokens;
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, taps * 2 * size * (int64_t)sizeof(float), &scratch));
    float *weight = scratch, *transposed = weight + taps * size;
    nl_convert_to_float(args->weight.data, args->weight.dtype, size * taps, weight);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < size; i++)
            transposed[tap * size + i] = weight[i * taps + tap];
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size *taps)) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        embed(args, transposed, row / tokens, row % tokens, nl_cpu_row_out(&args->tokens, row));
    return NL_OK;
}
