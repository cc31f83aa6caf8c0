/* SPDX-License-Identifier: MIT */
/* One evaluation: which metrics weights and reference allow, the passes over pictures, the numbers. */
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_failure.h"
#include "nl_thread.h"

const char *const nl_metric_names[NL_METRICS + 1] = {"fid",    "sfid", "is",           "precision",
                                                     "recall", "kid",  "fid_infinity", NULL};

typedef struct evaluation_job {
    nl_inception *net;
    nl_context *context;
    const nl_metric_options *options;
    nl_evaluation *result;
    const char *reference_path;
    nl_arrays *arrays;                 /* of the reference, unless it is a folder */
    nl_statistics stored[NL_FEATURES]; /* what the reference file has of FEATURE and SPATIAL */
    nl_extraction samples, reference;
    nl_gaussian *gaussians[NL_FEATURES]; /* the reference's */
    pthread_t thread; /* makes them from the reference file while a GPU has the samples */
    bool at_work;
    nl_failure thread_failure;
    bool infinity; /* resampling for FID-infinity, otherwise for the bootstrap */
} evaluation_job;

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

static nl_status open_reference(evaluation_job *job)
{
    if (nl_path_is_folder(job->reference_path))
        return NL_OK;
    NL_CHECK(nl_arrays_open(job->context, job->reference_path, &job->arrays));
    NL_CHECK(nl_statistics_read(job->arrays, job->options->feature, true,
                                &job->stored[job->options->feature]));
    return nl_statistics_read(job->arrays, NL_FEATURE_SPATIAL, true,
                              &job->stored[NL_FEATURE_SPATIAL]);
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
    snprintf(why, sizeof(why),
             "the reference has no statistics of %s (%lld numbers) and no pictures",
             nl_feature_name(feature), (long long)nl_feature_size(feature));
    if (!job->stored[feature].mean) {
        miss(job, NL_METRIC_FID, why);
        miss(job, NL_METRIC_FID_INFINITY, why);
    }
    if (!job->stored[NL_FEATURE_SPATIAL].mean)
        miss(job, NL_METRIC_SFID, "the reference has no mu_s, sigma_s and no pictures");
    for (int m = NL_METRIC_PRECISION; m <= NL_METRIC_KID; m++)
        miss(job, m, "the reference has no pictures");
}

/* An evaluation of nothing is an error. */
static nl_status check_wanted(evaluation_job *job)
{
    const char *why = NULL;
    for (int m = 0; m < NL_METRICS; m++) {
        if (wanted(job, m))
            return NL_OK;
        if (!why && job->result->metrics[m].missing[0])
            why = job->result->metrics[m].missing;
    }
    return nl_fail(job->context, NL_ERROR_INPUT, "%s: nothing can be computed: %s%s%s",
                   job->reference_path, why ? why : "no metric was asked for",
                   job->arrays ? "; it holds " : "",
                   job->arrays ? nl_arrays_names(job->arrays) : "");
}

static bool pairs_of_pictures(const evaluation_job *job)
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
    bool infinity = wanted(job, NL_METRIC_FID_INFINITY);
    if (pairs_of_pictures(job))
        r->rows = "features for precision, recall and KID (--metrics leaves them out)";
    s->rows = r->rows;
    if (!s->rows && (infinity || (wanted(job, NL_METRIC_FID) && job->options->bootstrap)))
        s->rows = "features for FID of many parts (--fid-infinity, --bootstrap)";
    if (wanted(job, NL_METRIC_FID) || infinity) {
        s->moments[feature] = true;
        r->moments[feature] = !job->stored[feature].mean;
    }
    if (wanted(job, NL_METRIC_SFID)) {
        s->moments[NL_FEATURE_SPATIAL] = true;
        r->moments[NL_FEATURE_SPATIAL] = !job->stored[NL_FEATURE_SPATIAL].mean;
    }
    r->hashes = r->rows || r->moments[feature] || r->moments[NL_FEATURE_SPATIAL];
}

/* The process that computes metrics. */
static bool is_first(const evaluation_job *job)
{
    return !job->options->group || job->options->group->rank == 0;
}

/* ---- The reference's half of Frechet distances */

static bool needs_gaussian(const evaluation_job *job, nl_feature feature)
{
    if (feature == NL_FEATURE_SPATIAL)
        return wanted(job, NL_METRIC_SFID);
    return feature == job->options->feature &&
           (wanted(job, NL_METRIC_FID) || wanted(job, NL_METRIC_FID_INFINITY));
}

static nl_status make_gaussian(evaluation_job *job, nl_feature feature)
{
    nl_statistics *reference = &job->stored[feature];
    if (job->gaussians[feature])
        return NL_OK;
    if (!reference->mean)
        NL_CHECK(nl_statistics_of(job->context, job->reference.of[feature], feature, reference));
    NL_CHECK(nl_gaussian_create(job->context, nl_feature_size(feature), reference->mean,
                                reference->covariance, &job->gaussians[feature]));
    nl_statistics_free(job->context, reference); /* not needed again, and large */
    return NL_OK;
}

