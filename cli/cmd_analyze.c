/* SPDX-License-Identifier: MIT */
/* The analyze command: its options, and the files that it writes from an analysis. */
#include "nl_analyze.h"

#include <stdlib.h>
#include <string.h>

#include "nl_npy.h"
#include "nl_sampler.h"

#define FIELD(member)   offsetof(nl_analyze_options, member)
#define SAMPLE(member)  offsetof(nl_analyze_options, sample.member)
#define MACHINE(member) offsetof(nl_analyze_options, sample.machine.member)

static const nl_option options_table[] = {
    {"at", 0, NL_OPTION_TEXT, FIELD(at), "LIST", .where = NL_COMMON, .group = "Analysis",
     .help = "where: 0 first step, 1 last (0.1,0.5,0.9)"},
    {"layers", 0, NL_OPTION_TEXT, FIELD(layers), "LIST", .where = NL_COMMON,
     .help = "such as 0,5,8-11 (all)"},
    {"queries", 0, NL_OPTION_TEXT, FIELD(queries), "LIST",
     .help = "tokens whose attention is drawn, row by row (four)",
     .detail = "Token i stands in row i / columns and column i % columns of the grid of patches. "
               "By default those in the middle of the four quarters of the picture."},
    {"out", 'o', NL_OPTION_FILE, SAMPLE(out), "FOLDER", .where = NL_COMMON,
     .help = "what is written goes there (analysis)"},
    {"json", 0, NL_OPTION_FLAG, SAMPLE(json), .help = "analysis.json on standard output, too"},
    {"force", 'f', NL_OPTION_FLAG, SAMPLE(force), .where = NL_COMMON,
     .help = "overwrite files (never without)"},
    {.include = nl_sampling_options, .offset = FIELD(sample.task)},
    {.include = nl_device_options, .offset = offsetof(nl_analyze_options, sample.machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = nl_dtypes,
     .help = "of matrix products: auto, f32, bf16, fp8"},
    {.include = nl_common_options, .offset = offsetof(nl_analyze_options, sample.machine)},
    {0},
};

enum { MOST_NUMBERS = 4096, MOST_TIMES = 64, MOST_PICTURES = 100000 };

typedef struct nl_analyzing {
    nl_session session; /* context, model and console */
    const nl_analyze_options *options;
    nl_analysis_options analysis;
    double at[MOST_TIMES];
    int *layers, *queries;
    nl_classes classes;
    int *labels; /* [count] */
    int64_t count;
} nl_analyzing;

/* ---- Lists */

/* "0.1,0.5" -> at */
static nl_status parse_times(nl_analyzing *a, const char *text)
{
    int count = 0;
    for (const char *from = text; from; count++) {
        char *end;
        double value = strtod(from, &end);
        if (count == MOST_TIMES || end == from || (*end && *end != ',') ||
            !(value >= 0 && value <= 1))
            return nl_fail(a->session.context, NL_ERROR_USAGE,
                           "--at %s: expected up to %d numbers from 0 to 1, such as 0.1,0.5,0.9",
                           text, MOST_TIMES);
        a->at[count] = value;
        from = *end ? end + 1 : NULL;
    }
    a->analysis.at = a->at;
    a->analysis.times = count;
    return NL_OK;
}

/* "0,3,8-11", each below `limit`. */
static nl_status parse_numbers(nl_context *context, const char *option, const char *text,
                               int64_t limit, int **numbers, int *count)
{
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(context, "a list of numbers", MOST_NUMBERS, numbers));
    for (const char *from = text; from;) {
        char *end;
        long first = strtol(from, &end, 10), last = first;
        bool good = *from >= '0' && *from <= '9';
        if (good && *end == '-' && end[1] >= '0' && end[1] <= '9')
            last = strtol(end + 1, &end, 10);
        good = good && (!*end || *end == ',') && first <= last && last < limit &&
               last - first < MOST_NUMBERS - *count;
        if (!good)
            NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                           "--%s %s: expected numbers from 0 to %lld, such as 0,2-4 (%d at most)",
                           option, text, (long long)limit - 1, MOST_NUMBERS));
        for (long i = first; i <= last; i++)
            (*numbers)[(*count)++] = (int)i;
        from = *end ? end + 1 : NULL;
    }
cleanup:
    return status;
}

static nl_status choose_layers(nl_analyzing *a, const nl_config *config)
{
    char all[32];
    snprintf(all, sizeof(all), "0-%d", config->depth - 1);
    return parse_numbers(a->session.context, "layers",
                         a->options->layers ? a->options->layers : all, config->depth, &a->layers,
                         &a->analysis.layer_count);
}

static nl_status choose_queries(nl_analyzing *a, const nl_config *config)
{
    int64_t rows = config->input_height / config->patch_size;
    int64_t columns = config->input_width / config->patch_size;
    long long upper = rows / 4 * columns, lower = rows * 3 / 4 * columns;
    long long left = columns / 4, right = columns * 3 / 4;
    char quarters[128];
    snprintf(quarters, sizeof(quarters), "%lld,%lld,%lld,%lld", upper + left, upper + right,
             lower + left, lower + right);
    return parse_numbers(a->session.context, "queries",
                         a->options->queries ? a->options->queries : quarters, rows * columns,
                         &a->queries, &a->analysis.query_count);
}

