/* SPDX-License-Identifier: MIT */
/* The plot command: curves of one or more runs from their logs, as PNG and SVG. */
#include <limits.h>

#include "nl_canvas.h"
#include "nl_plot.h"
#include "nl_run.h"
#include "nl_training.h"

typedef struct nl_plot_values {
    nl_plot_options plot;
    bool help, quiet, verbose;
    const char *out;
    int64_t size[2]; /* height, width */
} nl_plot_values;

#define FIELD(member) offsetof(nl_plot_values, member)

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .group = "Options",
     .help = ".svg, .png or .pdf (RUN/plot.svg and .png)"},
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
    {.include = nl_common_options},
    {0},
};

static nl_status plot(nl_command_line *line, void *values)
{
    nl_plot_values *v = values;
    nl_context *context = line->context;
    nl_status status = NL_OK;
    char *svg = NULL, *png = NULL;
    if (v->out && !nl_drawing_path(v->out))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out %s: expected a name ending in .svg, .png or .pdf", v->out);
    if (!v->out) { /* in the folder of the first run, whose own they are */
        v->plot.overwrite = true;
        NL_TRY(nl_path_join(context, line->operands[0], "plot.svg", &svg));
        NL_TRY(nl_path_join(context, line->operands[0], "plot.png", &png));
    }
    const char *const out[] = {v->out ? v->out : svg, png, NULL};
    v->plot.out = out;
    v->plot.height = v->size[0];
    v->plot.width = v->size[1];
    NL_TRY(nl_plot(context, (const char *const *)line->operands, line->operand_count, &v->plot));
    for (int i = 0; out[i]; i++)
        NL_TRY(nl_print_path(context, out[i]));
cleanup:
    nl_free(context, svg);
    nl_free(context, png);
    return status;
}

static nl_status plot_main(int argc, char **argv)
{
    nl_plot_values values = {.plot = {.log = NL_RUN_LOG,
                                      .metrics = NL_RUN_METRICS,
                                      .value = "loss",
                                      .over = "step",
                                      .smoothing = 0.9},
                             .size = {600, 1000}};
    return nl_command_main(&nl_plot_command, argc, argv, &values, plot);
}

const nl_command nl_plot_command = {
    .name = "plot",
    .summary = "Draw the curves of training runs",
    .arguments = "[OPTION...] RUN...",
    .least = 1,
    .most = INT_MAX,
    .operands = "the folders of one or several runs",
    .examples = "  nalagen plot run                        run/plot.svg and run/plot.png\n"
                "  nalagen plot a b --log-scale -o ab.svg  two runs in one picture\n",
    .options = options_table,
    .run = plot_main,
};
