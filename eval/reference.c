/* SPDX-License-Identifier: MIT */
/* Reference files: read and checked, made from pictures, merged from several. */
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Names of mean and covariance of a feature in reference files. */
static void statistic_names(nl_feature feature, bool any_size, char mu[32], char sigma[32])
{
    const char *suffix = feature == NL_FEATURE_SPATIAL ? "_s" : "";
    char size[16] = "";
    if (feature != NL_FEATURE_SPATIAL && feature != NL_FEATURE_POOL_3 && !any_size)
        snprintf(size, sizeof(size), "_%lld", (long long)nl_feature_size(feature));
    snprintf(mu, 32, "mu%s%s", suffix, size);
    snprintf(sigma, 32, "sigma%s%s", suffix, size);
}

static nl_status shape_is(nl_arrays *arrays, const char *name, int64_t size, bool *fits)
{
    nl_array_stream *stream = NULL;
    nl_array array;
    nl_status status = nl_array_open(arrays, name, &array, &stream);
    *fits = status == NL_OK && array.ndim == 1 && array.shape[0] == size;
    nl_array_close(stream);
    return status;
}

/* Features are floats, and so is their mean; their covariance is a square of it. What is larger overflows in a distance. */
static nl_status check_range(nl_arrays *arrays, const char *name, double x, int64_t row,
                             int64_t column)
{
    char place[64];
    if (fabs(x) <= (column < 0 ? FLT_MAX : (double)FLT_MAX * FLT_MAX))
        return NL_OK;
    snprintf(place, sizeof(place), column < 0 ? "%lld" : "(%lld, %lld)", (long long)row,
             (long long)column);
    if (!isfinite(x))
        return nl_fail(nl_arrays_context(arrays), NL_ERROR_INPUT, "%s: %s is not finite at %s",
                       nl_arrays_path(arrays), name, place);
    return nl_fail(nl_arrays_context(arrays), NL_ERROR_INPUT,
                   "%s: %s is %g at %s, which features, floats, cannot have",
                   nl_arrays_path(arrays), name, x, place);
}

/* Whether a file's numbers can be those of a distribution: others would give a distance, too. */
static nl_status check_statistics(nl_arrays *arrays, const char *mu, const char *sigma,
                                  int64_t size, const nl_statistics *g)
{
    nl_context *context = nl_arrays_context(arrays);
    const char *path = nl_arrays_path(arrays);
    const double *c = g->covariance;
    double largest = 0;
    for (int64_t i = 0; i < size; i++)
        NL_CHECK(check_range(arrays, mu, g->mean[i], i, -1));
    for (int64_t i = 0; i < size * size; i++)
        NL_CHECK(check_range(arrays, sigma, c[i], i / size, i % size));
    for (int64_t i = 0; i < size; i++) {
        largest = fmax(largest, c[i * size + i]);
        if (c[i * size + i] < 0)
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s: %s is no covariance: the variance %lld is %g", path, sigma,
                           (long long)i, c[i * size + i]);
    }
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < i; j++)
            if (fabs(c[i * size + j] - c[j * size + i]) > 1e-6 * largest)
                return nl_fail(
                    context, NL_ERROR_INPUT,
                    "%s: %s is no covariance: not symmetric, %g at (%lld, %lld) and %g at "
                    "(%lld, %lld)",
                    path, sigma, c[i * size + j], (long long)i, (long long)j, c[j * size + i],
                    (long long)j, (long long)i);
    return NL_OK;
}

nl_status nl_statistics_read(nl_arrays *arrays, nl_feature feature, bool any_size,
                             nl_statistics *statistics)
{
    int64_t size = nl_feature_size(feature);
    char mu[32], sigma[32];
    bool fits = true;
    for (int any = 0; any <= any_size && !statistics->mean; any++) {
        statistic_names(feature, any, mu, sigma);
        if (!nl_arrays_has(arrays, mu))
            continue;
        if (any)
            NL_CHECK(shape_is(arrays, mu, size, &fits));
        if (!fits)
            continue;
        NL_CHECK(nl_arrays_doubles(arrays, mu, 1, &size, &statistics->mean));
        NL_CHECK(
            nl_arrays_doubles(arrays, sigma, 2, (int64_t[]){size, size}, &statistics->covariance));
        NL_CHECK(check_statistics(arrays, mu, sigma, size, statistics));
    }
    return NL_OK;
}

