#include "extract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const nl_metric_names[NL_METRICS + 1] = {"fid",    "sfid", "is", "precision",
                                                     "recall", "kid",  NULL};

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

typedef struct gaussian {
    double *mean, *covariance; /* NULL: not there */
} gaussian;

typedef struct evaluation_job {
    nl_inception *net;
    nl_context *context;
    const nl_evaluation_options *options;
    nl_evaluation *result;
    const char *reference_path;
    nl_arrays *arrays;            /* of the reference, unless it is a folder */
    gaussian stored[NL_FEATURES]; /* what the reference file has of FEATURE and SPATIAL */
    nl_extraction samples, reference;
} evaluation_job;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Marks a metric that was asked for as not to be had. */
static void miss(evaluation_job *job, nl_metric metric, const char *why)
{
    nl_metric_value *value = &job->result->metrics[metric];
    if (job->options->wanted[metric] && !value->missing[0])
        snprintf(value->missing, sizeof(value->missing), "%s", why);
}

static bool wanted(const evaluation_job *job, nl_metric metric)
{
    return job->options->wanted[metric] && !job->result->metrics[metric].missing[0];
}

/* ---- The reference file */

static bool shape_is(nl_arrays *arrays, const char *name, int64_t size)
{
    nl_array_stream *stream;
    nl_array array;
    bool fits = nl_array_open(arrays, name, &array, &stream) == NL_OK && array.ndim == 1 &&
                array.shape[0] == size;
    nl_array_close(stream);
    return fits;
}

/* mu and sigma of a feature, under its own names or, with its size, as mu and sigma. */
static nl_status read_gaussian(evaluation_job *job, nl_feature feature)
{
    gaussian *g = &job->stored[feature];
    int64_t size = nl_feature_size(feature);
    char mu[32], sigma[32];
    nl_status status = NL_OK;
    for (int any = 0; any < 2 && !g->mean; any++) {
        statistic_names(feature, any, mu, sigma);
        if (!nl_arrays_has(job->arrays, mu) || (any && !shape_is(job->arrays, mu, size)))
            continue;
        NL_TRY(nl_arrays_doubles(job->arrays, mu, 1, &size, &g->mean));
        NL_TRY(nl_arrays_doubles(job->arrays, sigma, 2, (int64_t[]){size, size}, &g->covariance));
    }
cleanup:
    return status;
}

static nl_status open_reference(evaluation_job *job)
{
    nl_status status = NL_OK;
    if (nl_path_is_folder(job->reference_path))
        return NL_OK;
    NL_TRY(nl_arrays_open(job->context, job->reference_path, &job->arrays));
    NL_TRY(read_gaussian(job, job->options->feature));
    NL_TRY(read_gaussian(job, NL_FEATURE_SPATIAL));
cleanup:
    return status;
}

/* ---- What can be had */

static void find_out(evaluation_job *job)
{
    const nl_inception *net = job->net;
    nl_feature feature = job->options->feature;
    bool pictures = !job->arrays || nl_arrays_has(job->arrays, "arr_0");
    char why[256];
    if (!nl_inception_has(net, NL_FEATURE_LOGITS))
        miss(job, NL_METRIC_IS, "the weights lack the last layers (see missing)");
    if (!nl_inception_has(net, feature))
        for (int m = 0; m < NL_METRICS; m++)
            if (m != NL_METRIC_SFID && m != NL_METRIC_IS)
                miss(job, m, "the weights lack the last layers (see missing)");
    if (pictures)
        return;
    snprintf(why, sizeof(why), "the reference has no statistics of %s and no pictures",
             nl_feature_name(feature));
    if (!job->stored[feature].mean)
        miss(job, NL_METRIC_FID, why);
    if (!job->stored[NL_FEATURE_SPATIAL].mean)
        miss(job, NL_METRIC_SFID, "the reference has no mu_s, sigma_s and no pictures");
    for (int m = NL_METRIC_PRECISION; m <= NL_METRIC_KID; m++)
        miss(job, m, "the reference has no pictures");
}

/* An evaluation of nothing is an error. */
static nl_status check_wanted(evaluation_job *job)
{
    const char *why = "no metric was asked for";
    for (int m = 0; m < NL_METRICS; m++) {
        if (wanted(job, m))
            return NL_OK;
        if (job->result->metrics[m].missing[0])
            why = job->result->metrics[m].missing;
    }
    return nl_fail(job->context, NL_ERROR_INPUT, "%s: nothing can be computed: %s%s%s",
                   job->reference_path, why, job->arrays ? "; it holds " : "",
                   job->arrays ? nl_arrays_names(job->arrays) : "");
}

