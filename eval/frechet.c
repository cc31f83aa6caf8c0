/* SPDX-License-Identifier: MIT */
/*
 * Frechet distance between Gaussians.
 *
 * With S = F F^T: tr (S1 S2)^1/2 is the sum of the singular values of F1^T F2. Eigenvalues of S1^1/2 S2 S1^1/2, the
 * squares of those, would do as well but lose half of the digits at the small ones, which is what covariances of few
 * pictures consist of. F is Cholesky's with pivots, which is as exact as eigenvectors times the roots of eigenvalues
 * and takes a tenth of the time. It ends where what is left is rounding (below size * 2^-53 of the largest variance),
 * so that F has as many columns as S has rank.
 */
#include "nl_blas.h"
#include "nl_statistics.h"

#include <float.h>
#include <math.h>
#include <string.h>

static nl_status lapack_failed(nl_context *context, const char *name, int info)
{
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s does not converge (%d): the covariance holds numbers that are not finite",
                   name, info);
}

/* S -> F^T [*rank, size]. Allocates *rows. */
static nl_status factor(nl_context *context, int64_t size, const double *covariance, double **rows,
                        int64_t *rank)
{
    nl_status status;
    const nl_blas *blas;
    int *order = NULL, n = (int)size, found, info;
    double *line = NULL, *work = NULL, tolerance = -1; /* size * 2^-53 of the largest */
    NL_TRY(nl_blas_load(context, &blas));
    NL_TRY(NL_NEW_ARRAY(context, "a factor of a covariance", size * size, rows));
    NL_TRY(NL_NEW_ARRAY(context, "a column", size, &line));
    NL_TRY(NL_NEW_ARRAY(context, "an order", size, &order));
    NL_TRY(NL_NEW_ARRAY(context, "an order", 2 * size, &work));
    memcpy(*rows, covariance, (size_t)(size * size) * sizeof(double));
    blas->dpstrf("L", &n, *rows, &n, order, &found, &tolerance, work, &info, 1);
    if (info < 0)
        NL_TRY(lapack_failed(context, "dpstrf", info));
    *rank = found;
    /* Column k of L, from the diagonal on, is of the variables in the order of the pivots. */
    for (int64_t k = 0; k < found; k++) {
        double *row = *rows + k * size;
        memcpy(line, row, (size_t)size * sizeof(double));
        for (int64_t i = 0; i < size; i++)
            row[order[i] - 1] = i < k ? 0 : line[i];
    }
cleanup:
    nl_free(context, line);
    nl_free(context, order);
    nl_free(context, work);
    return status;
}

/* Singular values that are worth the way to a device. */
enum { DEVICE_LEAST = 512 };

/* The singular values of x [n, m], by columns [m, n], which is lost; values [min(m, n)]. */
static nl_status singular_values(nl_context *context, const nl_blas *blas, int m, int n, double *x,
                                 double *values)
{
    nl_status status;
    int *small = NULL, one = 1, info, size = -1;
    double *work = NULL, unused, best;
    NL_TRY(NL_NEW_ARRAY(context, "singular values", 8 * NL_MIN(m, n), &small));
    blas->dgesdd("N", &m, &n, x, &m, values, &unused, &one, &unused, &one, &best, &size, small,
                 &info, 1);
    if (info)
        NL_TRY(lapack_failed(context, "dgesdd", info));
    size = (int)best;
    NL_TRY(NL_NEW_ARRAY(context, "singular values", size, &work));
    blas->dgesdd("N", &m, &n, x, &m, values, &unused, &one, &unused, &one, work, &size, small,
                 &info, 1);
    if (info)
        NL_TRY(lapack_failed(context, "dgesdd", info));
cleanup:
    nl_free(context, small);
    nl_free(context, work);
    return status;
}

