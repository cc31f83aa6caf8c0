/* SPDX-License-Identifier: MIT */
/* Pearson's and Spearman's correlation. */
#include <math.h>
#include <stdlib.h>

#include "nl_analysis.h"

double nl_pearson(const double *x, const double *y, int64_t count)
{
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < count; i++) {
        mean_x += x[i] / (double)count;
        mean_y += y[i] / (double)count;
    }
    for (int64_t i = 0; i < count; i++) {
        double dx = x[i] - mean_x, dy = y[i] - mean_y;
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    return xx > 0 && yy > 0 ? xy / (sqrt(xx) * sqrt(yy)) : NAN;
}

typedef struct nl_ranked {
    double value;
    int64_t index;
} nl_ranked;

static int by_value(const void *a, const void *b)
{
    double x = ((const nl_ranked *)a)->value, y = ((const nl_ranked *)b)->value;
    return (x > y) - (x < y);
}

static void rank(const double *x, int64_t count, nl_ranked *order, double *ranks)
{
    for (int64_t i = 0; i < count; i++)
        order[i] = (nl_ranked){x[i], i};
    qsort(order, (size_t)count, sizeof(*order), by_value);
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && order[end].value == order[first].value;)
            end++;
        for (int64_t i = first; i < end; i++)
            ranks[order[i].index] = (double)(first + end - 1) / 2;
    }
}

nl_status nl_spearman(nl_context *context, const double *x, const double *y, int64_t count,
                      double *correlation)
{
    nl_status status = NL_OK;
    nl_ranked *order = NULL;
    double *ranks = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "ranks", count, &order));
    NL_TRY(NL_NEW_ARRAY(context, "ranks", 2 * count, &ranks));
    rank(x, count, order, ranks);
    rank(y, count, order, ranks + count);
    *correlation = nl_pearson(ranks, ranks + count, count);
cleanup:
    nl_free(context, order);
    nl_free(context, ranks);
    return status;
}
