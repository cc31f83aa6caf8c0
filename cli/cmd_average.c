/* SPDX-License-Identifier: MIT */
/* The average command: another moving average of a run, from its snapshots. */
#include <stdio.h>

#include "nl_average.h"
#include "nl_training.h"

typedef struct nl_average_values {
    nl_machine_options machine;
    bool json, force;
    double sigma;
    int64_t step;
    const char *out, *dtype;
} nl_average_values;

#define FIELD(member) offsetof(nl_average_values, member)

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};

static const nl_option options_table[] = {
    {"sigma", 0, NL_OPTION_REAL, FIELD(sigma), "S", 0.001, 0.288, .group = "Options",
     .help = "width of the average, as a part of the run (0.1)",
     .detail = "The standard deviation of the step in it, over the number of steps: wide averages "
               "are smooth, narrow ones fresh. 0.288 is the mean of all steps."},
    {"step", 0, NL_OPTION_INT, FIELD(step), "N", 1, 1e12,
     .help = "of the run that it is made of (the last snapshot's)"},
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "FILE", .help = "the model, safetensors"},
    {"dtype", 0, NL_OPTION_CHOICE, FIELD(dtype), "NAME", .choices = dtypes,
     .help = "of matrices: f32, bf16 or f16 (bf16)"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .help = "overwrite FILE"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .help = "one JSON object"},
    {.include = nl_common_options, .offset = offsetof(nl_average_values, machine)},
    {0},
};

static nl_status report(nl_command_line *line, const nl_average_values *v,
                        const nl_average_result *result)
{
    char text[256];
    snprintf(text, sizeof(text),
             v->json ? "{\"sigma_rel\": %.9g, \"step\": %lld, \"images\": %lld, \"snapshots\": %d, "
                       "\"error\": %.6g, \"largest_coefficient\": %.6g}"
                     : "width %g of step %lld (%lld images), from %d snapshots; off by %.2g of its "
                       "length, largest coefficient %.3g",
             v->sigma, (long long)result->step, (long long)result->images, result->snapshots,
             result->error, result->largest);
    return nl_print_line(line->context, text);
}

static nl_status average(nl_command_line *line, void *values)
{
    nl_average_values *v = values;
    nl_average_result result;
    nl_average_options options = {.run = line->operands[0],
                                  .sigma_rel = v->sigma,
                                  .step = v->step,
                                  .out = v->out,
                                  .overwrite = v->force};
    if (!v->out)
        return nl_fail(line->context, NL_ERROR_USAGE,
                       "expected a name for the model (--out model.safetensors)");
    nl_dtype_parse(v->dtype, &options.dtype);
    NL_CHECK(nl_output_check(line->context, v->out, v->force, ""));
    NL_CHECK(nl_command_take_device(line, &v->machine, nl_command_progress, line));
    NL_CHECK(nl_average_run(line->context, &options, &result));
    nl_console_clear(&line->console);
    return report(line, v, &result);
}

static nl_status average_main(int argc, char **argv)
{
    nl_average_values values = {.machine = {.device = "cpu"}, .sigma = 0.1, .dtype = "bf16"};
    return nl_command_main(&nl_average_command, argc, argv, &values, average);
}

const nl_command nl_average_command = {
    .name = "average",
    .summary = "Make another moving average of a run from its snapshots",
    .arguments = "RUN --out FILE [OPTION...]",
    .least = 1,
    .most = 1,
    .operands = "the folder of a run",
    .notes = "RUN was trained with --snapshot-every. Any width comes out of its snapshots,\n"
             "without training: a width is chosen by what its pictures are worth.\n",
    .examples = "  nalagen train -m SiT-S/2 -d data -o run --steps 40000 --snapshot-every 2000\n"
                "  nalagen average run --sigma 0.1 -o model.safetensors\n",
    .options = options_table,
    .run = average_main,
};
