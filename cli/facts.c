/* SPDX-License-Identifier: MIT */
/* What a picture says about itself: a JSON object in the text chunk "nalagen". The options in it are
 * those of the option table, so that --from reads them back as it would the command line. */
#include "nl_image.h"
#include "nl_sample.h"
#include "ops.h"

#include <string.h>

/* Keys of the object that are no options. */
static const char *const own_keys[] = {"version", "model",        "name",   "sha256",     "vae",
                                       "guide",   "guide_sha256", "device", "class_name", "config",
                                       "index",   "noise",        NULL};

static nl_status no_memory(nl_context *context)
{
    return nl_fail(context, NL_ERROR_MEMORY, "no memory for the description of a picture");
}

/* label: NULL for all pictures of the job together. */
static nl_status facts_of(nl_session *session, const nl_sample_options *options,
                          const nl_sampling *sampling, const int *label, int64_t index,
                          cJSON **facts)
{
    nl_status status = nl_task_facts(session->model, session->facts, &options->task, sampling,
                                     label, index, facts);
    nl_sample_options record = nl_sample_defaults; /* what no task has */
    memcpy(record.grid, options->grid, sizeof(record.grid));
    record.animate = options->animate;
    if (status == NL_OK &&
        ((options->noise &&
          !cJSON_AddStringToObject(*facts, "noise", nl_base_name(options->noise))) ||
         !nl_options_to_json(&nl_sample_command, &record, &nl_sample_defaults, NL_IN_PICTURE,
                             *facts))) {
        cJSON_Delete(*facts);
        *facts = NULL;
        status = no_memory(session->context);
    }
    return status;
}

nl_status nl_picture_facts(nl_session *session, const nl_sample_options *options,
                           const nl_sampling *sampling, int label, int64_t index, cJSON **facts)
{
    return facts_of(session, options, sampling, nl_sample_in_one(options) ? NULL : &label, index,
                    facts);
}

nl_status nl_pictures_facts(nl_session *session, const nl_sample_options *options,
                            const nl_sampling *sampling, cJSON **facts)
{
    return facts_of(session, options, sampling, NULL, options->task.first_index, facts);
}

const char *nl_image_facts(const nl_image *image)
{
    for (char **pair = image->text; pair && *pair; pair += 2)
        if (!strcmp(pair[0], NL_FACTS_KEY))
            return pair[1];
    return NULL;
}

nl_status nl_read_picture_facts(nl_context *context, const char *path, cJSON **facts)
{
    nl_image image = {0};
    nl_status status = NL_OK;
    NL_TRY(nl_png_read_text(context, path, &image));
    const char *text = nl_image_facts(&image);
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
    nl_json json = {.context = context, .where = path, .object = facts};
    const char *model = NULL, *vae = NULL, *guide = NULL, *noise = NULL;
    if (!cJSON_IsObject(facts))
        return nl_fail(context, NL_ERROR_INPUT, "%s: its parameters are no JSON object", path);
    NL_CHECK(nl_json_string(&json, "model", &model));
    NL_CHECK(nl_json_string(&json, "vae", &vae));
    NL_CHECK(nl_json_string(&json, "guide", &guide));
    NL_CHECK(nl_json_string(&json, "noise", &noise));
    NL_CHECK(nl_json_int(&json, "index", 0, 1000000000000000, &options->task.first_index));
    NL_CHECK(nl_options_apply(context, &nl_sample_command, path, facts, NL_IN_PICTURE, own_keys,
                              texts, options));
    if (options->task.walk && !nl_sample_in_one(options)) /* one of its pictures */
        options->task.n = 1;
    if (model && strcmp(model, nl_shipped_model) != 0)
        NL_CHECK(find_file(context, path, model, texts, &options->task.model));
    if (vae && !strcmp(vae, "none"))
        options->task.vae = "none";
    else if (vae)
        NL_CHECK(find_file(context, path, vae, texts, &options->task.vae));
    if (guide)
        NL_CHECK(find_file(context, path, guide, texts, &options->task.guide));
    if (noise)
        NL_CHECK(find_file(context, path, noise, texts, &options->noise));
    return NL_OK;
}

nl_status nl_compare_facts(nl_session *session, const char *path, const cJSON *facts)
{
    nl_context *context = session->context;
    nl_json json = {.context = context, .where = path, .object = facts};
    nl_status status = NL_OK;
    const char *theirs = NULL, *ours = NULL, *guided = NULL, *guide = NULL;
    cJSON *here = NULL;
    const cJSON *recorded = cJSON_GetObjectItemCaseSensitive(facts, "config");
    NL_TRY(nl_json_string(&json, "sha256", &theirs));
    NL_TRY(nl_model_sha256(session->model, &ours));
    if (theirs && strcmp(theirs, ours) != 0)
        nl_log(context, NL_LOG_WARNING,
               "%s: another model made it (sha256 %.12s, this one %.12s): the picture will differ; "
               "give its own with --model",
               path, theirs, ours);
    NL_TRY(nl_json_string(&json, "guide_sha256", &guided));
    NL_TRY(nl_model_guide_sha256(session->model, &guide));
    if ((guided || guide) && (!guided || !guide || strcmp(guided, guide) != 0))
        nl_log(
            context, NL_LOG_WARNING,
            "%s: %s made it (sha256 %.12s, here %.12s): the picture will differ; give its own with "
            "--guide",
            path, guided ? "another guide" : "no guide", guided ? guided : "none",
            guide ? guide : "none");
    NL_TRY(nl_model_facts(session->model, &session->options->task, &here));
    if (recorded &&
        !cJSON_Compare(recorded, cJSON_GetObjectItemCaseSensitive(here, "config"), true))
        nl_log(context, NL_LOG_WARNING,
               "%s: the model's configuration was another one: give it with --config", path);
cleanup:
    cJSON_Delete(here);
    return status;
}