nl_status nl_statistics_of(nl_context *context, nl_moments *moments, nl_feature feature,
                           nl_statistics *g)
{
    int64_t size = nl_feature_size(feature);
    NL_CHECK(NL_NEW_ARRAY(context, "a mean", size, &g->mean));
    NL_CHECK(NL_NEW_ARRAY(context, "a covariance", size * size, &g->covariance));
    return nl_moments_read(moments, g->mean, g->covariance);
}

void nl_statistics_free(nl_context *context, nl_statistics *g)
{
    nl_free(context, g->mean);
    nl_free(context, g->covariance);
    *g = (nl_statistics){0};
}

/* What to take in place of a feature of so many numbers. */
static const char *fewer_numbers(nl_feature feature)
{
    if (feature == NL_FEATURE_SPATIAL)
        return ", --metrics without sfid";
    return feature == NL_FEATURE_POOL_64    ? ""
           : feature == NL_FEATURE_POOL_192 ? ", features with fewer numbers (--features pool_64)"
                                            : ", features with fewer numbers (--features pool_192)";
}

nl_status nl_check_count(nl_context *context, const nl_metric_options *options,
                         const nl_picture_source *source, const nl_extraction *e, bool *small)
{
    for (int f = 0; f < NL_FEATURES; f++) {
        if (e->moments[f] && source->count < 2)
            return nl_fail(context, NL_ERROR_USAGE, "%s: one picture has no covariance: take more",
                           source->name);
        int64_t least =
            f == NL_FEATURE_POOL_3 || f == NL_FEATURE_SPATIAL ? 2048 : nl_feature_size(f) + 1;
        if (!e->moments[f] || source->count >= least)
            continue;
        *small = true;
        if (!options->allow_small)
            return nl_fail(
                context, NL_ERROR_USAGE,
                "%s: %lld %s too few for the covariance of the %lld numbers of %s: FID "
                "would say more about their number than about them. Take %lld or more (50000 for "
                "published numbers)%s, or --allow-small for a number that is not comparable with "
                "other results",
                source->name, (long long)source->count,
                nl_plural(source->count, "picture is", "pictures are"),
                (long long)nl_feature_size(f), nl_feature_name(f), (long long)least,
                e->of_reference ? "" : fewer_numbers((nl_feature)f));
    }
    return NL_OK;
}

/* ---- Making them */

typedef struct chosen_pictures {
    nl_context *context;
    nl_arrays_writer *writer;
    const char *path;
    int64_t count, images, written; /* images of count are written */
    int64_t height, width;
} chosen_pictures;

/* Picture i is one of `images` evenly chosen ones when i images / count passes a whole number there. */
static nl_status write_chosen(void *user, const nl_picture_batch *batch)
{
    chosen_pictures *c = user;
    int64_t bytes = 3 * batch->height * batch->width;
    if (c->images == 0)
        return NL_OK;
    if (c->written == 0 && batch->first == 0) {
        c->height = batch->height;
        c->width = batch->width;
        nl_array array = {NL_U8, 4, {c->images, c->height, c->width, 3}};
        NL_CHECK(nl_arrays_begin(c->writer, "arr_0", &array));
    }
    if (batch->height != c->height || batch->width != c->width)
        return nl_fail(c->context, NL_ERROR_INPUT,
                       "%s: pictures of %lld x %lld and of %lld x %lld cannot stand in one array: "
                       "use --images 0 (no precision, recall and KID) or pictures of one size",
                       c->path, (long long)c->width, (long long)c->height, (long long)batch->width,
                       (long long)batch->height);
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t index = batch->first + i;
        if (index * c->images / c->count == c->written && c->written < c->images) {
            NL_CHECK(nl_arrays_write(c->writer, batch->rgb + i * bytes, bytes));
            c->written++;
        }
    }
    return NL_OK;
}

