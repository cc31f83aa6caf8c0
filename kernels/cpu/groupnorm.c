/* SPDX-License-Identifier: MIT */
/* GroupNorm of x + branch + addend, then SiLU: moments of channels first, of groups from them. */
#include "nl_cpu.h"
#include "vector_math.h"

enum {
    CHUNK = 1024
}; /* pixels whose sums are taken together; fixed, so that threads do not matter */

/* Sums over pixels [first, last) of an image x [H W, C] of what each channel differs from its first
 * pixel: sums [C], then squares [C]. */
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
            double difference = (double)row[c] - x[c];
            sums[c] += difference;
            squares[c] += difference * difference;
        }
    }
}

/* Adds the sums of the other chunks of an image to those of the first: a mean and a variance for
 * each channel. */
static void channel_moments(const float *x, const float *addend, int64_t pixels, int64_t channels,
                            int64_t chunks, double *sums)
{
    double *squares = sums + channels;
    for (int64_t chunk = 1; chunk < chunks; chunk++)
        for (int64_t c = 0; c < 2 * channels; c++)
            sums[c] += sums[chunk * 2 * channels + c];
    for (int64_t c = 0; c < channels; c++) {
        double difference = sums[c] / (double)pixels;
        squares[c] = squares[c] / (double)pixels - difference * difference;
        sums[c] = (double)x[c] + (addend ? addend[c] : 0) + difference;
    }
}

/* y = factor (x - center) + offset, each [C]. The center is the mean less the addend, rounded to a float: subtracted
 * first, it cancels exactly where x is close to it, and the offset holds the rest of the mean. */
typedef struct map {
    float *center, *factor, *offset;
} map;

static map map_of_image(float *maps, int64_t image, int64_t channels)
{
    float *first = maps + image * 3 * channels;
    return (map){first, first + channels, first + 2 * channels};
}

/* Moments of the channels -> those of their groups: the variance is the mean of the channels'
 * variances and the variance of their means. */
static void group_map(const nl_groupnorm_args *args, const double *means, const map *to)
{
    int64_t channels = args->x.shape[3], width = channels / args->groups;
    const double *variances = means + channels;
    const float *weight = args->weight.data, *bias = args->bias.data, *addend = args->addend.data;
    for (int64_t first = 0; first < channels; first += width) {
        double mean = 0, variance = 0;
        for (int64_t c = first; c < first + width; c++)
            mean += means[c] / (double)width;
        for (int64_t c = first; c < first + width; c++)
            variance += (variances[c] + (means[c] - mean) * (means[c] - mean)) / (double)width;
        double scale = 1 / sqrt((variance < 0 ? 0 : variance) + (double)args->eps);
        for (int64_t c = first; c < first + width; c++) {
            double own = mean - (addend ? addend[c] : 0);
            to->center[c] = (float)own;
            to->factor[c] = (float)(scale * weight[c]);
            to->offset[c] = (float)(bias[c] + (to->center[c] - own) * scale * weight[c]);
        }
    }
}

static void normalize(const nl_groupnorm_args *args, int64_t pixel, const map *m)
{
    int64_t channels = args->x.shape[3];
    const float *center = m->center, *factor = m->factor, *offset = m->offset;
    const float *x = nl_cpu_row(&args->x, pixel);
    float *y = nl_cpu_row_out(&args->y, pixel);
    if (args->silu) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            y[c] = nlv_silu((x[c] - center[c]) * factor[c] + offset[c]);
    } else {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            y[c] = (x[c] - center[c]) * factor[c] + offset[c];
    }
}

/* sum = x + branch + addend */
static void add(const nl_device *device, const nl_groupnorm_args *args)
{
    int64_t channels = args->x.shape[3], pixels = nl_tensor_count(&args->x) / channels;
    const float *addend = args->addend.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, pixels *channels)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        const float *x = nl_cpu_row(&args->x, pixel);
        const float *branch = args->branch.data ? nl_cpu_row(&args->branch, pixel) : NULL;
        float *sum = nl_cpu_row_out(&args->sum, pixel);
        for (int64_t c = 0; c < channels; c++)
            sum[c] = x[c] + (branch ? branch[c] : 0) + (addend ? addend[c] : 0);
    }
}

/* x [B, H, W, C]; weight, bias [C] -> y as x */
nl_status NL_CPU(groupnorm)(nl_device *device, const nl_groupnorm_args *args)
{
    nl_groupnorm_args of_sum = *args;
    if (args->sum.data) {
        add(device, args);
        of_sum.x = args->sum;
        of_sum.branch.data = of_sum.addend.data = NULL;
        args = &of_sum;
    }
    int64_t images = args->x.shape[0], pixels = args->x.shape[1] * args->x.shape[2];
    int64_t channels = args->x.shape[3], chunks = (pixels + CHUNK - 1) / CHUNK;
    int64_t sum_count = images * chunks * 2 * channels;
    int team = nl_cpu_team(device, images * pixels * channels);
    void *scratch;
    int64_t bytes =
        sum_count * (int64_t)sizeof(double) + images * 3 * channels * (int64_t)sizeof(float);
    NL_CHECK(nl_cpu_scratch(device, bytes, &scratch));
    double *sums = scratch;
    float *maps = (float *)(sums + sum_count);
#pragma omp parallel num_threads(team)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < images * chunks; i++) {
            int64_t first = i % chunks * CHUNK;
            channel_sums(nl_cpu_row(&args->x, i / chunks * pixels), first,
                         NL_MIN(first + CHUNK, pixels), channels, sums + i * 2 * channels);
        }
#pragma omp for schedule(static)
        for (int64_t image = 0; image < images; image++) {
            double *moments = sums + image * chunks * 2 * channels;
            map to = map_of_image(maps, image, channels);
            channel_moments(nl_cpu_row(&args->x, image * pixels), args->addend.data, pixels,
                            channels, chunks, moments);
            group_map(args, moments, &to);
        }
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < images * pixels; pixel++) {
            map to = map_of_image(maps, pixel / pixels, channels);
            normalize(args, pixel, &to);
        }
    }
    return NL_OK;
}
