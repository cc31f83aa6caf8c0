#include <stdio.h>
#include <string.h>

#include "nl_io.h"
#include "nl_launch.h"
#include "nl_training.h"
#include "ops.h"

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(user, level, message);
}

/* The file of --options first; what stands on the command line replaces it. */
static nl_status read_options(nl_context *context, int argc, char **argv, nl_texts *texts,
                              nl_train_values *values)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    cJSON *object = NULL;
    int operands;
    *values = (nl_train_values){.train = nl_train_defaults};
    NL_TRY(nl_options_parse(context, &nl_train_command, argc, argv, values, &operands));
    if (values->help)
        goto cleanup;
    if (operands < argc)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "unexpected argument '%s'", argv[operands]));
    if (values->options) {
        const char *path = values->options;
        *values = (nl_train_values){.train = nl_train_defaults};
        NL_TRY(nl_map_file(context, path, &file));
        NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, &object));
        NL_TRY(nl_options_apply(context, &nl_train_command, path, object, NL_IN_REQUEST, NULL,
                                texts, values));
        NL_TRY(nl_options_parse(context, &nl_train_command, argc, argv, values, &operands));
    }
cleanup:
    cJSON_Delete(object);
    nl_unmap(context, &file);
    return status;
}

/* The options that were given, as --options takes them. */
static nl_status print_options(nl_context *context, const nl_train_values *values, char **text)
{
    const nl_train_values defaults = {.train = nl_train_defaults};
    cJSON *object = cJSON_CreateObject();
    bool built =
        object && nl_options_to_json(&nl_train_command, values, &defaults, NL_IN_REQUEST, object);
    *text = built ? cJSON_PrintUnformatted(object) : NULL;
    cJSON_Delete(object);
    return *text ? NL_OK : nl_fail(context, NL_ERROR_MEMORY, "no memory for options");
}

/* Each of several processes on a machine takes a GPU of its own; one of them tells what is going on. */
static void take_place(nl_train_values *values, char *device, size_t size)
{
    nl_process process;
    bool any =
        !values->device || !strcmp(values->device, "auto") || !strcmp(values->device, "cuda");
    if (!nl_process_read(&process) || process.ranks < 2)
        return; /* what is wrong with it is said later */
    int gpus = any && process.local >= 0 ? nl_cuda_device_count() : 0;
    if (gpus > 0) {
        snprintf(device, size, "cuda:%d", process.local % gpus);
        values->device = device;
    }
    values->quiet = values->quiet || process.rank > 0;
}

static nl_status run(nl_console *console, nl_train_values *values)
{
    nl_status status = NL_OK;
    nl_context *context = NULL;
    char *record = NULL;
    nl_context_options options = {.device = values->device,
                                  .dtype = values->dtype,
                                  .threads = (int)values->threads,
                                  .max_memory = values->max_memory,
                                  .log = log_message,
                                  .user = console};
    NL_TRY(nl_context_create(&options, &context)); /* says why not */
    nl_catch_interrupt(context);
    NL_TRY(print_options(context, values, &record));
    values->train.record = record;
    status = nl_train(context, &values->train);
    nl_release_interrupt();
    if (status == NL_CANCELLED)
        nl_console_log(console, NL_LOG_INFO, nl_last_error(context));
    nl_console_error(console, context, status);
cleanup:
    cJSON_free(record);
    nl_context_destroy(context);
    return status;
}

nl_status nl_train_main(int argc, char **argv)
{
    nl_console console;
    nl_train_values values;
    nl_context *context = NULL;
    nl_status status;
    nl_console_init(&console, false, false);
    status = nl_core_context_create(&(nl_context_options){.log = log_message, .user = &console},
                                    &context);
    if (status != NL_OK)
        return status;
    nl_texts texts = {.context = context};
    status = read_options(context, argc, argv, &texts, &values);
    if (status == NL_OK && values.help) {
        nl_print_help(stdout, &nl_train_command);
        status = nl_finish_stdout(context);
    }
    if (status != NL_OK)
        nl_console_error(&console, context, status);
    else if (!values.help) {
        nl_launch_options processes = {
            .gpus = values.gpus, .device = values.device, .together = true};
        char device[24];
        take_place(&values, device, sizeof(device));
        nl_console_init(&console, values.quiet, values.verbose);
        if (nl_launch_wanted(&processes)) {
            status = nl_launch(&console, context, &processes, argc, argv);
            nl_console_error(&console, context, status);
        } else {
            status = run(&console, &values);
        }
    }
    nl_texts_free(&texts);
    nl_core_context_destroy(context);
    return status;
}
