/* SPDX-License-Identifier: MIT */
/*
 * What config.json says of an autoencoder beyond names and shapes (diffusers' AutoencoderKL and AutoencoderTiny).
 * Every key that changes a number is used or refused by name. And config.json as diffusers wants it.
 */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "nl_json.h"

enum { MOST_GROUPS = 4096 };

static const char *const class_names[] = {
    [NL_VAE_KL] = "AutoencoderKL", [NL_VAE_TINY] = "AutoencoderTiny"};

/* Whether the file beside the tensors is this autoencoder's; another network's may lie in the same folder. */
static bool is_autoencoder(const char *class)
{
    return class &&
           (strstr(class, "Autoencoder") || strstr(class, "VAE") || strstr(class, "VQModel"));
}

static nl_status check_class(const nl_json *json, const char *class, nl_vae_kind kind)
{
    const char *expected = class_names[kind];
    if (strcmp(class, expected) == 0)
        return NL_OK;
    return nl_fail(
        json->context, NL_ERROR_INPUT,
        "%s: \"_class_name\" is \"%s\", and the tensors are named like those of %s: "
        "nalagen has AutoencoderKL (the Stable Diffusion VAE) and AutoencoderTiny (TAESD)",
        json->where, class, expected);
}

/* A key whose other values are another network. */
static nl_status expect_text(const nl_json *json, const char *key, const char *const *allowed)
{
    const char *text = NULL;
    nl_status status = nl_json_string(json, key, &text);
    for (int i = 0; status == NL_OK && text && allowed[i]; i++)
        if (strcmp(text, allowed[i]) == 0)
            return NL_OK;
    if (status != NL_OK || !text)
        return status;
    return nl_fail(json->context, NL_ERROR_INPUT, "%s: \"%s\" is \"%s\": nalagen has \"%s\" alone",
                   json->where, key, text, allowed[0]);
}

/* A number that may be null as well, which leaves *value. */
static nl_status read_number(const nl_json *json, const char *key, double low, double high,
                             double *value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->object, key);
    return item && cJSON_IsNull(item) ? NL_OK : nl_json_double(json, key, low, high, value);
}

static nl_status read_kl(const nl_json *json, nl_vae *vae)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    int64_t groups = vae->groups;
    bool upcast = false;
    NL_CHECK(expect_text(json, "act_fn", activations));
    NL_CHECK(nl_json_int(json, "norm_num_groups", 1, MOST_GROUPS, &groups));
    NL_CHECK(nl_json_bool(json, "mid_block_add_attention", &vae->mid_attention));
    /* Asks for more range than fp16 has; f32 and bf16, which are computed with here, have it. */
    NL_CHECK(nl_json_bool(json, "force_upcast", &upcast));
    vae->groups = (int)groups;
    return NL_OK;
}

static nl_status read_tiny(const nl_json *json)
{
    static const char *const activations[] = {"relu", NULL}, *const scalings[] = {"nearest", NULL};
    double factor = 2;
    NL_CHECK(expect_text(json, "act_fn", activations));
    NL_CHECK(expect_text(json, "upsample_fn", scalings));
    return nl_json_double(json, "upsampling_scaling_factor", 2, 2, &factor);
}

/* Gives config.json, where there is one and it is an autoencoder's, to `read`. */
static nl_status with_config(const nl_checkpoint *checkpoint, nl_vae *vae,
                             nl_status (*read)(const nl_json *json, nl_vae *vae))
{
    nl_context *context = checkpoint->context;
    const char *text = nl_checkpoint_metadata(checkpoint, "config.json"), *class = NULL;
    char *where = NULL;
    cJSON *object = NULL;
    nl_status status = NL_OK;
    if (!text)
        return NL_OK;
    NL_TRY(nl_format(context, &where, "config.json of %s", checkpoint->path));
    NL_TRY(nl_json_parse(context, where, text, strlen(text), &object));
    nl_json json = {context, where, object};
    if (!cJSON_IsObject(object))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: expected an object", where));
    NL_TRY(nl_json_string(&json, "_class_name", &class));
    if (!is_autoencoder(class))
        goto cleanup;
    NL_TRY(check_class(&json, class, vae->kind));
    NL_TRY(read(&json, vae));
cleanup:
    cJSON_Delete(object);
    nl_free(context, where);
    return status;
}

static nl_status read_keys(const nl_json *json, nl_vae *vae)
{
    NL_CHECK(read_number(json, "scaling_factor", 1e-6, 1e6, &vae->said_scale));
    NL_CHECK(read_number(json, "shift_factor", -1e6, 1e6, &vae->said_shift));
    return vae->kind == NL_VAE_KL ? read_kl(json, vae) : read_tiny(json);
}

