/* SPDX-License-Identifier: MIT */
/* Tokens of the head back to a picture, without the channels that a SiT drops. */
#include "reference.h"

/* tokens [B * T, p * p * C_head] -> x [B, C, H, W] */
nl_status nl_reference_unpatchify(nl_device *device, const nl_unpatchify_args *args)
{
    int64_t channels = args->x.shape[1], height = args->x.shape[2], width = args->x.shape[3];
    int64_t patch = args->patch, columns = width / patch, tokens = height / patch * columns;
    (void)device;
    for (int64_t image = 0; image < args->x.shape[0]; image++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++) {
                    int64_t token = image * tokens + y / patch * columns + x / patch;
                    int64_t place = y % patch * patch + x % patch;
                    nl_put(&args->x, (image * channels + c) * height + y, x,
                           nl_get(&args->tokens, token, place * args->head_channels + c));
                }
    return NL_OK;
}