static nl_status choose_pictures(nl_analyzing *a)
{
    nl_status status = NL_OK;
    nl_context *context = a->session.context;
    const nl_sample_options *o = &a->options->sample;
    NL_TRY(nl_classes_parse(context, nl_model_get_config(a->session.model), o->task.classes,
                            &a->classes));
    a->count = o->task.n ? o->task.n : NL_MAX(a->classes.count, 1);
    if (a->count > MOST_PICTURES)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--number %lld: expected at most %d pictures, whose every query is kept",
                       (long long)a->count, MOST_PICTURES));
    NL_TRY(NL_NEW_ARRAY(context, "classes", a->count, &a->labels));
    for (int64_t i = 0; i < a->count; i++)
        a->labels[i] = nl_classes_at(&a->classes, o->task.seed, o->task.first_index + i);
cleanup:
    return status;
}

/* ---- Files */

static nl_status in_folder(const nl_analyzing *a, const char *name, char **path)
{
    return nl_path_join(a->session.context, a->options->sample.out, name, path);
}

static nl_status map_path(const nl_analyzing *a, int64_t index, int time, char **path)
{
    char name[64];
    snprintf(name, sizeof(name), "attention-%lld-at%g.png", (long long)index, a->at[time]);
    return in_folder(a, name, path);
}

static nl_status refuse(const nl_analyzing *a, const char *name)
{
    nl_status status = NL_OK;
    char *path = NULL;
    NL_TRY(in_folder(a, name, &path));
    NL_TRY(nl_output_check(a->session.context, path, a->options->sample.force, ""));
cleanup:
    nl_free(a->session.context, path);
    return status;
}

static const char *const figures[NL_RULES][2] = {{"entropy-softmax.svg", "entropy-softmax.png"},
                                                 {"entropy-nala.svg", "entropy-nala.png"}};

/* Makes the folder; refuses before the work what could not be written after it. */
static nl_status open_folder(const nl_analyzing *a)
{
    nl_status status = NL_OK;
    nl_context *context = a->session.context;
    const nl_sample_options *o = &a->options->sample;
    char *path = NULL;
    NL_TRY(nl_make_folder(context, o->out));
    NL_TRY(refuse(a, "analysis.json"));
    NL_TRY(refuse(a, "points.npy"));
    for (int i = 0; i < NL_RULES * 2; i++)
        NL_TRY(refuse(a, figures[i / 2][i % 2]));
    for (int64_t i = 0; i < a->count * a->analysis.times; i++) {
        NL_TRY(map_path(a, o->task.first_index + i / a->analysis.times,
                        (int)(i % a->analysis.times), &path));
        NL_TRY(nl_output_check(context, path, o->force, ""));
        nl_free(context, path);
        path = NULL;
    }
cleanup:
    nl_free(context, path);
    return status;
}

static nl_status say_written(nl_analyzing *a, const char *path)
{
    nl_console_clear(a->session.console);
    return a->options->sample.json ? NL_OK : nl_print_path(a->session.context, path);
}

static nl_status take_picture(void *user, const nl_analysis *analysis, const nl_picture *picture)
{
    nl_status status = NL_OK;
    nl_analyzing *a = user;
    char *path = NULL;
    for (int time = 0; picture->rgb && analysis->options.query_count && time < a->analysis.times;
         time++) {
        nl_free(a->session.context, path);
        NL_TRY(map_path(a, picture->index, time, &path));
        NL_TRY(nl_analysis_attention_maps(analysis, picture, time, path, a->options->sample.force));
        NL_TRY(say_written(a, path));
    }
cleanup:
    nl_free(a->session.context, path);
    return status;
}

/* [pictures * times, layers, heads, tokens, 3]: |q|, entropy by softmax, by NaLa. */
static nl_status write_points(nl_analyzing *a, const nl_analysis *analysis)
{
    nl_status status = NL_OK;
    nl_context *context = a->session.context;
    char *path = NULL;
    float *points = NULL;
    int64_t shape[] = {analysis->pictures * analysis->options.times, analysis->options.layer_count,
                       analysis->heads, analysis->tokens, 3};
    NL_TRY(NL_NEW_ARRAY(context, "points", 3 * analysis->count, &points));
    for (int64_t i = 0; i < analysis->count; i++) {
        points[3 * i] = (float)analysis->norm[i];
        for (int rule = 0; rule < NL_RULES; rule++)
            points[3 * i + 1 + rule] = (float)analysis->entropy[rule][i];
    }
    NL_TRY(in_folder(a, "points.npy", &path));
    NL_TRY(nl_npy_write(context, path, a->options->sample.force, NL_F32, 5, shape, points));
    NL_TRY(say_written(a, path));
cleanup:
    nl_free(context, points);
    nl_free(context, path);
    return status;
}

