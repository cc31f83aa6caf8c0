/* SPDX-License-Identifier: MIT */
/* Defaults, copies and names of configurations. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nl_config.h"
#include "nl_json.h"

static const struct {
    const char *name;
    int depth, hidden_size, num_heads;
} sizes[] = {{"S", 12, 384, 6}, {"B", 12, 768, 12}, {"L", 24, 1024, 16}, {"XL", 28, 1152, 16}};

#define NL_ROW(NAME, name, prefix)                                                                 \
    {prefix "DiT", NL_ARCH_DIT, NL_ATTENTION_##NAME},                                              \
        {prefix "SiT", NL_ARCH_SIT, NL_ATTENTION_##NAME},
static const struct {
    const char *name;
    nl_architecture architecture;
    nl_attention attention;
} kinds[] = {NL_MIXERS(NL_ROW)};
#undef NL_ROW

#define NL_ROW(NAME, name, prefix) #name,
const char *const nl_mixer_names[] = {NL_MIXERS(NL_ROW) NULL};
#undef NL_ROW
#define NL_ROW(NAME, name) #name,
const char *const nl_norm_names[] = {"layer", "rms", NULL};
const char *const nl_mlp_names[] = {NL_MLPS(NL_ROW) NULL};
#undef NL_ROW
#define NL_ROW(NAME, name, prefix) prefix "DiT", prefix "SiT",
const char *const nl_architecture_names[] = {NL_MIXERS(NL_ROW) NULL};
#undef NL_ROW
const char *const nl_one_step_names[] = {NL_ONE_STEPS(NL_LIST_NAME) NULL};
const char *const nl_schedule_names[] = {NL_SCHEDULES(NL_LIST_NAME) NULL};
const char *const nl_predicts_names[] = {NL_PREDICTSES(NL_LIST_NAME) NULL};
const char *const nl_variance_names[] = {NL_VARIANCES(NL_LIST_NAME) NULL};
const char *const nl_spacing_names[] = {NL_SPACINGS(NL_LIST_NAME) NULL};
const char *const nl_query_norm_names[] = {NL_QUERY_NORMS(NL_LIST_NAME) NULL};
const char *const nl_path_names[] = {NL_PATHS(NL_LIST_NAME) NULL};
const char *const nl_prediction_names[] = {NL_PREDICTIONS(NL_LIST_NAME) NULL};
const char *const nl_autoencoder_names[] = {NL_AUTOENCODERS(NL_LIST_NAME) "taesd", NULL};

void nl_config_init(nl_config *config)
{
    *config = (nl_config){
        .architecture = NL_ARCH_UNKNOWN,
        .lambda = 3,
        .tau = 0.5,
        .gate = true,
        .mediators = 16,
        .patch_size = 2,
        .input_height = 32,
        .input_width = 32,
        .in_channels = 4,
        .num_classes = 1000,
        .learn_sigma = true,
        .class_dropout_prob = 0.1,
        .diffusion_steps = 1000,
        .train_eps = -1,
        .sample_eps = -1,
        .latent_scale = 0.18215,
    };
}

void nl_config_free(nl_context *context, nl_config *config)
{
    for (int i = 0; config->class_names && i < config->num_classes; i++) {
        nl_free(context, config->class_names[i].wnid);
        nl_free(context, config->class_names[i].name);
    }
    nl_free(context, config->class_names);
    nl_free(context, config->trained_on);
    nl_free(context, config->license);
    config->class_names = NULL;
    config->trained_on = config->license = NULL;
}

static nl_status copy_text(nl_context *context, const char *text, char **copy)
{
    *copy = NULL;
    return text ? nl_strdup(context, text, copy) : NL_OK;
}

nl_status nl_config_copy(nl_context *context, const nl_config *config, nl_config *copy)
{
    nl_status status;
    *copy = *config;
    copy->class_names = NULL;
    copy->trained_on = copy->license = NULL;
    NL_TRY(copy_text(context, config->trained_on, &copy->trained_on));
    NL_TRY(copy_text(context, config->license, &copy->license));
    if (!config->class_names)
        return NL_OK;
    NL_TRY(NL_NEW_ZEROS(context, "class names", config->num_classes, &copy->class_names));
    for (int i = 0; i < config->num_classes; i++) {
        NL_TRY(copy_text(context, config->class_names[i].wnid, &copy->class_names[i].wnid));
        NL_TRY(copy_text(context, config->class_names[i].name, &copy->class_names[i].name));
    }
cleanup:
    if (status != NL_OK)
        nl_config_free(context, copy);
    return status;
}

int nl_config_default_heads(int hidden_size)
{
    for (int i = 0; i < NL_COUNT(sizes); i++)
        if (sizes[i].hidden_size == hidden_size)
            return sizes[i].num_heads;
    return NL_MAX(hidden_size / 64, 1);
}

const char *nl_config_architectures(char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < NL_COUNT(kinds) && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 i == 0                     ? ""
                                 : i == NL_COUNT(kinds) - 1 ? " or "
                                                            : ", ",
                                 kinds[i].name);
    return text;
}

nl_status nl_config_set_architecture(nl_context *context, const char *name, nl_config *config)
{
    const char *names[NL_COUNT(kinds) + 1] = {NULL};
    for (int i = 0; i < NL_COUNT(kinds); i++) {
        names[i] = kinds[i].name;
        if (strcasecmp(name, kinds[i].name) == 0) {
            config->architecture = kinds[i].architecture;
            config->attention = kinds[i].attention;
            return NL_OK;
        }
    }
    const char *nearest = nl_nearest(name, names);
    char list[128];
    return nl_fail(context, NL_ERROR_USAGE, "architecture \"%s\": expected %s%s%s%s", name,
                   nl_config_architectures(list, sizeof(list)), nearest ? "; did you mean " : "",
                   nearest ? nearest : "", nearest ? "?" : "");
}

/* "S", or depth x hidden size x heads. */
static bool parse_size(const char *text, nl_config *config)
{
    int end = 0;
    for (int i = 0; i < NL_COUNT(sizes); i++)
        if (strcasecmp(text, sizes[i].name) == 0) {
            config->depth = sizes[i].depth;
            config->hidden_size = sizes[i].hidden_size;
            config->num_heads = sizes[i].num_heads;
            return true;
        }
    return sscanf(text, "%5dx%6dx%5d%n", &config->depth, &config->hidden_size, &config->num_heads,
                  &end) == 3 &&
           text[end] == 0 && config->depth > 0 && config->hidden_size > 0 && config->num_heads > 0;
}

