/* SPDX-License-Identifier: MIT */
/* A model as a program uses it: checkpoint, configuration, backbone and autoencoder, its classes. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "nl_io.h"
#include "nl_json.h"

int nl_model_factor(const nl_config *config)
{
    if (config->autoencoder == NL_AUTOENCODER_NONE)
        return 1;
    return config->latent_factor ? config->latent_factor : 8;
}

static nl_status find_checkpoint(nl_context *context, const char *given, char **path)
{
    if (given)
        return nl_backbone_path(context, given, path);
    nl_status status = nl_find_data(context, NULL, nl_shipped_model, path);
    if (status == NL_OK && !*path)
        return nl_data_missing(context, "the model that ships", NULL,
                               (const char *const[]){nl_shipped_model, NULL},
                               "give a checkpoint with --model FILE");
    return status;
}

/* Keys that stand in options, through the parser of configurations and its checks. */
static nl_status parse_options(nl_context *context, const nl_model_options *options,
                               nl_config *config)
{
    nl_status status = NL_OK;
    char *text = NULL;
    cJSON *object = cJSON_CreateObject();
    int factor = nl_model_factor(config), unit = factor * config->patch_size;
    if (options->transport_path)
        cJSON_AddStringToObject(object, "path", options->transport_path);
    if (options->prediction)
        cJSON_AddStringToObject(object, "prediction", options->prediction);
    if ((options->transport_path || options->prediction) && config->architecture != NL_ARCH_SIT)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "path and prediction belong to SiT; this model is a DiT (see --arch)"));
    if (options->height || options->width) {
        if (options->height < 1 || options->width < 1 || options->height % unit ||
            options->width % unit)
            NL_TRY(nl_fail(
                context, NL_ERROR_USAGE,
                "size %dx%d: expected multiples of %d pixels (%d for a latent, patches of %d)",
                options->height, options->width, unit, factor, config->patch_size));
        cJSON *size = cJSON_AddArrayToObject(object, "input_size");
        cJSON_AddItemToArray(size, cJSON_CreateNumber(options->height / factor));
        cJSON_AddItemToArray(size, cJSON_CreateNumber(options->width / factor));
    }
    if (!object)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for options"));
    if (!object->child)
        goto cleanup;
    text = nl_json_print(object, false);
    if (!text)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for options"));
    NL_TRY(nl_config_parse(context, "options", text, strlen(text), config));
cleanup:
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

nl_status nl_read_config(const nl_checkpoint *checkpoint, const nl_model_options *options,
                         nl_config *config)
{
    nl_context *context = checkpoint->context;
    nl_status status = nl_config_from_checkpoint(checkpoint, options->architecture, config);
    if (status != NL_OK && !options->config_path)
        return status;
    if (status != NL_OK) /* what a file cannot say of itself, its configuration may */
        nl_config_init(config);
    status = NL_OK;
    if (options->config_path)
        NL_TRY(nl_config_parse_over(context, options->config_path, config));
    if (options->config_path && !nl_checkpoint_metadata(checkpoint, "nalagen"))
        NL_TRY(nl_config_read_position(checkpoint, config));
    NL_TRY(parse_options(context, options, config));
    NL_TRY(nl_config_check(context, checkpoint->path, config));
    return NL_OK;
cleanup:
    nl_config_free(context, config);
    nl_config_init(config);
    return status;
}

/* From a file, or from memory, whose sum cannot be had later. */
static nl_status open_checkpoint(nl_model *model, const nl_model_options *options,
                                 nl_checkpoint **checkpoint)
{
    nl_context *context = model->context;
    nl_sha256 sha;
    if (!options->data) {
        NL_CHECK(find_checkpoint(context, options->path, &model->path));
        return nl_dit_open(context, model->path, options->key, checkpoint);
    }
    if (options->key || options->data_size > INT64_MAX)
        return nl_fail(context, NL_ERROR_USAGE,
                       "weights in memory: expected no key and their size, found %s%s",
                       options->key ? "key " : "a size beyond all memory",
                       options->key ? options->key : "");
    NL_CHECK(nl_strdup(context, options->path ? options->path : "weights in memory", &model->path));
    NL_CHECK(nl_dit_open_memory(context, model->path, options->data, (int64_t)options->data_size,
                                checkpoint));
    nl_sha256_init(&sha);
    nl_sha256_update(&sha, options->data, options->data_size);
    nl_sha256_hex(&sha, model->sha256);
    return NL_OK;
}

