/* SPDX-License-Identifier: MIT */
/* The eval command: one evaluation of files or of a model's samples, and what it prints. */
#include "nl_eval.h"
#include "nl_sampler.h"

#include <stdio.h>
#include <string.h>

#define FIELD(member)   offsetof(nl_eval_options, member)
#define NETWORK(member) offsetof(nl_eval_options, network.member)
#define MACHINE(member) offsetof(nl_eval_options, network.machine.member)
#define SAMPLE(member)  offsetof(nl_eval_options, sample.member)

static const char *const distance_types[] = {"f32", "f16", NULL};

static const nl_option options_table[] = {
    {"ref", 'r', NL_OPTION_FILE, FIELD(ref), "REF", .group = "Evaluation",
     .help = "reference: .npz or a folder of pictures",
     .detail = "An .npz has mu, sigma (and mu_s, sigma_s for sFID), or pictures as arr_0, or both: "
               "then the statistics are taken for FID and sFID and the pictures for precision, "
               "recall and KID, as in the OpenAI evaluator."},
    {.include = nl_network_rows, .offset = offsetof(nl_eval_options, network)},
    {"metrics", 0, NL_OPTION_TEXT, FIELD(metrics), "LIST",
     .help = "of fid,sfid,is,precision,recall,kid (all)"},
    {"features", 0, NL_OPTION_CHOICE, FIELD(features), "NAME", .choices = nl_feature_choices,
     .help = "pool_3, mixed_7, pool_192, pool_64 (pool_3)",
     .detail = "Of FID, KID, precision and recall: 2048, 768, 192 or 64 numbers. Only pool_3 gives "
               "the numbers of papers. Without a complete Inception the default is mixed_7."},
    {"kid-subsets", 0, NL_OPTION_INT, FIELD(kid_subsets), "N", 1, 100000,
     .help = "subsets of KID (100)"},
    {"kid-subset-size", 0, NL_OPTION_INT, FIELD(kid_subset_size), "N", 2, 1000000,
     .help = "pictures of a subset of KID (1000)"},
    {"is-split", 0, NL_OPTION_INT, FIELD(is_split), "N", 100, 1e9,
     .help = "pictures of a split of the IS (5000)"},
    {"distances", 0, NL_OPTION_CHOICE, FIELD(distances), "TYPE", .choices = distance_types,
     .help = "f32, f16: of precision and recall (f32)",
     .detail = "f16 rounds as the OpenAI evaluator does, which moves both by up to 0.003."},
    {"bootstrap", 0, NL_OPTION_INT, FIELD(bootstrap), "K", 2, 100000,
     .help = "95 % interval of FID from K resamplings",
     .detail =
         "Of the features of the samples, with replacement; the reference is taken as known."},
    {"fid-infinity", 0, NL_OPTION_FLAG, FIELD(fid_infinity),
     .help = "FID of infinitely many samples, extrapolated",
     .detail = "Chong and Forsyth 2020: FID at 15 numbers of samples, linear in their inverse."},
    {"allow-small", 0, NL_OPTION_FLAG, FIELD(allow_small),
     .help = "fewer pictures than a covariance needs"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .help = "one JSON object on stdout"},
    {"watch", 0, NL_OPTION_FILE, FIELD(watch), "RUN",
     .help = "each checkpoint of a training run, as it comes",
     .detail =
         "Samples from RUN/checkpoints/step-*.safetensors (EMA weights) are evaluated as with "
         "--model and the results appended to RUN/metrics.jsonl; what stands there already "
         "is not done again. Ends when RUN/done is there."},
    {"once", 0, NL_OPTION_FLAG, FIELD(once), .help = "with --watch: those that are there"},
    {.include = nl_sampling_options, .offset = FIELD(sample)},
    {"number", 'n', NL_OPTION_INT, SAMPLE(n), "N", 1, 1e9, .where = NL_IN_BOTH,
     .help = "pictures in all (50000)"},
    {.include = nl_device_options, .offset = offsetof(nl_eval_options, network.machine)},
    {"dtype", 0, NL_OPTION_CHOICE, SAMPLE(machine.dtype), "NAME", .choices = nl_dtypes,
     .help = "of the model's products: auto, f32 or bf16"},
    {"batch", 'b', NL_OPTION_INT, SAMPLE(batch), "N", 1, 65536,
     .help = "samples of the model at once (as fits)"},
    {.include = nl_common_options, .offset = offsetof(nl_eval_options, network.machine)},
    {0},
};

static nl_status parse_metrics(nl_context *context, const char *list, bool wanted[NL_METRICS])
{
    for (int m = 0; !list && m < NL_METRICS; m++)
        wanted[m] = m != NL_METRIC_FID_INFINITY;
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
    nl_status status = nl_eval_choose_feature(session, options->features);
    if (status != NL_OK)
        return status;
    o->allow_small = options->allow_small;
    o->kid_subsets = options->kid_subsets;
    o->kid_subset_size = options->kid_subset_size;
    o->bootstrap = options->bootstrap;
    o->half_distances = options->distances && !strcmp(options->distances, "f16");
    if (options->is_split) {
        o->is_split = options->is_split;
        o->is_shuffled = false;
    }
    o->wanted[NL_METRIC_FID_INFINITY] |= options->fid_infinity;
    return NL_OK;
}

/* ---- One evaluation */

