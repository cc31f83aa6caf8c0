/* SPDX-License-Identifier: MIT */
/* The configuration as JSON: one table of keys that reading, writing and checking walk. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_config.h"
#include "nl_io.h"
#include "nl_json.h"

typedef enum nl_kind {
    KIND_INT,
    KIND_INT64,
    KIND_DOUBLE,
    KIND_BOOL,
    KIND_CHOICE,
    KIND_TEXT
} nl_kind;
typedef enum nl_applies { TO_ALL, TO_NALA, TO_MEDIATOR, TO_DIT, TO_SIT } nl_applies;

typedef struct nl_field {
    const char *key;
    nl_kind kind;
    size_t offset; /* in nl_config */
    double low, high;
    const char *const *names; /* of choices, in the order of the enumeration */
    nl_applies applies;
    double printed_from; /* values below are not printed: the default, or "not said" */
} nl_field;

/* The largest value of an enumeration that is a list. */
#define LAST(LIST) (0 LIST(NL_LIST_COUNT) - 1)
static const char *const architectures[] = {"DiT", "SiT", NULL};
#define AT(member) offsetof(nl_config, member)
#define ALWAYS     -INFINITY

static const nl_field fields[] = {
    {"architecture", KIND_CHOICE, AT(architecture), 0, 1, architectures, TO_ALL, ALWAYS},
    {"attention", KIND_CHOICE, AT(attention), 0, NL_ATTENTION_COUNT - 1, nl_mixer_names, TO_ALL,
     ALWAYS},
    {"mlp", KIND_CHOICE, AT(mlp), 0, NL_MLP_COUNT - 1, nl_mlp_names, TO_ALL, 1},
    {"norm", KIND_CHOICE, AT(norm), 0, NL_NORM_RMS, nl_norm_names, TO_ALL, 1},
    {"qk_norm", KIND_BOOL, AT(qk_norm), 0, 1, NULL, TO_ALL, 1},
    {"qk_norm_layer", KIND_BOOL, AT(qk_norm_layer), 0, 1, NULL, TO_ALL, 1},
    {"feature_map", KIND_CHOICE, AT(feature_map), 0, LAST(NL_FEATURE_MAPS), nl_feature_map_names,
     TO_NALA, ALWAYS},
    {"lambda", KIND_DOUBLE, AT(lambda), 0.01, 32, NULL, TO_NALA, ALWAYS},
    {"tau", KIND_DOUBLE, AT(tau), 0, 32, NULL, TO_NALA, ALWAYS},
    {"learn_exponents", KIND_BOOL, AT(learn_exponents), 0, 1, NULL, TO_NALA, 1},
    {"query_norm", KIND_CHOICE, AT(query_norm), 0, LAST(NL_QUERY_NORMS), nl_query_norm_names,
     TO_NALA, 1},
    {"gate", KIND_BOOL, AT(gate), 0, 1, NULL, TO_NALA, ALWAYS},
    {"lepe", KIND_BOOL, AT(lepe), 0, 1, NULL, TO_NALA, ALWAYS},
    {"rope", KIND_BOOL, AT(rope), 0, 1, NULL, TO_ALL, 1},
    {"dw_conv", KIND_BOOL, AT(dw_conv), 0, 1, NULL, TO_ALL, 1},
    {"mediators", KIND_INT, AT(mediators), 1, 64, NULL, TO_MEDIATOR, ALWAYS},
    {"depth", KIND_INT, AT(depth), 1, 1024, NULL, TO_ALL, ALWAYS},
    {"hidden_size", KIND_INT, AT(hidden_size), 4, 65536, NULL, TO_ALL, ALWAYS},
    {"num_heads", KIND_INT, AT(num_heads), 1, 4096, NULL, TO_ALL, ALWAYS},
    {"patch_size", KIND_INT, AT(patch_size), 1, 8, NULL, TO_ALL, ALWAYS},
    {"flow_map", KIND_INT, AT(flow_map), 0, 1024, NULL, TO_SIT, 1},
    {"one_step", KIND_CHOICE, AT(one_step), 0, LAST(NL_ONE_STEPS), nl_one_step_names, TO_SIT, 1},
    {"guided", KIND_BOOL, AT(guided), 0, 1, NULL, TO_SIT, 1},
    {"middle_head", KIND_INT, AT(middle_head), 0, 1023, NULL, TO_ALL, 1},
    {"internal_guidance", KIND_DOUBLE, AT(internal_guidance), 0, 1000, NULL, TO_SIT, DBL_MIN},
    {"crop_conditioning", KIND_BOOL, AT(crop_conditioning), 0, 1, NULL, TO_ALL, 1},
    {"in_channels", KIND_INT, AT(in_channels), 1, 1024, NULL, TO_ALL, ALWAYS},
    {"num_classes", KIND_INT, AT(num_classes), 0, 10000000, NULL, TO_ALL, ALWAYS},
    {"learn_sigma", KIND_BOOL, AT(learn_sigma), 0, 1, NULL, TO_ALL, ALWAYS},
    {"no_null_class", KIND_BOOL, AT(no_null_class), 0, 1, NULL, TO_ALL, 1},
    {"stored_position", KIND_BOOL, AT(stored_position), 0, 1, NULL, TO_ALL, 1},
    {"of_diffusers", KIND_BOOL, AT(of_diffusers), 0, 1, NULL, TO_ALL, 1},
    {"class_dropout_prob", KIND_DOUBLE, AT(class_dropout_prob), 0, 1, NULL, TO_ALL, ALWAYS},
    {"schedule", KIND_CHOICE, AT(schedule), 0, LAST(NL_SCHEDULES), nl_schedule_names, TO_DIT,
     ALWAYS},
    {"diffusion_steps", KIND_INT, AT(diffusion_steps), 1, 1000000, NULL, TO_DIT, ALWAYS},
    {"beta_start", KIND_DOUBLE, AT(beta_start), DBL_MIN, 0.999, NULL, TO_DIT, DBL_MIN},
    {"beta_end", KIND_DOUBLE, AT(beta_end), DBL_MIN, 0.999, NULL, TO_DIT, DBL_MIN},
    {"timestep_spacing", KIND_CHOICE, AT(spacing), 0, LAST(NL_SPACINGS), nl_spacing_names, TO_DIT,
     1},
    {"steps_offset", KIND_INT, AT(steps_offset), 0, 1000, NULL, TO_DIT, 1},
    {"final_alpha_first", KIND_BOOL, AT(final_alpha_first), 0, 1, NULL, TO_DIT, 1},
    {"clip_denoised", KIND_BOOL, AT(clip_denoised), 0, 1, NULL, TO_DIT, 1},
    {"predicts", KIND_CHOICE, AT(predicts), 0, LAST(NL_PREDICTSES), nl_predicts_names, TO_DIT,
     ALWAYS},
    {"variance", KIND_CHOICE, AT(variance), 0, LAST(NL_VARIANCES), nl_variance_names, TO_DIT,
     ALWAYS},
    {"path", KIND_CHOICE, AT(path), 0, LAST(NL_PATHS), nl_path_names, TO_SIT, ALWAYS},
    {"prediction", KIND_CHOICE, AT(prediction), 0, LAST(NL_PREDICTIONS), nl_prediction_names,
     TO_SIT, ALWAYS},
    {"train_eps", KIND_DOUBLE, AT(train_eps), 0, 0.5, NULL, TO_SIT, 0},
    {"sample_eps", KIND_DOUBLE, AT(sample_eps), 0, 0.5, NULL, TO_SIT, 0},
    {"autoencoder", KIND_CHOICE, AT(autoencoder), 0, LAST(NL_AUTOENCODERS), nl_autoencoder_names,
     TO_ALL, ALWAYS},
    {"latent_scale", KIND_DOUBLE, AT(latent_scale), 1e-6, 1e6, NULL, TO_ALL, ALWAYS},
    {"latent_shift", KIND_DOUBLE, AT(latent_shift), -1e6, 1e6, NULL, TO_ALL, ALWAYS},
    {"latent_factor", KIND_INT, AT(latent_factor), 1, 256, NULL, TO_ALL, 1},
    {"images_seen", KIND_INT64, AT(images_seen), 0, 0x1p53 - 1, NULL, TO_ALL, 1},
    {"ema_decay", KIND_DOUBLE, AT(ema_decay), 0, 1, NULL, TO_ALL, DBL_MIN},
    {"ema_sigma_rel", KIND_DOUBLE, AT(ema_sigma_rel), 0, 1, NULL, TO_ALL, DBL_MIN},
    {"trained_on", KIND_TEXT, AT(trained_on), 0, 0, NULL, TO_ALL, ALWAYS},
    {"license", KIND_TEXT, AT(license), 0, 0, NULL, TO_ALL, ALWAYS},
};

