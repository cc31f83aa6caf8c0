/* SPDX-License-Identifier: MIT */
/* What a picture says about itself: a JSON object in its text chunk. The options in it are those of the table, so that
 * they read back as from a command line. */
#include "nl_image.h"
#include "nl_task.h"
#include "ops.h"

#include <stdio.h>
#include <string.h>

static const nl_option rows[] = {
    {.include = nl_sampling_options}, {.include = nl_walk_options}, {0}};
static const nl_command table = {.name = "task", .options = rows};

const char *nl_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static nl_status no_memory(nl_context *context)
{
    return nl_fail(context, NL_ERROR_MEMORY, "no memory for the description of a picture");
}

/* The configuration without the names of the classes, which may be many. */
static nl_status config_json(nl_context *context, nl_model *model, cJSON **config)
{
    const char *text = nl_model_config(model);
    nl_status status = nl_json_parse(context, "configuration", text, strlen(text), config);
    if (status == NL_OK)
        cJSON_DeleteItemFromObject(*config, "class_names");
    return status;
}

nl_status nl_model_facts(nl_model *model, const nl_task_options *options, cJSON **facts)
{
    nl_context *context = nl_model_context(model);
    nl_status status = NL_OK;
    const char *sha = NULL, *guide = NULL;
    char name[64];
    cJSON *object = cJSON_CreateObject(), *config = NULL;
    const char *file = options->model ? options->model : nl_shipped_model;
    nl_config_name(nl_model_get_config(model), name, sizeof(name));
    NL_TRY(nl_model_sha256(model, &sha));
    NL_TRY(nl_model_guide_sha256(model, &guide));
    NL_TRY(config_json(context, model, &config));
    if (!cJSON_AddStringToObject(object, "version", nl_version()) ||
        !cJSON_AddStringToObject(object, "model", nl_base_name(file)) ||
        !cJSON_AddStringToObject(object, "name", name) ||
        !cJSON_AddStringToObject(object, "sha256", sha) ||
        !cJSON_AddStringToObject(object, "device", context->device->name) ||
        (options->vae && !cJSON_AddStringToObject(object, "vae", nl_base_name(options->vae))) ||
        (guide && (!cJSON_AddStringToObject(object, "guide", nl_base_name(options->guide)) ||
                   !cJSON_AddStringToObject(object, "guide_sha256", guide))) ||
        !cJSON_AddItemToObject(object, "config", config))
        NL_TRY(no_memory(context));
    config = NULL;
    *facts = object;
    object = NULL;
cleanup:
    cJSON_Delete(config);
    cJSON_Delete(object);
    return status;
}

nl_status nl_task_facts(const nl_model *model, const cJSON *model_facts,
                        const nl_task_options *options, const nl_sampling *sampling,
                        const int *label, int64_t index, cJSON **facts)
{
    const nl_config *config = nl_model_get_config(model);
    cJSON *object = cJSON_Duplicate(model_facts, true);
    nl_task_options record = *options;
    char text[24], seed[24];
    bool good = object != NULL;
    record.sampling = *sampling;
    record.sampling.cfg_scale = nl_sampling_scale(sampling);
    record.seed = nl_task_defaults.seed; /* written below, also when it is 0 */
    record.first_index = nl_task_defaults.first_index;
    if (label) {
        record.classes = NULL;
        record.n = nl_task_defaults.n;
        good = good && cJSON_AddNumberToObject(object, "class", *label) &&
               cJSON_AddStringToObject(object, "class_name",
                                       nl_class_text(config, *label, text, sizeof(text)));
    } else if (!record.classes) {
        record.classes = config->num_classes ? "random" : "null";
    }
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)options->seed);
    good = good &&
           (options->seed >> 53 ? cJSON_AddStringToObject(object, "seed", seed)
                                : cJSON_AddRawToObject(object, "seed", seed)) &&
           cJSON_AddNumberToObject(object, "index", (double)index) &&
           nl_options_to_json(&table, &record, &nl_task_defaults, NL_IN_PICTURE, object);
    if (!good) {
        cJSON_Delete(object);
        return no_memory(nl_model_context(model));
    }
    *facts = object;
    return NL_OK;
}

nl_status nl_animation_encode(nl_context *context, const uint8_t *const *pictures, int count,
                              int height, int width, int milliseconds, const cJSON *facts,
                              uint8_t **bytes, size_t *size)
{
    char software[32], *json = facts ? nl_json_print(facts, false) : NULL;
    const char *words[] = {NL_FACTS_KEY, json, "Software", software, NULL};
    const char *const *text = facts ? words : NULL;
    nl_status status;
    snprintf(software, sizeof(software), "nalagen %s", nl_version());
    if (facts && !json)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for the text in a picture"));
    NL_TRY(milliseconds ? nl_apng_encode(context, pictures, count, height, width, milliseconds,
                                         text, bytes, size)
                        : nl_png_encode(context, pictures[0], height, width, text, bytes, size));
cleanup:
    cJSON_free(json);
    return status;
}

nl_status nl_picture_encode(nl_context *context, const uint8_t *rgb, int height, int width,
                            const cJSON *facts, uint8_t **bytes, size_t *size)
{
    return nl_animation_encode(context, &rgb, 1, height, width, 0, facts, bytes, size);
}