static nl_status report_on(nl_eval_session *session, const nl_eval_options *options,
                           const char *samples, const cJSON *sampling,
                           const nl_evaluation *evaluation, cJSON **object)
{
    nl_report r = {.session = session,
                   .evaluation = evaluation,
                   .samples = samples,
                   .reference = options->ref,
                   .sampling = sampling};
    nl_status status = NL_OK;
    nl_console_clear(session->console);
    if (!nl_path_is_folder(options->ref))
        NL_TRY(nl_file_sha256(session->context, options->ref, r.reference_sha256));
    NL_TRY(object ? nl_report_json(&r, object) : nl_report_table(&r));
cleanup:
    return status;
}

nl_status nl_eval_model(nl_eval_session *session, const nl_eval_options *options, cJSON **object)
{
    nl_generated *generated = NULL;
    nl_evaluation evaluation;
    cJSON *facts = NULL;
    nl_status status;
    NL_TRY(nl_generated_open(session, &options->network, &options->sample, &generated));
    nl_picture_source source = nl_generated_source(generated);
    NL_TRY(nl_evaluate(session->net, &session->options, &source, options->ref, &evaluation));
    NL_TRY(nl_generated_facts(generated, &facts));
    NL_TRY(report_on(session, options, source.name, facts, &evaluation, object));
cleanup:
    nl_generated_close(generated);
    cJSON_Delete(facts);
    return status;
}

static nl_status eval_files(nl_eval_session *session, const nl_eval_options *options,
                            const char *path, cJSON **object)
{
    nl_context *context = session->context;
    nl_pictures *pictures = NULL;
    nl_evaluation evaluation;
    cJSON *facts = NULL;
    nl_status status;
    NL_TRY(nl_pictures_open(context, path, context->device->threads, &pictures));
    nl_picture_source source = nl_pictures_source(pictures);
    NL_TRY(nl_evaluate(session->net, &session->options, &source, options->ref, &evaluation));
    if (!nl_path_is_folder(path))
        NL_TRY(nl_read_archive_facts(context, path, &facts));
    NL_TRY(report_on(session, options, path, facts, &evaluation, object));
cleanup:
    nl_pictures_close(pictures);
    cJSON_Delete(facts);
    return status;
}

static nl_status check_together(nl_context *context, const nl_eval_options *options,
                                const char *samples)
{
    bool model = options->sample.model || options->sample.n;
    if (!options->ref)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--ref is needed: the statistics (.npz) or pictures to compare with; "
                       "'nalagen stats' makes the former");
    if (options->watch && (samples || options->sample.model))
        return nl_fail(context, NL_ERROR_USAGE, "--watch takes the checkpoints of %s: leave %s out",
                       options->watch, samples ? samples : "--model");
    if (options->once && !options->watch)
        return nl_fail(context, NL_ERROR_USAGE, "--once goes with --watch RUN");
    if (samples && model)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s and a model: give one of them, pictures or --model", samples);
    if (!samples && !model && !options->watch)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "what is to be evaluated? Name a folder or .npz of pictures, or a model with "
            "--model (and -n)");
    return NL_OK;
}

static nl_status evaluate(nl_eval_session *session, const nl_eval_options *options,
                          const char *samples)
{
    cJSON *object = NULL, **to = options->json ? &object : NULL;
    nl_status status;
    if (options->watch)
        return nl_eval_watch(session, options);
    NL_TRY(samples ? eval_files(session, options, samples, to)
                   : nl_eval_model(session, options, to));
    if (object)
        NL_TRY(nl_print_json(session->context, object));
cleanup:
    cJSON_Delete(object);
    return status;
}

static nl_status eval(nl_command_line *line, void *values)
{
    nl_eval_options *options = values;
    nl_eval_session session = {.context = NULL};
    const char *samples = line->operand_count ? line->operands[0] : NULL;
    nl_status status;
    if (!samples) /* the model's context has the other half */
        options->network.machine.max_memory /= 2;
    NL_TRY(nl_eval_open(line, &options->network, &session));
    NL_TRY(check_together(session.context, options, samples));
    NL_TRY(parse_metrics(session.context, options->metrics, session.options.wanted));
    NL_TRY(nl_eval_load(&options->network, &session));
    NL_TRY(set_options(&session, options));
    NL_TRY(evaluate(&session, options, samples));
cleanup:
    nl_eval_close(&session);
    return status;
}

static nl_status nl_eval_main(int argc, char **argv)
{
    nl_eval_options options = {.network = {.preset = "openai"},
                               .sample = nl_sample_defaults,
                               .kid_subsets = 100,
                               .kid_subset_size = 1000};
    return nl_command_main(&nl_eval_command, argc, argv, &options, eval);
}

const nl_command nl_eval_command = {
    .name = "eval",
    .summary = "FID, sFID, Inception Score, precision, recall, KID of pictures",
    .arguments = "[OPTION...] --ref REF [SAMPLES]",
    .most = 1,
    .operands = "a folder or .npz, or --model",
    .options = options_table,
    .notes = "SAMPLES: an .npz with arr_0 (uint8 [N, height, width, 3]), or a folder of PNG\n"
             "  and JPEG files and of folders of them. With --model instead, samples are made\n"
             "  and evaluated without being written, by the defaults of nalagen sample.\n"
             "What the weights or the reference cannot give is named; the rest is computed.\n",
    .examples = "  nalagen eval samples.npz --ref VIRTUAL_imagenet256_labeled.npz\n"
                "  nalagen eval out/ --ref photographs/ --preset clean-fid --metrics fid,kid\n"
                "  nalagen eval --model model.safetensors -n 50000 --cfg-scale 1.5 --ref ref.npz\n",
    .run = nl_eval_main,
};