/* Keys that need more than a row. */
static const char input_size_key[] = "input_size", class_names_key[] = "class_names";

enum { MAX_INPUT = 16384, TAESD = NL_AUTOENCODER_NONE + 1 /* another name of "tiny" */ };

static double field_value(const nl_config *config, const nl_field *field)
{
    const char *at = (const char *)config + field->offset;
    int number;
    switch (field->kind) {
    case KIND_INT64:
        return (double)*(const int64_t *)at;
    case KIND_DOUBLE:
        return *(const double *)at;
    case KIND_BOOL:
        return *(const bool *)at;
    case KIND_TEXT:
        return 0;
    default: /* the enumerations have the size of an int */
        memcpy(&number, at, sizeof(number));
        return number;
    }
}

static bool field_applies(const nl_config *config, const nl_field *field)
{
    return field->applies == TO_ALL ||
           (field->applies == TO_NALA && config->attention == NL_ATTENTION_NALA) ||
           (field->applies == TO_MEDIATOR && config->attention == NL_ATTENTION_MEDIATOR) ||
           (field->applies == TO_DIT && config->architecture == NL_ARCH_DIT) ||
           (field->applies == TO_SIT && config->architecture == NL_ARCH_SIT);
}

static bool has_key(const nl_json *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json->object, key) != NULL;
}

