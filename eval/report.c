/* SPDX-License-Identifier: MIT */
/* What an evaluation found, as JSON. */
#include "nl_network.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_json.h"

int64_t nl_metric_width(const nl_evaluation *evaluation, nl_metric metric)
{
    if (metric == NL_METRIC_SFID || metric == NL_METRIC_IS)
        return 0;
    for (nl_feature f = 0; f < NL_FEATURES; f++)
        if (f != NL_FEATURE_POOL_3 && !strcmp(evaluation->features, nl_feature_name(f)))
            return nl_feature_size(f);
    return 0;
}

/* The keys under which metrics are reported: "fid", or "fid_768" of other features than those of papers. */
static const char *metric_key(const nl_evaluation *evaluation, nl_metric metric, char text[32])
{
    int64_t width = nl_metric_width(evaluation, metric);
    snprintf(text, 32, width ? "%s_%lld" : "%s", nl_metric_names[metric], (long long)width);
    return text;
}

static cJSON *metrics_json(const nl_evaluation *e)
{
    cJSON *metrics = cJSON_CreateObject();
    char key[32], name[48];
    for (int m = 0; m < NL_METRICS; m++) {
        const nl_metric_value *value = &e->metrics[m];
        metric_key(e, m, key);
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

double nl_evaluation_seconds(const nl_evaluation *e)
{
    return e->seconds.samples + e->seconds.reference + e->seconds.metrics;
}

nl_status nl_evaluation_json(nl_context *context, const nl_evaluation_options *options,
                             const char *samples, const cJSON *sampling, const nl_evaluation *e,
                             cJSON **out)
{
    char key[32];
    cJSON *object = cJSON_CreateObject(), *missing = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "samples", samples);
    cJSON_AddNumberToObject(object, "n", (double)e->samples);
    add_sampling(object, sampling);
    cJSON_AddStringToObject(object, "reference", options->reference);
    if (e->reference_sha256[0])
        cJSON_AddStringToObject(object, "reference_sha256", e->reference_sha256);
    cJSON_AddNumberToObject(object, "reference_pictures", (double)e->reference);
    cJSON_AddStringToObject(object, "weights", e->weights);
    cJSON_AddStringToObject(object, "weights_sha256", e->weights_sha256);
    cJSON_AddStringToObject(object, "preset", e->preset);
    cJSON_AddStringToObject(object, "preprocessing", e->preprocessing);
    cJSON_AddStringToObject(object, "features", e->features);
    cJSON_AddStringToObject(object, "precision", e->precision);
    cJSON_AddStringToObject(object, "distances", options->half_distances ? "f16" : "f32");
    cJSON_AddItemToObject(object, "metrics", metrics_json(e));
    for (int m = 0; m < NL_METRICS; m++)
        if (e->metrics[m].missing[0])
            cJSON_AddStringToObject(missing, metric_key(e, m, key), e->metrics[m].missing);
    cJSON_AddItemToObject(object, "missing", missing);
    add_parts(object, e);
    cJSON_AddBoolToObject(object, "small", e->small);
    cJSON_AddNumberToObject(object, "repeated", (double)e->repeated);
    cJSON_AddNumberToObject(object, "copied", (double)e->copied);
    if (e->evaluations) /* of the network, for a picture on average */
        cJSON_AddNumberToObject(object, "evaluations", (double)e->evaluations / (double)e->samples);
    cJSON_AddStringToObject(object, "device", context->device->name);
    cJSON_AddNumberToObject(object, "seconds", nl_evaluation_seconds(e));
    cJSON_AddNumberToObject(object, "seconds_first_batch", e->seconds.first_batch);
    cJSON_AddNumberToObject(object, "seconds_samples", e->seconds.samples);
    cJSON_AddNumberToObject(object, "seconds_reference", e->seconds.reference);
    cJSON_AddNumberToObject(object, "seconds_metrics", e->seconds.metrics);
    cJSON_AddNumberToObject(object, "pictures_per_second",
                            (double)e->samples / fmax(e->seconds.samples, 1e-9));
    *out = object;
    return object ? NL_OK : nl_fail(context, NL_ERROR_MEMORY, "no memory for JSON");
}
