/* SPDX-License-Identifier: MIT */
/* The eval command: one evaluation of files or of a model's samples, and what it prints. */
#include "nl_eval.h"
#include "nl_launch.h"
#include "nl_sampler.h"

#include <string.h>

#define FIELD(member)   offsetof(nl_eval_options, member)
#define NETWORK(member) offsetof(nl_eval_options, network.member)
#define MACHINE(member) offsetof(nl_eval_options, network.machine.member)
#define SAMPLE(member)  offsetof(nl_eval_options, sample.member)

enum { SAMPLES = 50000 };

static const char *const distance_types[] = {"f32", "f16", NULL};

static const nl_option options_table[] = {
    {"ref", 'r', NL_OPTION_FILE, FIELD(ref), "REF", .where = NL_COMMON, .group = "Evaluation",
     .help = "reference: .npz or a folder of pictures",
     .detail = "An .npz has mu, sigma (and mu_s, sigma_s for sFID), or pictures as arr_0, or both: "
               "then the statistics are taken for FID and sFID and the pictures for precision, "
               "recall and KID, as in the OpenAI evaluator."},
    {.include = nl_network_rows, .offset = offsetof(nl_eval_options, network)},
    {"metrics", 0, NL_OPTION_TEXT, FIELD(metrics), "LIST", .where = NL_COMMON,
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
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .where = NL_COMMON,
     .help = "one JSON object on stdout"},
    {"watch", 0, NL_OPTION_FILE, FIELD(watch), "RUN", .where = NL_COMMON,
     .help = "each checkpoint of a training run, as it comes",
     .detail =
         "Samples from RUN/checkpoints/step-*.safetensors (EMA weights) are evaluated as with "
         "--model and the results appended to RUN/metrics.jsonl; what stands there already "
         "is not done again. Ends when RUN/done is there."},
    {"once", 0, NL_OPTION_FLAG, FIELD(once), .help = "with --watch: those that are there"},
    {.include = nl_sampling_options, .offset = FIELD(sample.task)},
    {"number", 'n', NL_OPTION_INT, SAMPLE(task.n), "N", 1, 1e9, .where = NL_COMMON | NL_IN_BOTH,
     .help = "pictures in all (50000)"},
    {.include = nl_device_options, .offset = offsetof(nl_eval_options, network.machine)},
    {"dtype", 0, NL_OPTION_CHOICE, SAMPLE(machine.dtype), "NAME", .choices = nl_dtypes,
     .help = "of the model's products: auto, f32, bf16, fp8"},
    {"batch", 'b', NL_OPTION_INT, SAMPLE(batch), "N", 1, 65536,
     .help = "samples of the model at once (as fits)"},
    {"gpus", 0, NL_OPTION_TEXT, FIELD(gpus), "N|all", .where = NL_COMMON,
     .help = "one process for each GPU",
     .detail =
         "Each makes and looks at a part of the pictures; the numbers are those of one GPU to "
         "rounding. mpirun and srun start the processes as well; on CPUs mpirun alone does."},
    {.include = nl_common_options, .offset = offsetof(nl_eval_options, network.machine)},
    {0},
};

static nl_evaluation_options options_of(const nl_eval_options *options)
{
    nl_evaluation_options o = nl_eval_options_of(&options->network);
    o.reference = options->ref;
    o.metrics = options->metrics;
    o.features = options->features;
    o.fid_infinity = options->fid_infinity;
    o.allow_small = options->allow_small;
    o.half_distances = options->distances && !strcmp(options->distances, "f16");
    o.is_split = options->is_split;
    o.kid_subsets = options->kid_subsets;
    o.kid_subset_size = options->kid_subset_size;
    o.bootstrap = options->bootstrap;
    return o;
}

/* An evaluation at work. */
typedef struct nl_eval_work {
    nl_command_line *line;
    nl_context *context;
    const nl_eval_options *options;
    nl_fid_network network;
    nl_group *group; /* of processes; the first one reports */
} nl_eval_work;

/* *report: takes it; NULL: it is printed as a table. Of several processes the first alone has one. */
static nl_status report_on(nl_eval_work *work, const nl_evaluation_options *evaluated,
                           const char *samples, const cJSON *sampling,
                           const nl_evaluation *evaluation, cJSON **report)
{
    const nl_report table = {.context = work->context,
                             .evaluation = evaluation,
                             .samples = samples,
                             .reference = evaluated->reference,
                             .sampling = sampling,
                             .processes = work->group->size};
    nl_console_clear(&work->line->console);
    if (work->group->rank > 0)
        return NL_OK;
    if (!report)
        return nl_report_table(&table);
    nl_status status =
        nl_evaluation_json(work->context, evaluated, samples, sampling, evaluation, report);
    if (status == NL_OK && work->group->size > 1)
        cJSON_AddNumberToObject(*report, "processes", work->group->size);
    return status;
}

/* ---- Samples of a model, in a context of its own */

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(user, level, message);
}

