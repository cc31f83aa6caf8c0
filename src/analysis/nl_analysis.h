/* SPDX-License-Identifier: MIT */
/*
 * What attention does inside of a model while it samples: how the entropy of a query's attention distribution goes
 * with the query's norm, and where chosen queries look. Double precision on the host, quadratic in the tokens.
 * Definitions: docs/analysis.md.
 */
#ifndef NL_ANALYSIS_H
#define NL_ANALYSIS_H

#include "nl_pipeline.h"

/* ---- Distributions of one head */

/* How a query weighs keys. SOFTMAX: exp(q . k / sqrt(d)). NALA: phi_q(q) . phi_k(k), without rope. */
typedef struct nl_attention_rule {
    nl_attention attention;
    nl_feature_map feature_map; /* the rest is NaLa's */
    double lambda, tau, norm_scale;
} nl_attention_rule;

/* The keys of one head, prepared for any number of queries. */
typedef struct nl_keys nl_keys;

/* k: `tokens` rows of `head_size` numbers, `stride` apart. */
nl_status nl_keys_create(nl_context *context, const nl_attention_rule *rule, const float *k,
                         int64_t tokens, int64_t head_size, int64_t stride, nl_keys **keys);
void nl_keys_destroy(nl_keys *keys); /* NULL is allowed */
/* weights [tokens] of the query q [head_size]: their sum is 1, or all are 0 where the rule gives the query no
 * weight at all. Uses room in `keys`. */
void nl_keys_weights(nl_keys *keys, const float *q, double *weights);

/* -sum p ln p in nats, p = x / sum x, x >= 0; NaN where the sum is not above 0. */
double nl_entropy(const double *x, int64_t count);

/* ---- Correlation of x with y, [count] each; NaN where one of them does not vary */

double nl_pearson(const double *x, const double *y, int64_t count);
/* Pearson's of the ranks; equal numbers share the mean of theirs. */
nl_status nl_spearman(nl_context *context, const double *x, const double *y, int64_t count,
                      double *correlation);

/* ---- A model at work */

enum { NL_RULES = 2 }; /* nl_attention counts them: every entropy is there by softmax and by NaLa */

typedef struct nl_analysis_options {
    const double *at; /* [times] where in the run: 0 the first step, 1 the last */
    int times;
    const int *layers; /* [layer_count] */
    int layer_count;
    const int *queries; /* [query_count] tokens whose attention is mapped */
    int query_count;
} nl_analysis_options;

typedef struct nl_analysis {
    nl_context *context;
    const nl_config *config; /* of the model */
    nl_analysis_options options;
    nl_attention_rule rules[NL_RULES]; /* by nl_attention; config->attention is the model's own */
    double *lambda, *tau; /* [layers, heads] of NaLa's rule: learnt ones, or the configuration's */
    int64_t pictures, tokens, heads;
    int steps;                 /* of the run */
    int *step;                 /* [times] steps taken before */
    double *t;                 /* [times] as the network takes it */
    int64_t count;             /* of points */
    double *norm;              /* [pictures, times, layers, heads, tokens] |q| */
    double *entropy[NL_RULES]; /* the same, in nats; NaN: the query has no weights */
    double *
        maps; /* [times, layers, queries, tokens] of the last picture: weights by the model's own rule, mean over
                     the heads */
} nl_analysis;

/* context: the model's. Makes the pictures of the request, one after the other, and looks into the network on the way. `picture` gets
 * each with the analysis of all so far; NULL: nobody. The options must live as long as the analysis. A model without
 * NaLa is compared with NaLa's defaults. */
nl_status nl_analyze(nl_context *context, nl_model *model, const nl_request *request,
                     const nl_analysis_options *options,
                     nl_status (*picture)(void *user, const nl_analysis *analysis,
                                          const nl_picture *picture),
                     void *user, nl_analysis **analysis);
void nl_analysis_destroy(nl_analysis *analysis); /* NULL is allowed */

/* By which the queries of a head weigh keys; layer: its place in the options. */
nl_attention_rule nl_analysis_rule(const nl_analysis *analysis, nl_attention rule, int64_t layer,
                                   int64_t head);

/* Which points: one time, layer, head by their places in the options, or -1 for all of them. */
typedef struct nl_selection {
    int64_t time, layer, head;
} nl_selection;

/* The selected points whose entropy is defined, into x (norms) and y (entropies) [analysis->count]; returns how
 * many. */
int64_t nl_analysis_select(const nl_analysis *analysis, nl_attention rule, nl_selection selection,
                           double *x, double *y);

/* lambda (tau + tanh(scale |q|)) of the selected points whose entropy by NaLa is defined, into `exponents` [analysis->count];
 * returns how many: what the norm can do to NaLa's weights. */
int64_t nl_analysis_exponents(const nl_analysis *analysis, nl_selection selection,
                              double *exponents);

/* ---- Pictures of it */

/* |q| against entropy / ln N by one rule, a panel for each layer: as SVG, PNG or PDF by the path's ending. */
nl_status nl_analysis_scatter(const nl_analysis *analysis, nl_attention rule, const char *path,
                              bool overwrite);
/* The picture with the queries marked, and beside it for each query (row) and up to eight layers (columns) where it
 * looks at one of the times: as SVG, PNG or PDF. */
nl_status nl_analysis_attention_maps(const nl_analysis *analysis, const nl_picture *picture,
                                     int time, const char *path, bool overwrite);

#endif
