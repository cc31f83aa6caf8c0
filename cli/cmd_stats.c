/* SPDX-License-Identifier: MIT */
/* The stats command: reference statistics of pictures, whole, by class, or merged from others. */
#include "nl_eval.h"

#include <limits.h>

typedef struct nl_stats_options {
    nl_network_options network;
    bool force, allow_small, per_class, merge;
    const char *out;
    int64_t images;
} nl_stats_options;

#define FIELD(member)   offsetof(nl_stats_options, member)
#define NETWORK(member) offsetof(nl_stats_options, network.member)
#define MACHINE(member) offsetof(nl_stats_options, network.machine.member)

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .where = NL_COMMON, .group = "Reference",
     .help = "the .npz to write"},
    {.include = nl_network_rows, .offset = offsetof(nl_stats_options, network)},
    {"images", 0, NL_OPTION_INT, FIELD(images), "N", 0, 1e9,
     .help = "pictures to store, evenly chosen (10000)",
     .detail = "As arr_0: for precision, recall and KID, and because the OpenAI evaluator does not "
               "read a file without."},
    {"per-class", 0, NL_OPTION_FLAG, FIELD(per_class), .where = NL_COMMON,
     .help = "one FOLDER/CLASS.npz for each folder in PICTURES",
     .detail = "-o names the folder. They can be put together with --merge."},
    {"merge", 0, NL_OPTION_FLAG, FIELD(merge), .where = NL_COMMON,
     .help = "PICTURES are references: put together",
     .detail =
         "As if it had been made of all the pictures at once, but that the stored pictures are "
         "chosen from the stored ones. The network is not needed."},
    {"allow-small", 0, NL_OPTION_FLAG, FIELD(allow_small), .where = NL_COMMON,
     .help = "fewer pictures than a covariance needs"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .where = NL_COMMON, .help = "overwrite FILE"},
    {.include = nl_device_options, .offset = offsetof(nl_stats_options, network.machine)},
    {.include = nl_common_options, .offset = offsetof(nl_stats_options, network.machine)},
    {0},
};

static nl_status check_out(nl_context *context, const nl_stats_options *options)
{
    if (!options->out)
        return nl_fail(context, NL_ERROR_USAGE, "stats: name the file to write with -o ref.npz");
    if (options->per_class && options->merge)
        return nl_fail(context, NL_ERROR_USAGE, "--per-class and --merge do not go together");
    return options->per_class ? NL_OK : nl_output_check(context, options->out, options->force, "");
}

/* Without the network and its device. */
static nl_status merge(nl_command_line *line, const nl_stats_options *options)
{
    nl_context *context = line->context;
    context->options.max_memory = options->network.machine.max_memory;
    nl_catch_interrupt(&line->console, context);
    NL_CHECK(check_out(context, options));
    return nl_merge_references(context, (const char *const *)line->operands, line->operand_count,
                               options->out, options->force, options->images);
}

static nl_status stats(nl_command_line *line, void *values)
{
    const nl_stats_options *options = values;
    const char *pictures = line->operands[0];
    nl_evaluation_options o = nl_eval_options_of(&options->network);
    nl_fid_network network = {.context = NULL};
    nl_status status;
    if (options->merge)
        return merge(line, options);
    NL_TRY(nl_eval_take_device(line, &options->network));
    NL_TRY(check_out(line->context, options));
    if (line->operand_count > 1)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "unexpected argument '%s': several references are put together with --merge",
                       line->operands[1]));
    o.allow_small = options->allow_small;
    NL_TRY(nl_fid_network_open(line->context, &o, &network));
    NL_TRY((options->per_class ? nl_make_class_references : nl_make_reference)(
        network.net, &network.options, pictures, options->out, options->force, options->images));
cleanup:
    nl_fid_network_close(&network);
    return status;
}

static nl_status nl_stats_main(int argc, char **argv)
{
    nl_stats_options options = {.network = {.preset = "openai"}, .images = 10000};
    return nl_command_main(&nl_stats_command, argc, argv, &options, stats);
}

const nl_command nl_stats_command = {
    .name = "stats",
    .summary = "Make a reference for eval of a folder or .npz of pictures",
    .arguments = "[OPTION...] -o FILE PICTURES...",
    .least = 1,
    .most = INT_MAX,
    .operands = "a folder or .npz, or several",
    .options = options_table,
    .notes = "FILE holds mu, sigma (pool_3), mu_s, sigma_s (sFID), mu_768, sigma_768, ... as\n"
             "  far as the weights give them, and some of the pictures. The OpenAI evaluator\n"
             "  and pytorch-fid read it.\n",
    .examples = "  nalagen stats imagenet/val -o ref.npz\n"
                "  nalagen stats --per-class --allow-small imagenet/val -o classes\n"
                "  nalagen stats --merge a.npz b.npz -o both.npz\n",
    .run = nl_stats_main,
};
