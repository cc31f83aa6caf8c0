/* SPDX-License-Identifier: MIT */
/* Maximum and average pooling, windows cut off at the border. */
#include "reference.h"

/* One output element from the part of its window that lies within the picture. */
static double pool(const nl_pool_args *args, int64_t image, int64_t row, int64_t column, int64_t c)
{
    int64_t height = args->x.shape[1], width = args->x.shape[2], count = 0;
    double maximum = -INFINITY, sum = 0;
    for (int64_t u = 0; u < args->kernel; u++)
        for (int64_t v = 0; v < args->kernel; v++) {
            int64_t y = row * args->stride + u - args->pad,
                    x = column * args->stride + v - args->pad;
            if (y < 0 || y >= height || x < 0 || x >= width)
                continue;
            double value = nl_get(&args->x, (image * height + y) * width + x, c);
            maximum = value > maximum || isnan(value) ? value : maximum;
            sum += value;
            count++;
        }
    double result = args->kind == NL_POOL_MAX ? maximum : sum / count;
    return args->relu && result < 0 ? 0 : result;
}

/* x [B, H, W, C] -> y [B, H', W', C] */
nl_status nl_reference_pool(nl_device *device, const nl_pool_args *args)
{
    const int64_t *shape = args->y.shape;
    (void)device;
    for (int64_t pixel = 0; pixel < shape[0] * shape[1] * shape[2]; pixel++)
        for (int64_t c = 0; c < shape[3]; c++)
            nl_put(&args->y, pixel, c,
                   pool(args, pixel / (shape[1] * shape[2]), pixel / shape[2] % shape[1],
                        pixel % shape[2], c));
    return NL_OK;
}
