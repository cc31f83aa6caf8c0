/* SPDX-License-Identifier: MIT */
/* The nearest command: a search of training data for copies, as a table, JSON and a sheet of pictures. */
#include "nl_canvas.h"
#include "nl_eval.h"
#include "nl_image.h"
#include "nl_nearest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct nl_nearest_options {
    nl_network_options network;
    const char *ref, *held_out, *features, *out;
    int64_t rows, edge; /* 0: the defaults below */
    bool force, json;
} nl_nearest_options;

enum { MOST_ROWS = 200 };

#define FIELD(member)   offsetof(nl_nearest_options, member)
#define NETWORK(member) offsetof(nl_nearest_options, network.member)
#define MACHINE(member) offsetof(nl_nearest_options, network.machine.member)

static const nl_option options_table[] = {
    {"ref", 'r', NL_OPTION_FILE, FIELD(ref), "PICTURES", .where = NL_COMMON, .group = "Comparison",
     .help = "what the model was trained on: a folder or .npz"},
    {"held-out", 0, NL_OPTION_FILE, FIELD(held_out), "PICTURES", .where = NL_COMMON,
     .help = "pictures of the same kind that it has never seen",
     .detail = "Their distances to the reference say how near pictures are that cannot be copies."},
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .where = NL_COMMON,
     .help = "PNG: the nearest samples and their neighbours",
     .detail = "A row is a sample, its five nearest pictures by features and its five nearest by "
               "colours. The upper half of the rows are the samples that are nearest to any "
               "picture by features, the lower half those that are by colours, nearest first."},
    {"rows", 0, NL_OPTION_INT, FIELD(rows), "N", 1, MOST_ROWS, .where = NL_COMMON,
     .help = "of the PNG (12)"},
    {"edge", 0, NL_OPTION_INT, FIELD(edge), "N", 8, 1024,
     .help = "pixels of a picture in it (128)"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .where = NL_COMMON, .help = "overwrite FILE"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .where = NL_COMMON,
     .help = "one JSON object on stdout"},
    {.include = nl_network_rows, .offset = offsetof(nl_nearest_options, network)},
    {"features", 0, NL_OPTION_CHOICE, FIELD(features), "NAME", .choices = nl_feature_choices,
     .help = "pool_3, mixed_7, pool_192, pool_64 (pool_3)",
     .detail = "Without a complete Inception the default is mixed_7."},
    {.include = nl_device_options, .offset = offsetof(nl_nearest_options, network.machine)},
    {.include = nl_common_options, .offset = offsetof(nl_nearest_options, network.machine)},
    {0},
};

static const char *space_name(const nl_fid_network *network, nl_space space)
{
    return space == NL_SPACE_PIXELS ? "pixels" : nl_feature_name(network->options.feature);
}

static void add_number(cJSON *object, const char *name, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, name, value);
}

static cJSON *facts_json(const nl_nearest_facts *facts)
{
    cJSON *object = cJSON_CreateObject();
    add_number(object, "least", facts->least);
    add_number(object, "median", facts->median);
    add_number(object, "held_out_least", facts->held_out_least);
    add_number(object, "held_out_median", facts->held_out_median);
    add_number(object, "nearer", facts->nearer);
    add_number(object, "very_near", facts->very_near);
    return object;
}

/* The samples that are nearest in a space, each with its neighbours. */
static nl_status shown_json(const nl_nearness *n, nl_space space, int64_t count, cJSON **out)
{
    int64_t order[MOST_ROWS];
    cJSON *array = *out = cJSON_CreateArray();
    nl_status status = nl_nearest_order(n, space, count, order);
    for (int64_t i = 0; status == NL_OK && i < count; i++) {
        const int64_t *index = n->of[space].index + order[i] * NL_NEAREST_K;
        int pictures[NL_NEAREST_K];
        cJSON *item = cJSON_CreateObject();
        for (int k = 0; k < NL_NEAREST_K; k++)
            pictures[k] = (int)index[k];
        cJSON_AddNumberToObject(item, "sample", (double)order[i]);
        cJSON_AddItemToObject(item, "pictures", cJSON_CreateIntArray(pictures, NL_NEAREST_K));
        cJSON_AddItemToObject(
            item, "distances",
            cJSON_CreateDoubleArray(n->of[space].distance + order[i] * NL_NEAREST_K, NL_NEAREST_K));
        cJSON_AddItemToArray(array, item);
    }
    return status;
}

static int64_t rows_of(const nl_nearest_options *options)
{
    return options->rows ? options->rows : 12;
}