nl_status nl_vae_read_config(const nl_checkpoint *checkpoint, nl_vae *vae)
{
    return with_config(checkpoint, vae, read_keys);
}

nl_status nl_vae_read_stats(const nl_checkpoint *checkpoint, nl_vae *vae)
{
    nl_status status =
        vae->kind == NL_VAE_KL ? with_config(checkpoint, vae, nl_vae_stats_of_config) : NL_OK;
    return status == NL_OK ? nl_vae_stats_of_file(vae) : status;
}

static double default_scale(const nl_vae *vae)
{
    return vae->kind == NL_VAE_KL ? NL_SD_LATENT_SCALE : 1;
}

nl_status nl_vae_latent_scale(const nl_vae *vae, double *scale, double *shift)
{
    *scale = default_scale(vae);
    *shift = 0;
    if (!isnan(vae->said_scale)) {
        *scale = vae->said_scale;
        *shift = isnan(vae->said_shift) ? 0 : vae->said_shift;
    } else if (vae->kind == NL_VAE_KL && vae->latent_channels != NL_SD_LATENT_CHANNELS) {
        return nl_fail(vae->device->context, NL_ERROR_INPUT,
                       "%s: nothing says how latents of %lld channels are scaled: give the folder "
                       "of the autoencoder with its config.json (scaling_factor, shift_factor), or "
                       "say it: latent_scale of a model's configuration, decode --latent-scale",
                       vae->path, (long long)vae->latent_channels);
    }
    return NL_OK;
}

bool nl_vae_says_scale(const nl_vae *vae)
{
    return !isnan(vae->said_scale);
}

void nl_vae_set_scale(nl_vae *vae, double scale, double shift)
{
    vae->scale = scale;
    vae->shift = shift;
}

/* ---- Writing */

/* Classes of the levels: with attention in them, or without. */
static bool add_levels(cJSON *object, const nl_vae_inventory *tensors, bool encoder, int count)
{
    const char *blocks = encoder ? "encoder.down_blocks" : "decoder.up_blocks";
    cJSON *list = cJSON_AddArrayToObject(object, encoder ? "down_block_types" : "up_block_types");
    for (int i = 0; list && i < count; i++) {
        bool attention = nl_vae_find_item(tensors, "%s.%d.attentions.0.to_q.weight", blocks, i);
        const char *name = encoder     ? attention ? "AttnDownEncoderBlock2D" : "DownEncoderBlock2D"
                           : attention ? "AttnUpDecoderBlock2D"
                                       : "UpDecoderBlock2D";
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(name)))
            return false;
    }
    return list != NULL;
}

static bool add_sizes(cJSON *object, const char *key, const int *sizes, int count)
{
    return cJSON_AddItemToObject(object, key, cJSON_CreateIntArray(sizes, count));
}

static bool add_numbers(cJSON *object, const char *key, const double *numbers, int64_t count)
{
    return cJSON_AddItemToObject(object, key, cJSON_CreateDoubleArray(numbers, (int)count));
}

static bool add_stats(cJSON *object, const nl_vae *vae)
{
    return !vae->latent_mean ||
           (add_numbers(object, "latents_mean", vae->latent_mean, vae->latent_channels) &&
            add_numbers(object, "latents_std", vae->latent_std, vae->latent_channels));
}

static bool fill_kl(cJSON *object, const nl_vae *vae, const nl_vae_inventory *tensors)
{
    static const char resnet[] = "encoder.down_blocks.%d.resnets.%d.conv1.weight";
    int channels[16], levels = 0, layers = 0;
    while (levels < NL_COUNT(channels) && nl_vae_find_item(tensors, resnet, levels, 0)) {
        channels[levels] = (int)nl_vae_item_size(tensors, 0, resnet, levels, 0);
        levels++;
    }
    while (nl_vae_find_item(tensors, resnet, 0, layers))
        layers++;
    bool quant = nl_vae_find_item(tensors, "quant_conv.weight");
    bool post_quant = nl_vae_find_item(tensors, "post_quant_conv.weight");
    return add_sizes(object, "block_out_channels", channels, levels) &&
           add_levels(object, tensors, true, levels) &&
           add_levels(object, tensors, false, levels) &&
           cJSON_AddNumberToObject(object, "layers_per_block", layers) &&
           cJSON_AddStringToObject(object, "act_fn", "silu") &&
           cJSON_AddNumberToObject(object, "norm_num_groups", vae->groups) &&
           cJSON_AddBoolToObject(object, "mid_block_add_attention", vae->mid_attention) &&
           cJSON_AddBoolToObject(object, "use_quant_conv", quant) &&
           cJSON_AddBoolToObject(object, "use_post_quant_conv", post_quant) &&
           add_stats(object, vae) && cJSON_AddFalseToObject(object, "force_upcast");
}