static bool any_of_features(const evaluation_job *job)
{
    return wanted(job, NL_METRIC_PRECISION) || wanted(job, NL_METRIC_RECALL) ||
           wanted(job, NL_METRIC_KID);
}

static void plan(evaluation_job *job)
{
    nl_feature feature = job->options->feature;
    nl_extraction *s = &job->samples, *r = &job->reference;
    s->hashes = true;
    s->score = wanted(job, NL_METRIC_IS);
    s->rows = r->rows = any_of_features(job);
    if (wanted(job, NL_METRIC_FID)) {
        s->moments[feature] = true;
        r->moments[feature] = !job->stored[feature].mean;
    }
    if (wanted(job, NL_METRIC_SFID)) {
        s->moments[NL_FEATURE_SPATIAL] = true;
        r->moments[NL_FEATURE_SPATIAL] = !job->stored[NL_FEATURE_SPATIAL].mean;
    }
    r->hashes = r->rows || r->moments[feature] || r->moments[NL_FEATURE_SPATIAL];
}

/* ---- Passes */

/* Before hours of work: are there enough pictures? */
static nl_status check_count(evaluation_job *job, const char *path, int64_t count,
                             const nl_extraction *e)
{
    for (int f = 0; f < NL_FEATURES; f++) {
        int64_t least =
            f == NL_FEATURE_POOL_3 || f == NL_FEATURE_SPATIAL ? 2048 : nl_feature_size(f) + 1;
        if (!e->moments[f] || count >= least)
            continue;
        job->result->small = true;
        if (!job->options->allow_small)
            return nl_fail(
                job->context, NL_ERROR_USAGE,
                "%s: %lld pictures are too few for the covariance of the %lld numbers of %s: FID "
                "would say more about their number than about them. Take %lld or more (50000 for "
                "published numbers), features with fewer numbers (--features pool_192), or "
                "--allow-small for a number that compares with nothing",
                path, (long long)count, (long long)nl_feature_size(f), nl_feature_name(f),
                (long long)least);
    }
    return NL_OK;
}

static nl_status pass(evaluation_job *job, nl_pictures *pictures, const char *path,
                      const char *what, nl_extraction *e)
{
    nl_status status = nl_extract(job->net, job->options, pictures, what, e);
    if (status == NL_OK && e->mixed)
        nl_log(job->context, NL_LOG_WARNING,
               "%s: the pictures have different sizes; each is resized by itself", path);
    return status;
}

static nl_status run_passes(evaluation_job *job, const char *samples_path)
{
    nl_context *context = job->context;
    int threads = context->device ? context->device->threads : 1;
    nl_pictures *samples = NULL, *reference = NULL;
    nl_status status;
    NL_TRY(nl_pictures_open(context, samples_path, threads, &samples));
    NL_TRY(check_count(job, samples_path, nl_pictures_count(samples), &job->samples));
    if (job->reference.hashes) {
        NL_TRY(job->arrays ? nl_pictures_of(context, job->reference_path, job->arrays, &reference)
                           : nl_pictures_open(context, job->reference_path, threads, &reference));
        NL_TRY(
            check_count(job, job->reference_path, nl_pictures_count(reference), &job->reference));
    }
    double start = seconds();
    NL_TRY(pass(job, samples, samples_path, "samples", &job->samples));
    job->result->seconds[0] = seconds() - start;
    start = seconds();
    if (reference)
        NL_TRY(pass(job, reference, job->reference_path, "reference", &job->reference));
    job->result->seconds[1] = seconds() - start;
    job->result->samples = job->samples.count;
    job->result->reference = job->reference.count;
cleanup:
    nl_pictures_close(samples);
    nl_pictures_close(reference);
    return status;
}

/* ---- Copies */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void find_copies(evaluation_job *job)
{
    nl_extraction *s = &job->samples, *r = &job->reference;
    nl_evaluation *result = job->result;
    qsort(s->hash, (size_t)s->count, sizeof(uint64_t), by_value);
    for (int64_t i = 1; i < s->count; i++)
        result->repeated += s->hash[i] == s->hash[i - 1];
    if (r->hash)
        qsort(r->hash, (size_t)r->count, sizeof(uint64_t), by_value);
    for (int64_t i = 0; r->hash && i < s->count; i++)
        result->copied +=
            bsearch(&s->hash[i], r->hash, (size_t)r->count, sizeof(uint64_t), by_value) != NULL;
    if (result->repeated)
        nl_log(job->context, NL_LOG_WARNING, "%lld of %lld samples are there twice, byte for byte",
               (long long)result->repeated, (long long)s->count);
    if (result->copied)
        nl_log(job->context, NL_LOG_WARNING,
               "%lld of %lld samples are pictures of the reference, byte for byte",
               (long long)result->copied, (long long)s->count);
}

