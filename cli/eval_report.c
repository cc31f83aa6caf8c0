/* SPDX-License-Identifier: MIT */
/* What an evaluation found, as a table. */
#include "nl_eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    int64_t width = nl_metric_width(r->evaluation, metric);
    char name[48], size[16] = "";
    if (width)
        snprintf(size, sizeof(size), " (%lld)", (long long)width);
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
    static const nl_metric order[] = {NL_METRIC_IS,   NL_METRIC_FID,       NL_METRIC_FID_INFINITY,
                                      NL_METRIC_SFID, NL_METRIC_PRECISION, NL_METRIC_RECALL,
                                      NL_METRIC_KID};
    for (int i = 0; i < NL_COUNT(order); i++)
        print_metric(r, order[i]);
    printf("\nsamples    ");
    nl_print_plain(stdout, r->samples);
    printf(", %lld %s%s\n", (long long)e->samples, nl_plural(e->samples, "picture", "pictures"),
           e->small ? " (TOO FEW: not comparable with other results)" : "");
    if (r->sampling)
        print_sampling(r->sampling);
    printf("reference  ");
    nl_print_plain(stdout, r->reference);
    if (e->reference)
        printf(", %lld %s", (long long)e->reference,
               nl_plural(e->reference, "picture", "pictures"));
    if (e->reference_sha256[0])
        printf(", sha256 %.16s", e->reference_sha256);
    printf("\nweights    ");
    nl_print_plain(stdout, e->weights);
    printf(", sha256 %.16s\n", e->weights_sha256);
    printf("preset     %s: %s\n", e->preset, e->preprocessing);
    printf("precision  %s\n", e->precision);
    char all[NL_FIGURE], samples[NL_FIGURE], rate[NL_FIGURE], of_reference[NL_FIGURE],
        metrics[NL_FIGURE];
    printf("time       %s (samples %s, %s; reference %s; metrics %s) on %s",
           nl_time_text(nl_evaluation_seconds(e), all), nl_time_text(e->seconds.samples, samples),
           nl_rate_text((double)e->samples / fmax(e->seconds.samples, 1e-9), "image", rate),
           nl_time_text(e->seconds.reference, of_reference),
           nl_time_text(e->seconds.metrics, metrics), r->context->device->name);
    if (r->processes > 1)
        printf(", %d processes", r->processes);
    printf("\n");
    return nl_finish_stdout(r->context);
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