/* ---- Reading */

static nl_status read_text(const nl_json *json, const nl_field *field, char **value)
{
    nl_status status;
    const char *text = NULL;
    char *copy = NULL;
    NL_TRY(nl_json_string(json, field->key, &text));
    if (!text)
        return NL_OK;
    NL_TRY(nl_strdup(json->context, text, &copy));
    nl_free(json->context, *value);
    *value = copy;
cleanup:
    return status;
}

static nl_status read_field(const nl_json *json, const nl_field *field, nl_config *config)
{
    nl_status status = NL_OK;
    char *at = (char *)config + field->offset;
    int64_t whole = (int64_t)field_value(config, field);
    int number = (int)whole;
    switch (field->kind) {
    case KIND_INT:
    case KIND_INT64:
        NL_TRY(nl_json_int(json, field->key, (int64_t)field->low, (int64_t)field->high, &whole));
        number = (int)whole;
        if (field->kind == KIND_INT)
            memcpy(at, &number, sizeof(number));
        else
            memcpy(at, &whole, sizeof(whole));
        break;
    case KIND_CHOICE:
        NL_TRY(nl_json_choice(json, field->key, field->names, &number));
        memcpy(at, &number, sizeof(number));
        break;
    case KIND_DOUBLE:
        return nl_json_double(json, field->key, field->low, field->high, (double *)at);
    case KIND_BOOL:
        return nl_json_bool(json, field->key, (bool *)at);
    case KIND_TEXT:
        return read_text(json, field, (char **)at);
    }
cleanup:
    return status;
}

