/* SPDX-License-Identifier: MIT */
/* The numbers of an analysis as JSON, and the most telling of them as a table. */
#include <math.h>

#include "nl_analyze.h"

static const char *const rule_names[NL_RULES] = {"softmax", "nala"};

static nl_status no_memory(nl_context *context)
{
    return nl_fail(context, NL_ERROR_MEMORY, "no memory for the numbers of the analysis");
}

/* A number, or null where it is not defined. */
static bool add(cJSON *object, const char *name, double value)
{
    return isfinite(value) ? cJSON_AddNumberToObject(object, name, value) != NULL
                           : cJSON_AddNullToObject(object, name) != NULL;
}

typedef struct nl_relation {
    int64_t points;
    double pearson, spearman, entropy, deviation; /* entropy and its standard deviation in nats */
    double norm;                                  /* mean */
} nl_relation;

static nl_status relate(const nl_analysis *analysis, nl_attention rule, nl_selection selection,
                        double *x, nl_relation *relation)
{
    double *y = x + analysis->count, squares = 0;
    nl_relation r = {.points = nl_analysis_select(analysis, rule, selection, x, y)};
    for (int64_t i = 0; i < r.points; i++) {
        r.norm += x[i] / (double)r.points;
        r.entropy += y[i] / (double)r.points;
    }
    for (int64_t i = 0; i < r.points; i++)
        squares += (y[i] - r.entropy) * (y[i] - r.entropy);
    if (r.points == 0)
        r.norm = r.entropy = NAN;
    r.deviation = sqrt(squares / (double)r.points);
    r.pearson = nl_pearson(x, y, r.points);
    *relation = r;
    return nl_spearman(analysis->context, x, y, r.points, &relation->spearman);
}

/* Of the selected queries; x: room for the exponents. */
static bool add_exponent(const nl_analysis *analysis, nl_selection selection, double *x,
                         cJSON *item)
{
    double low = INFINITY, high = -INFINITY, mean = 0;
    int64_t count = nl_analysis_exponents(analysis, selection, x);
    for (int64_t i = 0; i < count; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
        mean += x[i] / (double)count;
    }
    return add(item, "exponent_min", low) && add(item, "exponent_max", high) &&
           add(item, "exponent_mean", count ? mean : NAN);
}

/* The selected points by both rules: {"softmax": {...}, "nala": {...}} into `object`. */
static nl_status add_relations(const nl_analysis *analysis, nl_selection selection, double *x,
                               cJSON *object)
{
    double most = log((double)analysis->tokens);
    bool aware = nl_feature_map_norm_aware(analysis->config->feature_map);
    for (int rule = 0; rule < NL_RULES; rule++) {
        nl_relation r;
        NL_CHECK(relate(analysis, (nl_attention)rule, selection, x, &r));
        cJSON *item = cJSON_AddObjectToObject(object, rule_names[rule]);
        if (!item || !cJSON_AddNumberToObject(item, "points", (double)r.points) ||
            !add(item, "pearson", r.pearson) || !add(item, "spearman", r.spearman) ||
            !add(item, "norm_mean", r.norm) || !add(item, "entropy_mean", r.entropy) ||
            !add(item, "entropy_std", r.deviation) ||
            !add(item, "entropy_mean_normalized", most > 0 ? r.entropy / most : NAN) ||
            (rule == NL_ATTENTION_NALA && aware && !add_exponent(analysis, selection, x, item)))
            NL_CHECK(no_memory(analysis->context));
    }
    return NL_OK;
}

/* A new object at the end of the array. */
static nl_status append(nl_context *context, cJSON *array, cJSON **item)
{
    *item = cJSON_CreateObject();
    if (*item && cJSON_AddItemToArray(array, *item))
        return NL_OK;
    cJSON_Delete(*item);
    return no_memory(context);
}

static nl_status add_times(const nl_analysis *analysis, double *x, cJSON *array)
{
    for (int time = 0; time < analysis->options.times; time++) {
        cJSON *item;
        char t[32];
        snprintf(t, sizeof(t), "%.7g", analysis->t[time]); /* a float, which is what it was */
        NL_CHECK(append(analysis->context, array, &item));
        if (!cJSON_AddNumberToObject(item, "at", analysis->options.at[time]) ||
            !cJSON_AddNumberToObject(item, "step", analysis->step[time] + 1) ||
            !cJSON_AddRawToObject(item, "t", t))
            NL_CHECK(no_memory(analysis->context));
        NL_CHECK(add_relations(analysis, (nl_selection){time, -1, -1}, x, item));
    }
    return NL_OK;
}

