/* SPDX-License-Identifier: MIT */
/* Scales pictures: each output pixel as the weighted mean of its definition. */
#include "reference.h"

/* Keys' cubic with a = -1/2. */
static double cubic(double x)
{
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/* Weight of source pixel j of `in` in pixel i of `out`, not yet divided by the sum over j. */
static double weight(nl_resize kind, int64_t in, int64_t out, int64_t i, int64_t j)
{
    double ratio = (double)in / (double)out, width = fmax(ratio, 1);
    double centre = ((double)i + 0.5) * ratio - 0.5;
    if (kind == NL_RESIZE_BICUBIC)
        return cubic(((double)j - centre) / width);
    if (kind == NL_RESIZE_LEGACY)
        centre = (double)i * ratio;
    centre = fmin(fmax(centre, 0), (double)in - 1);
    return fmax(1 - fabs((double)j - centre), 0);
}

static double interpolate(const nl_resize_args *args, int64_t image, int64_t row, int64_t column,
                          int64_t c)
{
    const int64_t *from = args->x.shape, *to = args->y.shape;
    const uint8_t *x = (const uint8_t *)args->x.data + image * from[1] * from[2] * from[3] + c;
    double sum = 0, total = 0;
    for (int64_t u = 0; u < from[1]; u++) {
        double vertical = weight(args->kind, from[1], to[1], row, u);
        for (int64_t v = 0; vertical != 0 && v < from[2]; v++) {
            double w = vertical * weight(args->kind, from[2], to[2], column, v);
            sum += w * x[(u * from[2] + v) * from[3]];
            total += w;
        }
    }
    return args->kind == NL_RESIZE_BICUBIC ? fmin(fmax(sum / total, 0), 255) : sum / total;
}

/* x [B, H, W, C] -> y [B, H', W', C] */
nl_status nl_reference_resize(nl_device *device, const nl_resize_args *args)
{
    const int64_t *shape = args->y.shape;
    (void)device;
    for (int64_t pixel = 0; pixel < shape[0] * shape[1] * shape[2]; pixel++)
        for (int64_t c = 0; c < shape[3]; c++)
            nl_put(&args->y, pixel, c,
                   args->scale * interpolate(args, pixel / (shape[1] * shape[2]),
                                             pixel / shape[2] % shape[1], pixel % shape[2], c) +
                       args->shift);
    return NL_OK;
}
