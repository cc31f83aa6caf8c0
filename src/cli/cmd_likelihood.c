#include <stdio.h>

#include "nl_training.h"

typedef struct nl_likelihood_values {
    nl_likelihood_options likelihood;
    bool help, quiet, verbose, json;
    const char *device, *dtype;
    int64_t threads, max_memory;
} nl_likelihood_values;

#define FIELD(member) offsetof(nl_likelihood_values, member)

static const char *const dtypes[] = {"auto", "f32", "bf16", NULL};

static const nl_option options_table[] = {
    {"model", 'm', NL_OPTION_FILE, FIELD(likelihood.model), "FILE", .group = "Model and data",
     .help = "a SiT or NaLaSiT"},
    {"key", 0, NL_OPTION_TEXT, FIELD(likelihood.key), "NAME",
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"config", 0, NL_OPTION_FILE, FIELD(likelihood.config), "FILE",
     .help = "JSON configuration in place of the checkpoint's"},
    {"data", 'd', NL_OPTION_FILE, FIELD(likelihood.data), "FOLDER",
     .help = "made by nalagen encode"},
    {"number", 'n', NL_OPTION_INT, FIELD(likelihood.count), "N", 1, 1e12,
     .help = "the first N pictures of it (all)"},
    {"steps", 0, NL_OPTION_INT, FIELD(likelihood.steps), "N", 1, 100000,
     .help = "of the trapezoidal rule, two evaluations each (50)"},
    {"probes", 0, NL_OPTION_INT, FIELD(likelihood.probes), "N", 1, 10000,
     .help = "random vectors for each picture (1)"},
    {"seed", 's', NL_OPTION_SEED, FIELD(likelihood.seed), "N",
     .help = "of these, of the posterior and of dequantisation (0)"},
    {"batch", 'b', NL_OPTION_INT, FIELD(likelihood.batch), "N", 1, 65536, .group = "Machine",
     .help = "pictures at once (16)"},
    {"device", 0, NL_OPTION_TEXT, FIELD(device), "NAME", .help = "auto, cpu, cuda, cuda:1"},
    {"dtype", 0, NL_OPTION_CHOICE, FIELD(dtype), "NAME", .choices = dtypes,
     .help = "of matrix products: f32 or bf16 (f32)"},
    {"threads", 't', NL_OPTION_INT, FIELD(threads), "N", 1, 1024,
     .help = "CPU threads (all that the process may use)"},
    {"max-memory", 0, NL_OPTION_BYTES, FIELD(max_memory), "SIZE", .help = "limit (none)"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .help = "one JSON object"},
    {"quiet", 'q', NL_OPTION_FLAG, FIELD(quiet), .help = "errors only"},
    {"verbose", 'v', NL_OPTION_FLAG, FIELD(verbose), .help = "say more"},
    {"help", 'h', NL_OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(user, level, message);
}

static bool progress(void *user, const nl_progress *progress_now)
{
    nl_console_progress(user, progress_now);
    return !nl_interrupted();
}

static nl_status run(nl_console *console, const nl_likelihood_values *values)
{
    nl_context *context = NULL;
    nl_likelihood_result result;
    char text[160];
    nl_context_options options = {.device = values->device,
                                  .dtype = values->dtype,
                                  .threads = (int)values->threads,
                                  .max_memory = values->max_memory,
                                  .log = log_message,
                                  .progress = progress,
                                  .user = console};
    nl_status status = nl_context_create(&options, &context); /* says why not */
    if (status != NL_OK)
        return status;
    nl_catch_interrupt(context);
    status = nl_measure_likelihood(context, &values->likelihood, &result);
    nl_release_interrupt();
    nl_console_clear(console);
    if (status == NL_OK) {
        snprintf(text, sizeof(text),
                 values->json
                     ? "{\"bits_per_dimension\": %.6f, \"standard_error\": %.6f, \"n\": %lld}"
                     : "%.4f bits per dimension, standard error %.4f, %lld pictures",
                 result.bits_per_dimension, result.standard_error, (long long)result.count);
        status = nl_print_line(context, text);
    }
    nl_console_error(console, context, status);
    nl_context_destroy(context);
    return status;
}

static nl_status likelihood_main(int argc, char **argv)
{
    nl_likelihood_values values = {.likelihood = {.steps = 50, .probes = 1, .batch = 16},
                                   .dtype = "f32"};
    nl_console console;
    nl_context *context = NULL;
    int operands;
    nl_console_init(&console, false, false);
    nl_status status = nl_core_context_create(NULL, &context);
    if (status != NL_OK)
        return status;
    NL_TRY(nl_options_parse(context, &nl_likelihood_command, argc, argv, &values, &operands));
    if (values.help) {
        nl_print_help(stdout, &nl_likelihood_command);
        NL_TRY(nl_finish_stdout(context));
        goto cleanup;
    }
    if (operands < argc)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "unexpected argument '%s'", argv[operands]));
    if (!values.likelihood.model || !values.likelihood.data)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "expected --model FILE and --data FOLDER"));
    nl_console_init(&console, values.quiet, values.verbose);
    nl_core_context_destroy(context);
    return run(&console, &values);
cleanup:
    nl_console_error(&console, context, status);
    nl_core_context_destroy(context);
    return status;
}

const nl_command nl_likelihood_command = {
    .name = "likelihood",
    .summary = "Bits per dimension of data under a SiT",
    .arguments = "--model FILE --data FOLDER [OPTION...]",
    .notes = "The probability-flow ODE is solved from the data to the noise, with the divergence\n"
             "of its drift by Hutchinson's estimate. Pixels are dequantised and count in bits of\n"
             "their 256 levels; numbers of latents are of a density and may be negative.\n",
    .examples = "  nalagen likelihood -m run/model.safetensors -d held-out -n 1000\n",
    .options = options_table,
    .run = likelihood_main,
};
