#include "reference.h"

/* Mean and 1 / sqrt(variance + eps) of channels [first, first + width) of one image's pixels. */
static void group_moments(const nl_groupnorm_args *args, int64_t image, int64_t first,
                          int64_t width, double *mean, double *inverse_deviation)
{
    int64_t pixels = args->x.shape[1] * args->x.shape[2];
    double sum = 0, squares = 0;
    for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
        for (int64_t c = first; c < first + width; c++)
            sum += nl_get(&args->x, pixel, c);
    *mean = sum / (pixels * width);
    for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
        for (int64_t c = first; c < first + width; c++)
            squares += pow(nl_get(&args->x, pixel, c) - *mean, 2);
    *inverse_deviation = 1 / sqrt(squares / (pixels * width) + args->eps);
}

/* x [B, H, W, C]; weight, bias [C] -> y as x */
nl_status nl_reference_groupnorm(nl_device *device, const nl_groupnorm_args *args)
{
    int64_t pixels = args->x.shape[1] * args->x.shape[2];
    int64_t width = args->x.shape[3] / args->groups;
    (void)device;
    for (int64_t image = 0; image < args->x.shape[0]; image++)
        for (int64_t group = 0; group < args->groups; group++) {
            double mean, inverse_deviation;
            group_moments(args, image, group * width, width, &mean, &inverse_deviation);
            for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; pixel++)
                for (int64_t c = group * width; c < (group + 1) * width; c++) {
                    double y = (nl_get(&args->x, pixel, c) - mean) * inverse_deviation *
                                   nl_at(&args->weight, c) +
                               nl_at(&args->bias, c);
                    nl_put(&args->y, pixel, c, args->silu ? nl_silu(y) : y);
                }
        }
    return NL_OK;
}