static nl_status add_layers(const nl_analysis *analysis, double *x, cJSON *array)
{
    bool learnt =
        analysis->config->attention == NL_ATTENTION_NALA && analysis->config->learn_exponents;
    for (int layer = 0; layer < analysis->options.layer_count; layer++) {
        cJSON *item, *heads, *of_head;
        NL_CHECK(append(analysis->context, array, &item));
        if (!cJSON_AddNumberToObject(item, "layer", analysis->options.layers[layer]))
            NL_CHECK(no_memory(analysis->context));
        NL_CHECK(add_relations(analysis, (nl_selection){-1, layer, -1}, x, item));
        heads = cJSON_AddArrayToObject(item, "heads");
        for (int64_t head = 0; head < analysis->heads; head++) {
            NL_CHECK(append(analysis->context, heads, &of_head));
            int64_t of = layer * analysis->heads + head;
            if (learnt && !(add(of_head, "lambda", analysis->lambda[of]) &&
                            add(of_head, "tau", analysis->tau[of])))
                NL_CHECK(no_memory(analysis->context));
            NL_CHECK(add_relations(analysis, (nl_selection){-1, layer, head}, x, of_head));
        }
    }
    return NL_OK;
}

nl_status nl_analysis_json(const nl_analysis *analysis, const cJSON *sampling, cJSON **object)
{
    nl_status status = NL_OK;
    nl_context *context = analysis->context;
    double *x = NULL;
    cJSON *made = cJSON_CreateObject(), *facts = cJSON_Duplicate(sampling, true), *all;
    NL_TRY(NL_NEW_ARRAY(context, "points", 2 * analysis->count, &x));
    if (!made || !facts || !cJSON_AddItemToObject(made, "sampling", facts))
        NL_TRY(no_memory(context));
    facts = NULL;
    if (!cJSON_AddStringToObject(made, "attention", rule_names[analysis->config->attention]) ||
        !cJSON_AddNumberToObject(made, "lambda", analysis->config->lambda) ||
        !cJSON_AddNumberToObject(made, "tau", analysis->config->tau) ||
        !cJSON_AddNumberToObject(made, "pictures", (double)analysis->pictures) ||
        !cJSON_AddNumberToObject(made, "tokens", (double)analysis->tokens) ||
        !cJSON_AddNumberToObject(made, "heads", (double)analysis->heads) ||
        !cJSON_AddNumberToObject(made, "steps", analysis->steps))
        NL_TRY(no_memory(context));
    all = cJSON_AddObjectToObject(made, "all");
    NL_TRY(all ? add_relations(analysis, (nl_selection){-1, -1, -1}, x, all) : no_memory(context));
    NL_TRY(add_times(analysis, x, cJSON_AddArrayToObject(made, "times")));
    NL_TRY(add_layers(analysis, x, cJSON_AddArrayToObject(made, "layers")));
    *object = made;
    made = NULL;
cleanup:
    nl_free(context, x);
    cJSON_Delete(facts);
    cJSON_Delete(made);
    return status;
}

static nl_status print_row(const nl_analysis *analysis, const char *name, int layer, double *x)
{
    char text[160];
    int length = snprintf(text, sizeof(text), "%-6s", name);
    for (int rule = 0; rule < NL_RULES; rule++) {
        nl_relation r;
        NL_CHECK(relate(analysis, (nl_attention)rule, (nl_selection){-1, layer, -1}, x, &r));
        length += snprintf(text + length, sizeof(text) - (size_t)length, "%9.3f %9.3f %9.3f",
                           r.pearson, r.spearman, r.entropy / log((double)analysis->tokens));
    }
    return nl_print_line(analysis->context, text);
}

nl_status nl_analysis_table(const nl_analysis *analysis)
{
    nl_status status = NL_OK;
    nl_context *context = analysis->context;
    char name[16], heads[NL_RULES][32];
    double *x = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "points", 2 * analysis->count, &x));
    for (int rule = 0; rule < NL_RULES; rule++)
        snprintf(heads[rule], sizeof(heads[rule]), "%s%s", rule_names[rule],
                 rule == (int)analysis->config->attention ? " (its own)" : "");
    snprintf(name, sizeof(name), "layer");
    char text[200];
    snprintf(text, sizeof(text), "%-6s%29s%29s", "", heads[0], heads[1]);
    NL_TRY(nl_print_line(context, text));
    snprintf(text, sizeof(text), "%-6s%9s %9s %9s%9s %9s %9s", name, "Pearson", "Spearman",
             "H / ln N", "Pearson", "Spearman", "H / ln N");
    NL_TRY(nl_print_line(context, text));
    for (int layer = 0; layer < analysis->options.layer_count; layer++) {
        snprintf(name, sizeof(name), "%d", analysis->options.layers[layer]);
        NL_TRY(print_row(analysis, name, layer, x));
    }
    NL_TRY(print_row(analysis, "all", -1, x));
cleanup:
    nl_free(context, x);
    return status;
}