static nl_status write_statistics(nl_context *context, nl_arrays_writer *writer, nl_feature feature,
                                  nl_moments *moments)
{
    int64_t size = nl_feature_size(feature);
    nl_statistics g = {0};
    char mu[32], sigma[32];
    nl_status status;
    statistic_names(feature, false, mu, sigma);
    NL_TRY(nl_statistics_of(context, moments, feature, &g));
    NL_TRY(nl_arrays_begin(writer, mu, &(nl_array){NL_F64, 1, {size}}));
    NL_TRY(nl_arrays_write(writer, g.mean, size * (int64_t)sizeof(double)));
    NL_TRY(nl_arrays_begin(writer, sigma, &(nl_array){NL_F64, 2, {size, size}}));
    NL_TRY(nl_arrays_write(writer, g.covariance, size * size * (int64_t)sizeof(double)));
cleanup:
    nl_statistics_free(context, &g);
    return status;
}

/* What follows the pictures in a reference. */
static nl_status write_all_statistics(nl_context *context, nl_arrays_writer *writer,
                                      nl_moments *const of[NL_FEATURES], int64_t count)
{
    NL_CHECK(nl_arrays_begin(writer, "count", &(nl_array){NL_I64, 0, {0}}));
    NL_CHECK(nl_arrays_write(writer, &count, sizeof(count)));
    for (int f = 0; f < NL_FEATURES; f++)
        if (of[f])
            NL_CHECK(write_statistics(context, writer, f, of[f]));
    return NL_OK;
}

nl_status nl_make_reference(nl_inception *net, const nl_metric_options *options, const char *path,
                            const char *out, bool overwrite, int64_t images)
{
    nl_context *context = nl_inception_context(net);
    chosen_pictures chosen = {.context = context, .path = path};
    nl_extraction e = {.of_reference = true, .picture = write_chosen, .user = &chosen};
    nl_pictures *pictures = NULL;
    bool small;
    nl_status status;
    int64_t bytes = 0; /* of the statistics; how large the pictures are the first one says */
    for (int f = 0; f < NL_FEATURES; f++) {
        e.moments[f] = f != NL_FEATURE_LOGITS && nl_inception_has(net, f);
        if (e.moments[f])
            bytes += nl_feature_size(f) * (nl_feature_size(f) + 1) * (int64_t)sizeof(double);
    }
    NL_TRY(nl_pictures_open(context, path, nl_threads_of(context), &pictures));
    nl_picture_source source = nl_pictures_source(pictures);
    chosen.count = source.count;
    chosen.images = NL_MIN(images, chosen.count);
    NL_TRY(nl_check_count(context, options, &source, &e, &small));
    NL_TRY(nl_check_space(context, out, bytes));
    NL_TRY(nl_arrays_create(context, out, overwrite, &chosen.writer));
    NL_TRY(nl_extract(net, options, &source, "reference", &e));
    if (e.mixed)
        nl_log(context, NL_LOG_WARNING,
               "%s: the pictures have different sizes; each is resized by itself", path);
    NL_TRY(write_all_statistics(context, chosen.writer, e.of, e.count));
    NL_TRY(nl_arrays_commit(&chosen.writer));
    nl_log(context, NL_LOG_INFO, "%s: a reference of %s, preset %s", out, path,
           options->preprocessing->name);
cleanup:
    nl_arrays_abort(&chosen.writer);
    nl_pictures_close(pictures);
    nl_extraction_free(context, &e);
    return status;
}

/* ---- Merging them */

typedef struct merge {
    nl_context *context;
    const char *path; /* of the reference at work */
    nl_arrays *arrays;
    nl_moments *of[NL_FEATURES];
    int64_t count;    /* pictures of the statistics */
    int64_t pictures; /* in the arr_0 of all */
} merge;

/* The features that the first reference has, all must have. */
static nl_status merge_feature(merge *m, nl_feature feature, int64_t count, bool first)
{
    nl_statistics g = {0};
    nl_moments *moments = NULL;
    nl_status status;
    NL_TRY(nl_statistics_read(m->arrays, feature, false, &g));
    if (!first && (g.mean == NULL) != (m->of[feature] == NULL))
        NL_TRY(nl_fail(m->context, NL_ERROR_INPUT,
                       "%s: its statistics are not of the same features as those before it (%s): "
                       "make all with the same weights",
                       m->path, nl_feature_name(feature)));
    if (!g.mean)
        return NL_OK;
    NL_TRY(
        nl_moments_of(m->context, nl_feature_size(feature), g.mean, g.covariance, count, &moments));
    if (first) {
        m->of[feature] = moments;
        moments = NULL;
    } else {
        nl_moments_merge(m->of[feature], moments);
    }
cleanup:
    nl_moments_destroy(moments);
    nl_statistics_free(m->context, &g);
    return status;
}

