/* SPDX-License-Identifier: MIT */
/* GroupNorm of x + branch + addend, then SiLU: moments of channels first, of groups from them. */
#include "feature_maps.h"

enum {
    CHUNK = 512, /* pixels whose sums are taken together; fixed, so that threads do not matter */
    RUN = 16     /* of them those whose sums are taken in single precision */
};

/* sum = x + branch + addend of one pixel */
NL_INLINE void add(bool half, const nl_groupnorm_args *args, int64_t pixel)
{
    int64_t channels = args->x.shape[3], first = pixel * channels;
    const float *addend = args->addend.data;
    const void *x = args->x.data, *branch = args->branch.data;
    void *sum = args->sum.data;
#define ADD(more)                                                                                  \
    for (int64_t c = 0; c < channels; c++)                                                         \
        nl_put_element(half, sum, first + c, nl_get_element(half, x, first + c) + (more));
    if (branch && addend) {
#pragma omp simd
        ADD(nl_get_element(half, branch, first + c) + addend[c])
    } else if (branch) {
#pragma omp simd
        ADD(nl_get_element(half, branch, first + c))
    } else {
#pragma omp simd
        ADD(addend[c])
    }
#undef ADD
}

/* Sums over pixels [first, last) of an image that begins at pixel `image` of x of what each channel differs from its first
 * pixel: sums [C], then squares [C]; partial: room for as many. */
NL_INLINE void channel_sums(bool half, const void *x, int64_t image, int64_t first, int64_t last,
                            int64_t channels, float *partial, double *sums)
{
    float *squares = partial + channels;
    for (int64_t c = 0; c < 2 * channels; c++)
        sums[c] = 0;
    for (int64_t run = first; run < last; run += RUN) {
        for (int64_t c = 0; c < 2 * channels; c++)
            partial[c] = 0;
        for (int64_t pixel = run; pixel < NL_MIN(run + RUN, last); pixel++) {
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                float difference = nl_get_element(half, x, (image + pixel) * channels + c) -
                                   nl_get_element(half, x, image * channels + c);
                partial[c] += difference;
                squares[c] += difference * difference;
            }
        }
#pragma omp simd
        for (int64_t c = 0; c < 2 * channels; c++)
            sums[c] += (double)partial[c];
    }
}

/* Adds the sums of the other chunks of an image to those of the first: a mean and a variance for each channel. x: its first
 * pixel. */
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

NL_INLINE void normalize(bool half, const nl_groupnorm_args *args, int64_t pixel, const map *m)
{
    int64_t channels = args->x.shape[3], first = pixel * channels;
    const float *center = m->center, *factor = m->factor, *offset = m->offset;
    const void *x = args->x.data;
    void *y = args->y.data;
    if (args->silu) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) {
            float value = (nl_get_element(half, x, first + c) - center[c]) * factor[c] + offset[c];
            nl_put_element(half, y, first + c, half ? nlv_silu_coarse(value) : nlv_silu(value));
        }
    } else {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            nl_put_element(half, y, first + c,
                           (nl_get_element(half, x, first + c) - center[c]) * factor[c] +
                               offset[c]);
    }
}

/* x [B, H, W, C]; weight, bias [C] -> y as x */
nl_status NL_CPU(groupnorm)(nl_device *device, const nl_groupnorm_args *args)
{
    bool half = args->x.dtype == NL_BF16;
    int64_t images = args->x.shape[0], pixels = args->x.shape[1] * args->x.shape[2];
    int64_t channels = args->x.shape[3], chunks = (pixels + CHUNK - 1) / CHUNK;
    int64_t sum_count = images * chunks * 2 * channels;
    int team = nl_cpu_team(device, images * pixels * channels);
    bool kept = args->sum.data;
    nl_groupnorm_args of_sum = *args;
    if (kept) {
        of_sum.x = args->sum;
        of_sum.branch.data = of_sum.addend.data = NULL;
    }
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device,
                            sum_count * (int64_t)sizeof(double) +
                                (3 * images + 2 * team) * channels * (int64_t)sizeof(float),
                            &scratch));
    double *sums = scratch;
    float *maps = (float *)(sums + sum_count), *partials = maps + images * 3 * channels;
#pragma omp parallel num_threads(team)
    {
        float *partial = partials + omp_get_thread_num() * 2 * channels;
#pragma omp for schedule(static)
        for (int64_t image = 0; image < images; image++)
            if (kept) /* what all chunks of the image look at */
                NL_FOR_HALF(half, add, args, image * pixels);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < images * chunks; i++) {
            int64_t image = i / chunks * pixels, first = i % chunks * CHUNK;
            int64_t last = NL_MIN(first + CHUNK, pixels);
            for (int64_t pixel = NL_MAX(first, 1); kept && pixel < last; pixel++)
                NL_FOR_HALF(half, add, args, image + pixel);
            NL_FOR_HALF(half, channel_sums, of_sum.x.data, image, first, last, channels, partial,
                        sums + i * 2 * channels);
        }
#pragma omp for schedule(static)
        for (int64_t image = 0; image < images; image++) {
            double *moments = sums + image * chunks * 2 * channels;
            map to = map_of_image(maps, image, channels);
            for (int64_t c = 0; c < channels; c++)
                partial[c] = nl_get_element(half, of_sum.x.data, image * pixels * channels + c);
            channel_moments(partial, of_sum.addend.data, pixels, channels, chunks, moments);
            group_map(&of_sum, moments, &to);
        }
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < images * pixels; pixel++) {
            map to = map_of_image(maps, pixel / pixels, channels);
            NL_FOR_HALF(half, normalize, &of_sum, pixel, &to);
        }
    }
    return NL_OK;
}