/* Sum of the singular values of A B^T; A [m, size], B [n, size] */
static nl_status nuclear_norm(nl_context *context, int64_t size, const double *a, int64_t m,
                              const double *b, int64_t n, double *sum)
{
    nl_status status;
    const nl_blas *blas;
    double *values = NULL;
    double *product = NULL;
    *sum = 0;
    if (m == 0 || n == 0)
        return NL_OK;
    if (NL_MIN(m, n) >= DEVICE_LEAST && nl_nuclear_norm(context->device, size, a, m, b, n, sum))
        return NL_OK;
    NL_TRY(nl_blas_load(context, &blas));
    NL_TRY(NL_NEW_ARRAY(context, "a product of covariances", m * n, &product));
    NL_TRY(NL_NEW_ARRAY(context, "singular values", NL_MIN(m, n), &values));
    blas->dgemm(CblasColMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)size, 1, a, (int)size,
                b, (int)size, 0, product, (int)m);
    NL_TRY(singular_values(context, blas, (int)m, (int)n, product, values));
    for (int64_t i = 0; i < NL_MIN(m, n); i++)
        *sum += values[i];
cleanup:
    nl_free(context, product);
    nl_free(context, values);
    return status;
}

static bool all_finite(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] - x[i]; /* 0, or NaN */
    return sum == 0;
}

struct nl_gaussian {
    nl_context *context;
    int64_t size, rank;
    double *mean; /* [size] */
    double *rows; /* [rank, size], F^T */
    double trace; /* of the covariance */
};

nl_status nl_gaussian_create(nl_context *context, int64_t size, const double *mean,
                             const double *covariance, nl_gaussian **gaussian)
{
    nl_gaussian *made = NULL;
    nl_status status;
    *gaussian = NULL;
    if (!all_finite(mean, size) || !all_finite(covariance, size * size))
        return nl_fail(context, NL_ERROR_NOT_FINITE, "a mean or covariance is not finite");
    NL_TRY(NL_NEW(context, "a Gaussian", &made));
    made->context = context;
    made->size = size;
    NL_TRY(NL_NEW_ARRAY(context, "a mean", size, &made->mean));
    memcpy(made->mean, mean, (size_t)size * sizeof(double));
    for (int64_t i = 0; i < size; i++)
        made->trace += covariance[i * size + i];
    NL_TRY(factor(context, size, covariance, &made->rows, &made->rank));
    *gaussian = made;
    made = NULL;
cleanup:
    nl_gaussian_destroy(made);
    return status;
}

void nl_gaussian_destroy(nl_gaussian *g)
{
    if (!g)
        return;
    nl_free(g->context, g->mean);
    nl_free(g->context, g->rows);
    nl_free(g->context, g);
}

int64_t nl_gaussian_size(const nl_gaussian *g)
{
    return g->size;
}

nl_context *nl_gaussian_context(const nl_gaussian *g)
{
    return g->context;
}

nl_status nl_gaussian_distance(const nl_gaussian *g, const double *mean, const double *covariance,
                               double *distance)
{
    nl_gaussian *other = NULL;
    double cross, sum;
    nl_status status;
    NL_TRY(nl_gaussian_create(g->context, g->size, mean, covariance, &other));
    NL_TRY(nuclear_norm(g->context, g->size, g->rows, g->rank, other->rows, other->rank, &cross));
    sum = g->trace + other->trace;
    for (int64_t i = 0; i < g->size; i++)
        sum += (g->mean[i] - mean[i]) * (g->mean[i] - mean[i]);
    *distance = fmax(sum - 2 * cross, 0);
cleanup:
    nl_gaussian_destroy(other);
    return status;
}

nl_status nl_frechet(nl_context *context, int64_t size, const double *mean1,
                     const double *covariance1, const double *mean2, const double *covariance2,
                     double *distance)
{
    nl_gaussian *first = NULL;
    nl_status status;
    NL_TRY(nl_gaussian_create(context, size, mean1, covariance1, &first));
    NL_TRY(nl_gaussian_distance(first, mean2, covariance2, distance));
cleanup:
    nl_gaussian_destroy(first);
    return status;
}
