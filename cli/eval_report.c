/* SPDX-License-Identifier: MIT */
/* What an evaluation found, as a table and as JSON. */
#include "nl_eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "fid", or "fid_768" of other features than those of papers. */
static const char *metric_key(const nl_eval_session *session, nl_metric metric, char text[32])
{
    nl_feature feature = session->options.feature;
    if (metric == NL_METRIC_SFID || metric == NL_METRIC_IS || feature == NL_FEATURE_POOL_3)
        snprintf(text, 32, "%s", nl_metric_names[metric]);
    else
        snprintf(text, 32, "%s_%lld", nl_metric_names[metric], (long long)nl_feature_size(feature));
    return text;
}

static cJSON *metrics_json(const nl_report *r)
{
    cJSON *metrics = cJSON_CreateObject();
    char key[32], name[48];
    for (int m = 0; m < NL_METRICS; m++) {
        const nl_metric_value *value = &r->evaluation->metrics[m];
        metric_key(r->session, m, key);
        if (value->known)
            cJSON_AddNumberToObject(metrics, key, value->value);
        bool interval = value->low != 0 || value->high != 0;
        if (!value->known || (value->parts < 2 && !interval))
            continue;
        snprintf(name, sizeof(name), "%s_std", key);
        cJSON_AddNumberToObject(metrics, name, value->deviation);
        if (interval) {
            snprintf(name, sizeof(name), "%s_95", key);
            cJSON_AddItemToObject(metrics, name,
                                  cJSON_CreateDoubleArray((double[]){value->low, value->high}, 2));
        }
    }
    return metrics;
}

/* What the deviations of metrics are over. */
static void add_parts(cJSON *object, const nl_evaluation *e)
{
    const nl_metric_value *is = &e->metrics[NL_METRIC_IS], *kid = &e->metrics[NL_METRIC_KID];
    if (is->known)
        cJSON_AddNumberToObject(object, "is_splits", (double)is->parts);
    if (!kid->known)
        return;
    cJSON_AddNumberToObject(object, "kid_subsets", (double)kid->parts);
    cJSON_AddNumberToObject(object, "kid_subset_size", (double)kid->part_size);
}

/* What the report says of the samples' making, or of their file. */
static void add_sampling(cJSON *object, const cJSON *sampling)
{
    cJSON *copy = sampling ? cJSON_Duplicate(sampling, true) : NULL;
    if (!copy)
        return;
    cJSON_DeleteItemFromObject(copy, "config");
    cJSON_AddItemToObject(object, "sampling", copy);
}

static double seconds(const nl_evaluation *e)
{
    return e->seconds.samples + e->seconds.reference + e->seconds.metrics;
}

nl_status nl_report_json(const nl_report *r, cJSON **out)
{
    const nl_evaluation *e = r->evaluation;
    const nl_eval_session *s = r->session;
    char key[32];
    cJSON *object = cJSON_CreateObject(), *missing = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "samples", r->samples);
    cJSON_AddNumberToObject(object, "n", (double)e->samples);
    add_sampling(object, r->sampling);
    cJSON_AddStringToObject(object, "reference", r->reference);
    if (r->reference_sha256[0])
        cJSON_AddStringToObject(object, "reference_sha256", r->reference_sha256);
    cJSON_AddNumberToObject(object, "reference_pictures", (double)e->reference);
    cJSON_AddStringToObject(object, "weights", s->checkpoint->path);
    cJSON_AddStringToObject(object, "weights_sha256", s->sha256);
    cJSON_AddStringToObject(object, "preset", s->options.preprocessing->name);
    cJSON_AddStringToObject(object, "preprocessing", s->options.preprocessing->text);
    cJSON_AddStringToObject(object, "features", nl_feature_name(s->options.feature));
    cJSON_AddStringToObject(object, "precision",
                            nl_precision_names[nl_inception_precision(s->net)]);
    cJSON_AddStringToObject(object, "distances", s->options.half_distances ? "f16" : "f32");
    cJSON_AddItemToObject(object, "metrics", metrics_json(r));
    for (int m = 0; m < NL_METRICS; m++)
        if (e->metrics[m].missing[0])
            cJSON_AddStringToObject(missing, metric_key(s, m, key), e->metrics[m].missing);
    cJSON_AddItemToObject(object, "missing", missing);
    add_parts(object, e);
    cJSON_AddBoolToObject(object, "small", e->small);
    cJSON_AddNumberToObject(object, "repeated", (double)e->repeated);
    cJSON_AddNumberToObject(object, "copied", (double)e->copied);
    cJSON_AddStringToObject(object, "device", s->context->device->name);
    cJSON_AddNumberToObject(object, "seconds", seconds(e));
    cJSON_AddNumberToObject(object, "seconds_first_batch", e->seconds.first_batch);
    cJSON_AddNumberToObject(object, "seconds_samples", e->seconds.samples);
    cJSON_AddNumberToObject(object, "seconds_reference", e->seconds.reference);
    cJSON_AddNumberToObject(object, "seconds_metrics", e->seconds.metrics);
    cJSON_AddNumberToObject(object, "pictures_per_second",
                            (double)e->samples / fmax(e->seconds.samples, 1e-9));
    *out = object;
    return object ? NL_OK : nl_fail(s->context, NL_ERROR_MEMORY, "no memory for JSON");
}