static nl_status report_json(const nl_fid_network *network, const nl_nearest_options *options,
                             const char *samples, const nl_nearness *n)
{
    cJSON *object = cJSON_CreateObject();
    int64_t rows = NL_MIN(rows_of(options), n->samples);
    nl_status status = NL_OK;
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "samples", samples);
    cJSON_AddNumberToObject(object, "n", (double)n->samples);
    cJSON_AddStringToObject(object, "reference", options->ref);
    cJSON_AddNumberToObject(object, "reference_pictures", (double)n->reference);
    if (options->held_out) {
        cJSON_AddStringToObject(object, "held_out", options->held_out);
        cJSON_AddNumberToObject(object, "held_out_pictures", (double)n->held_out);
    }
    cJSON_AddStringToObject(object, "weights_sha256", network->sha256);
    cJSON_AddStringToObject(object, "preset", network->options.preprocessing->name);
    for (nl_space space = 0; space < NL_SPACES; space++) {
        cJSON *facts = facts_json(&n->facts[space]), *nearest;
        cJSON_AddItemToObject(object, space_name(network, space), facts);
        status = shown_json(n, space, space ? rows / 2 : (rows + 1) / 2, &nearest);
        cJSON_AddItemToObject(facts, "nearest", nearest);
        if (status != NL_OK)
            goto cleanup;
    }
    NL_TRY(nl_print_json(network->context, object));
cleanup:
    cJSON_Delete(object);
    return status;
}

static nl_status report_table(const nl_fid_network *network, const nl_nearness *n)
{
    printf("distance to the nearest of %lld %s: %lld %s, %lld held out\n", (long long)n->reference,
           nl_plural(n->reference, "picture", "pictures"), (long long)n->samples,
           nl_plural(n->samples, "sample", "samples"), (long long)n->held_out);
    for (nl_space space = 0; space < NL_SPACES; space++) {
        const nl_nearest_facts *f = &n->facts[space];
        printf("%-8s  samples: least %.4g, median %.4g", space_name(network, space), f->least,
               f->median);
        if (n->held_out)
            printf("; held out: least %.4g, median %.4g\n"
                   "%-8s  a sample is nearer than a held-out picture: %.3f (0.5 if both are "
                   "equally near)\n"
                   "%-8s  nearer than 99 %% of the held-out pictures: %.4f of the samples (0.01 if "
                   "both are)",
                   f->held_out_least, f->held_out_median, "", f->nearer, "", f->very_near);
        printf("\n");
    }
    return nl_finish_stdout(network->context);
}

static nl_status check(nl_context *context, const nl_nearest_options *options)
{
    if (!options->ref)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--ref is needed: the pictures that the model was trained on");
    if (options->out && !nl_drawing_path(options->out))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out %s: expected a name ending in .svg, .png or .pdf", options->out);
    if ((options->edge && !options->out) || (options->rows && !options->out && !options->json))
        return nl_fail(context, NL_ERROR_USAGE, "--%s is of the file that --out names",
                       options->edge ? "edge" : "rows");
    return options->out ? nl_output_check(context, options->out, options->force, "") : NL_OK;
}

static nl_status compare(nl_command_line *line, const nl_fid_network *network,
                         const nl_nearest_options *options, const char *samples)
{
    nl_context *context = network->context;
    nl_nearness nearness = {.context = context};
    nl_status status;
    NL_TRY(nl_nearest_find(network->net, &network->options, samples, options->ref,
                           options->held_out, &nearness));
    nl_console_clear(&line->console);
    if (options->out) {
        int rows = (int)NL_MIN(rows_of(options), nearness.samples);
        int edge = options->edge ? (int)options->edge : 128;
        NL_TRY(nl_nearest_sheet(&nearness, samples, options->ref, rows, edge, options->out,
                                options->force));
    }
    NL_TRY(options->json ? report_json(network, options, samples, &nearness)
                         : report_table(network, &nearness));
cleanup:
    nl_nearest_free(&nearness);
    return status;
}

static nl_status nearest(nl_command_line *line, void *values)
{
    const nl_nearest_options *options = values;
    nl_evaluation_options o = nl_eval_options_of(&options->network);
    nl_fid_network network = {.context = NULL};
    nl_status status;
    NL_TRY(nl_eval_take_device(line, &options->network));
    NL_TRY(check(line->context, options));
    o.features = options->features;
    NL_TRY(nl_fid_network_open(line->context, &o, &network));
    NL_TRY(compare(line, &network, options, line->operands[0]));
cleanup:
    nl_fid_network_close(&network);
    return status;
}

static nl_status nl_nearest_main(int argc, char **argv)
{
    nl_nearest_options options = {.network = {.preset = "openai"}};
    return nl_command_main(&nl_nearest_command, argc, argv, &options, nearest);
}

const nl_command nl_nearest_command = {
    .name = "nearest",
    .summary = "Training pictures nearest to samples: does a model copy?",
    .arguments = "[OPTION...] --ref PICTURES SAMPLES",
    .least = 1,
    .most = 1,
    .operands = "a folder or .npz",
    .options = options_table,
    .notes = "SAMPLES, PICTURES: an .npz with arr_0 (uint8 [N, height, width, 3]; 'nalagen\n"
             "  stats' makes one), a folder of PNG, JPEG and WebP files and of such\n"
             "  folders, or one picture.\n"
             "Distances are those of Inception's features and of pictures scaled to 16 x 16\n"
             "  (root mean square, levels of 255).\n",
    .examples = "  nalagen nearest samples.npz --ref train.npz --held-out val.npz -o nearest.png\n",
    .run = nl_nearest_main,
};
