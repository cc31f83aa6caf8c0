/* SPDX-License-Identifier: MIT */
/* The train command: options from a file and the command line, the device of each process, then the run. */
#include <stdio.h>
#include <string.h>

#include "nl_io.h"
#include "nl_launch.h"
#include "nl_training.h"
#include "ops.h"

static nl_train_options defaults_of(const nl_command *command)
{
    return command == &nl_distill_command ? nl_distill_defaults : nl_train_defaults;
}

/* The file of --options first; what stands on the command line replaces it. */
static nl_status read_options(nl_command_line *line, nl_texts *texts, nl_train_values *values)
{
    nl_status status = NL_OK;
    nl_context *context = line->context;
    const char *path = values->options;
    nl_mapping file = {0};
    cJSON *object = NULL;
    int operands;
    *values = (nl_train_values){.command = values->command, .train = defaults_of(values->command)};
    NL_TRY(nl_map_file(context, path, &file));
    NL_TRY(nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, &object));
    NL_TRY(nl_options_apply(context, values->command, path, object, NL_IN_REQUEST, NULL, texts,
                            values));
    NL_TRY(nl_options_parse(context, values->command, line->argc, line->argv, values, &operands));
cleanup:
    cJSON_Delete(object);
    nl_unmap(context, &file);
    return status;
}

/* The options that were given, as --options takes them. */
static nl_status print_options(nl_context *context, const nl_train_values *values, char **text)
{
    const nl_train_values defaults = {.train = defaults_of(values->command)};
    cJSON *object = cJSON_CreateObject();
    bool built =
        object && nl_options_to_json(values->command, values, &defaults, NL_IN_REQUEST, object);
    *text = built ? nl_json_print(object, false) : NULL;
    cJSON_Delete(object);
    return *text ? NL_OK : nl_fail(context, NL_ERROR_MEMORY, "no memory for options");
}

/* Each of several processes on a machine takes a GPU of its own; one of them tells what is going on. */
static void take_place(nl_command_line *line, nl_machine_options *machine, char *device,
                       size_t size)
{
    nl_process process;
    bool any =
        !machine->device || !strcmp(machine->device, "auto") || !strcmp(machine->device, "cuda");
    if (!nl_process_read(&process) || process.ranks < 2)
        return; /* what is wrong with it is said later */
    int gpus = any && process.local >= 0 ? nl_cuda_device_count() : 0;
    if (gpus > 0) {
        snprintf(device, size, "cuda:%d", process.local % gpus);
        machine->device = device;
    }
    line->console.quiet |= process.rank > 0;
}

/* A bar for who watches; a file has the lines of the log. Ctrl-C is heard by the run itself, between two steps. */
static bool show_progress(void *user, const nl_progress *now)
{
    nl_command_line *line = user;
    if (line->console.terminal)
        nl_console_progress(&line->console, now);
    return true;
}

static nl_status run(nl_command_line *line, nl_train_values *values)
{
    nl_status status = NL_OK;
    char *record = NULL;
    NL_TRY(nl_command_take_device(line, &values->machine, show_progress, line));
    NL_TRY(print_options(line->context, values, &record));
    values->train.record = record;
    NL_TRY(nl_train(line->context, &values->train, NULL));
cleanup:
    nl_console_clear(&line->console);
    if (status == NL_CANCELLED)
        nl_log(line->context, NL_LOG_INFO, "%s", nl_last_error(line->context));
    cJSON_free(record);
    return status;
}

static nl_status train(nl_command_line *line, void *values)
{
    nl_train_values *v = values;
    nl_texts texts = {.context = line->context};
    nl_status status = NL_OK;
    char device[24];
    if (v->options)
        NL_TRY(read_options(line, &texts, v));
    nl_launch_options processes = {.gpus = v->gpus, .device = v->machine.device, .together = true};
    take_place(line, &v->machine, device, sizeof(device));
    NL_TRY(nl_launch_wanted(&processes)
               ? nl_launch(&line->console, line->context, &processes, line->argc, line->argv)
               : run(line, v));
cleanup:
    nl_texts_free(&texts);
    return status;
}

nl_status nl_train_with(int argc, char **argv, nl_train_values *values)
{
    return nl_command_main(values->command, argc, argv, values, train);
}
