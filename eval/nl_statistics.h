/* SPDX-License-Identifier: MIT */
/*
 * What is computed of features: mean and covariance, Frechet distance, KID, Inception Score, precision and
 * recall. Features are rows of floats [count, size]; sums are double.
 */
#ifndef NL_STATISTICS_H
#define NL_STATISTICS_H

#include "ops.h"

/* ---- Mean and covariance of rows that come in any portions; the result depends on their order alone. */

typedef struct nl_moments nl_moments;

nl_status nl_moments_create(nl_context *context, int64_t size, nl_moments **moments);
void nl_moments_destroy(nl_moments *moments); /* NULL is allowed */
void nl_moments_add(nl_moments *moments, const float *rows, int64_t count);
/* Adds all rows of `other`, which is left as it is. */
void nl_moments_merge(nl_moments *moments, nl_moments *other);
/* Adds `count` rows that have this mean and this scatter: sum of (x - mean)(x - mean)^T, the upper triangle. */
void nl_moments_join(nl_moments *moments, const double *mean, const double *scatter, int64_t count);
int64_t nl_moments_count(const nl_moments *moments);
/* What nl_moments_join takes of these rows: mean [size] and scatter [size, size], the upper triangle. */
void nl_moments_sums(nl_moments *moments, double *mean, double *scatter);
/* mean [size] and covariance [size, size] with count - 1 in the denominator (numpy.cov): what is not wanted
 * is NULL. NL_ERROR_INPUT with fewer than 2 rows or numbers that are not finite. */
nl_status nl_moments_read(nl_moments *moments, double *mean, double *covariance);
/* The other way round: moments of `count` >= 2 rows that have this mean and covariance. */
nl_status nl_moments_of(nl_context *context, int64_t size, const double *mean,
                        const double *covariance, int64_t count, nl_moments **moments);

/* Rows that are on a device are added up there, around the first of them, whatever the portions. */
typedef struct nl_device_moments nl_device_moments;

nl_status nl_device_moments_create(nl_device *device, int64_t size, nl_device_moments **moments);
void nl_device_moments_destroy(nl_device_moments *moments); /* NULL is allowed */
/* rows [count, size] F32; queued. */
nl_status nl_device_moments_add(nl_device_moments *moments, const nl_tensor *rows);
/* Adds all of these rows to `to`; waits for the device. */
nl_status nl_device_moments_read(const nl_device_moments *moments, nl_moments *to);

/* |mean1 - mean2|^2 + tr S1 + tr S2 - 2 tr (S1 S2)^1/2, never below 0; covariances symmetric, positive
 * semidefinite, of any rank. */
nl_status nl_frechet(nl_context *context, int64_t size, const double *mean1,
                     const double *covariance1, const double *mean2, const double *covariance2,
                     double *distance);

/* ---- What the spread of the features makes of a Frechet distance. */

/* A Gaussian that distances to are taken again and again. */
typedef struct nl_gaussian nl_gaussian;

nl_status nl_gaussian_create(nl_context *context, int64_t size, const double *mean,
                             const double *covariance, nl_gaussian **gaussian);
void nl_gaussian_destroy(nl_gaussian *gaussian); /* NULL is allowed */
int64_t nl_gaussian_size(const nl_gaussian *gaussian);
nl_context *nl_gaussian_context(const nl_gaussian *gaussian);
/* What nl_frechet would give. */
nl_status nl_gaussian_distance(const nl_gaussian *gaussian, const double *mean,
                               const double *covariance, double *distance);

/* false ends the work with NL_CANCELLED. */
typedef bool (*nl_resampling_progress)(void *user, int64_t done, int64_t count);

typedef struct nl_resampling {
    const nl_gaussian *reference; /* taken as known */
    const float *rows;            /* [count, size of the reference] */
    int64_t count;
    nl_resampling_progress progress; /* or NULL */
    void *user;
} nl_resampling;

typedef struct nl_interval {
    double deviation; /* of the distance */
    double low, high; /* 95 %: add to the distance */
} nl_interval;

/* The bootstrap: `repeats` distances of as many rows drawn with replacement. Such a set repeats rows, which raises the
 * distance; so the quantiles, 2.5 % and 97.5 %, are taken relative to the mean of the repeats. */
nl_status nl_fid_bootstrap(const nl_resampling *resampling, int64_t repeats, nl_interval *interval);
/* The distance that infinitely many pictures would have (Chong and Forsyth 2020): distances of 15 random subsets, of
 * `least` to all rows, as a linear function of 1 / size, at 0. */
nl_status nl_fid_infinity(const nl_resampling *resampling, int64_t least, double *distance);

/* ---- Inception Score: the mean over splits of exp(mean KL(p(y|x) || p(y))). */

typedef struct nl_score nl_score;

nl_status nl_score_create(nl_context *context, int64_t classes, int64_t splits, nl_score **score);
void nl_score_destroy(nl_score *score); /* NULL is allowed */
nl_status nl_score_add(nl_score *score, int64_t split, const float *logits, int64_t count);
/* Also the standard deviation over splits (0 with one). A split without pictures does not count. */
/* All that it has added up: may be added to that of another one of as many classes and splits. */
double *nl_score_sums(nl_score *score, int64_t *count);
nl_status nl_score_read(const nl_score *score, double *mean, double *deviation);

/* numpy.random.RandomState(seed).permutation(count). */
nl_status nl_numpy_permutation(nl_context *context, uint32_t seed, int64_t count,
                               int64_t *permutation);

/* ---- Of whole sets of features; products run on the device, in fp32. */

/* Unbiased squared MMD with the kernel (x.y / size + 1)^3, mean and standard deviation over subsets drawn
 * without replacement by Philox (seed 0, stream NL_STREAM_SUBSET); subset_size at most both counts, and one subset is enough where it is both. */
nl_status nl_kid(nl_device *device, int64_t size, const float *a, int64_t count_a, const float *b,
                 int64_t count_b, int64_t subsets, int64_t subset_size, double *mean,
                 double *deviation);

/* Improved precision and recall (Kynkaanniemi et al. 2019): the share of samples within the k-th neighbour's
 * distance of some reference picture, and the other way round. Squared distances |u|^2 - 2 u.v + |v|^2, not
 * below 0, all pairs, the picture itself being its 0th neighbour. half: every number rounded to fp16 as in the public
 * evaluator, but for blocks that overflow. */
nl_status nl_precision_recall(nl_device *device, int64_t size, const float *reference,
                              int64_t reference_count, const float *samples, int64_t sample_count,
                              int k, bool half, double *precision, double *recall);

#endif