/* ---- Metrics */

static nl_status moments_to_gaussian(nl_context *context, nl_moments *moments, nl_feature feature,
                                     gaussian *g)
{
    int64_t size = nl_feature_size(feature);
    void *memory;
    nl_status status;
    NL_TRY(nl_alloc_array(context, "a mean", size, sizeof(double), &memory));
    g->mean = memory;
    NL_TRY(nl_alloc_array(context, "a covariance", size * size, sizeof(double), &memory));
    g->covariance = memory;
    NL_TRY(nl_moments_read(moments, g->mean, g->covariance));
cleanup:
    return status;
}

static void free_gaussian(nl_context *context, gaussian *g)
{
    nl_free(context, g->mean);
    nl_free(context, g->covariance);
    *g = (gaussian){0};
}

static nl_status frechet(evaluation_job *job, nl_metric metric, nl_feature feature)
{
    nl_metric_value *value = &job->result->metrics[metric];
    gaussian samples = {0}, *reference = &job->stored[feature];
    nl_status status = NL_OK;
    if (!wanted(job, metric))
        return NL_OK;
    NL_TRY(moments_to_gaussian(job->context, job->samples.of[feature], feature, &samples));
    if (!reference->mean)
        NL_TRY(moments_to_gaussian(job->context, job->reference.of[feature], feature, reference));
    NL_TRY(nl_frechet(job->context, nl_feature_size(feature), reference->mean,
                      reference->covariance, samples.mean, samples.covariance, &value->value));
    value->known = true;
cleanup:
    free_gaussian(job->context, &samples);
    free_gaussian(job->context, reference); /* not needed again, and large */
    return status;
}

static nl_status of_rows(evaluation_job *job)
{
    const nl_evaluation_options *o = job->options;
    nl_device *device = job->context->device;
    nl_metric_value *m = job->result->metrics;
    nl_metric_value *kid = &m[NL_METRIC_KID];
    nl_extraction *s = &job->samples, *r = &job->reference;
    int64_t size = nl_feature_size(o->feature);
    double precision, recall;
    nl_status status = NL_OK;
    if (wanted(job, NL_METRIC_PRECISION) || wanted(job, NL_METRIC_RECALL)) {
        NL_TRY(nl_precision_recall(device, size, r->kept, r->count, s->kept, s->count,
                                   o->neighbours, &precision, &recall));
        m[NL_METRIC_PRECISION].value = precision;
        m[NL_METRIC_PRECISION].known = o->wanted[NL_METRIC_PRECISION];
        m[NL_METRIC_RECALL].value = recall;
        m[NL_METRIC_RECALL].known = o->wanted[NL_METRIC_RECALL];
    }
    if (wanted(job, NL_METRIC_KID)) {
        int64_t subset = NL_MIN(o->kid_subset_size, NL_MIN(s->count, r->count));
        NL_TRY(nl_kid(device, size, s->kept, s->count, r->kept, r->count, o->kid_subsets, subset,
                      &kid->value, &kid->deviation));
        kid->known = true;
    }
cleanup:
    return status;
}

static nl_status metrics(evaluation_job *job)
{
    nl_metric_value *is = &job->result->metrics[NL_METRIC_IS];
    double start = seconds();
    nl_status status;
    find_copies(job);
    if (job->options->progress)
        job->options->progress(job->options->user, "metrics", 0, 0);
    NL_TRY(frechet(job, NL_METRIC_FID, job->options->feature));
    NL_TRY(frechet(job, NL_METRIC_SFID, NL_FEATURE_SPATIAL));
    if (wanted(job, NL_METRIC_IS)) {
        NL_TRY(nl_score_read(job->samples.is, &is->value, &is->deviation));
        is->known = true;
    }
    NL_TRY(of_rows(job));
    job->result->seconds[2] = seconds() - start;
cleanup:
    return status;
}

