/* SPDX-License-Identifier: MIT */
/* The gradient of unpatchify: zeros for the channels that were dropped. */
#include "reference.h"

/* dx [B, C, H, W] -> dtokens [B * T, p * p * C_head], 0 where forward dropped a channel */
nl_status nl_reference_unpatchify_backward(nl_device *device,
                                           const nl_unpatchify_backward_args *args)
{
    const int64_t *x = args->dx.shape; /* B, C, H, W */
    int64_t patch = args->patch, columns = x[3] / patch, tokens = x[2] / patch * columns;
    (void)device;
    for (int64_t row = 0; row < args->dtokens.shape[0]; row++)
        for (int64_t i = 0; i < args->dtokens.shape[1]; i++) {
            int64_t place = i / args->head_channels, c = i % args->head_channels;
            int64_t token = row % tokens;
            int64_t line = token / columns * patch + place / patch;
            int64_t column = token % columns * patch + place % patch;
            nl_put(&args->dtokens, row, i,
                   c < x[1] ? nl_get(&args->dx, (row / tokens * x[1] + c) * x[2] + line, column)
                            : 0);
        }
    return NL_OK;
}