static nl_status read_input_size(const nl_json *json, nl_config *config)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->object, input_size_key);
    const cJSON *sides[2] = {item, item};
    int *values[2] = {&config->input_height, &config->input_width};
    if (!item)
        return NL_OK;
    if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
        sides[0] = item->child;
        sides[1] = item->child->next;
    }
    for (int i = 0; i < 2; i++) {
        double side = cJSON_IsNumber(sides[i]) ? sides[i]->valuedouble : 0;
        if (!(side >= 1 && side <= MAX_INPUT && side == floor(side)))
            return nl_fail(json->context, NL_ERROR_INPUT,
                           "%s: \"%s\": expected an integer from 1 to %d, or two of them as "
                           "[height, width]",
                           json->where, input_size_key, MAX_INPUT);
        *values[i] = (int)side;
    }
    return NL_OK;
}

/* "n03028079" */
static bool is_wnid(const char *text)
{
    return text[0] == 'n' && strspn(text + 1, "0123456789") == 8 && text[9] == 0;
}

static nl_status read_class_name(const nl_json *json, const cJSON *item, int index,
                                 nl_class_name *name)
{
    nl_status status;
    if (cJSON_IsString(item))
        return nl_strdup(json->context, item->valuestring,
                         is_wnid(item->valuestring) ? &name->wnid : &name->name);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsString(item->child) ||
        !cJSON_IsString(item->child->next))
        return nl_fail(json->context, NL_ERROR_INPUT,
                       "%s: \"%s\": entry %d: expected a string or [wnid, name]", json->where,
                       class_names_key, index);
    NL_TRY(nl_strdup(json->context, item->child->valuestring, &name->wnid));
    NL_TRY(nl_strdup(json->context, item->child->next->valuestring, &name->name));
cleanup:
    return status;
}

static nl_status read_class_names(const nl_json *json, nl_config *config)
{
    nl_status status;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->object, class_names_key), *item;
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1, index = 0;
    if (!list)
        return NL_OK;
    if (count != config->num_classes)
        return nl_fail(json->context, NL_ERROR_INPUT,
                       "%s: \"%s\": expected a list with a name for each of the %d classes, found "
                       "%d of them",
                       json->where, class_names_key, config->num_classes, NL_MAX(count, 0));
    if (count == 0)
        return NL_OK;
    NL_TRY(NL_NEW_ZEROS(json->context, "class names", count, &config->class_names));
    cJSON_ArrayForEach(item, list)
    {
        NL_TRY(read_class_name(json, item, index, &config->class_names[index]));
        index++;
    }
cleanup:
    return status;
}

/* Defaults that follow from other values, where those changed and the JSON says nothing else. */
static void complete(const nl_json *json, const nl_config *before, nl_config *config)
{
    bool new_size = config->hidden_size != before->hidden_size || config->num_heads == 0;
    if (new_size && config->hidden_size > 0 && !has_key(json, "num_heads"))
        config->num_heads = nl_config_default_heads(config->hidden_size);
    if ((int)config->autoencoder == TAESD)
        config->autoencoder = NL_AUTOENCODER_TINY;
    if (config->autoencoder != before->autoencoder) {
        if (!has_key(json, "latent_scale"))
            config->latent_scale = config->autoencoder == NL_AUTOENCODER_KL ? 0.18215 : 1;
        if (!has_key(json, "latent_shift"))
            config->latent_shift = 0;
    }
    if (has_key(json, "latent_scale") || has_key(json, "latent_shift"))
        config->latent_said = true;
    else if (config->autoencoder != before->autoencoder)
        config->latent_said = false;
    if (config->learn_sigma != before->learn_sigma && !has_key(json, "variance"))
        config->variance =
            config->learn_sigma ? NL_VARIANCE_LEARNED_RANGE : NL_VARIANCE_FIXED_LARGE;
}