static nl_status write_json(nl_analyzing *a, const nl_analysis *analysis)
{
    nl_status status = NL_OK;
    nl_context *context = a->session.context;
    const nl_sample_options *o = &a->options->sample;
    nl_sampling given = nl_sampling_of(&o->task), sampling;
    cJSON *facts = NULL, *object = NULL;
    char *path = NULL, *text = NULL;
    NL_TRY(nl_sampling_resolve(context, nl_model_get_config(a->session.model),
                               nl_model_guide_config(a->session.model), &given, &sampling));
    NL_TRY(nl_pictures_facts(&a->session, o, &sampling, &facts));
    NL_TRY(nl_analysis_json(analysis, facts, &object));
    NL_TRY(in_folder(a, "analysis.json", &path));
    text = nl_json_print(object, true);
    if (!text)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for %s", path));
    NL_TRY(nl_write_file(context, path, o->force, text, strlen(text)));
    NL_TRY(say_written(a, path));
    if (o->json)
        NL_TRY(nl_print_json(context, object));
cleanup:
    nl_free(context, path);
    cJSON_free(text);
    cJSON_Delete(object);
    cJSON_Delete(facts);
    return status;
}

static nl_status write_figures(nl_analyzing *a, const nl_analysis *analysis)
{
    nl_status status = NL_OK;
    nl_context *context = a->session.context;
    char *path = NULL;
    for (int i = 0; i < NL_RULES * 2; i++) {
        nl_free(context, path);
        NL_TRY(in_folder(a, figures[i / 2][i % 2], &path));
        NL_TRY(
            nl_analysis_scatter(analysis, (nl_attention)(i / 2), path, a->options->sample.force));
        NL_TRY(say_written(a, path));
    }
cleanup:
    nl_free(context, path);
    return status;
}

static nl_status make_analysis(nl_analyzing *a)
{
    nl_status status = NL_OK;
    const nl_sample_options *o = &a->options->sample;
    nl_context *context = a->session.context;
    nl_analysis *analysis = NULL;
    NL_TRY(nl_session_load(&a->session));
    const nl_config *config = nl_model_get_config(a->session.model);
    NL_TRY(choose_layers(a, config));
    NL_TRY(choose_queries(a, config));
    a->analysis.layers = a->layers;
    a->analysis.queries = a->queries;
    NL_TRY(choose_pictures(a));
    NL_TRY(open_folder(a));
    nl_request request = {.labels = a->labels,
                          .count = a->count,
                          .seed = o->task.seed,
                          .first_index = o->task.first_index,
                          .rounding = nl_rounding_of(&o->task),
                          .sampling = nl_sampling_of(&o->task)};
    NL_TRY(
        nl_analyze(context, a->session.model, &request, &a->analysis, take_picture, a, &analysis));
    NL_TRY(write_points(a, analysis));
    NL_TRY(write_figures(a, analysis));
    NL_TRY(write_json(a, analysis));
    if (!o->json && !o->machine.quiet)
        NL_TRY(nl_analysis_table(analysis));
cleanup:
    nl_analysis_destroy(analysis);
    return status;
}

static nl_status analyze(nl_command_line *line, void *values)
{
    nl_analyze_options *options = values;
    nl_sample_options *sample = &options->sample;
    nl_analyzing a = {.options = options,
                      .session = {.console = &line->console, .options = sample}};
    nl_status status;
    if (line->operand_count && sample->task.model)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE, "%s and --model %s: give one of them",
                       line->operands[0], sample->task.model));
    if (line->operand_count)
        sample->task.model = line->operands[0];
    a.session.context = line->context;
    NL_TRY(parse_times(&a, options->at ? options->at : "0.1,0.5,0.9"));
    NL_TRY(nl_command_take_device(line, &sample->machine, nl_command_progress, line));
    a.session.context = line->context;
    NL_TRY(make_analysis(&a));
cleanup:
    nl_free(line->context, a.layers);
    nl_free(line->context, a.queries);
    nl_free(line->context, a.labels);
    nl_classes_free(line->context, &a.classes);
    cJSON_Delete(a.session.facts);
    nl_model_destroy(a.session.model);
    return status;
}

static nl_status analyze_main(int argc, char **argv)
{
    nl_analyze_options options = {.sample = nl_sample_defaults};
    options.sample.out = "analysis";
    return nl_command_main(&nl_analyze_command, argc, argv, &options, analyze);
}

const nl_command nl_analyze_command = {
    .name = "analyze",
    .summary = "Attention inside of a model: entropy against query norm, maps",
    .arguments = "[OPTION...] [MODEL]",
    .most = 1,
    .operands = "one model at most",
    .notes = "Pictures are sampled as by nalagen sample, with its defaults; at some steps the\n"
             "queries and keys of every layer are looked at: entropy of each query's attention\n"
             "distribution against the query's norm, by softmax and by NaLa, as numbers\n"
             "(analysis.json, points.npy) and plots (entropy-*.svg, .png), and maps of where\n"
             "chosen queries look (attention-*.png). docs/analysis.md has the definitions.\n",
    .examples = "  nalagen analyze model.safetensors -c church -o analysis\n"
                "  nalagen analyze -c 0-9 --at 0.5 --layers 0,6,11 --cfg-scale 1 -o middle\n",
    .options = options_table,
    .run = analyze_main,
};
