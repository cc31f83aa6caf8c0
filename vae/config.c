/* SPDX-License-Identifier: MIT */
/*
 * What config.json says of an autoencoder beyond names and shapes (diffusers' AutoencoderKL and AutoencoderTiny).
 * Every key that changes a number is used or refused by name.
 */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "nl_json.h"

enum { MOST_GROUPS = 4096 };

/* Whether the file beside the tensors is this autoencoder's; another network's may lie in the same folder. */
static bool is_autoencoder(const char *class)
{
    return class &&
           (strstr(class, "Autoencoder") || strstr(class, "VAE") || strstr(class, "VQModel"));
}

static nl_status check_class(const nl_json *json, const char *class, nl_vae_kind kind)
{
    const char *expected = kind == NL_VAE_KL ? "AutoencoderKL" : "AutoencoderTiny";
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

/* Numbers for each channel of the latent are not one scale and one shift. */
static nl_status expect_null(const nl_json *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->object, key);
    if (!item || cJSON_IsNull(item))
        return NL_OK;
    return nl_fail(json->context, NL_ERROR_INPUT,
                   "%s: \"%s\" gives each channel of the latent a number of its own, which nalagen "
                   "does not apply: take an autoencoder with scaling_factor and shift_factor alone",
                   json->where, key);
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
    nl_status status;
    int64_t groups = vae->groups;
    bool upcast = false;
    NL_TRY(expect_text(json, "act_fn", activations));
    NL_TRY(expect_null(json, "latents_mean"));
    NL_TRY(expect_null(json, "latents_std"));
    NL_TRY(nl_json_int(json, "norm_num_groups", 1, MOST_GROUPS, &groups));
    NL_TRY(nl_json_bool(json, "mid_block_add_attention", &vae->mid_attention));
    /* Asks for more range than fp16 has; f32 and bf16, which are computed with here, have it. */
    NL_TRY(nl_json_bool(json, "force_upcast", &upcast));
    vae->groups = (int)groups;
cleanup:
    return status;
}

static nl_status read_tiny(const nl_json *json)
{
    static const char *const activations[] = {"relu", NULL}, *const scalings[] = {"nearest", NULL};
    double factor = 2;
    nl_status status;
    NL_TRY(expect_text(json, "act_fn", activations));
    NL_TRY(expect_text(json, "upsample_fn", scalings));
    NL_TRY(nl_json_double(json, "upsampling_scaling_factor", 2, 2, &factor));
cleanup:
    return status;
}

nl_status nl_vae_read_config(const nl_checkpoint *checkpoint, nl_vae *vae)
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
    NL_TRY(read_number(&json, "scaling_factor", 1e-6, 1e6, &vae->said_scale));
    NL_TRY(read_number(&json, "shift_factor", -1e6, 1e6, &vae->said_shift));
    NL_TRY(vae->kind == NL_VAE_KL ? read_kl(&json, vae) : read_tiny(&json));
cleanup:
    cJSON_Delete(object);
    nl_free(context, where);
    return status;
}

nl_status nl_vae_latent_scale(const nl_vae *vae, double *scale, double *shift)
{
    *scale = vae->kind == NL_VAE_KL ? NL_SD_LATENT_SCALE : 1;
    *shift = 0;
    if (!isnan(vae->said_scale)) {
        *scale = vae->said_scale;
        *shift = isnan(vae->said_shift) ? 0 : vae->said_shift;
    } else if (vae->kind == NL_VAE_KL && vae->latent_channels != NL_SD_LATENT_CHANNELS) {
        return nl_fail(vae->device->context, NL_ERROR_INPUT,
                       "%s: nothing says how latents of %lld channels are scaled: give the folder "
                       "of the autoencoder with its config.json (scaling_factor, shift_factor), or "
                       "a model that has latent_scale in its configuration",
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