static bool fill_tiny(cJSON *object, const nl_vae_inventory *tensors)
{
    int width = (int)nl_vae_item_size(tensors, 0, "encoder.0.weight");
    const int channels[] = {width, width, width, width};
    return add_sizes(object, "encoder_block_out_channels", channels, 4) &&
           add_sizes(object, "decoder_block_out_channels", channels, 4) &&
           add_sizes(object, "num_encoder_blocks", (int[]){1, 3, 3, 3}, 4) &&
           add_sizes(object, "num_decoder_blocks", (int[]){3, 3, 3, 1}, 4) &&
           cJSON_AddStringToObject(object, "act_fn", "relu") &&
           cJSON_AddStringToObject(object, "upsample_fn", "nearest") &&
           cJSON_AddNumberToObject(object, "upsampling_scaling_factor", 2) &&
           cJSON_AddNumberToObject(object, "latent_magnitude", 3) &&
           cJSON_AddNumberToObject(object, "latent_shift", 0.5) &&
           cJSON_AddFalseToObject(object, "force_upcast");
}

/* A file of these tensors alone would be taken as this one is. */
static bool goes_without_saying(const nl_vae *vae)
{
    bool scale = isnan(vae->said_scale) ||
                 (vae->said_scale == default_scale(vae) && !(fabs(vae->said_shift) > 0) &&
                  vae->latent_channels == NL_SD_LATENT_CHANNELS);
    return scale && !vae->latent_mean && vae->groups == NL_SD_GROUPS && vae->mid_attention;
}

static bool fill_said(cJSON *object, const nl_vae *vae)
{
    bool kl = vae->kind == NL_VAE_KL, scaled = !isnan(vae->said_scale);
    double shift = isnan(vae->said_shift) ? 0 : vae->said_shift;
    return cJSON_AddStringToObject(object, "_class_name", class_names[vae->kind]) &&
           (!kl || (cJSON_AddNumberToObject(object, "norm_num_groups", vae->groups) &&
                    cJSON_AddBoolToObject(object, "mid_block_add_attention", vae->mid_attention) &&
                    add_stats(object, vae))) &&
           (!scaled || (cJSON_AddNumberToObject(object, "scaling_factor", vae->said_scale) &&
                        cJSON_AddNumberToObject(object, "shift_factor", shift)));
}

nl_status nl_vae_said(const nl_vae *vae, char **json)
{
    nl_context *context = vae->device->context;
    cJSON *object = NULL;
    char *text = NULL;
    nl_status status = NL_OK;
    *json = NULL;
    if (goes_without_saying(vae))
        return NL_OK;
    object = cJSON_CreateObject();
    bool built = object && fill_said(object, vae) && (text = nl_json_print(object, false));
    status = built ? nl_strdup(context, text, json)
                   : nl_fail(context, NL_ERROR_MEMORY, "no memory for config.json");
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

nl_status nl_vae_diffusers_config(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                                  char **json)
{
    nl_context *context = checkpoint->context;
    nl_device device = {.context = context};
    nl_vae_inventory tensors;
    nl_vae *vae = NULL;
    cJSON *object = NULL;
    char *text = NULL;
    double scale, shift;
    nl_status status = nl_vae_describe(&device, (const nl_checkpoint *const[]){checkpoint, second},
                                       &tensors, &vae);
    if (status != NL_OK)
        return status;
    for (int i = 0; i < NL_VAE_HALVES; i++)
        if (vae->halves[i].count == 0)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: the %s is missing, and diffusers wants both halves", vae->path,
                           i == NL_VAE_ENCODER ? "encoder" : "decoder"));
    NL_TRY(nl_vae_latent_scale(vae, &scale, &shift));
    bool kl = vae->kind == NL_VAE_KL;
    object = cJSON_CreateObject();
    bool built = cJSON_AddStringToObject(object, "_class_name", class_names[vae->kind]) &&
                 cJSON_AddNumberToObject(object, "in_channels", 3) &&
                 cJSON_AddNumberToObject(object, "out_channels", 3) &&
                 cJSON_AddNumberToObject(object, "latent_channels", (double)vae->latent_channels) &&
                 (kl ? fill_kl(object, vae, &tensors) : fill_tiny(object, &tensors)) &&
                 cJSON_AddNumberToObject(object, "scaling_factor", scale) &&
                 (kl && shift == 0 ? cJSON_AddNullToObject(object, "shift_factor")
                                   : cJSON_AddNumberToObject(object, "shift_factor", shift)) &&
                 (text = nl_json_print(object, true));
    status = built ? nl_strdup(context, text, json)
                   : nl_fail(context, NL_ERROR_MEMORY, "no memory for config.json");
cleanup:
    cJSON_free(text);
    cJSON_Delete(object);
    nl_vae_destroy(vae);
    nl_free(context, tensors.items);
    return status;
}