nl_status nl_config_from_name(nl_context *context, const char *name, nl_config *config)
{
    char kind[16], size[32], patch, rest;
    nl_config parsed = *config;
    char list[128];
    if (sscanf(name, "%15[^-]-%31[^/]/%c%c", kind, size, &patch, &rest) != 3 ||
        !strchr("1248", patch) || !parse_size(size, &parsed))
        return nl_fail(
            context, NL_ERROR_USAGE,
            "model \"%s\": expected a name such as NaLaSiT-S/2: %s, then S, B, L or XL (or "
            "depth x hidden size x heads, 6x256x4), then the patch 1, 2, 4 or 8",
            name, nl_config_architectures(list, sizeof(list)));
    parsed.patch_size = patch - '0';
    nl_status status = nl_config_set_architecture(context, kind, &parsed);
    if (status == NL_OK)
        status = nl_config_check(context, name, &parsed);
    if (status == NL_OK)
        *config = parsed;
    return status == NL_ERROR_INPUT ? NL_ERROR_USAGE : status;
}

const char *nl_config_name(const nl_config *config, char *text, size_t size)
{
    const char *kind = "unknown";
    for (int i = 0; i < NL_COUNT(kinds); i++)
        if (kinds[i].architecture == config->architecture &&
            kinds[i].attention == config->attention)
            kind = kinds[i].name;
    for (int i = 0; i < NL_COUNT(sizes); i++)
        if (sizes[i].depth == config->depth && sizes[i].hidden_size == config->hidden_size &&
            sizes[i].num_heads == config->num_heads) {
            snprintf(text, size, "%s-%s/%d", kind, sizes[i].name, config->patch_size);
            return text;
        }
    snprintf(text, size, "%s-%dx%dx%d/%d", kind, config->depth, config->hidden_size,
             config->num_heads, config->patch_size);
    return text;
}

int nl_config_label_rows(const nl_config *config)
{
    return config->num_classes + !config->no_null_class;
}

int nl_config_head_channels(const nl_config *config)
{
    return config->learn_sigma ? 2 * config->in_channels : config->in_channels;
}

double nl_config_norm_scale(const nl_config *config)
{
    if (config->query_norm == NL_QUERY_L2)
        return 1;
    return sqrt((double)config->num_heads / config->hidden_size);
}

int64_t nl_config_tokens(const nl_config *config)
{
    return (int64_t)(config->input_height / config->patch_size) *
           (config->input_width / config->patch_size);
}