static void warn_of_ignored_keys(const nl_json *json, const nl_config *config)
{
    static const char *const owners[] = {"", "attention nala", "attention mediator",
                                         "architecture DiT", "architecture SiT"};
    for (int i = 0; i < NL_COUNT(fields); i++)
        if (has_key(json, fields[i].key) && !field_applies(config, &fields[i]))
            nl_log(json->context, NL_LOG_WARNING, "%s: \"%s\" is ignored: it belongs to %s",
                   json->where, fields[i].key, owners[fields[i].applies]);
}

static nl_status read_object(const nl_json *json, nl_config *config)
{
    nl_status status;
    nl_config old_names = {.class_names = config->class_names, .num_classes = config->num_classes};
    nl_config before = *config;
    const char *known[NL_COUNT(fields) + 3] = {input_size_key, class_names_key};
    config->class_names = NULL; /* its length is about to change */
    for (int i = 0; i < NL_COUNT(fields); i++)
        known[i + 2] = fields[i].key;
    NL_TRY(nl_json_known_keys(json, known));
    for (int i = 0; i < NL_COUNT(fields); i++)
        NL_TRY(read_field(json, &fields[i], config));
    NL_TRY(read_input_size(json, config));
    NL_TRY(read_class_names(json, config));
    complete(json, &before, config);
    if (!has_key(json, class_names_key) && config->num_classes == old_names.num_classes) {
        config->class_names = old_names.class_names;
        old_names.class_names = NULL;
    }
    NL_TRY(nl_config_check(json->context, json->where, config));
    warn_of_ignored_keys(json, config);
cleanup:
    nl_config_free(json->context, &old_names);
    return status;
}

nl_status nl_config_parse(nl_context *context, const char *where, const char *text, size_t size,
                          nl_config *config)
{
    nl_status status;
    cJSON *root = NULL;
    nl_config work = {0};
    NL_TRY(nl_json_parse(context, where, text, size, &root));
    nl_json json = {context, where, root};
    if (!cJSON_IsObject(root)) {
        status = nl_fail(context, NL_ERROR_INPUT, "%s: expected a JSON object", where);
        goto cleanup;
    }
    NL_TRY(nl_config_copy(context, config, &work));
    NL_TRY(read_object(&json, &work));
    nl_config_free(context, config);
    *config = work;
    memset(&work, 0, sizeof(work));
cleanup:
    nl_config_free(context, &work);
    cJSON_Delete(root);
    return status;
}

nl_status nl_config_parse_over(nl_context *context, const char *text, nl_config *config)
{
    nl_mapping file;
    if (*text == '{')
        return nl_config_parse(context, "--config", text, strlen(text), config);
    nl_status status = nl_map_file(context, text, &file);
    if (status != NL_OK)
        return status;
    status = nl_config_parse(context, text, (const char *)file.data, (size_t)file.size, config);
    nl_unmap(context, &file);
    return status;
}

/* ---- Checking */

static nl_status check_ranges(nl_context *context, const char *where, const nl_config *config)
{
    for (int i = 0; i < NL_COUNT(fields); i++) {
        const nl_field *field = &fields[i];
        double value = field_value(config, field);
        bool unsaid = field->kind != KIND_CHOICE && value < field->printed_from;
        if (field->kind == KIND_TEXT || unsaid || (value >= field->low && value <= field->high))
            continue;
        if (value == 0 || field->kind == KIND_CHOICE)
            return nl_fail(context, NL_ERROR_INPUT, "%s: \"%s\" is missing", where, field->key);
        return nl_fail(context, NL_ERROR_INPUT, "%s: \"%s\": expected %g to %g, found %g", where,
                       field->key, field->low, field->high, value);
    }
    return NL_OK;
}

static bool fits_mediators(const nl_config *config)
{
    int side = (int)lround(sqrt(config->mediators)), p = config->patch_size;
    return side * side == config->mediators && side <= config->input_height / p &&
           side <= config->input_width / p;
}

