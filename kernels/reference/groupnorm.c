/* SPDX-License-Identifier: MIT */
/* GroupNorm with the variance in a second pass over what the mean leaves. */
#include "reference.h"

static double value(const nl_groupnorm_args *args, int64_t pixel, int64_t c)
{
    double sum = nl_get(&args->x, pixel, c) + nl_at_or_zero(&args->addend, c);
    return args->branch.data ? sum + nl_get(&args->branch, pixel, c) : sum;
}

/* Mean and 1 / sqrt(variance + eps) of channels [first, first + width) of one image's pixels. */
static void group_moments(const nl_groupnorm_args *args, int64_t image, int64_t first,
                          int64_t width, double *mean, double *inverse_deviation)
{
    int64_t pixels = args->x.shape[1] * args->x.shape[2];
    double sum = 0, squares = 0;
    for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
        for (int64_t c = first; c < first + width; c++)
            sum += value(args, pixel, c);
    *mean = sum / (pixels * width);
    for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
        for (int64_t c = first; c < first + width; c++)
            squares += pow(value(args, pixel, c) - *mean, 2);
    *inverse_deviation = 1 / sqrt(squares / (pixels * width) + args->eps);
}

/* x [B, H, W, C]; weight, bias [C] -> y as x */
nl_status nl_reference_groupnorm(nl_device *device, const nl_groupnorm_args *args)
{
    int64_t pixels = args->x.shape[1] * args->x.shape[2];
    int64_t channels = args->x.shape[3], width = channels / args->groups;
    if (args->sum.data) {
        for (int64_t i = 0; i < args->x.shape[0] * pixels * channels; i++)
            nl_put(&args->sum, i / channels, i % channels, value(args, i / channels, i % channels));
        nl_groupnorm_args of_sum = *args;
        of_sum.x = args->sum;
        of_sum.branch.data = of_sum.addend.data = of_sum.sum.data = NULL;
        return nl_reference_groupnorm(device, &of_sum);
    }
    for (int64_t image = 0; image < args->x.shape[0]; image++)
        for (int64_t group = 0; group < args->groups; group++) {
            double mean, inverse_deviation;
            group_moments(args, image, group * width, width, &mean, &inverse_deviation);
            for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
                for (int64_t c = group * width; c < (group + 1) * width; c++) {
                    double y = (value(args, pixel, c) - mean) * inverse_deviation *
                                   nl_at(&args->weight, c) +
                               nl_at(&args->bias, c);
                    nl_put(&args->y, pixel, c, args->silu ? nl_silu(y) : y);
                }
        }
    return NL_OK;
}
