/* SPDX-License-Identifier: MIT */
/* Mean and covariance in blocks of rows: each block is centred on its own mean and its scatter, the sum of
 * (x - mean)(x - mean)^T, joined to the sum so far:
 *   M += M_b + n n_b / (n + n_b) d d^T, d = mean_b - mean  (Chan, Golub, LeVeque 1979). */
#include "nl_blas.h"
#include "nl_statistics.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 };

struct nl_moments {
    nl_context *context;
    const nl_blas *blas;
    int64_t size, count; /* of rows in mean and scatter */
    int64_t waiting;     /* rows in block */
    double *mean;        /* [size] */
    double *scatter;     /* [size, size], upper triangle */
    double *block;       /* [BLOCK, size] */
    double *block_mean;  /* [size] */
};

nl_status nl_moments_create(nl_context *context, int64_t size, nl_moments **moments)
{
    nl_status status;
    nl_moments *made = NULL;
    *moments = NULL;
    NL_TRY(NL_NEW(context, "moments", &made));
    made->context = context;
    made->size = size;
    NL_TRY(nl_blas_load(context, &made->blas));
    double **parts[] = {&made->mean, &made->scatter, &made->block, &made->block_mean};
    const int64_t rows[] = {1, size, BLOCK, 1};
    for (int i = 0; i < NL_COUNT(parts); i++)
        NL_TRY(NL_NEW_ZEROS(context, "a covariance", rows[i] * size, parts[i]));
    *moments = made;
    made = NULL;
cleanup:
    nl_moments_destroy(made);
    return status;
}

void nl_moments_destroy(nl_moments *m)
{
    if (!m)
        return;
    nl_free(m->context, m->mean);
    nl_free(m->context, m->scatter);
    nl_free(m->context, m->block);
    nl_free(m->context, m->block_mean);
    nl_free(m->context, m);
}

/* The difference of the means that come together, into `difference`, and the mean of all. */
static void join_means(nl_moments *m, const double *mean, int64_t count, double *difference)
{
    double n = (double)m->count, share = (double)count / (n + (double)count);
    for (int64_t i = 0; i < m->size; i++) {
        difference[i] = mean[i] - m->mean[i];
        m->mean[i] += share * difference[i];
    }
    m->blas->dsyr(CblasRowMajor, CblasUpper, (int)m->size, n * share, difference, 1, m->scatter,
                  (int)m->size);
    m->count += count;
}

/* Takes the waiting rows in. */
static void flush(nl_moments *m)
{
    int64_t size = m->size, rows = m->waiting;
    if (rows == 0)
        return;
    memset(m->block_mean, 0, (size_t)size * sizeof(double));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < size; i++)
            m->block_mean[i] += m->block[row * size + i];
    for (int64_t i = 0; i < size; i++)
        m->block_mean[i] /= (double)rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < size; i++)
            m->block[row * size + i] -= m->block_mean[i];
    m->blas->dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)size, (int)rows, 1, m->block,
                   (int)size, 1, m->scatter, (int)size);
    join_means(m, m->block_mean, rows, m->block);
    m->waiting = 0;
}

void nl_moments_add(nl_moments *m, const float *rows, int64_t count)
{
    while (count > 0) {
        int64_t take = NL_MIN(count, BLOCK - m->waiting);
        double *to = m->block + m->waiting * m->size;
        for (int64_t i = 0; i < take * m->size; i++)
            to[i] = rows[i];
        m->waiting += take;
        rows += take * m->size;
        count -= take;
        if (m->waiting == BLOCK)
            flush(m);
    }
}

void nl_moments_join(nl_moments *m, const double *mean, const double *scatter, int64_t count)
{
    flush(m);
    if (count == 0)
        return;
    for (int64_t i = 0; i < m->size * m->size; i++)
        m->scatter[i] += scatter[i];
    join_means(m, mean, count, m->block);
}

void nl_moments_merge(nl_moments *m, nl_moments *other)
{
    flush(other);
    nl_moments_join(m, other->mean, other->scatter, other->count);
}

void nl_moments_sums(nl_moments *m, double *mean, double *scatter)
{
    flush(m);
    memcpy(mean, m->mean, (size_t)m->size * sizeof(double));
    memcpy(scatter, m->scatter, (size_t)(m->size * m->size) * sizeof(double));
}

int64_t nl_moments_count(const nl_moments *m)
{
    return m->count + m->waiting;
}

nl_status nl_moments_read(nl_moments *m, double *mean, double *covariance)
{
    int64_t size = m->size;
    bool finite = true;
    flush(m);
    if (m->count < 2)
        return nl_fail(m->context, NL_ERROR_INPUT,
                       "a covariance needs at least 2 pictures, there are %lld",
                       (long long)m->count);
    for (int64_t i = 0; i < size; i++)
        finite = finite && isfinite(m->mean[i]) && isfinite(m->scatter[i * size + i]);
    if (!finite)
        return nl_fail(m->context, NL_ERROR_NOT_FINITE, "features are not finite");
    if (mean)
        memcpy(mean, m->mean, (size_t)size * sizeof(double));
    for (int64_t i = 0; covariance && i < size; i++)
        for (int64_t j = i; j < size; j++)
            covariance[i * size + j] = covariance[j * size + i] =
                m->scatter[i * size + j] / (double)(m->count - 1);
    return NL_OK;
}

nl_status nl_moments_of(nl_context *context, int64_t size, const double *mean,
                        const double *covariance, int64_t count, nl_moments **moments)
{
    NL_CHECK(nl_moments_create(context, size, moments));
    nl_moments *m = *moments;
    m->count = count;
    memcpy(m->mean, mean, (size_t)size * sizeof(double));
    for (int64_t i = 0; i < size * size; i++)
        m->scatter[i] = covariance[i] * (double)(count - 1);
    return NL_OK;
}
