/* SPDX-License-Identifier: MIT */
/* Patches of a picture through the embedding, plus the position table. */
#include "reference.h"

/* x [B, C, H, W], weight [D, C, p, p], position [T, D] -> tokens [B * T, D] */
nl_status nl_reference_patch_embed(nl_device *device, const nl_patch_embed_args *args)
{
    int64_t channels = args->x.shape[1], height = args->x.shape[2], width = args->x.shape[3];
    int64_t size = args->weight.shape[0], patch = args->weight.shape[3];
    int64_t columns = width / patch, tokens = height / patch * columns;
    (void)device;
    for (int64_t row = 0; row < args->x.shape[0] * tokens; row++) {
        int64_t image = row / tokens, token = row % tokens;
        int64_t top = token / columns * patch, left = token % columns * patch;
        for (int64_t i = 0; i < size; i++) {
            double sum = nl_at(&args->bias, i) + nl_get(&args->position, token, i);
            for (int64_t c = 0; c < channels; c++)
                for (int64_t u = 0; u < patch; u++)
                    for (int64_t v = 0; v < patch; v++)
                        sum +=
                            nl_get(&args->x, (image * channels + c) * height + top + u, left + v) *
                            nl_get(&args->weight, (i * channels + c) * patch + u, v);
            nl_put(&args->tokens, row, i, sum);
        }
    }
    return NL_OK;
}
