/* SPDX-License-Identifier: MIT */
/* What a picture says about itself: a JSON object in the text chunk "nalagen". The options in it are
 * those of the option table, so that --from reads them back as it would the command line. */
#include "nl_image.h"
#include "nl_sample.h"
#include "ops.h"

#include <string.h>

/* Keys of the object that are no options. */
static const char *const own_keys[] = {"version",    "model",  "name",  "sha256", "vae", "device",
                                       "class_name", "config", "index", "noise",  NULL};

static const char *base_name(const char *path)
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

nl_status nl_model_facts(nl_session *session, cJSON **facts)
{
    nl_context *context = session->context;
    const nl_sample_options *options = session->options;
    nl_status status = NL_OK;
    const char *sha = NULL;
    char name[64];
    cJSON *object = cJSON_CreateObject(), *config = NULL;
    const char *model = options->model ? options->model : nl_shipped_model;
    nl_config_name(nl_model_get_config(session->model), name, sizeof(name));
    NL_TRY(nl_model_sha256(session->model, &sha));
    NL_TRY(config_json(context, session->model, &config));
    if (!cJSON_AddStringToObject(object, "version", nl_version()) ||
        !cJSON_AddStringToObject(object, "model", base_name(model)) ||
        !cJSON_AddStringToObject(object, "name", name) ||
        !cJSON_AddStringToObject(object, "sha256", sha) ||
        !cJSON_AddStringToObject(object, "device", context->device->name) ||
        (options->vae && !cJSON_AddStringToObject(object, "vae", base_name(options->vae))) ||
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

/* label: NULL for all pictures of the job together. */
static nl_status facts_of(nl_session *session, const nl_sample_options *options,
                          const nl_sampling *sampling, const int *label, int64_t index,
                          cJSON **facts)
{
    nl_context *context = session->context;
    cJSON *object = cJSON_Duplicate(session->facts, true);
    nl_sample_options record = *options;
    char text[24], seed[24];
    bool good = object != NULL;
    record.sampling = *sampling;
    record.sampling.cfg_scale = nl_sampling_scale(sampling);
    record.seed = nl_sample_defaults.seed; /* written below, also when it is 0 */
    record.first_index = nl_sample_defaults.first_index;
    if (label) {
        record.classes = NULL;
        record.n = nl_sample_defaults.n;
        good = good && cJSON_AddNumberToObject(object, "class", *label) &&
               cJSON_AddStringToObject(
                   object, "class_name",
                   nl_class_text(nl_model_get_config(session->model), *label, text, sizeof(text)));
    } else if (!record.classes) {
        record.classes = nl_model_get_config(session->model)->num_classes ? "random" : "null";
    }
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)options->seed);
    good =
        good &&
        (options->seed >> 53 ? cJSON_AddStringToObject(object, "seed", seed)
                             : cJSON_AddRawToObject(object, "seed", seed)) &&
        cJSON_AddNumberToObject(object, "index", (double)index) &&
        (!options->noise || cJSON_AddStringToObject(object, "noise", base_name(options->noise))) &&
        nl_options_to_json(&nl_sample_command, &record, &nl_sample_defaults, NL_IN_PICTURE, object);
    if (!good) {
        cJSON_Delete(object);
        return no_memory(context);
    }
    *facts = object;
    return NL_OK;
}

nl_status nl_picture_facts(nl_session *session, const nl_sample_options *options,
                           const nl_sampling *sampling, int label, int64_t index, cJSON **facts)
{
    return facts_of(session, options, sampling, options->grid[0] ? NULL : &label, index, facts);
}

nl_status nl_pictures_facts(nl_session *session, const nl_sample_options *options,
                            const nl_sampling *sampling, cJSON **facts)
{
    return facts_of(session, options, sampling, NULL, options->first_index, facts);
}