nl_status nl_evaluate(nl_inception *net, const nl_evaluation_options *options, const char *samples,
                      const char *reference, nl_evaluation *evaluation)
{
    evaluation_job job = {.net = net,
                          .context = nl_inception_context(net),
                          .options = options,
                          .result = evaluation,
                          .reference_path = reference};
    nl_status status;
    *evaluation = (nl_evaluation){.samples = 0};
    NL_TRY(open_reference(&job));
    find_out(&job);
    NL_TRY(check_wanted(&job));
    plan(&job);
    NL_TRY(run_passes(&job, samples));
    NL_TRY(metrics(&job));
cleanup:
    for (int f = 0; f < NL_FEATURES; f++)
        free_gaussian(job.context, &job.stored[f]);
    nl_extraction_free(job.context, &job.samples);
    nl_extraction_free(job.context, &job.reference);
    nl_arrays_close(job.arrays);
    return status;
}

/* ---- Reference files */

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
    nl_status status = NL_OK;
    int64_t bytes = 3 * batch->height * batch->width;
    if (c->images == 0)
        return NL_OK;
    if (c->written == 0 && batch->first == 0) {
        c->height = batch->height;
        c->width = batch->width;
        nl_array array = {NL_U8, 4, {c->images, c->height, c->width, 3}};
        NL_TRY(nl_arrays_begin(c->writer, "arr_0", &array));
    }
    if (batch->height != c->height || batch->width != c->width)
        NL_TRY(nl_fail(c->context, NL_ERROR_INPUT,
                       "%s: pictures of %lld x %lld and of %lld x %lld cannot stand in one array: "
                       "use --images 0 (no precision, recall and KID) or pictures of one size",
                       c->path, (long long)c->width, (long long)c->height, (long long)batch->width,
                       (long long)batch->height));
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t index = batch->first + i;
        if (index * c->images / c->count == c->written && c->written < c->images) {
            NL_TRY(nl_arrays_write(c->writer, batch->rgb + i * bytes, bytes));
            c->written++;
        }
    }
cleanup:
    return status;
}

static nl_status write_gaussian(nl_context *context, nl_arrays_writer *writer, nl_feature feature,
                                nl_moments *moments)
{
    int64_t size = nl_feature_size(feature);
    gaussian g = {0};
    char mu[32], sigma[32];
    nl_status status;
    statistic_names(feature, false, mu, sigma);
    NL_TRY(moments_to_gaussian(context, moments, feature, &g));
    NL_TRY(nl_arrays_begin(writer, mu, &(nl_array){NL_F64, 1, {size}}));
    NL_TRY(nl_arrays_write(writer, g.mean, size * (int64_t)sizeof(double)));
    NL_TRY(nl_arrays_begin(writer, sigma, &(nl_array){NL_F64, 2, {size, size}}));
    NL_TRY(nl_arrays_write(writer, g.covariance, size * size * (int64_t)sizeof(double)));
cleanup:
    free_gaussian(context, &g);
    return status;
}

nl_status nl_make_reference(nl_inception *net, const nl_evaluation_options *options,
                            const char *path, const char *out, bool overwrite, int64_t images)
{
    nl_context *context = nl_inception_context(net);
    nl_evaluation unused = {0};
    evaluation_job job = {.net = net, .context = context, .options = options, .result = &unused};
    chosen_pictures chosen = {.context = context, .path = path};
    nl_extraction *e = &job.samples;
    nl_pictures *pictures = NULL;
    nl_status status;
    for (int f = 0; f < NL_FEATURES; f++)
        e->moments[f] = f != NL_FEATURE_LOGITS && nl_inception_has(net, f);
    NL_TRY(nl_pictures_open(context, path, context->device->threads, &pictures));
    chosen.count = nl_pictures_count(pictures);
    chosen.images = NL_MIN(images, chosen.count);
    NL_TRY(check_count(&job, path, chosen.count, e));
    NL_TRY(nl_arrays_create(context, out, overwrite, &chosen.writer));
    e->picture = write_chosen;
    e->user = &chosen;
    NL_TRY(pass(&job, pictures, path, "reference", e));
    for (int f = 0; f < NL_FEATURES; f++)
        if (e->of[f])
            NL_TRY(write_gaussian(context, chosen.writer, f, e->of[f]));
    NL_TRY(nl_arrays_commit(&chosen.writer));
cleanup:
    nl_arrays_abort(&chosen.writer);
    nl_pictures_close(pictures);
    nl_extraction_free(context, e);
    return status;
}
