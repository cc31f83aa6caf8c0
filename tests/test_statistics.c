/* SPDX-License-Identifier: MIT */
/* Statistics of features: closed forms, and what numpy and scipy make of the same numbers
 * (make_statistics.py, whose output the environment names). */
#include "nl_nearest.h"
#include "nl_random.h"
#include "nl_statistics.h"
#include "nl_test.h"

/* splitmix64 and Box-Muller. */
static uint64_t seed = 1;

static double normal(void)
{
    double u[2];
    for (int i = 0; i < 2; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        u[i] = ((double)((z ^ (z >> 31)) >> 11) + 0.5) / 9007199254740992.0;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

static float *normal_rows(int64_t count)
{
    float *rows = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        rows[i] = (float)normal();
    return rows;
}

/* ---- Moments */

enum { SIZE = 37, ROWS = 1111 };

static void test_moments(void **state)
{
    nl_context *context = test_context(NULL);
    float *rows = normal_rows(SIZE * ROWS);
    nl_moments *whole, *parts, *second;
    static double mean[SIZE], covariance[SIZE * SIZE], other_mean[SIZE], other[SIZE * SIZE];
    (void)state;
    for (int64_t i = 0; i < SIZE * ROWS; i++)
        rows[i] += 1000; /* cancels badly in sums of squares */
    assert_ok(context, nl_moments_create(context, SIZE, &whole));
    assert_ok(context, nl_moments_create(context, SIZE, &parts));
    assert_ok(context, nl_moments_create(context, SIZE, &second));
    nl_moments_add(whole, rows, ROWS);
    assert_int_equal(nl_moments_count(whole), ROWS);
    assert_ok(context, nl_moments_read(whole, mean, covariance));
    for (int i = 0; i < SIZE; i++)
        for (int j = 0; j < SIZE; j++) {
            double a = 0, b = 0, sum = 0;
            for (int r = 0; r < ROWS; r++) {
                a += rows[r * SIZE + i];
                b += rows[r * SIZE + j];
            }
            a /= ROWS;
            b /= ROWS;
            for (int r = 0; r < ROWS; r++)
                sum += (rows[r * SIZE + i] - a) * (rows[r * SIZE + j] - b);
            assert_true(fabs(mean[i] - a) < 1e-10);
            assert_true(fabs(covariance[i * SIZE + j] - sum / (ROWS - 1)) < 1e-9);
        }
    /* the same rows in portions: the same bits */
    for (int r = 0; r < ROWS; r += 7)
        nl_moments_add(parts, rows + r * SIZE, NL_MIN(7, ROWS - r));
    assert_ok(context, nl_moments_read(parts, other_mean, other));
    assert_memory_equal(mean, other_mean, sizeof(mean));
    assert_memory_equal(covariance, other, sizeof(other));
    nl_moments_destroy(parts);
    /* from mean and covariance */
    assert_ok(context, nl_moments_of(context, SIZE, mean, covariance, ROWS, &parts));
    assert_int_equal(nl_moments_count(parts), ROWS);
    nl_moments_add(parts, rows, 400);
    nl_moments_add(whole, rows, 400);
    assert_ok(context, nl_moments_read(parts, other_mean, other));
    assert_ok(context, nl_moments_read(whole, mean, covariance));
    for (int i = 0; i < SIZE * SIZE; i++)
        assert_true(fabs(covariance[i] - other[i]) < 1e-10);
    nl_moments_destroy(parts);
    nl_moments_destroy(whole);
    assert_ok(context, nl_moments_create(context, SIZE, &whole));
    nl_moments_add(whole, rows, ROWS);
    assert_ok(context, nl_moments_read(whole, mean, covariance));
    /* merged */
    assert_ok(context, nl_moments_create(context, SIZE, &parts));
    nl_moments_add(parts, rows, 400);
    nl_moments_add(second, rows + 400 * SIZE, ROWS - 400);
    nl_moments_merge(parts, second);
    assert_int_equal(nl_moments_count(parts), ROWS);
    assert_ok(context, nl_moments_read(parts, other_mean, other));
    for (int i = 0; i < SIZE * SIZE; i++)
        assert_true(fabs(covariance[i] - other[i]) < 1e-10);
    nl_moments_destroy(whole);
    nl_moments_destroy(parts);
    nl_moments_destroy(second);
    free(rows);
    nl_core_context_destroy(context);
}

/* Summed up on a device, in portions, behind rows of the host. */
static void test_device_moments(void **state)
{
    nl_context *context = test_context("cpu");
    float *rows = normal_rows(SIZE * ROWS);
    nl_moments *whole, *joined;
    nl_device_moments *sums;
    static double mean[2][SIZE], covariance[2][SIZE * SIZE];
    nl_tensor x = nl_tensor_of(rows, NL_F32, 2, (int64_t[]){ROWS, SIZE});
    (void)state;
    for (int64_t i = 0; i < SIZE * ROWS; i++)
        rows[i] += 1000;
    assert_ok(context, nl_moments_create(context, SIZE, &whole));
    assert_ok(context, nl_moments_create(context, SIZE, &joined));
    assert_ok(context, nl_device_moments_create(context->device, SIZE, &sums));
    nl_moments_add(whole, rows, ROWS);
    nl_moments_add(joined, rows, 101);
    for (int64_t row = 101, portion = 1; row < ROWS; row += portion++) {
        nl_tensor some = nl_tensor_rows(&x, row, NL_MIN(portion, ROWS - row));
        assert_ok(context, nl_device_moments_add(sums, &some));
    }
    assert_ok(context, nl_device_moments_read(sums, joined));
    assert_int_equal(nl_moments_count(joined), ROWS);
    assert_ok(context, nl_moments_read(whole, mean[0], covariance[0]));
    assert_ok(context, nl_moments_read(joined, mean[1], covariance[1]));
    for (int i = 0; i < SIZE; i++)
        assert_true(fabs(mean[1][i] - mean[0][i]) < 1e-10);
    for (int i = 0; i < SIZE * SIZE; i++)
        assert_true(fabs(covariance[1][i] - covariance[0][i]) < 1e-10);
    nl_moments_destroy(whole);
    nl_moments_destroy(joined);
    nl_device_moments_destroy(sums);
    free(rows);
    nl_context_destroy(context);
}

/* ---- Frechet distance in closed form */

/* count doubles, zeroed. */
static double *doubles(int64_t count)
{
    return calloc((size_t)count, sizeof(double));
}

/* Turns the rows of q [n, n], n orthonormal vectors, by a random rotation: reflections one after the other. */
static void rotate(int n, double *q)
{
    enum { REFLECTIONS = 6 };
    double *axis = doubles(n);
    for (int pass = 0; pass < REFLECTIONS; pass++) {
        double norm = 0;
        for (int k = 0; k < n; k++) {
            axis[k] = normal();
            norm += axis[k] * axis[k];
        }
        for (int i = 0; i < n; i++) {
            double dot = 0;
            for (int k = 0; k < n; k++)
                dot += axis[k] * q[i * n + k];
            for (int k = 0; k < n; k++)
                q[i * n + k] -= 2 / norm * dot * axis[k];
        }
    }
    free(axis);
}

/* A random rotation [n, n]. */
static double *rotation(int n)
{
    double *q = doubles((int64_t)n * n);
    for (int i = 0; i < n; i++)
        q[i * n + i] = 1;
    rotate(n, q);
    return q;
}

/* sum of values[k] q_k q_k^T */
static void compose(int n, const double *q, const double *values, double *covariance)
{
    memset(covariance, 0, (size_t)(n * n) * sizeof(double));
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                covariance[i * n + j] += values[k] * q[k * n + i] * q[k * n + j];
}

static double frechet(nl_context *context, int n, const double *mean1, const double *a,
                      const double *mean2, const double *b)
{
    double distance = -1, back = -1;
    assert_ok(context, nl_frechet(context, n, mean1, a, mean2, b, &distance));
    assert_ok(context, nl_frechet(context, n, mean2, b, mean1, a, &back));
    assert_true(fabs(distance - back) < 1e-8);
    assert_true(distance >= 0);
    return distance;
}

/* Covariances of n variables that commute, `rank` values of the first not 0; -1: over 12 orders of magnitude. */
static void closed_forms(nl_context *context, int n, int rank)
{
    double *q = rotation(n), *a = doubles((int64_t)n * n), *b = doubles((int64_t)n * n);
    double *zero = doubles(n), *shift = doubles(n), *x = doubles(n), *y = doubles(n);
    double commuting = 0, squares = 0;
    for (int k = 0; k < n; k++) {
        x[k] = rank < 0 ? pow(10, -12.0 * k / n) : k < rank ? exp(normal()) : 0;
        y[k] = exp(normal());
        shift[k] = normal();
        squares += shift[k] * shift[k];
        commuting += (sqrt(x[k]) - sqrt(y[k])) * (sqrt(x[k]) - sqrt(y[k]));
    }
    compose(n, q, x, a);
    compose(n, q, y, b);
    assert_true(frechet(context, n, zero, a, zero, a) < 1e-8);
    assert_true(fabs(frechet(context, n, zero, a, shift, a) - squares) < 1e-8);
    assert_true(fabs(frechet(context, n, zero, a, shift, b) - squares - commuting) < 1e-8);
    free(q);
    free(a);
    free(b);
    free(zero);
    free(shift);
    free(x);
    free(y);
}

static void test_closed_forms(void **state)
{
    nl_context *context = test_context(NULL);
    enum { N = 24 };
    const int ranks[] = {N, 10, 1, 0, -1};
    (void)state;
    for (int trial = 0; trial < NL_COUNT(ranks); trial++)
        closed_forms(context, N, ranks[trial]);
    nl_core_context_destroy(context);
}

/* ---- On a device: covariances that are large enough for it */

enum { LARGE = 600 };

static void test_closed_forms_on_device(void **state)
{
    nl_context *context = test_context(test_device());
    (void)state;
    closed_forms(context, LARGE, LARGE);
    closed_forms(context, LARGE, LARGE - 80);
    closed_forms(context, LARGE, -1);
    nl_context_destroy(context);
}

/* A [m, n] and B [LARGE, n] of orthogonal rows that are the same but for their lengths, turned: the singular values of
 * A B^T are the products of these lengths. */
static void test_nuclear_norm(void **state)
{
    nl_context *context = test_context(test_device());
    const int m = LARGE - 170, n = LARGE;
    double *b = rotation(n), *a = doubles((int64_t)n * n), *turned = doubles((int64_t)n * n);
    double *turn = rotation(m), expected = 0, sum, back;
    (void)state;
    for (int k = 0; k < n; k++) {
        double x = exp(normal()), y = k % 3 ? exp(normal()) : 1e-9;
        for (int i = 0; i < n; i++) {
            a[k * n + i] = x * b[k * n + i];
            b[k * n + i] *= y;
        }
        expected += k < m ? x * y : 0;
    }
    for (int i = 0; i < m; i++)
        for (int k = 0; k < m; k++)
            for (int j = 0; j < n; j++)
                turned[i * n + j] += turn[i * m + k] * a[k * n + j];
    if (!nl_nuclear_norm(context->device, n, turned, m, b, n, &sum)) {
        print_message("SKIPPED: no singular values on %s\n", context->device->name);
        assert_true(test_on_cpu() || strstr(nl_last_error(context), "double precision"));
    } else {
        assert_true(nl_nuclear_norm(context->device, n, b, n, turned, m, &back));
        assert_true(fabs(sum / expected - 1) < 1e-12);
        assert_true(fabs(back / expected - 1) < 1e-12);
    }
    free(a);
    free(b);
    free(turned);
    free(turn);
    nl_context_destroy(context);
}

/* Of random rows, more and fewer than they are long: what the host finds without a device. */
static void test_device_and_host(void **state)
{
    nl_context *device = test_context(test_device()), *host = test_context(NULL);
    const int64_t n = LARGE;
    double *mean = doubles(2 * n), *covariance = doubles(2 * n * n), distance, expected;
    (void)state;
    for (int trial = 0; trial < 2; trial++) {
        for (int i = 0; i < 2; i++) {
            const int64_t count = trial ? 550 : 1500;
            float *rows = normal_rows(count * n);
            nl_moments *moments;
            assert_ok(host, nl_moments_create(host, n, &moments));
            nl_moments_add(moments, rows, count);
            assert_ok(host, nl_moments_read(moments, mean + i * n, covariance + i * n * n));
            nl_moments_destroy(moments);
            free(rows);
        }
        assert_ok(host,
                  nl_frechet(host, n, mean, covariance, mean + n, covariance + n * n, &expected));
        assert_ok(device,
                  nl_frechet(device, n, mean, covariance, mean + n, covariance + n * n, &distance));
        assert_true(fabs(distance / expected - 1) < 1e-11);
    }
    free(mean);
    free(covariance);
    nl_context_destroy(device);
    nl_core_context_destroy(host);
}

/* In the plane, with S2 = S1 turned by t: tr (S1 S2)^1/2 = sqrt(tr S1 S2 + 2 det S1). */
static void test_rotated(void **state)
{
    nl_context *context = test_context(NULL);
    (void)state;
    for (int trial = 0; trial < 20; trial++) {
        double s = exp(normal()), t = trial % 2 ? exp(normal()) : 0, angle = normal();
        double c = cos(angle), n = sin(angle), zero[2] = {0}, distance;
        double a[4] = {s, 0, 0, t};
        double b[4] = {s * c * c + t * n * n, (s - t) * c * n, (s - t) * c * n,
                       s * n * n + t * c * c};
        double cross = sqrt(a[0] * b[0] + a[3] * b[3] + 2 * s * t);
        assert_ok(context, nl_frechet(context, 2, zero, a, zero, b, &distance));
        assert_true(fabs(distance - (2 * (s + t) - 2 * cross)) < 1e-8);
    }
    nl_core_context_destroy(context);
}

static void test_not_finite(void **state)
{
    nl_context *context = test_context(NULL);
    double zero[2] = {0}, a[4] = {1, 0, 0, 1}, bad[4] = {1, NAN, NAN, 1}, distance;
    nl_moments *moments;
    (void)state;
    assert_int_equal(nl_frechet(context, 2, zero, a, zero, bad, &distance), NL_ERROR_NOT_FINITE);
    assert_ok(context, nl_moments_create(context, 2, &moments));
    nl_moments_add(moments, (float[]){1, 2}, 1);
    assert_int_equal(nl_moments_read(moments, NULL, NULL), NL_ERROR_INPUT);
    nl_moments_add(moments, (float[]){1, INFINITY}, 1);
    assert_int_equal(nl_moments_read(moments, NULL, NULL), NL_ERROR_NOT_FINITE);
    nl_moments_destroy(moments);
    nl_core_context_destroy(context);
}

/* ---- Inception Score */

static void test_score(void **state)
{
    nl_context *context = test_context(NULL);
    enum { CLASSES = 8 };
    nl_score *score;
    double mean, deviation;
    float logits[CLASSES];
    (void)state;
    /* certain and balanced: the number of classes; a second split of one class only: 1; a third of none */
    assert_ok(context, nl_score_create(context, CLASSES, 3, &score));
    for (int i = 0; i < 3 * CLASSES; i++) {
        for (int c = 0; c < CLASSES; c++)
            logits[c] = c == (i < 2 * CLASSES ? i % CLASSES : 3) ? 500.0f : -500.0f;
        assert_ok(context, nl_score_add(score, i >= 2 * CLASSES, logits, 1));
    }
    assert_ok(context, nl_score_read(score, &mean, &deviation));
    assert_true(fabs(mean - (CLASSES + 1) / 2.0) < 1e-9);
    assert_true(fabs(deviation - (CLASSES - 1) / 2.0) < 1e-9);
    nl_score_destroy(score);
    assert_ok(context, nl_score_create(context, CLASSES, 3, &score));
    assert_int_equal(nl_score_read(score, &mean, &deviation), NL_ERROR_INPUT);
    nl_score_destroy(score);
    nl_core_context_destroy(context);
}

/* numpy.random.RandomState(2020).permutation(20), and sum i p[i] of a long one. */
static void test_permutation(void **state)
{
    static const int64_t expected[20] = {6,  9,  12, 4,  5,  14, 1,  2, 15, 10,
                                         19, 18, 7,  16, 13, 11, 17, 3, 8,  0};
    enum { LONG = 50000 };
    nl_context *context = test_context(NULL);
    static int64_t order[LONG];
    int64_t sum = 0;
    (void)state;
    assert_ok(context, nl_numpy_permutation(context, 2020, 20, order));
    assert_memory_equal(order, expected, sizeof(expected));
    assert_ok(context, nl_numpy_permutation(context, 2020, LONG, order));
    for (int64_t i = 0; i < LONG; i++)
        sum += i * order[i];
    assert_true(sum == 31221568855262);
    nl_core_context_destroy(context);
}

/* ---- Resampling */

/* In one dimension, X of a normal distribution with mean m and variance s^2: the distance to a standard one is
 * m^2 + (s - 1)^2, and its deviation over sets of n numbers, to first order, 2 s (m^2 + (s - 1)^2 / 2)^1/2 / n^1/2. */
static void test_bootstrap(void **state)
{
    enum { COUNT = 4000, REPEATS = 400 };
    nl_context *context = test_context(NULL);
    const double m = 0.5, s = 1.5, zero = 0, one = 1;
    float *rows = normal_rows(COUNT);
    nl_gaussian *gaussian;
    nl_interval interval, again;
    (void)state;
    for (int i = 0; i < COUNT; i++)
        rows[i] = (float)(m + s * rows[i]);
    assert_ok(context, nl_gaussian_create(context, 1, &zero, &one, &gaussian));
    nl_resampling r = {.reference = gaussian, .rows = rows, .count = COUNT};
    assert_ok(context, nl_fid_bootstrap(&r, REPEATS, &interval));
    double expected = 2 * s * sqrt((m * m + (s - 1) * (s - 1) / 2) / COUNT);
    assert_true(fabs(interval.deviation / expected - 1) < 0.15); /* the deviation of 400: 3.5 % */
    assert_true(fabs(interval.high / (1.96 * expected) - 1) < 0.25);
    assert_true(fabs(interval.low / (-1.96 * expected) - 1) < 0.25);
    assert_ok(context, nl_fid_bootstrap(&r, REPEATS, &again));
    assert_memory_equal(&interval, &again, sizeof(interval));
    assert_int_equal(nl_fid_bootstrap(&r, 1, &interval), NL_ERROR_USAGE);
    nl_gaussian_destroy(gaussian);
    free(rows);
    nl_core_context_destroy(context);
}

static bool stop_at_3(void *user, int64_t done, int64_t count)
{
    *(int64_t *)user = done;
    return count > 0 && done < 3;
}

/* Rows of the reference's own distribution: the distance falls as 1 / n, and is 0 at infinity. */
static void test_infinity(void **state)
{
    enum { DIMENSIONS = 12, COUNT = 6000 };
    nl_context *context = test_context(NULL);
    double mean[DIMENSIONS] = {0}, covariance[DIMENSIONS * DIMENSIONS] = {0};
    double distance, infinity, again;
    float *rows = normal_rows((int64_t)COUNT * DIMENSIONS);
    nl_gaussian *gaussian;
    nl_moments *moments;
    int64_t last;
    (void)state;
    for (int i = 0; i < DIMENSIONS; i++)
        covariance[i * DIMENSIONS + i] = 1;
    assert_ok(context, nl_gaussian_create(context, DIMENSIONS, mean, covariance, &gaussian));
    assert_ok(context, nl_moments_create(context, DIMENSIONS, &moments));
    nl_moments_add(moments, rows, COUNT);
    assert_ok(context, nl_moments_read(moments, mean, covariance));
    assert_ok(context, nl_gaussian_distance(gaussian, mean, covariance, &distance));
    nl_resampling r = {.reference = gaussian, .rows = rows, .count = COUNT};
    assert_ok(context, nl_fid_infinity(&r, 300, &infinity));
    if (!(distance > 0.005 && fabs(infinity) < 0.3 * distance))
        fail_msg("distance %g, at infinity %g", distance, infinity);
    assert_ok(context, nl_fid_infinity(&r, 300, &again));
    assert_true(again == infinity);
    assert_int_equal(nl_fid_infinity(&r, COUNT, &again), NL_ERROR_INPUT);
    r.progress = stop_at_3;
    r.user = &last;
    assert_int_equal(nl_fid_infinity(&r, 300, &again), NL_CANCELLED);
    assert_int_equal(last, 3);
    nl_moments_destroy(moments);
    nl_gaussian_destroy(gaussian);
    free(rows);
    nl_core_context_destroy(context);
}

/* ---- Against numpy and scipy */

static double number(const nl_checkpoint *file, const char *name)
{
    float *x = test_read(file, name, NULL);
    const nl_entry *entry = nl_checkpoint_find(file, name);
    double value;
    assert_int_equal(entry->dtype, NL_F64);
    memcpy(&value, entry->data, sizeof(value));
    free(x);
    return value;
}

#define assert_number(file, name, value, tolerance)                                                \
    do {                                                                                           \
        double assert_number_expected = number(file, name);                                        \
        if (!(fabs((value)-assert_number_expected) <=                                              \
              (tolerance)*fmax(1, fabs(assert_number_expected))))                                  \
            fail_msg("%s: %.12g, expected %.12g", name, (double)(value), assert_number_expected);  \
    } while (0)

static void test_against_numpy(void **state)
{
    const char *path = getenv("NL_STATISTICS_FILE");
    (void)state;
    if (!path || !nl_path_exists(path)) {
        print_message("SKIPPED: no numpy and scipy to compare with\n");
        skip();
    }
    nl_context *context = test_context("cpu");
    nl_checkpoint *file;
    nl_tensor shape, other_shape, logits_shape;
    assert_ok(context, nl_checkpoint_open(context, path, &file));
    float *a = test_read(file, "a", &shape), *b = test_read(file, "b", &other_shape);
    float *logits = test_read(file, "logits", &logits_shape);
    int64_t size = shape.shape[1], count_a = shape.shape[0], count_b = other_shape.shape[0];
    nl_moments *moments[2];
    double *mean[2], *covariance[2], distance, kid, deviation, precision, recall, is;
    for (int i = 0; i < 2; i++) {
        mean[i] = malloc((size_t)size * sizeof(double));
        covariance[i] = malloc((size_t)(size * size) * sizeof(double));
        assert_ok(context, nl_moments_create(context, size, &moments[i]));
        nl_moments_add(moments[i], i ? b : a, i ? count_b : count_a);
        assert_ok(context, nl_moments_read(moments[i], mean[i], covariance[i]));
        nl_moments_destroy(moments[i]);
    }
    assert_ok(context,
              nl_frechet(context, size, mean[0], covariance[0], mean[1], covariance[1], &distance));
    assert_number(file, "frechet", distance, 1e-8);
    /* one subset, which is all of both */
    int64_t least = NL_MIN(count_a, count_b);
    assert_ok(context,
              nl_kid(context->device, size, a, least, b, least, 1, least, &kid, &deviation));
    assert_number(file, "kid", kid, 1e-6);
    assert_true(deviation == 0);
    assert_ok(context,
              nl_kid(context->device, size, a, count_a, b, count_b, 50, 200, &kid, &deviation));
    assert_true(fabs(kid - number(file, "kid")) < 4 * deviation);
    assert_true(deviation > 0);
    assert_ok(context, nl_precision_recall(context->device, size, a, count_a, b, count_b, 3, false,
                                           &precision, &recall));
    assert_number(file, "precision", precision, 1e-12);
    assert_number(file, "recall", recall, 1e-12);
    assert_true(precision > 0 && precision < 1 && recall > 0 && recall < 1);
    /* in fp16, far from 0 so that it matters; a sum that lies between two numbers may go either way */
    for (int64_t i = 0; i < count_a * size; i++)
        a[i] += 4;
    for (int64_t i = 0; i < count_b * size; i++)
        b[i] += 4;
    double exact_precision = precision, exact_recall = recall;
    assert_ok(context, nl_precision_recall(context->device, size, a, count_a, b, count_b, 3, true,
                                           &precision, &recall));
    assert_number(file, "precision_half", precision, 3.0 / (double)count_b);
    assert_number(file, "recall_half", recall, 3.0 / (double)count_a);
    assert_true(fabs(precision - exact_precision) > 6.0 / (double)count_b);
    assert_true(fabs(recall - exact_recall) > 6.0 / (double)count_a);
    nl_score *score;
    assert_ok(context, nl_score_create(context, logits_shape.shape[1], 3, &score));
    for (int64_t i = logits_shape.shape[0] - 1; i >= 0; i--)
        assert_ok(context, nl_score_add(score, i / 500, logits + i * logits_shape.shape[1], 1));
    assert_ok(context, nl_score_read(score, &is, &deviation));
    assert_number(file, "is", is, 1e-9);
    assert_number(file, "is_deviation", deviation, 1e-7);
    nl_score_destroy(score);
    for (int i = 0; i < 2; i++) {
        free(mean[i]);
        free(covariance[i]);
    }
    free(a);
    free(b);
    free(logits);
    nl_checkpoint_close(file);
    nl_context_destroy(context);
}

/* More rows than a block of products has, in both sets, against all pairs one by one. */
static void test_nearest(void **state)
{
    (void)state;
    enum { WIDE = 5, MANY = 2100, FEW = 1030, K = 5 };
    static float reference[MANY * WIDE], rows[FEW * WIDE];
    static int64_t index[FEW * K];
    static double distance[FEW * K], all[MANY];
    nl_context *context = test_context("cpu");
    for (int i = 0; i < MANY * WIDE; i++)
        reference[i] =
            100 + nl_philox_uniform(1, 0, 0, (uint64_t)i); /* far from 0: digits are lost */
    for (int i = 0; i < FEW * WIDE; i++)
        rows[i] = 100 + nl_philox_uniform(2, 0, 0, (uint64_t)i);
    memcpy(rows, reference + 2077 * WIDE, WIDE * sizeof(float));
    assert_ok(context, nl_nearest_rows(context->device, WIDE, reference, MANY, rows, FEW, K, index,
                                       distance));
    assert_int_equal(index[0], 2077);
    assert_true(distance[0] == 0);
    for (int row = 0; row < FEW; row += 103) {
        double least[K] = {0};
        for (int j = 0; j < MANY; j++) {
            all[j] = 0;
            for (int c = 0; c < WIDE; c++)
                all[j] += pow((double)rows[row * WIDE + c] - reference[j * WIDE + c], 2);
        }
        for (int k = 0; k < K; k++) {
            double before = k ? least[k - 1] : -1;
            least[k] = INFINITY;
            for (int j = 0; j < MANY; j++)
                if (all[j] > before)
                    least[k] = fmin(least[k], all[j]);
            double found = distance[row * K + k];
            assert_true(fabs(sqrt(all[index[row * K + k]]) - found) < 1e-12);
            /* which of two is chosen is up to products of fp32: |x|^2 is 50,000 here, its last digit 0.004 */
            assert_true(found * found >= least[k] - 1e-12 && found * found < least[k] + 0.03);
            assert_true(k == 0 || found >= distance[row * K + k - 1]);
        }
    }
    assert_int_equal(
        nl_nearest_rows(context->device, WIDE, reference, 4, rows, FEW, K, index, distance),
        NL_ERROR_INPUT);
    nl_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments),        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_rotated),        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_score),          cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_bootstrap),      cmocka_unit_test(test_infinity),
        cmocka_unit_test(test_against_numpy),  cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_device_moments), cmocka_unit_test(test_closed_forms_on_device),
        cmocka_unit_test(test_nuclear_norm),   cmocka_unit_test(test_device_and_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
