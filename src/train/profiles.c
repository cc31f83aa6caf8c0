/* SPDX-License-Identifier: MIT */
/* Which combination of power functions is next to another one: least squares over time. */
#include <math.h>

#include "nl_average.h"

/* p(t) = (g + 1) t^g / n^(g + 1) for t <= n: the shorter of the two ends the integral. */
static double profile_product(const nl_profile *a, const nl_profile *b)
{
    if (a->step > b->step)
        return profile_product(b, a);
    return (a->exponent + 1) * (b->exponent + 1) * pow(a->step / b->step, b->exponent) /
           ((a->exponent + b->exponent + 1) * b->step);
}

/* Cholesky's factorisation of the n x n matrix, lower half in place; rows that add nothing but roundings are 0. */
static void factorize(long double *matrix, int n)
{
    for (int i = 0; i < n; i++) {
        long double *row = matrix + (int64_t)i * n, whole = row[i];
        for (int j = 0; j <= i; j++) {
            const long double *other = matrix + (int64_t)j * n;
            long double sum = row[j];
            for (int k = 0; k < j; k++)
                sum -= row[k] * other[k];
            if (j < i)
                row[j] = other[j] > 0 ? sum / other[j] : 0;
            else
                row[i] = sum > 1e-13L * whole ? sqrtl(sum) : 0;
        }
    }
}

/* x becomes the solution of L L' x = x. */
static void substitute(const long double *factor, int n, long double *x)
{
    for (int i = 0; i < n; i++) {
        const long double *row = factor + (int64_t)i * n;
        for (int k = 0; k < i; k++)
            x[i] -= row[k] * x[k];
        x[i] = row[i] > 0 ? x[i] / row[i] : 0;
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++)
            x[i] -= factor[(int64_t)k * n + i] * x[k];
        long double pivot = factor[(int64_t)i * n + i];
        x[i] = pivot > 0 ? x[i] / pivot : 0;
    }
}

nl_status nl_average_solve(nl_context *context, const nl_profile *given, int count,
                           const nl_profile *wanted, double *coefficients, double *error)
{
    nl_status status = NL_OK;
    long double *matrix = NULL, *x = NULL, sum = 0, square = profile_product(wanted, wanted);
    const long double whole = square;
    NL_TRY(NL_NEW_ARRAY(context, "products of averages", (int64_t)count * count, &matrix));
    NL_TRY(NL_NEW_ARRAY(context, "coefficients", count, &x));
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < count; j++)
            matrix[(int64_t)i * count + j] = profile_product(&given[i], &given[j]);
        x[i] = profile_product(&given[i], wanted);
    }
    factorize(matrix, count);
    substitute(matrix, count, x);
    for (int i = 0; i < count; i++)
        sum += x[i];
    for (int i = 0; i < count; i++)
        coefficients[i] = (double)(x[i] / sum);
    for (int i = 0; i < count; i++) {
        square -= 2 * coefficients[i] * (long double)profile_product(&given[i], wanted);
        for (int j = 0; j < count; j++)
            square += (long double)coefficients[i] * coefficients[j] *
                      profile_product(&given[i], &given[j]);
    }
    *error = (double)sqrtl(fmaxl(square, 0) / whole);
cleanup:
    nl_free(context, matrix);
    nl_free(context, x);
    return status;
}
