#include "nl_eval.h"

#include <stdio.h>

typedef struct nl_stats_options {
    nl_network_options network;
    bool force, allow_small;
    const char *out;
    int64_t images;
} nl_stats_options;

#define FIELD(member)   offsetof(nl_stats_options, member)
#define NETWORK(member) offsetof(nl_stats_options, network.member)

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .group = "Reference",
     .help = "the .npz to write"},
    NL_NETWORK_OPTIONS(NETWORK),
    {"images", 0, NL_OPTION_INT, FIELD(images), "N", 0, 1e9,
     .help = "pictures to store, evenly chosen (10000)",
     .detail = "As arr_0: for precision, recall and KID, and because the OpenAI evaluator does not "
               "read a file without."},
    {"allow-small", 0, NL_OPTION_FLAG, FIELD(allow_small),
     .help = "fewer pictures than a covariance needs"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .help = "overwrite FILE"},
    NL_MACHINE_OPTIONS(NETWORK),
    {0},
};

static nl_status check_out(nl_context *context, const nl_stats_options *options)
{
    if (!options->out)
        return nl_fail(context, NL_ERROR_USAGE, "stats: name the file to write with -o ref.npz");
    if (!options->force && nl_path_exists(options->out))
        return nl_fail(context, NL_ERROR_WRITE, "%s is there already: use --force to overwrite it",
                       options->out);
    return NL_OK;
}

static nl_status nl_stats_main(int argc, char **argv)
{
    nl_stats_options options = {.network.preset = "openai", .images = 10000};
    nl_eval_session session = {.context = NULL};
    int operand;
    bool done;
    nl_status status = nl_eval_parse(&nl_stats_command, argc, argv, &options, 1, &operand, &done);
    if (status != NL_OK || done)
        return status;
    NL_TRY(nl_eval_open(&options.network, &session));
    NL_TRY(check_out(session.context, &options));
    session.options.allow_small = options.allow_small;
    NL_TRY(nl_make_reference(session.net, &session.options, argv[operand], options.out,
                             options.force, options.images));
    nl_log(session.context, NL_LOG_INFO, "%s: a reference of %s, preset %s", options.out,
           argv[operand], options.network.preset);
cleanup:
    if (session.context)
        nl_console_error(&session.console, session.context, status);
    nl_eval_close(&session);
    return status;
}

const nl_command nl_stats_command = {
    .name = "stats",
    .summary = "Make a reference for eval of a folder or .npz of pictures",
    .arguments = "[OPTION...] -o FILE PICTURES",
    .options = options_table,
    .notes = "FILE holds mu, sigma (pool_3), mu_s, sigma_s (sFID), mu_768, sigma_768, ... as\n"
             "  far as the weights give them, and some of the pictures. The OpenAI evaluator\n"
             "  and pytorch-fid read it.\n",
    .examples = "  nalagen stats imagenet/val -o ref.npz\n",
    .run = nl_stats_main,
};