/* "KID  0.012345 +- 0.000123 (100 subsets of 1000)" */
static void print_parts(const char *name, const nl_metric_value *value, int digits,
                        const char *part, const char *whole)
{
    printf("%-18s  %.*f", name, digits, value->value);
    if (value->parts < 2)
        printf(" (%s)\n", whole);
    else if (value->part_size)
        printf(" +- %.*f (%lld %ss of %lld)\n", digits, value->deviation, (long long)value->parts,
               part, (long long)value->part_size);
    else
        printf(" +- %.*f (%lld %ss)\n", digits, value->deviation, (long long)value->parts, part);
}

static void print_metric(const nl_report *r, nl_metric metric)
{
    static const char *const names[] = {"FID",    "sFID", "Inception Score", "Precision",
                                        "Recall", "KID",  "FID-infinity"};
    const nl_metric_value *value = &r->evaluation->metrics[metric];
    nl_feature feature = r->session->options.feature;
    bool own = metric == NL_METRIC_SFID || metric == NL_METRIC_IS || feature == NL_FEATURE_POOL_3;
    char name[48], size[16] = "";
    if (!own)
        snprintf(size, sizeof(size), " (%lld)", (long long)nl_feature_size(feature));
    snprintf(name, sizeof(name), "%s%s", names[metric], size);
    if (!value->known) {
        if (value->missing[0])
            printf("%-18s  -  %s\n", name, value->missing);
        return;
    }
    if (metric == NL_METRIC_KID)
        print_parts(name, value, 6, "subset", "all pictures");
    else if (metric == NL_METRIC_IS)
        print_parts(name, value, 4, "split", "one split");
    else if (value->low != 0 || value->high != 0)
        printf("%-18s  %.5f  95 %%: %.5f to %.5f\n", name, value->value, value->low, value->high);
    else
        printf("%-18s  %.5f\n", name, value->value);
}

/* "NaLaSiT-S/2, sha256 0123456789abcdef, heun, 20 steps, guidance 3, seed 0" */
static void print_sampling(const cJSON *sampling)
{
    static const char *const keys[][3] = {
        {"name", "", ""},        {"sha256", "sha256 ", ""},      {"sampler", "", ""},
        {"steps", "", " steps"}, {"cfg_scale", "guidance ", ""}, {"class", "classes ", ""},
        {"seed", "seed ", ""}};
    const char *comma = "";
    printf("made by    ");
    for (int i = 0; i < NL_COUNT(keys); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(sampling, keys[i][0]);
        char text[64] = "";
        if (cJSON_IsString(item) || cJSON_IsRaw(item))
            snprintf(text, sizeof(text), "%.*s", i == 1 ? 16 : 60, item->valuestring);
        else if (cJSON_IsNumber(item))
            snprintf(text, sizeof(text), "%.15g", item->valuedouble);
        if (!text[0])
            continue;
        printf("%s%s", comma, keys[i][1]);
        nl_print_plain(stdout, text);
        printf("%s", keys[i][2]);
        comma = ", ";
    }
    printf("\n");
}

nl_status nl_report_table(const nl_report *r)
{
    const nl_evaluation *e = r->evaluation;
    const nl_eval_session *s = r->session;
    static const nl_metric order[] = {NL_METRIC_IS,   NL_METRIC_FID,       NL_METRIC_FID_INFINITY,
                                      NL_METRIC_SFID, NL_METRIC_PRECISION, NL_METRIC_RECALL,
                                      NL_METRIC_KID};
    for (int i = 0; i < NL_COUNT(order); i++)
        print_metric(r, order[i]);
    printf("\nsamples    ");
    nl_print_plain(stdout, r->samples);
    printf(", %lld pictures%s\n", (long long)e->samples,
           e->small ? " (TOO FEW: compares with nothing)" : "");
    if (r->sampling)
        print_sampling(r->sampling);
    printf("reference  ");
    nl_print_plain(stdout, r->reference);
    if (e->reference)
        printf(", %lld pictures", (long long)e->reference);
    if (r->reference_sha256[0])
        printf(", sha256 %.16s", r->reference_sha256);
    printf("\nweights    ");
    nl_print_plain(stdout, s->checkpoint->path);
    printf(", sha256 %.16s\n", s->sha256);
    printf("preset     %s: %s\n", s->options.preprocessing->name, s->options.preprocessing->text);
    printf("precision  %s\n", nl_precision_names[nl_inception_precision(s->net)]);
    printf(
        "time       %.1f s (samples %.1f s, %.1f pictures/s; reference %.1f s; metrics %.1f s) on "
        "%s\n",
        seconds(e), e->seconds.samples, (double)e->samples / fmax(e->seconds.samples, 1e-9),
        e->seconds.reference, e->seconds.metrics, s->context->device->name);
    return nl_finish_stdout(s->context);
}

nl_status nl_report_line(nl_context *context, const char *name, const cJSON *report)
{
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(report, "metrics");
    nl_print_plain(stdout, name);
    for (const cJSON *metric = metrics ? metrics->child : NULL; metric; metric = metric->next)
        if (cJSON_IsNumber(metric))
            printf("  %s %.6g", metric->string, metric->valuedouble);
    printf("\n");
    return nl_finish_stdout(context);
}
