/* SPDX-License-Identifier: MIT */
/* The train command: options from a file and the command line, the device of each process, then the run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_io.h"
#include "nl_launch.h"
#include "nl_run.h"
#include "nl_training.h"
#include "ops.h"
#include "recipe.h"

static nl_train_options defaults_of(const nl_command *command)
{
    return command == &nl_distill_command ? nl_distill_defaults : nl_train_defaults;
}

/* What the options are over which others stand: objects of JSON, and at last the command line. */
typedef struct nl_layers {
    cJSON *objects[2]; /* of the run, of --options; NULL: none */
    char *paths[2];
} nl_layers;

static void free_layers(nl_context *context, nl_layers *layers)
{
    for (int i = 0; i < NL_COUNT(layers->objects); i++) {
        cJSON_Delete(layers->objects[i]);
        nl_free(context, layers->paths[i]);
    }
}

/* base: below them. */
static nl_status take_options(nl_command_line *line, const nl_layers *layers,
                              const nl_train_options *base, nl_texts *texts,
                              nl_train_values *values)
{
    int operands;
    *values = (nl_train_values){.command = values->command, .train = *base};
    for (int i = 0; i < NL_COUNT(layers->objects); i++)
        if (layers->objects[i])
            NL_CHECK(nl_options_apply(line->context, values->command, layers->paths[i],
                                      layers->objects[i], NL_IN_REQUEST, NULL, texts, values));
    return nl_options_parse(line->context, values->command, line->argc, line->argv, values,
                            &operands);
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

static nl_status read_options(nl_context *context, const char *path, nl_layers *layers)
{
    nl_status status = nl_strdup(context, path, &layers->paths[1]);
    return status == NL_OK ? parse_file(context, path, &layers->objects[1]) : status;
}

/* --out alone names a run that is to be resumed: by the options that it was begun with, which its config.json has. */
static bool is_alone(const nl_train_values *values)
{
    const nl_train_options *train = &values->train;
    return !values->options && !train->model && !train->data && !train->init && !train->teacher;
}

static bool is_small(const char *recipe)
{
    return recipe && !strcmp(recipe, "small");
}

/* The options of the run at `out` that is to be resumed, where it is named alone, or was begun with this recipe too: what
 * that chose stays, whatever the device. */
static nl_status read_run(nl_context *context, const nl_train_values *values, nl_layers *layers)
{
    nl_status status = NL_OK;
    cJSON *config = NULL;
    bool alone = is_alone(values);
    NL_TRY(nl_path_join(context, values->train.out, NL_RUN_CONFIG, &layers->paths[0]));
    const char *path = layers->paths[0];
    NL_TRY(parse_file(context, path, &config));
    cJSON *training = cJSON_GetObjectItemCaseSensitive(config, "training");
    const cJSON *recipe = cJSON_GetObjectItemCaseSensitive(training, "recipe");
    bool distilled = cJSON_GetObjectItemCaseSensitive(training, "teacher") != NULL;
    if (!alone && !(is_small(values->recipe) && is_small(cJSON_GetStringValue(recipe))))
        goto cleanup;
    if (!cJSON_IsObject(training) || !training->child)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s says no options of its run: give those that it was begun with", path));
    if (distilled != (values->command == &nl_distill_command))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "%s is a run of nalagen %s: resume it with that",
                       values->train.out, distilled ? "distill" : "train"));
    layers->objects[0] = cJSON_DetachItemViaPointer(config, training);
    nl_log(context, NL_LOG_INFO, "%s: with the options of its run", path);
cleanup:
    cJSON_Delete(config);
    return status;
}

/* Below the command line: --options, and the options of the run that goes on. */
static nl_status settle_options(nl_command_line *line, nl_layers *layers, nl_texts *texts,
                                nl_train_values *values)
{
    nl_context *context = line->context;
    const nl_train_options base = defaults_of(values->command);
    if (values->options) {
        NL_CHECK(read_options(context, values->options, layers));
        NL_CHECK(take_options(line, layers, &base, texts, values));
    }
    bool goes_on = values->train.out && (is_alone(values) || is_small(values->recipe)) &&
                   nl_is_run(context, values->train.out);
    if (!goes_on && values->train.out && is_alone(values) && !values->recipe)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: there is no run to resume; for a new one see 'nalagen %s --help'",
                       values->train.out, values->command->name);
    if (!goes_on)
        return NL_OK;
    NL_CHECK(read_run(context, values, layers));
    if (!layers->objects[0])
        return NL_OK;
    NL_CHECK(take_options(line, layers, &base, texts, values));
    values->recipe_taken = true;
    return NL_OK;
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

/* As on a command line: what differs from the defaults, in lines of the terminal's width. */
static void print_choices(FILE *file, const cJSON *options)
{
    enum { WIDTH = 90 };
    const cJSON *option;
    size_t used = 0;
    cJSON_ArrayForEach(option, options)
    {
        char *value = nl_json_print(option, false), text[512];
        const char *string = cJSON_GetStringValue(option);
        bool quoted = string && strpbrk(string, " {\"*'$");
        int length = snprintf(text, sizeof(text), "--%s%s%s%s%s", option->string,
                              cJSON_IsTrue(option) ? "" : " ", quoted ? "'" : "",
                              cJSON_IsTrue(option) ? ""
                              : string             ? string
                                                   : value,
                              quoted ? "'" : "");
        for (size_t i = 2; i < strlen(option->string) + 2 && i < sizeof(text); i++)
            text[i] = text[i] == '_' ? '-' : text[i];
        if (!used || used + (size_t)length > WIDTH) {
            fputs("\n   ", file);
            used = 0;
        }
        used += (size_t)fprintf(file, " %s", text);
        cJSON_free(value);
    }
}

