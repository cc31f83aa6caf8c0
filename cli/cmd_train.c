/* SPDX-License-Identifier: MIT */
/* The train command: options from a file and the command line, the device of each process, then the run. */
#include <stdio.h>
#include <string.h>

#include "nl_io.h"
#include "nl_launch.h"
#include "nl_run.h"
#include "nl_training.h"
#include "ops.h"

static nl_train_options defaults_of(const nl_command *command)
{
    return command == &nl_distill_command ? nl_distill_defaults : nl_train_defaults;
}

/* The members of a JSON object first; what stands on the command line replaces them. */
static nl_status take_options(nl_command_line *line, const char *path, const cJSON *object,
                              nl_texts *texts, nl_train_values *values)
{
    nl_status status = NL_OK;
    int operands;
    *values = (nl_train_values){.command = values->command, .train = defaults_of(values->command)};
    NL_TRY(nl_options_apply(line->context, values->command, path, object, NL_IN_REQUEST, NULL,
                            texts, values));
    NL_TRY(nl_options_parse(line->context, values->command, line->argc, line->argv, values,
                            &operands));
cleanup:
    return status;
}

static nl_status parse_file(nl_context *context, const char *path, cJSON **object)
{
    nl_mapping file = {0};
    nl_status status = nl_map_file(context, path, &file);
    if (status == NL_OK)
        status = nl_json_parse(context, path, (const char *)file.data, (size_t)file.size, object);
    nl_unmap(context, &file);
    return status;
}

static nl_status read_options(nl_command_line *line, nl_texts *texts, nl_train_values *values)
{
    cJSON *object = NULL;
    const char *path = values->options;
    nl_status status = parse_file(line->context, path, &object);
    if (status == NL_OK)
        status = take_options(line, path, object, texts, values);
    cJSON_Delete(object);
    return status;
}

/* --out alone names a run that is to be resumed: by the options that it was begun with, which its config.json has. */
static bool names_run(nl_context *context, const nl_train_values *values)
{
    const nl_train_options *train = &values->train;
    return train->out && !train->model && !train->data && !train->init && !train->teacher &&
           nl_is_run(context, train->out);
}

static nl_status read_run(nl_command_line *line, nl_texts *texts, nl_train_values *values)
{
    nl_context *context = line->context;
    nl_status status = NL_OK;
    cJSON *config = NULL;
    char *path = NULL;
    NL_TRY(nl_path_join(context, values->train.out, NL_RUN_CONFIG, &path));
    NL_TRY(parse_file(context, path, &config));
    const cJSON *training = cJSON_GetObjectItemCaseSensitive(config, "training");
    bool distilled = cJSON_GetObjectItemCaseSensitive(training, "teacher") != NULL;
    if (!cJSON_IsObject(training) || !training->child)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s says no options of its run: give those that it was begun with", path));
    if (distilled != (values->command == &nl_distill_command))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "%s is a run of nalagen %s: resume it with that",
                       values->train.out, distilled ? "distill" : "train"));
    NL_TRY(take_options(line, path, training, texts, values));
    nl_log(context, NL_LOG_INFO, "%s: with the options of its run", path);
cleanup:
    cJSON_Delete(config);
    nl_free(context, path);
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
    else if (names_run(line->context, v))
        NL_TRY(read_run(line, &texts, v));
    nl_launch_options processes = {.gpus = v->gpus, .device = v->machine.device, .together = true};
    nl_take_place(&line->console, &v->machine, device);
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