static void *make_gaussians(void *user)
{
    evaluation_job *job = user;
    nl_status status = NL_OK;
    for (int f = 0; f < NL_FEATURES && status == NL_OK; f++)
        if (needs_gaussian(job, f) && job->stored[f].mean)
            status = make_gaussian(job, f);
    nl_failure_keep(job->context, status, &job->thread_failure);
    return NULL;
}

static void start_gaussians(evaluation_job *job)
{
    job->at_work = is_first(job) && nl_device_queues(job->context->device) &&
                   nl_start_thread(&job->thread, make_gaussians, job) == 0;
}

static nl_status finish_gaussians(evaluation_job *job)
{
    if (job->at_work)
        pthread_join(job->thread, NULL);
    job->at_work = false;
    return nl_failure_tell(job->context, &job->thread_failure);
}

/* The failure that ends the evaluation is the one that is told, whatever the thread comes to. */
static void drop_gaussians(evaluation_job *job, nl_status status)
{
    nl_failure failure;
    nl_failure_keep(job->context, status, &failure);
    (void)finish_gaussians(job);
    (void)nl_failure_tell(job->context, &failure);
    for (int f = 0; f < NL_FEATURES; f++)
        nl_gaussian_destroy(job->gaussians[f]);
}

/* ---- Passes */

static nl_status pass(evaluation_job *job, const nl_picture_source *source, const char *what,
                      nl_extraction *e)
{
    nl_status status = nl_extract(job->net, job->options, source, what, e);
    if (status == NL_OK && e->mixed)
        nl_log(job->context, NL_LOG_WARNING,
               "%s: the pictures have different sizes; each is resized by itself", source->name);
    return status;
}

/* Before the work, too. */
static nl_status check_neighbours(const evaluation_job *job, const nl_picture_source *source)
{
    int neighbours = job->options->neighbours;
    bool asked = wanted(job, NL_METRIC_PRECISION) || wanted(job, NL_METRIC_RECALL);
    if (!asked || source->count > neighbours)
        return NL_OK;
    return nl_fail(job->context, NL_ERROR_USAGE,
                   "%s: precision and recall look at the %d nearest others of each picture, and "
                   "there are %lld in all: take more, or name --metrics without these two",
                   source->name, neighbours, (long long)source->count);
}

static nl_status run_passes(evaluation_job *job, const nl_picture_source *samples)
{
    nl_context *context = job->context;
    const nl_metric_options *o = job->options;
    const char *path = job->reference_path;
    nl_pictures *pictures = NULL;
    nl_picture_source reference;
    nl_status status;
    NL_TRY(nl_check_count(context, o, samples, &job->samples, &job->result->small));
    NL_TRY(check_neighbours(job, samples));
    if (job->reference.hashes) {
        NL_TRY(job->arrays ? nl_pictures_of(context, path, job->arrays, &pictures)
                           : nl_pictures_open(context, path, nl_threads_of(context), &pictures));
        reference = nl_pictures_source(pictures);
        NL_TRY(nl_check_count(context, o, &reference, &job->reference, &job->result->small));
        NL_TRY(check_neighbours(job, &reference));
    }
    start_gaussians(job);
    NL_TRY(pass(job, samples, "samples", &job->samples));
    if (pictures)
        NL_TRY(pass(job, &reference, "reference", &job->reference));
    job->result->samples = job->samples.count;
    job->result->reference = job->reference.count;
    job->result->seconds.samples = job->samples.seconds;
    job->result->seconds.first_batch = job->samples.seconds_first_batch;
    job->result->seconds.reference = job->reference.seconds;
cleanup:
    nl_pictures_close(pictures);
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
        nl_log(job->context, NL_LOG_WARNING, "%lld of %lld samples %s there twice, byte for byte",
               (long long)result->repeated, (long long)s->count,
               nl_plural(result->repeated, "is", "are"));
    if (result->copied)
        nl_log(job->context, NL_LOG_WARNING,
               "%lld of %lld samples %s of the reference, byte for byte", (long long)result->copied,
               (long long)s->count, nl_plural(result->copied, "is a picture", "are pictures"));
}

/* ---- Metrics */

static bool resampling_progress(void *user, int64_t done, int64_t count)
{
    const evaluation_job *job = user;
    const nl_metric_options *o = job->options;
    const char *what = job->infinity ? "FID-infinity" : "bootstrap";
    return !o->progress || o->progress(o->user, what, done, count);
}

