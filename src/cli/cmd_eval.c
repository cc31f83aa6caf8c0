#include "nl_eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_pipeline.h"

typedef struct nl_eval_options {
    nl_network_options network;
    bool json, allow_small;
    const char *ref, *features, *metrics;
    int64_t kid_subsets, kid_subset_size;
} nl_eval_options;

#define FIELD(member)   offsetof(nl_eval_options, member)
#define NETWORK(member) offsetof(nl_eval_options, network.member)

static const char *const feature_names[] = {"pool_3", "mixed_7", "pool_192", "pool_64", NULL};

static const nl_option options_table[] = {
    {"ref", 'r', NL_OPTION_FILE, FIELD(ref), "REF", .group = "Evaluation",
     .help = "reference: .npz or a folder of pictures",
     .detail = "An .npz has mu, sigma (and mu_s, sigma_s for sFID), or pictures as arr_0, or both: "
               "then the statistics are taken for FID and sFID and the pictures for precision, "
               "recall and KID, as in the OpenAI evaluator."},
    NL_NETWORK_OPTIONS(NETWORK),
    {"metrics", 'm', NL_OPTION_TEXT, FIELD(metrics), "LIST",
     .help = "of fid,sfid,is,precision,recall,kid (all)"},
    {"features", 0, NL_OPTION_CHOICE, FIELD(features), "NAME", .choices = feature_names,
     .help = "pool_3, mixed_7, pool_192, pool_64 (pool_3)",
     .detail = "Of FID, KID, precision and recall: 2048, 768, 192 or 64 numbers. Only pool_3 gives "
               "the numbers of papers. Without a complete Inception the default is mixed_7."},
    {"kid-subsets", 0, NL_OPTION_INT, FIELD(kid_subsets), "N", 1, 100000,
     .help = "subsets of KID (100)"},
    {"kid-subset-size", 0, NL_OPTION_INT, FIELD(kid_subset_size), "N", 2, 1000000,
     .help = "pictures of a subset of KID (1000)"},
    {"allow-small", 0, NL_OPTION_FLAG, FIELD(allow_small),
     .help = "fewer pictures than a covariance needs"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .help = "one JSON object on stdout"},
    NL_MACHINE_OPTIONS(NETWORK),
    {0},
};

