#include <string.h>

#include "nl_io.h"
#include "nl_training.h"

typedef struct nl_plot_values {
    nl_plot_options plot;
    bool help, quiet;
    const char *out;
    int64_t size[2]; /* height, width */
} nl_plot_values;

#define FIELD(member) offsetof(nl_plot_values, member)

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .group = "Options",
     .help = "NAME.svg or NAME.png (RUN/plot.svg and RUN/plot.png)"},
    {"value", 0, NL_OPTION_TEXT, FIELD(plot.value), "NAME",
     .help = "loss, grad_norm, lr, images_per_second, ... (loss)"},
    {"over", 0, NL_OPTION_TEXT, FIELD(plot.over), "NAME",
     .help = "what it is drawn over: step, seconds, ... (step)"},
    {"log-scale", 'l', NL_OPTION_FLAG, FIELD(plot.log_scale), .help = "logarithm of the value"},
    {"log-over", 0, NL_OPTION_FLAG, FIELD(plot.log_over), .help = "logarithm of what it is over"},
    {"smoothing", 's', NL_OPTION_REAL, FIELD(plot.smoothing), "X", 0, 0.9999,
     .help = "weight of what came before, 0 to 1 (0.9)"},
    {"size", 0, NL_OPTION_EXTENT, FIELD(size), "HxW", 200, 8192, .help = "pixels (600x1000)"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(plot.overwrite), .help = "overwrite the file of --out"},
    {"quiet", 'q', NL_OPTION_FLAG, FIELD(quiet), .help = "errors only"},
    {"help", 'h', NL_OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(user, level, message);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), ending = strlen(end);
    return length >= ending && !strcmp(text + length - ending, end);
}

/* Both pictures in the folder of the first run, or the one file asked for. */
static nl_status choose_files(nl_context *context, nl_plot_values *values, const char *run,
                              nl_texts *texts)
{
    nl_plot_options *plot = &values->plot;
    nl_status status = NL_OK;
    char *path = NULL;
    if (!values->out) {
        plot->overwrite = true; /* they are the run's own */
        NL_TRY(nl_path_join(context, run, "plot.svg", &path));
        NL_TRY(nl_texts_add(texts, path));
        plot->svg = path;
        NL_TRY(nl_path_join(context, run, "plot.png", &path));
        NL_TRY(nl_texts_add(texts, path));
        plot->png = path;
    } else if (ends_with(values->out, ".svg")) {
        plot->svg = values->out;
    } else if (ends_with(values->out, ".png")) {
        plot->png = values->out;
    } else {
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--out %s: expected a name ending in .svg or .png",
                       values->out));
    }
cleanup:
    return status;
}

static nl_status plot_main(int argc, char **argv)
{
    nl_plot_values values = {.plot = {.value = "loss", .over = "step", .smoothing = 0.9},
                             .size = {600, 1000}};
    nl_console console;
    nl_context *context = NULL;
    nl_status status;
    int operands;
    nl_console_init(&console, false, false);
    status = nl_core_context_create(&(nl_context_options){.log = log_message, .user = &console},
                                    &context);
    if (status != NL_OK)
        return status;
    nl_texts texts = {.context = context};
    NL_TRY(nl_options_parse(context, &nl_plot_command, argc, argv, &values, &operands));
    if (values.help) {
        nl_print_help(stdout, &nl_plot_command);
        NL_TRY(nl_finish_stdout(context));
        goto cleanup;
    }
    console.quiet = values.quiet;
    if (operands == argc)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "expected the folders of one or several runs: nalagen plot RUN"));
    values.plot.height = values.size[0];
    values.plot.width = values.size[1];
    NL_TRY(choose_files(context, &values, argv[operands], &texts));
    NL_TRY(nl_plot(context, (const char *const *)argv + operands, argc - operands, &values.plot));
    if (values.plot.svg)
        NL_TRY(nl_print_line(context, values.plot.svg));
    if (values.plot.png)
        NL_TRY(nl_print_line(context, values.plot.png));
cleanup:
    nl_console_error(&console, context, status);
    nl_texts_free(&texts);
    nl_core_context_destroy(context);
    return status;
}

const nl_command nl_plot_command = {
    .name = "plot",
    .summary = "Draw the curves of training runs",
    .arguments = "[OPTION...] RUN...",
    .examples = "  nalagen plot run                        run/plot.svg and run/plot.png\n"
                "  nalagen plot a b --log-scale -o ab.svg  two runs in one picture\n",
    .options = options_table,
    .run = plot_main,
};
