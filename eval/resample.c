/* SPDX-License-Identifier: MIT */
/* Frechet distances of resampled rows: the bootstrap and the extrapolation to infinitely many pictures. Draws are
 * Philox's (seed BOOTSTRAP or INFINITY_SEED, image: the repeat), so that the same features give the same numbers. */
#include "draw.h"
#include "nl_random.h"
#include "nl_statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BOOTSTRAP_SEED = 1, INFINITY_SEED = 2, POINTS = 15 };

/* Room for one distance. */
typedef struct workspace {
    double *mean, *covariance;
    int64_t *order; /* [count] rows, the first of which are taken */
} workspace;

static nl_status prepare(const nl_resampling *r, workspace *w)
{
    nl_context *context = nl_gaussian_context(r->reference);
    int64_t size = nl_gaussian_size(r->reference);
    NL_CHECK(NL_NEW_ARRAY(context, "a mean", size, &w->mean));
    NL_CHECK(NL_NEW_ARRAY(context, "a covariance", size * size, &w->covariance));
    NL_CHECK(NL_NEW_ARRAY(context, "an order of rows", r->count, &w->order));
    for (int64_t i = 0; i < r->count; i++)
        w->order[i] = i;
    return NL_OK;
}

static void release(nl_context *context, workspace *w)
{
    nl_free(context, w->mean);
    nl_free(context, w->covariance);
    nl_free(context, w->order);
}

static nl_status report(const nl_resampling *r, int64_t done, int64_t count)
{
    nl_context *context = nl_gaussian_context(r->reference);
    if (r->progress && !r->progress(r->user, done, count))
        return nl_fail(context, NL_CANCELLED, "interrupted");
    return nl_check_cancelled(context);
}

/* The distance of the first `count` rows of the order. */
static nl_status distance_of(const nl_resampling *r, const workspace *w, int64_t count,
                             double *distance)
{
    int64_t size = nl_gaussian_size(r->reference);
    nl_moments *moments = NULL;
    nl_status status;
    NL_TRY(nl_moments_create(nl_gaussian_context(r->reference), size, &moments));
    for (int64_t i = 0; i < count; i++)
        nl_moments_add(moments, r->rows + w->order[i] * size, 1);
    NL_TRY(nl_moments_read(moments, w->mean, w->covariance));
    NL_TRY(nl_gaussian_distance(r->reference, w->mean, w->covariance, distance));
cleanup:
    nl_moments_destroy(moments);
    return status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Between the two nearest of the sorted values. */
static double quantile(const double *sorted, int64_t count, double share)
{
    double place = share * (double)(count - 1);
    int64_t below = (int64_t)place, above = NL_MIN(below + 1, count - 1);
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

nl_status nl_fid_bootstrap(const nl_resampling *r, int64_t repeats, nl_interval *interval)
{
    nl_context *context = nl_gaussian_context(r->reference);
    workspace w = {NULL, NULL, NULL};
    double *distances = NULL;
    double mean = 0, squares = 0;
    nl_status status;
    if (repeats < 2)
        return nl_fail(context, NL_ERROR_USAGE, "a bootstrap of %lld repeats has no spread",
                       (long long)repeats);
    NL_TRY(prepare(r, &w));
    NL_TRY(NL_NEW_ARRAY(context, "a bootstrap", repeats, &distances));
    for (int64_t k = 0; k < repeats; k++) {
        NL_TRY(report(r, k, repeats));
        for (int64_t i = 0; i < r->count; i++)
            w.order[i] = nl_draw_below(BOOTSTRAP_SEED, (uint64_t)k, (uint64_t)i, r->count);
        NL_TRY(distance_of(r, &w, r->count, &distances[k]));
        mean += distances[k] / (double)repeats;
    }
    for (int64_t k = 0; k < repeats; k++)
        squares += (distances[k] - mean) * (distances[k] - mean);
    qsort(distances, (size_t)repeats, sizeof(double), ascending);
    *interval = (nl_interval){.deviation = sqrt(squares / (double)(repeats - 1)),
                              .low = quantile(distances, repeats, 0.025) - mean,
                              .high = quantile(distances, repeats, 0.975) - mean};
cleanup:
    release(context, &w);
    nl_free(context, distances);
    return status;
}

nl_status nl_fid_infinity(const nl_resampling *r, int64_t least, double *distance)
{
    nl_context *context = nl_gaussian_context(r->reference);
    workspace w = {NULL, NULL, NULL};
    double x[POINTS], y[POINTS], mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    nl_status status;
    if (least < 2 || r->count < least + POINTS)
        return nl_fail(context, NL_ERROR_INPUT,
                       "FID-infinity: subsets of %lld to %lld pictures are not possible",
                       (long long)least, (long long)r->count);
    NL_TRY(prepare(r, &w));
    for (int i = 0; i < POINTS; i++) {
        int64_t count = least + (r->count - least) * i / (POINTS - 1);
        NL_TRY(report(r, i, POINTS));
        nl_draw_subset(INFINITY_SEED, (uint64_t)i, r->count, count, w.order);
        NL_TRY(distance_of(r, &w, count, &y[i]));
        x[i] = 1 / (double)count;
        mean_x += x[i] / POINTS;
        mean_y += y[i] / POINTS;
    }
    for (int i = 0; i < POINTS; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    *distance = mean_y - xy / xx * mean_x;
cleanup:
    release(context, &w);
    return status;
}