/* The second set of weights, which makes the one step. */
static nl_status load_one_step(nl_model *model, const nl_checkpoint *checkpoint)
{
    nl_config config = model->config;
    if (config.one_step != NL_ONE_STEP_BESIDE)
        return NL_OK;
    config.one_step = NL_ONE_STEP_ALONE;
    NL_CHECK(nl_dit_create(model->context->device, &config, &model->one_step));
    NL_CHECK(nl_dit_load(model->one_step, checkpoint->beside));
    return nl_dit_freeze(model->one_step);
}

nl_status nl_model_load(nl_context *context, const nl_model_options *given, nl_model **out)
{
    nl_model_options taken = {0}, *options = &taken;
    nl_checkpoint *checkpoint = NULL;
    nl_model *model = NULL;
    nl_status status = NL_OK;
    *out = NULL;
    if (given)
        NL_TRY(nl_take_options(context, "options of a model", given, sizeof(taken), &taken,
                               sizeof(taken)));
    NL_TRY(NL_NEW(context, "model", &model));
    model->context = context;
    nl_config_init(&model->config);
    NL_TRY(open_checkpoint(model, options, &checkpoint));
    NL_TRY(nl_read_config(checkpoint, options, &model->config));
    NL_TRY(nl_dit_create(context->device, &model->config, &model->dit));
    nl_log(context, NL_LOG_DEBUG, "%s is open", model->path);
    NL_TRY(nl_dit_load(model->dit, checkpoint));
    NL_TRY(nl_dit_freeze(model->dit));
    NL_TRY(load_one_step(model, checkpoint));
    nl_log(context, NL_LOG_DEBUG, "%lld parameters on %s",
           (long long)nl_dit_parameter_count(model->dit), context->device->name);
    NL_TRY(nl_check_cancelled(context));
    int factor = nl_model_factor(&model->config);
    NL_TRY(nl_model_open_vae(model, options->vae));
    if (options->height && nl_model_factor(&model->config) != factor)
        NL_TRY(
            nl_fail(context, NL_ERROR_USAGE,
                    "%s does not say how many pixels a latent stands for, and its autoencoder has "
                    "%d: for a size of pictures give {\"latent_factor\": %d} with --config",
                    model->path, nl_model_factor(&model->config), nl_model_factor(&model->config)));
    if (options->guide)
        NL_TRY(nl_model_open_guide(model, options));
    NL_TRY(nl_config_print(context, &model->config, &model->config_text));
    nl_log(context, NL_LOG_DEBUG, "the model is loaded");
    *out = model;
    model = NULL;
cleanup:
    nl_checkpoint_close(checkpoint);
    nl_model_destroy(model);
    return status;
}

void nl_model_destroy(nl_model *model)
{
    if (!model)
        return;
    nl_context *context = model->context;
    nl_vae_destroy(model->vae);
    nl_dit_destroy(model->dit);
    nl_dit_destroy(model->one_step);
    nl_class_index_free(context, model->class_index);
    nl_dit_destroy(model->guide);
    nl_free(context, model->guide_path);
    nl_config_free(context, &model->config);
    nl_free(context, model->config_text);
    nl_free(context, model->path);
    nl_free(context, model);
}

const char *nl_model_config(const nl_model *model)
{
    return model->config_text;
}

nl_status nl_model_class(nl_model *model, const char *text, int *index)
{
    nl_status status = NL_OK;
    if (!model->class_index)
        status = nl_class_index_create(model->context, &model->config, &model->class_index);
    return status == NL_OK
               ? nl_config_class(model->context, &model->config, model->class_index, text, index)
               : status;
}

nl_context *nl_model_context(const nl_model *model)
{
    return model->context;
}

const nl_config *nl_model_get_config(const nl_model *model)
{
    return &model->config;
}

void nl_model_latent_shape(const nl_model *model, int shape[3])
{
    shape[0] = model->config.in_channels;
    shape[1] = model->config.input_height;
    shape[2] = model->config.input_width;
}

bool nl_model_has_autoencoder(const nl_model *model)
{
    return model->vae != NULL;
}