nl_status nl_config_check(nl_context *context, const char *where, const nl_config *config)
{
    const char *problem = NULL;
    int p = config->patch_size;
    if ((int)config->architecture < 0)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: \"architecture\" is missing: expected \"DiT\" or \"SiT\"", where);
    nl_status status = check_ranges(context, where, config);
    if (status != NL_OK)
        return status;
    if (p != 1 && p != 2 && p != 4 && p != 8)
        problem = "patch_size should be 1, 2, 4 or 8";
    else if (config->input_height < 1 || config->input_height > MAX_INPUT ||
             config->input_width < 1 || config->input_width > MAX_INPUT)
        problem = "input_size should be from 1 to 16384";
    else if (config->input_height % p || config->input_width % p)
        problem = "patch_size should divide input_size";
    else if (config->hidden_size % config->num_heads)
        problem = "num_heads should divide hidden_size";
    else if (config->hidden_size % 4)
        problem = "hidden_size should be a multiple of 4 (sine and cosine of row and column)";
    else if (config->qk_norm_layer && !config->qk_norm)
        problem = "qk_norm_layer says how qk_norm normalises, which is false";
    else if (config->rope && config->hidden_size / config->num_heads % 4)
        problem = "rope needs a head size (hidden_size / num_heads) that is a multiple of 4";
    else if (config->attention == NL_ATTENTION_NALA && config->learn_exponents &&
             !(nl_feature_map_norm_aware(config->feature_map) && config->tau > 0))
        problem = "learn_exponents needs a feature_map whose exponents grow with the norm (cosine "
                  "or split), and a tau above 0 to begin with";
    else if (config->attention == NL_ATTENTION_GLA && config->hidden_size % (2 * config->num_heads))
        problem = "gla needs an even head size (hidden_size / num_heads)";
    else if (config->attention == NL_ATTENTION_MEDIATOR && !fits_mediators(config))
        problem =
            "mediators should be a square (1, 4, 9, ... 64) whose side the grid of tokens has";
    else if (config->attention == NL_ATTENTION_MEDIATOR && config->rope)
        problem = "mediator has no rope";
    else if (config->attention == NL_ATTENTION_GLA && (config->qk_norm || config->rope))
        problem = "gla has no qk_norm and no rope";
    else if (config->middle_head >= config->depth && config->middle_head)
        problem = "middle_head should be less than depth: it stands before the last block";
    else if ((config->middle_head && config->flow_map) != (config->internal_guidance > 0))
        problem = "internal_guidance, flow_map and middle_head are there together or not at all: a "
                  "flow map uses its middle head by that scale";
    else if (config->one_step && !config->flow_map)
        problem = "one_step belongs to a flow_map";
    else if (config->one_step == NL_ONE_STEP_BESIDE && config->stored_position)
        problem = "one_step beside has no pos_embed of its own: stored_position should be false";
    else if (config->flow_map > config->depth)
        problem = "flow_map should not be more than depth";
    else if (config->flow_map &&
             (config->architecture != NL_ARCH_SIT || config->path != NL_PATH_LINEAR ||
              config->prediction != NL_PREDICTION_VELOCITY))
        problem = "flow_map belongs to a SiT that predicts the velocity on the linear path";
    else if (config->architecture == NL_ARCH_DIT && !config->learn_sigma &&
             config->variance == NL_VARIANCE_LEARNED_RANGE)
        problem = "variance learned_range needs learn_sigma";
    else if (config->no_null_class && (config->num_classes == 0 || config->class_dropout_prob > 0))
        problem = "no_null_class needs classes and class_dropout_prob 0";
    if (problem)
        return nl_fail(
            context, NL_ERROR_INPUT,
            "%s: %s (found patch_size %d, input_size [%d, %d], hidden_size %d, num_heads "
            "%d, learn_sigma %s)",
            where, problem, p, config->input_height, config->input_width, config->hidden_size,
            config->num_heads, config->learn_sigma ? "true" : "false");
    return NL_OK;
}

