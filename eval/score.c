/* Inception Score, streaming: with p = softmax(logits), a split of n pictures needs only
 *   mean KL = (1/n) sum sum_c p log p - sum_c m log m, m = mean p. */
#include "nl_statistics.h"

#include <math.h>
#include <string.h>

struct nl_score {
    nl_context *context;
    int64_t classes, split, count; /* of the present split */
    int64_t splits;
    double entropy;      /* sum of p log p */
    double sum, squares; /* of the scores of finished splits */
    double *total, *p;   /* [classes] */
};

nl_status nl_score_create(nl_context *context, int64_t classes, int64_t split, nl_score **score)
{
    nl_status status;
    void *memory = NULL;
    nl_score *made = NULL;
    *score = NULL;
    NL_TRY(nl_alloc_zero(context, "a score", sizeof(*made), &memory));
    made = memory;
    *made = (nl_score){.context = context, .classes = classes, .split = split};
    NL_TRY(nl_alloc_zero(context, "a score", (size_t)(2 * classes) * sizeof(double), &memory));
    made->total = memory;
    made->p = made->total + classes;
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
    nl_free(score->context, score->total);
    nl_free(score->context, score);
}

static void end_split(nl_score *s)
{
    double n = (double)s->count, marginal = 0;
    for (int64_t c = 0; c < s->classes; c++) {
        double m = s->total[c] / n;
        marginal += m > 0 ? m * log(m) : 0;
    }
    double value = exp(s->entropy / n - marginal);
    s->sum += value;
    s->squares += value * value;
    s->splits++;
    s->count = 0;
    s->entropy = 0;
    memset(s->total, 0, (size_t)s->classes * sizeof(double));
}

nl_status nl_score_add(nl_score *s, const float *logits, int64_t count)
{
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
            s->total[c] += p;
            s->entropy += p * (logits[c] - most - log_sum);
        }
        if (++s->count == s->split)
            end_split(s);
    }
    return NL_OK;
}

nl_status nl_score_read(nl_score *s, double *mean, double *deviation)
{
    if (s->count > 0)
        end_split(s);
    if (s->splits == 0)
        return nl_fail(s->context, NL_ERROR_INPUT, "an Inception Score of no pictures");
    double n = (double)s->splits;
    *mean = s->sum / n;
    *deviation = sqrt(fmax(s->squares / n - *mean * *mean, 0));
    return NL_OK;
}