nl_status nl_read_picture_facts(nl_context *context, const char *path, cJSON **facts)
{
    nl_image image = {0};
    nl_status status = NL_OK;
    const char *text = NULL;
    NL_TRY(nl_png_read_text(context, path, &image));
    for (char **pair = image.text; pair && *pair; pair += 2)
        if (!strcmp(pair[0], NL_FACTS_KEY))
            text = pair[1];
    if (!text)
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT,
                    "%s: expected a picture made by nalagen, found no parameters in it (text chunk "
                    "\"%s\")",
                    path, NL_FACTS_KEY));
    NL_TRY(nl_json_parse(context, path, text, strlen(text), facts));
cleanup:
    nl_image_free(context, &image);
    return status;
}

/* A file known by its name alone: in the current folder, beside the picture, among the data files. */
static nl_status find_file(nl_context *context, const char *picture, const char *name,
                           nl_texts *texts, const char **path)
{
    nl_status status = NL_OK;
    char *folder = NULL, *found = NULL;
    const char *slash = strrchr(picture, '/');
    if (strchr(name, '/') || nl_path_exists(name))
        NL_TRY(nl_strdup(context, name, &found));
    else if (slash)
        NL_TRY(nl_format(context, &folder, "%.*s", (int)(slash - picture), picture));
    if (!found)
        NL_TRY(nl_find_data(context, folder, name, &found));
    if (!found)
        NL_TRY(nl_strdup(context, name, &found)); /* the failure to open it names it */
    *path = found;
    NL_TRY(nl_texts_add(texts, found));
cleanup:
    nl_free(context, folder);
    return status;
}

nl_status nl_options_from_picture(nl_context *context, const char *path, const cJSON *facts,
                                  nl_texts *texts, nl_sample_options *options)
{
    nl_status status = NL_OK;
    nl_json json = {.context = context, .where = path, .object = facts};
    const char *model = NULL, *vae = NULL, *noise = NULL;
    if (!cJSON_IsObject(facts))
        return nl_fail(context, NL_ERROR_INPUT, "%s: its parameters are no JSON object", path);
    NL_TRY(nl_json_string(&json, "model", &model));
    NL_TRY(nl_json_string(&json, "vae", &vae));
    NL_TRY(nl_json_string(&json, "noise", &noise));
    NL_TRY(nl_json_int(&json, "index", 0, 1000000000000000, &options->first_index));
    NL_TRY(nl_options_apply(context, &nl_sample_command, path, facts, NL_IN_PICTURE, own_keys,
                            texts, options));
    if (model && strcmp(model, nl_shipped_model) != 0)
        NL_TRY(find_file(context, path, model, texts, &options->model));
    if (vae && !strcmp(vae, "none"))
        options->vae = "none";
    else if (vae)
        NL_TRY(find_file(context, path, vae, texts, &options->vae));
    if (noise)
        NL_TRY(find_file(context, path, noise, texts, &options->noise));
cleanup:
    return status;
}

nl_status nl_compare_facts(nl_session *session, const char *path, const cJSON *facts)
{
    nl_context *context = session->context;
    nl_json json = {.context = context, .where = path, .object = facts};
    nl_status status = NL_OK;
    const char *theirs = NULL, *ours = NULL;
    cJSON *config = NULL;
    const cJSON *recorded = cJSON_GetObjectItemCaseSensitive(facts, "config");
    NL_TRY(nl_json_string(&json, "sha256", &theirs));
    NL_TRY(nl_model_sha256(session->model, &ours));
    if (theirs && strcmp(theirs, ours) != 0)
        nl_log(context, NL_LOG_WARNING,
               "%s: another model made it (sha256 %.12s, this one %.12s): the picture will differ; "
               "give its own with --model",
               path, theirs, ours);
    NL_TRY(config_json(context, session->model, &config));
    if (recorded && !cJSON_Compare(recorded, config, true))
        nl_log(context, NL_LOG_WARNING,
               "%s: the model's configuration was another one: give it with --config", path);
cleanup:
    cJSON_Delete(config);
    return status;
}