static nl_status load_model(nl_session *session, nl_evaluation_options *o, nl_classes *classes)
{
    const nl_sample_options *options = session->options;
    nl_sampling given = nl_sampling_of(&options->task);
    nl_status status;
    NL_TRY(nl_session_load(session));
    NL_TRY(nl_sampling_resolve(session->context, nl_model_get_config(session->model),
                               nl_model_guide_config(session->model), &given, &o->sampling));
    NL_TRY(nl_classes_parse(session->context, nl_model_get_config(session->model),
                            options->task.classes, classes));
    o->model = session->model;
    o->count = options->task.n ? options->task.n : SAMPLES;
    o->labels = classes->random ? NULL : classes->list;
    o->label_count = classes->count;
    o->seed = options->task.seed;
    o->first_index = options->task.first_index;
    o->batch = (int)options->batch;
    o->rounding = nl_rounding_of(&options->task);
cleanup:
    return status;
}

/* What failed in the model's context is told in the evaluation's. What else that context has to say may be old. */
static nl_status told_by_model(const nl_eval_work *work, const nl_session *session,
                               nl_status status)
{
    return status == NL_OK ? NL_OK
                           : nl_fail(work->context, status, "%s", nl_last_error(session->context));
}

/* path: of the model; NULL: the one that ships. */
static nl_status eval_model(nl_eval_work *work, const char *path, cJSON **report)
{
    const nl_machine_options *machine = &work->options->network.machine;
    nl_sample_options sample = work->options->sample;
    nl_session session = {.console = &work->line->console, .options = &sample};
    nl_evaluation_options o = options_of(work->options);
    nl_evaluation evaluation;
    nl_classes classes = {0};
    cJSON *facts = NULL;
    nl_status status;
    nl_context_options of_model = {.device = machine->device,
                                   .dtype = sample.machine.dtype,
                                   .threads = (int)machine->threads,
                                   .max_memory = machine->max_memory,
                                   .log = log_message,
                                   .user = session.console};
    sample.task.model = path;
    status = nl_context_create(&of_model, &session.context);
    work->line->reported = status != NL_OK; /* by the log */
    NL_TRY(status);
    NL_TRY(told_by_model(work, &session, load_model(&session, &o, &classes)));
    sample.task.n = o.count;
    NL_TRY(nl_evaluate_with(&work->network, &o, &evaluation));
    NL_TRY(
        told_by_model(work, &session, nl_pictures_facts(&session, &sample, &o.sampling, &facts)));
    NL_TRY(report_on(work, &o, path ? path : nl_shipped_model, facts, &evaluation, report));
cleanup:
    if (session.context)
        nl_classes_free(session.context, &classes);
    cJSON_Delete(facts);
    cJSON_Delete(session.facts);
    nl_model_destroy(session.model);
    nl_context_destroy(session.context);
    return status;
}

/* ---- Checkpoints of a run */

static nl_status eval_checkpoint(void *work, const char *path, cJSON **report)
{
    return eval_model(work, path, report);
}

static nl_status tell_checkpoint(void *user, const char *name, const char *line,
                                 const cJSON *report)
{
    const nl_eval_work *work = user;
    return work->options->json ? nl_print_line(work->context, line)
                               : nl_report_line(work->context, name, report);
}

/* The options of sampling that were given, as they will be when they are read again. */
static nl_status asked_of(nl_context *context, const nl_eval_options *options, cJSON **asked)
{
    const nl_eval_options defaults = {.sample = nl_sample_defaults};
    cJSON *object = cJSON_CreateObject();
    bool listed = nl_options_to_json(&nl_eval_command, options, &defaults, NL_IN_PICTURE, object);
    char *text = listed ? nl_json_print(object, false) : NULL;
    nl_status status = text ? nl_json_parse(context, "options", text, strlen(text), asked)
                            : nl_fail(context, NL_ERROR_MEMORY, "no memory for options");
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

static nl_status eval_run(nl_eval_work *work)
{
    const nl_eval_options *options = work->options;
    cJSON *asked = NULL;
    nl_status status;
    NL_TRY(asked_of(work->context, options, &asked));
    NL_TRY(nl_watch_run(&work->network, &(nl_watch_options){.run = options->watch,
                                                            .once = options->once,
                                                            .reference = options->ref,
                                                            .asked = asked,
                                                            .evaluate = eval_checkpoint,
                                                            .done = tell_checkpoint,
                                                            .user = work}));
cleanup:
    cJSON_Delete(asked);
    return status;
}

/* ---- Pictures in files */

static nl_status eval_files(nl_eval_work *work, const char *path, cJSON **report)
{
    nl_evaluation_options o = options_of(work->options);
    nl_evaluation evaluation;
    cJSON *facts = NULL;
    nl_status status;
    o.samples = path;
    NL_TRY(nl_evaluate_with(&work->network, &o, &evaluation));
    if (!nl_path_is_folder(path))
        NL_TRY(nl_read_archive_facts(work->context, path, &facts));
    NL_TRY(report_on(work, &o, path, facts, &evaluation, report));
cleanup:
    cJSON_Delete(facts);
    return status;
}

/* Pictures are what they are: what a model would be asked is refused by its name. */
static nl_status check_nothing_asked(nl_context *context, const nl_eval_options *options,
                                     const char *samples)
{
    const nl_task_options *task = &options->sample.task;
    const char *file = task->vae ? "vae" : task->guide ? "guide" : task->config ? "config" : NULL;
    char name[32] = "";
    cJSON *asked = NULL;
    NL_CHECK(asked_of(context, options, &asked));
    if (file || asked->child)
        snprintf(name, sizeof(name), "%s", file ? file : asked->child->string);
    cJSON_Delete(asked);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return *name ? nl_fail(context, NL_ERROR_USAGE, "%s: pictures: --%s is for a --model", samples,
                           name)
                 : NL_OK;
}

static nl_status check_together(nl_context *context, const nl_eval_options *options,
                                const char *samples)
{
    bool model = options->sample.task.model || options->sample.task.n;
    if (!options->ref)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "--ref is needed: the statistics (.npz) or pictures to compare with; "
            "'nalagen stats' makes the former, docs/downloads.md says where published ones are");
    if (options->watch && (samples || options->sample.task.model))
        return nl_fail(context, NL_ERROR_USAGE, "--watch takes the checkpoints of %s: leave %s out",
                       options->watch, samples ? samples : "--model");
    if (options->once && !options->watch)
        return nl_fail(context, NL_ERROR_USAGE, "--once goes with --watch RUN");
    if (samples && model)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s and a model: give one of them, pictures or --model", samples);
    if (samples)
        NL_CHECK(check_nothing_asked(context, options, samples));
    if (!samples && !model && !options->watch)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "what is to be evaluated? Name a folder or .npz of pictures, or a model with "
            "--model (and -n)");
    return NL_OK;
}

