/* `nalagen eval` and `nalagen stats`: what their option tables and runs share. */
#ifndef NL_EVAL_H
#define NL_EVAL_H

#include "nl_console.h"
#include "nl_evaluate.h"
#include "nl_options.h"

extern const nl_command nl_eval_command, nl_stats_command;

/* The network and how it is run; the first member of both commands' options. */
typedef struct nl_network_options {
    bool help, quiet, verbose;
    const char *weights, *preset, *device;
    int64_t threads, max_memory;
} nl_network_options;

/* Rows of both option tables; FIELD(member) is a member of nl_network_options. */
#define NL_NETWORK_OPTIONS(FIELD)                                                                  \
    {"weights",                                                                                    \
     'w',                                                                                          \
     NL_OPTION_FILE,                                                                               \
     FIELD(weights),                                                                               \
     "FILE",                                                                                       \
     .help = "Inception: pytorch-fid's .pth, or .safetensors",                                     \
     .detail = "pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or the TensorFlow graph's "   \
               "tensors under their names with batch norm folded. Without this option "            \
               "pt_inception-2015-12-05-6726825d.pth or inception-2015-12-05.safetensors in "      \
               "NALAGEN_WEIGHTS."},                                                                \
    {                                                                                              \
        "preset", 'p', NL_OPTION_CHOICE, FIELD(preset), "NAME",                                    \
            .choices = nl_preset_names,                                                            \
            .help = "openai, pytorch-fid, clean-fid, torch-fidelity",            \
            .detail =                                                                              \
                "openai: bilinear as TensorFlow 1; pytorch-fid: bilinear with half-pixel "         \
                "centres; "                                                                        \
                "clean-fid: antialiased bicubic; torch-fidelity: as openai, the Inception Score "  \
                "in ten splits."                                                                   \
    }

#define NL_MACHINE_OPTIONS(FIELD)                                                                  \
    {"device",                                                                                     \
     0,                                                                                            \
     NL_OPTION_TEXT,                                                                               \
     FIELD(device),                                                                                \
     "NAME",                                                                                       \
     .group = "Machine",                                                                           \
     .help = "auto, cpu, cuda, cuda:1"},                                                           \
        {"threads", 't', NL_OPTION_INT, FIELD(threads),                                            \
         "N",       1,   1024,          .help = "CPU threads (all that the process may use)"},     \
        {"max-memory",      0,      NL_OPTION_BYTES,                                               \
         FIELD(max_memory), "SIZE", .help = "limit, such as 4G (none)"},                           \
        {"quiet", 'q', NL_OPTION_FLAG, FIELD(quiet), .help = "errors only"},                       \
        {"verbose", 'v', NL_OPTION_FLAG, FIELD(verbose), .help = "say more"},                      \
    {                                                                                              \
        "help", 'h', NL_OPTION_FLAG, FIELD(help), .help = "this text"                              \
    }

extern const char *const nl_preset_names[];

typedef struct nl_eval_session {
    nl_console console;
    nl_context *context;
    nl_checkpoint *checkpoint; /* of the network */
    nl_inception *net;
    char sha256[65];
    nl_evaluation_options options;
    const char *stage; /* of the progress line, and when it began */
    double stage_started;
} nl_eval_session;

/* Context, network and nl_evaluation_options by the command's options. */
nl_status nl_eval_open(const nl_network_options *options, nl_eval_session *session);
void nl_eval_close(nl_eval_session *session);

/* Reads the options before there is a device, so that --help and mistakes need none. operands expected:
 * `count`; *argument: the first of them. *done: --help was answered. */
nl_status nl_eval_parse(const nl_command *command, int argc, char **argv, void *values, int count,
                        int *operand, bool *done);

#endif