static nl_status parse_metrics(nl_context *context, const char *list, bool wanted[NL_METRICS])
{
    for (int m = 0; !list && m < NL_METRICS; m++)
        wanted[m] = true;
    while (list && *list) {
        char word[32];
        int length = (int)strcspn(list, ","), found = -1;
        snprintf(word, sizeof(word), "%.*s", NL_MIN(length, 31), list);
        for (int m = 0; m < NL_METRICS; m++)
            if (!strcmp(word, nl_metric_names[m]))
                found = m;
        if (found < 0) {
            const char *near = nl_nearest(word, nl_metric_names);
            return nl_fail(context, NL_ERROR_USAGE,
                           "--metrics: expected fid, sfid, is, precision, recall, kid, found "
                           "'%s'%s%s%s",
                           word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        wanted[found] = true;
        list += length + (list[length] == ',');
    }
    return NL_OK;
}

static nl_status set_options(nl_eval_session *session, const nl_eval_options *options)
{
    nl_evaluation_options *o = &session->options;
    for (int f = 0; options->features && f < NL_FEATURES; f++)
        if (!strcmp(options->features, nl_feature_name(f)))
            o->feature = f;
    if (!nl_inception_has(session->net, o->feature))
        return nl_fail(session->context, NL_ERROR_INPUT,
                       "--features %s: the weights are not complete. Missing:%s", options->features,
                       nl_inception_missing(session->net));
    o->allow_small = options->allow_small;
    o->kid_subsets = options->kid_subsets;
    o->kid_subset_size = options->kid_subset_size;
    return parse_metrics(session->context, options->metrics, o->wanted);
}

/* ---- Report */

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

typedef struct report {
    const nl_eval_session *session;
    const nl_eval_options *options;
    const nl_evaluation *evaluation;
    const char *samples;
    char reference_sha256[65]; /* "" of a folder */
} report;

static cJSON *metrics_json(const report *r)
{
    cJSON *metrics = cJSON_CreateObject();
    char key[32], deviation[48];
    for (int m = 0; m < NL_METRICS; m++) {
        const nl_metric_value *value = &r->evaluation->metrics[m];
        metric_key(r->session, m, key);
        if (value->known)
            cJSON_AddNumberToObject(metrics, key, value->value);
        if (value->known && (m == NL_METRIC_IS || m == NL_METRIC_KID)) {
            snprintf(deviation, sizeof(deviation), "%s_std", key);
            cJSON_AddNumberToObject(metrics, deviation, value->deviation);
        }
    }
    return metrics;
}

static nl_status print_json(const report *r)
{
    const nl_evaluation *e = r->evaluation;
    const nl_eval_session *s = r->session;
    char key[32];
    cJSON *object = cJSON_CreateObject(), *missing = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "samples", r->samples);
    cJSON_AddNumberToObject(object, "n", (double)e->samples);
    cJSON_AddStringToObject(object, "reference", r->options->ref);
    if (r->reference_sha256[0])
        cJSON_AddStringToObject(object, "reference_sha256", r->reference_sha256);
    cJSON_AddNumberToObject(object, "reference_pictures", (double)e->reference);
    cJSON_AddStringToObject(object, "weights", s->checkpoint->path);
    cJSON_AddStringToObject(object, "weights_sha256", s->sha256);
    cJSON_AddStringToObject(object, "preset", s->options.preprocessing->name);
    cJSON_AddStringToObject(object, "preprocessing", s->options.preprocessing->text);
    cJSON_AddStringToObject(object, "features", nl_feature_name(s->options.feature));
    cJSON_AddItemToObject(object, "metrics", metrics_json(r));
    for (int m = 0; m < NL_METRICS; m++)
        if (e->metrics[m].missing[0])
            cJSON_AddStringToObject(missing, metric_key(s, m, key), e->metrics[m].missing);
    cJSON_AddItemToObject(object, "missing", missing);
    cJSON_AddBoolToObject(object, "small", e->small);
    cJSON_AddNumberToObject(object, "repeated", (double)e->repeated);
    cJSON_AddNumberToObject(object, "copied", (double)e->copied);
    cJSON_AddStringToObject(object, "device", s->context->device->name);
    cJSON_AddNumberToObject(object, "seconds", e->seconds[0] + e->seconds[1] + e->seconds[2]);
    cJSON_AddNumberToObject(object, "pictures_per_second",
                            (double)e->samples / fmax(e->seconds[0], 1e-9));
    char *text = cJSON_PrintUnformatted(object);
    nl_status status = text ? nl_print_line(s->context, text)
                            : nl_fail(s->context, NL_ERROR_MEMORY, "no memory for JSON");
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

static void print_metric(const report *r, nl_metric metric)
{
    static const char *const names[] = {"FID",       "sFID",   "Inception Score",
                                        "Precision", "Recall", "KID"};
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
        printf("%-18s  %.6f +- %.6f\n", name, value->value, value->deviation);
    else if (metric == NL_METRIC_IS)
        printf("%-18s  %.4f +- %.4f\n", name, value->value, value->deviation);
    else
        printf("%-18s  %.5f\n", name, value->value);
}

static nl_status print_table(const report *r)
{
    const nl_evaluation *e = r->evaluation;
    const nl_eval_session *s = r->session;
    static const nl_metric order[] = {NL_METRIC_IS,        NL_METRIC_FID,    NL_METRIC_SFID,
                                      NL_METRIC_PRECISION, NL_METRIC_RECALL, NL_METRIC_KID};
    for (int i = 0; i < NL_COUNT(order); i++)
        print_metric(r, order[i]);
    printf("\nsamples    %s, %lld pictures%s\n", r->samples, (long long)e->samples,
           e->small ? " (TOO FEW: compares with nothing)" : "");
    printf("reference  %s", r->options->ref);
    if (e->reference)
        printf(", %lld pictures", (long long)e->reference);
    if (r->reference_sha256[0])
        printf(", sha256 %.16s", r->reference_sha256);
    printf("\nweights    %s, sha256 %.16s\n", s->checkpoint->path, s->sha256);
    printf("preset     %s: %s\n", s->options.preprocessing->name, s->options.preprocessing->text);
    printf("time       %.1f s (%.1f pictures/s) on %s\n",
           e->seconds[0] + e->seconds[1] + e->seconds[2],
           (double)e->samples / fmax(e->seconds[0], 1e-9), s->context->device->name);
    return nl_finish_stdout(s->context);
}

static nl_status nl_eval_main(int argc, char **argv)
{
    nl_eval_options options = {
        .network.preset = "openai", .kid_subsets = 100, .kid_subset_size = 1000};
    nl_eval_session session = {.context = NULL};
    nl_evaluation evaluation;
    int operand;
    bool done;
    nl_status status = nl_eval_parse(&nl_eval_command, argc, argv, &options, 1, &operand, &done);
    if (status != NL_OK || done)
        return status;
    NL_TRY(nl_eval_open(&options.network, &session));
    if (!options.ref)
        NL_TRY(nl_fail(session.context, NL_ERROR_USAGE,
                       "--ref is needed: the statistics (.npz) or pictures to compare with; "
                       "'nalagen stats' makes the former"));
    NL_TRY(set_options(&session, &options));
    NL_TRY(nl_evaluate(session.net, &session.options, argv[operand], options.ref, &evaluation));
    nl_console_clear(&session.console);
    report r = {.session = &session,
                .options = &options,
                .evaluation = &evaluation,
                .samples = argv[operand]};
    if (!nl_path_is_folder(options.ref))
        NL_TRY(nl_file_sha256(session.context, options.ref, r.reference_sha256));
    NL_TRY(options.json ? print_json(&r) : print_table(&r));
cleanup:
    if (session.context)
        nl_console_error(&session.console, session.context, status);
    nl_eval_close(&session);
    return status;
}

const nl_command nl_eval_command = {
    .name = "eval",
    .summary = "FID, sFID, Inception Score, precision, recall, KID of pictures",
    .arguments = "[OPTION...] --ref REF SAMPLES",
    .options = options_table,
    .notes = "SAMPLES: an .npz with arr_0 (uint8 [N, height, width, 3]), or a folder of PNG\n"
             "  and JPEG files and of folders of them.\n"
             "What the weights or the reference cannot give is named; the rest is computed.\n",
    .examples = "  nalagen eval samples.npz --ref VIRTUAL_imagenet256_labeled.npz\n"
                "  nalagen eval out/ --ref photographs/ --preset clean-fid --metrics fid,kid\n",
    .run = nl_eval_main,
};