/* What takes many Frechet distances: of the rows of the samples. */
static nl_status resample(evaluation_job *job, const nl_gaussian *reference)
{
    enum { LEAST = 5000 }; /* of Chong and Forsyth */
    nl_metric_value *fid = &job->result->metrics[NL_METRIC_FID];
    nl_metric_value *infinity = &job->result->metrics[NL_METRIC_FID_INFINITY];
    int64_t count = job->samples.count, rank = nl_gaussian_size(reference) + 1;
    nl_resampling r = {.reference = reference,
                       .rows = job->samples.kept,
                       .count = count,
                       .progress = resampling_progress,
                       .user = job};
    nl_interval interval;
    if (wanted(job, NL_METRIC_FID) && job->options->bootstrap) {
        NL_CHECK(nl_fid_bootstrap(&r, job->options->bootstrap, &interval));
        fid->deviation = interval.deviation;
        fid->low = fid->value + interval.low;
        fid->high = fid->value + interval.high;
    }
    if (wanted(job, NL_METRIC_FID_INFINITY)) {
        job->infinity = true;
        NL_CHECK(nl_fid_infinity(
            &r, count >= 2 * LEAST ? LEAST : NL_MAX(NL_MIN(rank, count / 2), 2), &infinity->value));
        infinity->known = true;
    }
    return NL_OK;
}

static nl_status frechet(evaluation_job *job, nl_metric metric, nl_feature feature)
{
    nl_metric_value *value = &job->result->metrics[metric];
    nl_statistics samples = {0};
    nl_status status = NL_OK;
    if (!needs_gaussian(job, feature))
        return NL_OK;
    NL_TRY(make_gaussian(job, feature));
    NL_TRY(nl_statistics_of(job->context, job->samples.of[feature], feature, &samples));
    NL_TRY(nl_gaussian_distance(job->gaussians[feature], samples.mean, samples.covariance,
                                &value->value));
    value->known = job->options->wanted[metric];
    nl_statistics_free(job->context, &samples);
    if (metric == NL_METRIC_FID)
        NL_TRY(resample(job, job->gaussians[feature]));
cleanup:
    nl_statistics_free(job->context, &samples);
    return status;
}

static nl_status of_rows(evaluation_job *job)
{
    const nl_metric_options *o = job->options;
    nl_device *device = job->context->device;
    nl_metric_value *m = job->result->metrics;
    nl_metric_value *kid = &m[NL_METRIC_KID];
    nl_extraction *s = &job->samples, *r = &job->reference;
    int64_t size = nl_feature_size(o->feature);
    double precision, recall;
    if (wanted(job, NL_METRIC_PRECISION) || wanted(job, NL_METRIC_RECALL)) {
        NL_CHECK(nl_precision_recall(device, size, r->kept, r->count, s->kept, s->count,
                                     o->neighbours, o->half_distances, &precision, &recall));
        m[NL_METRIC_PRECISION].value = precision;
        m[NL_METRIC_PRECISION].known = o->wanted[NL_METRIC_PRECISION];
        m[NL_METRIC_RECALL].value = recall;
        m[NL_METRIC_RECALL].known = o->wanted[NL_METRIC_RECALL];
    }
    if (wanted(job, NL_METRIC_KID)) {
        int64_t subset = NL_MIN(o->kid_subset_size, NL_MIN(s->count, r->count));
        kid->parts = subset == s->count && subset == r->count ? 1 /* the whole */ : o->kid_subsets;
        kid->part_size = subset;
        NL_CHECK(nl_kid(device, size, s->kept, s->count, r->kept, r->count, kid->parts, subset,
                        &kid->value, &kid->deviation));
        kid->known = true;
    }
    return NL_OK;
}

static nl_status metrics(evaluation_job *job)
{
    nl_metric_value *is = &job->result->metrics[NL_METRIC_IS];
    double start = nl_seconds();
    find_copies(job);
    if (job->options->progress && !job->options->progress(job->options->user, "metrics", 0, 0))
        return nl_fail(job->context, NL_CANCELLED, "interrupted");
    NL_CHECK(finish_gaussians(job));
    NL_CHECK(frechet(job, NL_METRIC_FID, job->options->feature));
    NL_CHECK(frechet(job, NL_METRIC_SFID, NL_FEATURE_SPATIAL));
    if (wanted(job, NL_METRIC_IS)) {
        NL_CHECK(nl_score_read(job->samples.is, &is->value, &is->deviation));
        is->known = true;
        is->parts = job->options->is_shuffled
                        ? job->options->is_splits
                        : (job->samples.count - 1) / job->options->is_split + 1;
    }
    NL_CHECK(of_rows(job));
    job->result->seconds.metrics = nl_seconds() - start;
    return NL_OK;
}

nl_status nl_measure(nl_inception *net, const nl_metric_options *options,
                     const nl_picture_source *samples, const char *reference,
                     nl_evaluation *evaluation)
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
    if (is_first(&job))
        NL_TRY(metrics(&job));
cleanup:
    drop_gaussians(&job, status);
    for (int f = 0; f < NL_FEATURES; f++)
        nl_statistics_free(job.context, &job.stored[f]);
    nl_extraction_free(job.context, &job.samples);
    nl_extraction_free(job.context, &job.reference);
    nl_arrays_close(job.arrays);
    return status;
}
