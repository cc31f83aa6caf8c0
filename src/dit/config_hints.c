/* SPDX-License-Identifier: MIT */
/* What a foreign file says of its own network: training arguments in torch files, config.json of diffusers. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nl_json.h"
#include "params.h"

/* The arguments of the public training programs, as torch checkpoints keep them. */
static void read_arguments(const nl_checkpoint *checkpoint, nl_config *config, const char **source)
{
    const char *model = nl_checkpoint_metadata(checkpoint, "args.model");
    const char *path = nl_checkpoint_metadata(checkpoint, "args.path_type");
    const char *prediction = nl_checkpoint_metadata(checkpoint, "args.prediction");
    const char *eps[] = {nl_checkpoint_metadata(checkpoint, "args.train_eps"),
                         nl_checkpoint_metadata(checkpoint, "args.sample_eps")};
    double *to[] = {&config->train_eps, &config->sample_eps};
    if (model && (strncasecmp(model, "DiT-", 4) == 0 || strncasecmp(model, "SiT-", 4) == 0)) {
        config->architecture = strncasecmp(model, "SiT-", 4) == 0 ? NL_ARCH_SIT : NL_ARCH_DIT;
        *source = "the arguments of its training";
    }
    if (config->architecture != NL_ARCH_SIT)
        return;
    for (int i = 0; path && nl_path_names[i]; i++)
        if (strcasecmp(path, nl_path_names[i]) == 0)
            config->path = (nl_path)i;
    for (int i = 0; prediction && nl_prediction_names[i]; i++)
        if (strcasecmp(prediction, nl_prediction_names[i]) == 0)
            config->prediction = (nl_prediction)i;
    for (int i = 0; i < 2; i++) {
        char *end = NULL;
        double value = eps[i] ? strtod(eps[i], &end) : -1;
        if (eps[i] && end > eps[i] && !*end && value >= 0)
            *to[i] = value;
    }
}

/* config.json says sizes that names and shapes of tensors do not tell, and whether it is this
 * network at all. */
static nl_status read_diffusers(const nl_checkpoint *checkpoint, const char *text,
                                nl_config *config)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    cJSON *object = NULL;
    const char *class = NULL, *activation = NULL, *norm = NULL;
    int64_t heads = config->num_heads, size = config->input_height;
    NL_TRY(nl_json_parse(context, "config.json", text, strlen(text), &object));
    nl_json json = {context, "config.json", object};
    NL_TRY(nl_json_string(&json, "_class_name", &class));
    if (!class ||
        (strcmp(class, "DiTTransformer2DModel") != 0 && strcmp(class, "Transformer2DModel") != 0))
        goto cleanup; /* of something else in the same folder */
    NL_TRY(nl_json_string(&json, "activation_fn", &activation));
    NL_TRY(nl_json_string(&json, "norm_type", &norm));
    NL_TRY(nl_json_int(&json, "num_attention_heads", 1, INT16_MAX, &heads));
    NL_TRY(nl_json_int(&json, "sample_size", 1, INT16_MAX, &size));
    if ((activation && strcmp(activation, "gelu-approximate") != 0) ||
        (norm && strcmp(norm, "ada_norm_zero") != 0)) {
        status = nl_fail(context, NL_ERROR_INPUT,
                         "config.json of %s: expected the activation gelu-approximate and the norm "
                         "ada_norm_zero of a DiT, found %s and %s",
                         checkpoint->path, activation ? activation : "none", norm ? norm : "none");
        goto cleanup;
    }
    config->num_heads = (int)heads;
    config->input_height = config->input_width = (int)size;
cleanup:
    cJSON_Delete(object);
    return status;
}

nl_status nl_config_hints(const nl_checkpoint *checkpoint, nl_config *config, const char **source)
{
    const char *json = nl_checkpoint_metadata(checkpoint, "config.json");
    *source = NULL;
    read_arguments(checkpoint, config, source);
    if (!checkpoint->spelling)
        return NL_OK;
    if (config->architecture == NL_ARCH_UNKNOWN) {
        config->architecture = NL_ARCH_DIT;
        *source = "diffusers' names";
    }
    return json ? read_diffusers(checkpoint, json, config) : NL_OK;
}
