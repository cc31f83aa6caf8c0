/* SPDX-License-Identifier: MIT */
/* The likelihood command: bits per dimension of a data set under a model. */
#include <stdio.h>

#include "nl_training.h"

typedef struct nl_likelihood_values {
    nl_likelihood_options likelihood;
    nl_machine_options machine;
    bool json;
} nl_likelihood_values;

#define FIELD(member)   offsetof(nl_likelihood_values, member)
#define MACHINE(member) offsetof(nl_likelihood_values, machine.member)

static const nl_option options_table[] = {
    {"model", 'm', NL_OPTION_FILE, FIELD(likelihood.model), "FILE", .where = NL_COMMON,
     .group = "Model and data", .help = "a SiT or NaLaSiT"},
    {"key", 0, NL_OPTION_TEXT, FIELD(likelihood.key), "NAME",
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"config", 0, NL_OPTION_FILE, FIELD(likelihood.config), "FILE",
     .help = "JSON configuration in place of the checkpoint's"},
    {"data", 'd', NL_OPTION_FILE, FIELD(likelihood.data), "FOLDER", .where = NL_COMMON,
     .help = "made by nalagen encode"},
    {"number", 'n', NL_OPTION_INT, FIELD(likelihood.count), "N", 1, 1e12, .where = NL_COMMON,
     .help = "the first N pictures of it (all)"},
    {"steps", 0, NL_OPTION_INT, FIELD(likelihood.steps), "N", 1, 100000, .where = NL_COMMON,
     .help = "of the trapezoidal rule, two evaluations each (50)"},
    {"probes", 0, NL_OPTION_INT, FIELD(likelihood.probes), "N", 1, 10000,
     .help = "random vectors for each picture (1)"},
    {"seed", 's', NL_OPTION_SEED, FIELD(likelihood.seed), "N",
     .help = "of these, the posterior and dequantisation (0)"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .where = NL_COMMON, .help = "one JSON object"},
    {.include = nl_device_options, .offset = offsetof(nl_likelihood_values, machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = nl_gradient_dtypes,
     .help = "of matrix products: f32 or bf16 (f32)"},
    {"batch", 'b', NL_OPTION_INT, FIELD(likelihood.batch), "N", 1, 65536, .where = NL_COMMON,
     .help = "pictures at once (16)"},
    {.include = nl_common_options, .offset = offsetof(nl_likelihood_values, machine)},
    {0},
};

static nl_status measure(nl_command_line *line, void *values)
{
    const nl_likelihood_values *v = values;
    nl_likelihood_result result;
    char text[160];
    nl_status status = NL_OK;
    if (!v->likelihood.model || !v->likelihood.data)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE, "expected --model FILE and --data FOLDER"));
    NL_TRY(nl_command_take_device(line, &v->machine, nl_command_progress, line));
    NL_TRY(nl_measure_likelihood(line->context, &v->likelihood, &result));
    nl_console_clear(&line->console);
    snprintf(text, sizeof(text),
             v->json ? "{\"bits_per_dimension\": %.6f, \"standard_error\": %.6f, \"n\": %lld}"
                     : "%.4f bits per dimension, standard error %.4f, %lld %s",
             result.bits_per_dimension, result.standard_error, (long long)result.count,
             nl_plural(result.count, "picture", "pictures"));
    NL_TRY(nl_print_line(line->context, text));
cleanup:
    return status;
}

static nl_status likelihood_main(int argc, char **argv)
{
    nl_likelihood_values values = {.likelihood = {.steps = 50, .probes = 1, .batch = 16},
                                   .machine = {.dtype = "f32"}};
    return nl_command_main(&nl_likelihood_command, argc, argv, &values, measure);
}

const nl_command nl_likelihood_command = {
    .name = "likelihood",
    .summary = "Bits per dimension of data under a SiT",
    .arguments = "--model FILE --data FOLDER [OPTION...]",
    .notes = "The probability-flow ODE is solved from the data to the noise, with the\n"
             "divergence of its drift by Hutchinson's estimate. Pixels are dequantised and\n"
             "count in bits of their 256 levels; numbers of latents are of a density and may\n"
             "be negative.\n",
    .examples = "  nalagen likelihood -m run/model.safetensors -d held-out -n 1000\n",
    .options = options_table,
    .run = likelihood_main,
};