static nl_status evaluate(nl_eval_work *work, const char *samples)
{
    cJSON *report = NULL, **to = work->options->json ? &report : NULL;
    nl_status status;
    if (work->options->watch)
        return eval_run(work);
    NL_TRY(samples ? eval_files(work, samples, to)
                   : eval_model(work, work->options->sample.task.model, to));
    if (report)
        NL_TRY(nl_print_json(work->context, report));
cleanup:
    cJSON_Delete(report);
    return status;
}

/* This process's part. Those of several GPUs find each other in the folder that they were started in. */
static nl_status run(nl_command_line *line, nl_eval_options *options, const char *samples)
{
    nl_eval_work work = {.line = line, .options = options};
    nl_status status;
    char device[24];
    nl_take_place(&line->console, &options->network.machine, device);
    if (!samples) /* the model's context has the other half */
        options->network.machine.max_memory /= 2;
    NL_TRY(nl_eval_take_device(line, &options->network));
    work.context = line->context;
    NL_TRY(nl_group_create(work.context, ".", &work.group));
    nl_evaluation_options o = options_of(options);
    NL_TRY(nl_fid_network_open(work.context, &o, &work.network));
    work.network.options.group = work.group;
    NL_TRY(evaluate(&work, samples));
cleanup:
    status = nl_group_agree(work.group, status);
    if (work.group && work.group->failed) { /* said by the one that failed first */
        line->reported |= work.group->failed != 1 + work.group->rank;
        nl_command_report(line, status);
        /* Before any process goes: a launcher then ends the others, whatever they have to say. */
        (void)nl_group_barrier(work.group);
    }
    nl_fid_network_close(&work.network);
    nl_group_destroy(work.group);
    return status;
}

static nl_status eval(nl_command_line *line, void *values)
{
    nl_eval_options *options = values;
    const char *samples = line->operand_count ? line->operands[0] : NULL;
    nl_launch_options processes = {
        .gpus = options->gpus, .device = options->network.machine.device, .together = true};
    nl_status status = check_together(line->context, options, samples);
    if (status != NL_OK)
        return status;
    return nl_launch_wanted(&processes)
               ? nl_launch(&line->console, line->context, &processes, line->argc, line->argv)
               : run(line, options, samples);
}

static nl_status nl_eval_main(int argc, char **argv)
{
    nl_eval_options options = {.network = {.preset = "openai"}, .sample = nl_sample_defaults};
    return nl_command_main(&nl_eval_command, argc, argv, &options, eval);
}

const nl_command nl_eval_command = {
    .name = "eval",
    .summary = "FID, sFID, Inception Score, precision, recall, KID of pictures",
    .arguments = "[OPTION...] --ref REF [SAMPLES]",
    .most = 1,
    .operands = "a folder or .npz, or --model",
    .options = options_table,
    .notes = "SAMPLES: an .npz with arr_0 (uint8 [N, height, width, 3]), a folder of PNG,\n"
             "  JPEG and WebP files and of such folders, or one picture. With --model instead,\n"
             "  samples are made and evaluated without being written, by the defaults of\n"
             "  nalagen sample.\n"
             "What the weights or the reference cannot give is named; the rest is computed.\n",
    .examples = "  nalagen eval samples.npz --ref VIRTUAL_imagenet256_labeled.npz\n"
                "  nalagen eval out/ --ref photographs/ --preset clean-fid --metrics fid,kid\n"
                "  nalagen eval --model model.safetensors -n 50000 --cfg-scale 1.5 --ref ref.npz\n",
    .run = nl_eval_main,
};
