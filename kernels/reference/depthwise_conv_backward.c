/* SPDX-License-Identifier: MIT */
/* Gradients of the depthwise convolution by data, weight and bias. */
#include "reference.h"

/* dx of one token and channel: the taps of the tokens around it that it went into. */
static double data_gradient(const nl_depthwise_conv_backward_args *args, int64_t image, int64_t y,
                            int64_t x, int64_t i)
{
    int64_t height = args->grid_height, width = args->grid_width;
    int64_t kernel = args->weight.shape[3], reach = kernel / 2;
    double sum = 0;
    for (int64_t u = 0; u < kernel; u++)
        for (int64_t v = 0; v < kernel; v++) {
            int64_t to_y = y - u + reach, to_x = x - v + reach;
            if (to_y >= 0 && to_y < height && to_x >= 0 && to_x < width)
                sum += nl_get(&args->dout, (image * height + to_y) * width + to_x, i) *
                       nl_at(&args->weight, (i * kernel + u) * kernel + v);
        }
    return sum;
}

/* dweight of tap (u, v) of one channel. */
static double tap_gradient(const nl_depthwise_conv_backward_args *args, int64_t u, int64_t v,
                           int64_t i)
{
    int64_t height = args->grid_height, width = args->grid_width;
    int64_t reach = args->weight.shape[3] / 2;
    double sum = 0;
    for (int64_t row = 0; row < args->batch * height * width; row++) {
        int64_t from_y = row % (height * width) / width + u - reach,
                from_x = row % width + v - reach;
        if (from_y >= 0 && from_y < height && from_x >= 0 && from_x < width)
            sum += nl_get(&args->dout, row, i) *
                   nl_get(&args->x, row + (u - reach) * width + v - reach, i);
    }
    return sum;
}

/* x, dout [B * T, D], weight [D, 1, k, k]; dx [B * T, D], dweight and dbias [D] are added to */
nl_status nl_reference_depthwise_conv_backward(nl_device *device,
                                               const nl_depthwise_conv_backward_args *args)
{
    int64_t width = args->grid_width, tokens = args->grid_height * width;
    int64_t size = args->weight.shape[0], kernel = args->weight.shape[3];
    (void)device;
    for (int64_t i = 0; i < size; i++) {
        double bias = 0;
        for (int64_t row = 0; row < args->batch * tokens; row++) {
            bias += nl_get(&args->dout, row, i);
            nl_add(&args->dx, row, i,
                   data_gradient(args, row / tokens, row % tokens / width, row % width, i));
        }
        nl_add(&args->dbias, 0, i, bias);
        for (int64_t tap = 0; tap < kernel * kernel; tap++)
            nl_add(&args->dweight, 0, i * kernel * kernel + tap,
                   tap_gradient(args, tap / kernel, tap % kernel, i));
    }
    return NL_OK;
}
