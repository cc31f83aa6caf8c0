/* SPDX-License-Identifier: MIT */
/* The attention distribution of one query after the other. */
#include <math.h>

#include "feature_maps.h"
#include "nl_analysis.h"

struct nl_keys {
    nl_context *context;
    nl_attention_rule rule;
    nl_nala_attention_args nala; /* what nl_features wants to know */
    int64_t tokens, head_size, width;
    double *features; /* [width, tokens]: k, or phi_k(k) */
    double *query;    /* [width] */
    double *x;        /* [head_size] */
};

/* x [head_size] -> features [width] */
static void prepare(const nl_keys *keys, bool query, const float *from, double *features)
{
    for (int64_t i = 0; i < keys->head_size; i++)
        keys->x[i] = from[i];
    if (keys->rule.attention == NL_ATTENTION_NALA)
        nl_features(&keys->nala, query, keys->x, features);
    else
        for (int64_t i = 0; i < keys->head_size; i++)
            features[i] = query ? keys->x[i] / sqrt((double)keys->head_size) : keys->x[i];
}

nl_status nl_keys_create(nl_context *context, const nl_attention_rule *rule, const float *k,
                         int64_t tokens, int64_t head_size, int64_t stride, nl_keys **keys)
{
    nl_status status = NL_OK;
    nl_keys *made = NULL;
    *keys = NULL;
    NL_TRY(NL_NEW(context, "keys", &made));
    *made = (nl_keys){.context = context,
                      .rule = *rule,
                      .nala = {.head_size = head_size,
                               .feature_map = rule->feature_map,
                               .lambda = (float)rule->lambda,
                               .tau = (float)rule->tau,
                               .norm_scale = (float)rule->norm_scale},
                      .tokens = tokens,
                      .head_size = head_size,
                      .width = rule->attention == NL_ATTENTION_NALA
                                   ? nl_feature_width(rule->feature_map, head_size)
                                   : head_size};
    int64_t width = made->width;
    NL_TRY(NL_NEW_ARRAY(context, "keys", width * (tokens + 1) + head_size, &made->features));
    made->query = made->features + width * tokens;
    made->x = made->query + width;
    for (int64_t token = 0; token < tokens; token++) {
        prepare(made, false, k + token * stride, made->query);
        for (int64_t i = 0; i < width; i++)
            made->features[i * tokens + token] = made->query[i];
    }
    *keys = made;
    made = NULL;
cleanup:
    nl_keys_destroy(made);
    return status;
}

void nl_keys_destroy(nl_keys *keys)
{
    if (!keys)
        return;
    nl_free(keys->context, keys->features);
    nl_free(keys->context, keys);
}

void nl_keys_weights(nl_keys *keys, const float *q, double *weights)
{
    double most = -INFINITY, sum = 0;
    prepare(keys, true, q, keys->query);
    for (int64_t token = 0; token < keys->tokens; token++)
        weights[token] = 0;
    for (int64_t i = 0; i < keys->width; i++)
        for (int64_t token = 0; token < keys->tokens; token++)
            weights[token] += keys->query[i] * keys->features[i * keys->tokens + token];
    if (keys->rule.attention == NL_ATTENTION_SOFTMAX) {
        for (int64_t token = 0; token < keys->tokens; token++)
            most = fmax(most, weights[token]);
        for (int64_t token = 0; token < keys->tokens; token++)
            weights[token] = exp(weights[token] - most);
    }
    for (int64_t token = 0; token < keys->tokens; token++) {
        weights[token] = fmax(weights[token], 0); /* what rounding leaves of a similarity of 0 */
        sum += weights[token];
    }
    for (int64_t token = 0; sum > 0 && token < keys->tokens; token++)
        weights[token] /= sum;
}

double nl_entropy(const double *x, int64_t count)
{
    double sum = 0, entropy = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    if (!(sum > 0))
        return NAN;
    for (int64_t i = 0; i < count; i++)
        if (x[i] > 0)
            entropy -= x[i] / sum * log(x[i] / sum);
    return fmax(entropy, 0);
}
