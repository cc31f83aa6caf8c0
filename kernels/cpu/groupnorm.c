#include "nl_cpu.h"
#include "vector_math.h"

enum {
    CHUNK = 1024
}; /* pixels whose sums are taken together; fixed, so that threads do not matter */

/* Sums over pixels [first, last) of an image: sums [C], then squares [C]. */
static void channel_sums(const float *x, int64_t first, int64_t last, int64_t channels,
                         double *sums)
{
    double *squares = sums + channels;
    for (int64_t c = 0; c < 2 * channels; c++)
        sums[c] = 0;
    for (int64_t pixel = first; pixel < last; pixel++) {
        const float *row = x + pixel * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) {
            double value = row[c];
            sums[c] += value;
            squares[c] += value * value;
        }
    }
}

/* The chunks' sums of one image -> factor [C] and offset [C] with y = factor x + offset. In double
 * the variance may be the difference of two sums. */
static void group_factors(const nl_groupnorm_args *args, const double *sums, int64_t chunks,
                          float *factor, float *offset)
{
    int64_t channels = args->x.shape[3], width = channels / args->groups;
    double count = (double)(args->x.shape[1] * args->x.shape[2] * width);
    const float *weight = args->weight.data, *bias = args->bias.data;
    for (int64_t group = 0; group < args->groups; group++) {
        double sum = 0, squares = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t c = group * width; c < (group + 1) * width; c++) {
                sum += sums[chunk * 2 * channels + c];
                squares += sums[(chunk * 2 + 1) * channels + c];
            }
        double mean = sum / count, variance = squares / count - mean * mean;
        double scale = 1 / sqrt((variance < 0 ? 0 : variance) + (double)args->eps);
        for (int64_t c = group * width; c < (group + 1) * width; c++) {
            factor[c] = (float)(scale * weight[c]);
            offset[c] = (float)(bias[c] - mean * scale * weight[c]);
        }
    }
}

static void normalize(const nl_groupnorm_args *args, int64_t pixel, const float *factor,
                      const float *offset)
{
    int64_t channels = args->x.shape[3];
    const float *x = nl_cpu_row(&args->x, pixel);
    float *y = nl_cpu_row_out(&args->y, pixel);
    if (args->silu) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            y[c] = nlv_silu(x[c] * factor[c] + offset[c]);
    } else {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            y[c] = x[c] * factor[c] + offset[c];
    }
}

/* x [B, H, W, C]; weight, bias [C] -> y as x */
nl_status NL_CPU(groupnorm)(nl_device *device, const nl_groupnorm_args *args)
{
    int64_t images = args->x.shape[0], pixels = args->x.shape[1] * args->x.shape[2];
    int64_t channels = args->x.shape[3], chunks = (pixels + CHUNK - 1) / CHUNK;
    int64_t sum_count = images * chunks * 2 * channels;
    int team = nl_cpu_team(device, images * pixels * channels);
    void *scratch;
    nl_status status =
        nl_cpu_scratch(device, (sum_count + images * channels) * (int64_t)sizeof(double), &scratch);
    if (status != NL_OK)
        return status;
    double *sums = scratch;
    float *factors = (float *)(sums + sum_count); /* of each image: factor [C], offset [C] */
#pragma omp parallel num_threads(team)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < images * chunks; i++) {
            int64_t first = i % chunks * CHUNK;
            channel_sums(nl_cpu_row(&args->x, i / chunks * pixels), first,
                         NL_MIN(first + CHUNK, pixels), channels, sums + i * 2 * channels);
        }
#pragma omp for schedule(static)
        for (int64_t image = 0; image < images; image++)
            group_factors(args, sums + image * chunks * 2 * channels, chunks,
                          factors + image * 2 * channels, factors + (image * 2 + 1) * channels);
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < images * pixels; pixel++) {
            const float *factor = factors + pixel / pixels * 2 * channels;
            normalize(args, pixel, factor, factor + channels);
        }
    }
    return NL_OK;
}
