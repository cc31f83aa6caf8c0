/* SPDX-License-Identifier: MIT */
/* The nearest training pictures of each sample, in the network's features and in coarse colours. */
#include "extract.h"
#include "nl_nearest.h"
#include "nl_thread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 16, COLOURS = CELLS * CELLS * 3 };

/* A set of pictures as points of every space. */
typedef struct nl_points {
    nl_extraction features;
    nl_context *context;
    float *
        pixels; /* [count, COLOURS], scaled so that the distance of two is the root mean square of their difference */
} nl_points;

/* Means of the cells of a picture; a cell has at least one pixel. */
static void take_colours(const uint8_t *rgb, int64_t height, int64_t width, float *colours)
{
    const double scale = 1 / sqrt(COLOURS);
    for (int64_t cell = 0; cell < CELLS * CELLS; cell++) {
        int64_t top = cell / CELLS * height / CELLS, left = cell % CELLS * width / CELLS;
        int64_t bottom = NL_MAX((cell / CELLS + 1) * height / CELLS, top + 1);
        int64_t right = NL_MAX((cell % CELLS + 1) * width / CELLS, left + 1);
        int64_t sums[3] = {0}, count = (bottom - top) * (right - left);
        for (int64_t y = top; y < bottom; y++)
            for (int64_t x = left; x < right; x++)
                for (int c = 0; c < 3; c++)
                    sums[c] += rgb[(y * width + x) * 3 + c];
        for (int c = 0; c < 3; c++)
            colours[cell * 3 + c] = (float)(scale * (double)sums[c] / (double)count);
    }
}

static nl_status take_batch(void *user, const nl_picture_batch *batch)
{
    nl_points *points = user;
    int64_t bytes = 3 * batch->height * batch->width;
    int team = nl_team(points->context, points->context->device->threads);
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < batch->count; i++)
        take_colours(batch->rgb + i * bytes, batch->height, batch->width,
                     points->pixels + (batch->first + i) * COLOURS);
    return NL_OK;
}

static nl_status find_points(nl_inception *net, const nl_metric_options *options,
                             nl_pictures *pictures, const char *what, nl_points *points)
{
    nl_context *context = nl_inception_context(net);
    nl_picture_source source = nl_pictures_source(pictures);
    points->context = context;
    NL_CHECK(NL_NEW_ARRAY(context, "colours", source.count * COLOURS, &points->pixels));
    points->features.rows = "features of the pictures";
    points->features.picture = take_batch;
    points->features.user = points;
    return nl_extract(net, options, &source, what, &points->features);
}

static void free_points(nl_context *context, nl_points *points)
{
    nl_extraction_free(context, &points->features);
    nl_free(context, points->pixels);
}

static void free_neighbours(nl_context *context, nl_neighbours *neighbours)
{
    nl_free(context, neighbours->index);
    nl_free(context, neighbours->distance);
    *neighbours = (nl_neighbours){0};
}

static nl_status find_neighbours(nl_device *device, nl_space space, nl_feature feature,
                                 const nl_points *reference, const nl_points *points,
                                 nl_neighbours *neighbours)
{
    bool pixels = space == NL_SPACE_PIXELS;
    int64_t count = neighbours->count = points->features.count;
    NL_CHECK(NL_NEW_ARRAY(device->context, "neighbours", count * NL_NEAREST_K, &neighbours->index));
    NL_CHECK(
        NL_NEW_ARRAY(device->context, "neighbours", count * NL_NEAREST_K, &neighbours->distance));
    return nl_nearest_rows(device, pixels ? COLOURS : nl_feature_size(feature),
                           pixels ? reference->pixels : reference->features.kept,
                           reference->features.count,
                           pixels ? points->pixels : points->features.kept, count, NL_NEAREST_K,
                           neighbours->index, neighbours->distance);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The distances to the nearest picture, ascending. */
static nl_status sorted(nl_context *context, const nl_neighbours *neighbours, double **distances)
{
    NL_CHECK(NL_NEW_ARRAY(context, "distances", NL_MAX(neighbours->count, 1), distances));
    for (int64_t i = 0; i < neighbours->count; i++)
        (*distances)[i] = neighbours->distance[i * NL_NEAREST_K];
    qsort(*distances, (size_t)neighbours->count, sizeof(double), by_size);
    return NL_OK;
}

static nl_status find_facts(nl_context *context, const nl_neighbours *samples,
                            const nl_neighbours *held_out, nl_nearest_facts *facts)
{
    double *s = NULL, *h = NULL;
    int64_t n = samples->count, m = held_out->count, below = 0, equal = 0, very = 0;
    nl_status status;
    NL_TRY(sorted(context, samples, &s));
    NL_TRY(sorted(context, held_out, &h));
    *facts = (nl_nearest_facts){s[0], s[n / 2], NAN, NAN, NAN, NAN};
    if (!m)
        goto cleanup;
    facts->held_out_least = h[0];
    facts->held_out_median = h[m / 2];
    for (int64_t i = 0, low = 0, high = 0; i < n; i++) { /* h[low...high): equal to s[i] */
        while (low < m && h[low] < s[i])
            low++;
        for (high = NL_MAX(high, low); high < m && h[high] <= s[i];)
            high++;
        below += m - high;
        equal += high - low;
        very += s[i] < h[m / 100];
    }
    facts->nearer = ((double)below + 0.5 * (double)equal) / ((double)n * (double)m);
    facts->very_near = (double)very / (double)n;
cleanup:
    nl_free(context, s);
    nl_free(context, h);
    return status;
}

nl_status nl_nearest_find(nl_inception *net, const nl_metric_options *options, const char *samples,
                          const char *reference, const char *held_out, nl_nearness *nearness)
{
    nl_context *context = nl_inception_context(net);
    nl_points points[3] = {0};
    nl_pictures *pictures[3] = {NULL};
    const char *paths[] = {samples, reference, held_out};
    const char *const what[] = {"samples", "reference", "held out"};
    nl_neighbours others = {0};
    nl_status status = NL_OK;
    *nearness = (nl_nearness){.context = context};
    for (int i = 0; i < NL_COUNT(points); i++)
        if (paths[i])
            NL_TRY(nl_pictures_open(context, paths[i], context->device->threads, &pictures[i]));
    for (int i = 0; i < NL_COUNT(points); i++) {
        if (paths[i])
            NL_TRY(find_points(net, options, pictures[i], what[i], &points[i]));
        nl_pictures_close(pictures[i]);
        pictures[i] = NULL;
    }
    nearness->samples = points[0].features.count;
    nearness->reference = points[1].features.count;
    nearness->held_out = points[2].features.count;
    if (!nearness->samples)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: no pictures in it", samples));
    for (nl_space space = 0; space < NL_SPACES; space++) {
        NL_TRY(find_neighbours(context->device, space, options->feature, &points[1], &points[0],
                               &nearness->of[space]));
        free_neighbours(context, &others);
        if (held_out)
            NL_TRY(find_neighbours(context->device, space, options->feature, &points[1], &points[2],
                                   &others));
        NL_TRY(find_facts(context, &nearness->of[space], &others, &nearness->facts[space]));
    }
cleanup:
    free_neighbours(context, &others);
    for (int i = 0; i < NL_COUNT(points); i++) {
        free_points(context, &points[i]);
        nl_pictures_close(pictures[i]);
    }
    return status;
}

void nl_nearest_free(nl_nearness *nearness)
{
    for (nl_space space = 0; space < NL_SPACES; space++)
        free_neighbours(nearness->context, &nearness->of[space]);
}
