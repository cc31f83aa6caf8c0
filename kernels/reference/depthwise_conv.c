/* SPDX-License-Identifier: MIT */
/* Depthwise convolution over the token grid, zeros outside. */
#include "reference.h"

/* x [B * T, D], weight [D, 1, k, k]; addend, out [B * T, D] */
nl_status nl_reference_depthwise_conv(nl_device *device, const nl_depthwise_conv_args *args)
{
    int64_t height = args->grid_height, width = args->grid_width;
    int64_t size = args->weight.shape[0], kernel = args->weight.shape[3], reach = kernel / 2;
    const nl_tensor *addend = args->addend.data ? &args->addend : &args->out;
    (void)device;
    for (int64_t row = 0; row < args->batch * height * width; row++) {
        int64_t first = row - row % (height * width); /* of the image */
        int64_t y = row % (height * width) / width, x = row % width;
        for (int64_t i = 0; i < size; i++) {
            double sum = nl_at(&args->bias, i);
            for (int64_t u = 0; u < kernel; u++)
                for (int64_t v = 0; v < kernel; v++) {
                    int64_t from_y = y + u - reach, from_x = x + v - reach;
                    if (from_y >= 0 && from_y < height && from_x >= 0 && from_x < width)
                        sum += nl_get(&args->x, first + from_y * width + from_x, i) *
                               nl_at(&args->weight, (i * kernel + u) * kernel + v);
                }
            nl_put(&args->out, row, i, nl_get(addend, row, i) + sum);
        }
    }
    return NL_OK;
}