static void tell_held_out(FILE *file, const nl_recipe_facts *facts, const nl_train_options *train)
{
    if (!facts->held_out)
        fprintf(file,
                "\n  nothing is held out, since no class has %lld pictures: the run ends after its "
                "steps, and may have learnt the pictures by heart before",
                (long long)nl_recipe_held_out_every(facts));
    else if (train->hold_out > 0)
        fprintf(file,
                "\n  %lld %s held out: when the loss on them has not fallen for %lld validations, "
                "the run ends",
                (long long)facts->held_out,
                nl_plural(facts->held_out, "picture is", "pictures are"),
                (long long)train->patience);
}

/* What the recipe makes of the options, what it cannot, and what comes after. */
static void tell_recipe(nl_context *context, const nl_recipe *recipe, const char *record,
                        const nl_train_options *train)
{
    static const char *const known[] = {"recipe", "data", "out"};
    const nl_recipe_facts *facts = &recipe->facts;
    cJSON *object = NULL;
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return;
    fprintf(file, "recipe small for %lld %s of %d %s:", (long long)facts->pictures,
            nl_plural(facts->pictures, "picture", "pictures"), facts->classes,
            nl_plural(facts->classes, "class", "classes"));
    if (nl_json_parse(context, "options", record, strlen(record), &object) == NL_OK) {
        for (int i = 0; i < NL_COUNT(known); i++)
            cJSON_DeleteItemFromObjectCaseSensitive(object, known[i]);
        print_choices(file, object);
    }
    tell_held_out(file, facts, train);
    if (recipe->minutes > 0 && train->minutes == recipe->minutes)
        fprintf(file,
                "\n  on this CPU it ends after %g minutes, sooner than would be best: --minutes "
                "says when, a GPU takes less",
                recipe->minutes);
    fprintf(file,
            "\n  pictures then: nalagen sample -m %s%s\n"
            "  another average: nalagen average %s --sigma 0.15 -o model.safetensors",
            train->out, recipe->middle_head ? " --cfg-scale 1 --internal-guidance 2" : "",
            train->out);
    if (fclose(file) == 0)
        nl_log(context, NL_LOG_INFO, "%s", text);
    cJSON_Delete(object);
    free(text);
}

/* The recipe's choices below what was given. */
static nl_status follow_recipe(nl_command_line *line, const nl_layers *layers, nl_texts *texts,
                               nl_train_values *values, nl_recipe *recipe)
{
    const nl_train_options *given = &values->train;
    nl_train_options base = nl_train_defaults;
    base.data = given->data;
    base.validation = given->validation;
    base.model = given->model;
    base.init = given->init;
    base.config = given->config;
    base.steps = given->steps;
    base.epochs = given->epochs;
    base.minutes = given->minutes;
    base.batch = given->batch;
    base.hold_out = given->hold_out;
    NL_CHECK(nl_recipe_small(line->context, &base, recipe));
    NL_CHECK(take_options(line, layers, &base, texts, values));
    if (strcmp(given->schedule, base.schedule) != 0 && given->cooldown == base.cooldown)
        values->train.cooldown = nl_train_defaults.cooldown; /* it was of the recipe's schedule */
    return NL_OK;
}

/* A bar for who watches; a file has the lines of the log. Ctrl-C is heard by the run itself, between two steps. */
static bool show_progress(void *user, const nl_progress *now)
{
    nl_command_line *line = user;
    if (line->console.terminal)
        nl_console_progress(&line->console, now);
    return true;
}

static nl_status run(nl_command_line *line, const nl_layers *layers, nl_texts *texts,
                     nl_train_values *values)
{
    nl_status status = NL_OK;
    char *record = NULL;
    bool chooses = is_small(values->recipe) && !values->recipe_taken;
    nl_recipe recipe;
    NL_TRY(nl_command_take_device(line, &values->machine, show_progress, line));
    if (chooses)
        NL_TRY(follow_recipe(line, layers, texts, values, &recipe));
    NL_TRY(print_options(line->context, values, &record));
    if (chooses && values->train.data && values->train.out)
        tell_recipe(line->context, &recipe, record, &values->train);
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
    nl_layers layers = {0};
    NL_TRY(settle_options(line, &layers, &texts, v));
    nl_launch_options processes = {.gpus = v->gpus, .device = v->machine.device, .together = true};
    nl_take_place(&line->console, &v->machine, device);
    NL_TRY(nl_launch_wanted(&processes)
               ? nl_launch(&line->console, line->context, &processes, line->argc, line->argv)
               : run(line, &layers, &texts, v));
cleanup:
    free_layers(line->first, &layers);
    nl_texts_free(&texts);
    return status;
}

nl_status nl_train_with(int argc, char **argv, nl_train_values *values)
{
    return nl_command_main(values->command, argc, argv, values, train);
}
