/* SPDX-License-Identifier: MIT */
/* Convolution element by element, straight from its definition. */
#include "reference.h"

/* Pixel (row, column) of an image of x, or of x doubled. */
static int64_t pixel_of(const nl_conv2d_args *args, int64_t image, int64_t row, int64_t column)
{
    int factor = args->doubled.data ? 2 : 1;
    return (image * args->x.shape[1] + row / factor) * args->x.shape[2] + column / factor;
}

/* The sum of one output element: image, row and column of y, output channel o. */
static double convolve(const nl_conv2d_args *args, int64_t image, int64_t row, int64_t column,
                       int64_t o)
{
    const int64_t *size = args->doubled.data ? args->doubled.shape : args->x.shape;
    int64_t height = size[1], width = size[2], channels = size[3];
    int64_t kernel_height = args->weight.shape[2], kernel_width = args->weight.shape[3];
    double sum = nl_at_or_zero(&args->bias, o);
    for (int64_t u = 0; u < kernel_height; u++)
        for (int64_t v = 0; v < kernel_width; v++) {
            int64_t y = row * args->stride + u - args->pad_top;
            int64_t x = column * args->stride + v - args->pad_left;
            if (y < 0 || y >= height || x < 0 || x >= width)
                continue;
            for (int64_t c = 0; c < channels; c++)
                sum += nl_get(&args->x, pixel_of(args, image, y, x), c) *
                       nl_get(&args->weight, (o * channels + c) * kernel_height + u, v);
        }
    return sum;
}

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O] */
nl_status nl_reference_conv2d(nl_device *device, const nl_conv2d_args *args)
{
    const int64_t *shape = args->y.shape;
    (void)device;
    for (int64_t pixel = 0; pixel < shape[0] * shape[1] * shape[2]; pixel++)
        for (int64_t o = 0; o < shape[3]; o++) {
            double sum = convolve(args, pixel / (shape[1] * shape[2]), pixel / shape[2] % shape[1],
                                  pixel % shape[2], o);
            if (args->residual.data)
                sum += nl_get(&args->residual, pixel, o);
            nl_put(&args->y, pixel, o, nl_reference_activation(args->activation, sum));
        }
    return NL_OK;
}
