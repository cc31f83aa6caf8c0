/* SPDX-License-Identifier: MIT */
/* Inception Score, streaming: with p = softmax(logits), a split of n pictures needs only
 *   mean KL = (1/n) sum sum_c p log p - sum_c m log m, m = mean p. */
#include "nl_statistics.h"

#include <math.h>
#include <string.h>

/* Of a split: number of pictures, sum of p log p, then the sums of p. */
enum { COUNT, ENTROPY, TOTALS };

struct nl_score {
    nl_context *context;
    int64_t classes, splits;
    double *sums; /* [splits, TOTALS + classes] */
    double *p;    /* [classes] */
};

static double *sums_of(const nl_score *s, int64_t split)
{
    return s->sums + split * (TOTALS + s->classes);
}

nl_status nl_score_create(nl_context *context, int64_t classes, int64_t splits, nl_score **score)
{
    nl_status status;
    nl_score *made = NULL;
    *score = NULL;
    NL_TRY(NL_NEW(context, "a score", &made));
    *made = (nl_score){.context = context, .classes = classes, .splits = splits};
    NL_TRY(NL_NEW_ZEROS(context, "a score", splits * (TOTALS + classes), &made->sums));
    NL_TRY(NL_NEW_ARRAY(context, "a score", classes, &made->p));
    *score = made;
    made = NULL;
cleanup:
    nl_score_destroy(made);
    return status;
}

void nl_score_destroy(nl_score *score)
{
    if (!score)
        return;
    nl_free(score->context, score->sums);
    nl_free(score->context, score->p);
    nl_free(score->context, score);
}

nl_status nl_score_add(nl_score *s, int64_t split, const float *logits, int64_t count)
{
    double *sums = sums_of(s, split), *total = sums + TOTALS;
    for (int64_t row = 0; row < count; row++, logits += s->classes) {
        double most = logits[0], sum = 0;
        for (int64_t c = 1; c < s->classes; c++)
            most = fmax(most, logits[c]);
        for (int64_t c = 0; c < s->classes; c++)
            sum += s->p[c] = exp(logits[c] - most);
        if (!isfinite(sum))
            return nl_fail(s->context, NL_ERROR_NOT_FINITE, "logits are not finite");
        double log_sum = log(sum);
        for (int64_t c = 0; c < s->classes; c++) {
            double p = s->p[c] / sum;
            total[c] += p;
            sums[ENTROPY] += p * (logits[c] - most - log_sum);
        }
        sums[COUNT]++;
    }
    return NL_OK;
}

static double score_of(const nl_score *s, int64_t split)
{
    const double *sums = sums_of(s, split);
    double n = sums[COUNT], marginal = 0;
    for (int64_t c = 0; c < s->classes; c++) {
        double m = sums[TOTALS + c] / n;
        marginal += m > 0 ? m * log(m) : 0;
    }
    return exp(sums[ENTROPY] / n - marginal);
}

double *nl_score_sums(nl_score *s, int64_t *count)
{
    *count = s->splits * (TOTALS + s->classes);
    return s->sums;
}

nl_status nl_score_read(const nl_score *s, double *mean, double *deviation)
{
    double n = 0, sum = 0, squares = 0;
    for (int64_t split = 0; split < s->splits; split++) {
        if (sums_of(s, split)[COUNT] == 0)
            continue;
        double value = score_of(s, split);
        sum += value;
        squares += value * value;
        n++;
    }
    if (n == 0)
        return nl_fail(s->context, NL_ERROR_INPUT, "an Inception Score of no pictures");
    *mean = sum / n;
    *deviation = sqrt(fmax(squares / n - *mean * *mean, 0));
    return NL_OK;
}