static nl_status read_count(merge *m, int64_t *count)
{
    nl_array array;
    nl_array_stream *stream = NULL;
    nl_status status;
    if (!nl_arrays_has(m->arrays, "count"))
        return nl_fail(m->context, NL_ERROR_INPUT,
                       "%s: it does not say of how many pictures it is (array `count`), which "
                       "merging needs; it holds %s",
                       m->path, nl_arrays_names(m->arrays));
    NL_TRY(nl_array_open(m->arrays, "count", &array, &stream));
    if (array.dtype != NL_I64 || array.ndim != 0)
        NL_TRY(nl_fail(m->context, NL_ERROR_INPUT, "%s: count: expected one I64, found %s", m->path,
                       nl_dtype_name(array.dtype)));
    NL_TRY(nl_array_read(stream, count, sizeof(*count)));
    if (*count < 2 || *count > (int64_t)1 << 48)
        NL_TRY(nl_fail(m->context, NL_ERROR_INPUT,
                       "%s: count: expected 2 pictures or more, found %lld", m->path,
                       (long long)*count));
cleanup:
    nl_array_close(stream);
    return status;
}

static nl_status merge_file(merge *m, const char *path, bool first)
{
    nl_pictures *pictures = NULL;
    int64_t count;
    nl_status status;
    m->path = path;
    NL_TRY(nl_arrays_open(m->context, path, &m->arrays));
    NL_TRY(read_count(m, &count));
    for (int f = 0; f < NL_FEATURES; f++)
        NL_TRY(merge_feature(m, f, count, first));
    m->count += count;
    if (nl_arrays_has(m->arrays, "arr_0")) {
        NL_TRY(nl_pictures_of(m->context, path, m->arrays, &pictures));
        m->pictures += nl_pictures_count(pictures);
    }
cleanup:
    nl_pictures_close(pictures);
    nl_arrays_close(m->arrays);
    m->arrays = NULL;
    return status;
}

/* Hands over the pictures of one reference, whose numbers begin at `first`. */
static nl_status copy_pictures(chosen_pictures *chosen, const char *path, int64_t *first)
{
    enum { MOST = 64 };
    nl_context *context = chosen->context;
    nl_arrays *arrays = NULL;
    nl_pictures *pictures = NULL;
    nl_picture_batch batch;
    nl_status status;
    chosen->path = path;
    NL_TRY(nl_arrays_open(context, path, &arrays));
    if (!nl_arrays_has(arrays, "arr_0"))
        goto cleanup;
    NL_TRY(nl_pictures_of(context, path, arrays, &pictures));
    for (;;) {
        NL_TRY(nl_check_cancelled(context));
        NL_TRY(nl_pictures_next(pictures, MOST, &batch));
        if (batch.count == 0)
            break;
        batch.first += *first;
        NL_TRY(write_chosen(chosen, &batch));
    }
    *first += nl_pictures_count(pictures);
cleanup:
    nl_pictures_close(pictures);
    nl_arrays_close(arrays);
    return status;
}

nl_status nl_merge_references(nl_context *context, const char *const *references, int count,
                              const char *out, bool overwrite, int64_t images)
{
    merge m = {.context = context};
    chosen_pictures chosen = {.context = context};
    int64_t first = 0;
    nl_status status = NL_OK;
    for (int i = 0; i < count; i++)
        NL_TRY(merge_file(&m, references[i], i == 0));
    chosen.count = m.pictures;
    chosen.images = NL_MIN(images, m.pictures);
    NL_TRY(nl_arrays_create(context, out, overwrite, &chosen.writer));
    for (int i = 0; i < count && chosen.images; i++)
        NL_TRY(copy_pictures(&chosen, references[i], &first));
    NL_TRY(write_all_statistics(context, chosen.writer, m.of, m.count));
    NL_TRY(nl_arrays_commit(&chosen.writer));
cleanup:
    nl_arrays_abort(&chosen.writer);
    for (int f = 0; f < NL_FEATURES; f++)
        nl_moments_destroy(m.of[f]);
    return status;
}