/* Said of a training; models of one kind may differ in it. */
static bool is_note(const nl_field *field)
{
    return field->kind == KIND_TEXT || field->offset == AT(class_dropout_prob) ||
           field->offset == AT(images_seen) || field->offset == AT(ema_decay) ||
           field->offset == AT(ema_sigma_rel);
}

const char *nl_config_difference(const nl_config *a, const nl_config *b)
{
    for (int i = 0; i < NL_COUNT(fields); i++)
        if (!is_note(&fields[i]) && field_applies(a, &fields[i]) &&
            field_value(a, &fields[i]) != field_value(b, &fields[i]))
            return fields[i].key;
    bool same_size = a->input_height == b->input_height && a->input_width == b->input_width;
    return same_size ? NULL : input_size_key;
}

/* ---- Writing. These return false when there is no memory. */

/* The shortest text that reads back as the same number (the one of cJSON may differ at the end). */
static bool print_number(cJSON *root, const char *key, double value)
{
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    for (char *c = text; *c; c++)
        if (!strchr("0123456789+-e", *c))
            *c = '.'; /* some locales have another point */
    return cJSON_AddRawToObject(root, key, text) != NULL;
}

static bool print_field(cJSON *root, const nl_config *config, const nl_field *field)
{
    double value = field_value(config, field);
    bool scaling = field->offset == AT(latent_scale) || field->offset == AT(latent_shift);
    if (!field_applies(config, field) || value < field->printed_from ||
        (scaling && !config->latent_said))
        return true;
    if (field->kind == KIND_TEXT) {
        const char *text = *(char *const *)((const char *)config + field->offset);
        return !text || cJSON_AddStringToObject(root, field->key, text);
    }
    if (field->kind == KIND_CHOICE)
        return cJSON_AddStringToObject(root, field->key, field->names[(int)value]) != NULL;
    if (field->kind == KIND_BOOL)
        return cJSON_AddBoolToObject(root, field->key, value != 0) != NULL;
    return print_number(root, field->key, value);
}

static bool print_input_size(cJSON *root, const nl_config *config)
{
    int sides[2] = {config->input_height, config->input_width};
    if (sides[0] == sides[1])
        return cJSON_AddNumberToObject(root, input_size_key, sides[0]) != NULL;
    return cJSON_AddItemToObject(root, input_size_key, cJSON_CreateIntArray(sides, 2));
}

static bool print_class_names(cJSON *root, const nl_config *config)
{
    if (!config->class_names)
        return true;
    cJSON *list = cJSON_AddArrayToObject(root, class_names_key);
    for (int i = 0; list && i < config->num_classes; i++) {
        const nl_class_name *name = &config->class_names[i];
        const char *pair[2] = {name->wnid, name->name};
        cJSON *item = name->wnid && name->name
                          ? cJSON_CreateStringArray(pair, 2)
                          : cJSON_CreateString(name->wnid ? name->wnid : name->name);
        if (!cJSON_AddItemToArray(list, item))
            return false;
    }
    return list != NULL;
}

nl_status nl_config_print(nl_context *context, const nl_config *config, char **json)
{
    cJSON *root = cJSON_CreateObject();
    bool built = root != NULL;
    char *text = NULL;
    *json = NULL;
    for (int i = 0; i < NL_COUNT(fields) && built; i++) {
        built = print_field(root, config, &fields[i]);
        if (built && fields[i].offset == AT(patch_size))
            built = print_input_size(root, config);
    }
    built = built && print_class_names(root, config) && (text = nl_json_print(root, false));
    nl_status status = built ? nl_strdup(context, text, json)
                             : nl_fail(context, NL_ERROR_MEMORY, "no memory for a configuration");
    cJSON_free(text);
    cJSON_Delete(root);
    return status;
}
