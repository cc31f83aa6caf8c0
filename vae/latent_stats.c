/* SPDX-License-Identifier: MIT */
/*
 * A mean and a deviation for each channel of the latent: latents_mean and latents_std of config.json, or the file
 * latents_stats.pt that LightningDiT keeps beside its autoencoder. A model then sees scale (encoded - mean) / deviation.
 *
 * Nothing but the loader knows of it: the last layer of the encoder makes normalised latents and the first of the decoder takes
 * them, with other weights. Of the encoder, W' = W / deviation and b' = (b - mean) / deviation, and the log variance falls by
 * 2 log deviation. Of the decoder, W' = W deviation and b' = b + W mean, which a convolution of 1 x 1 alone can do: a larger one
 * is padded with zeros, and not with -mean / deviation.
 */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "nl_io.h"

static nl_status check(nl_vae *vae, const char *where, int64_t count)
{
    nl_context *context = vae->device->context;
    const nl_vae_network *decoder = &vae->halves[NL_VAE_DECODER];
    if (count != vae->latent_channels)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected a mean and a deviation for each of %lld channels of %s, found "
                       "%lld",
                       where, (long long)vae->latent_channels, vae->path, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(vae->latent_mean[i]) <= 1e6 && vae->latent_std[i] >= 1e-6 &&
              vae->latent_std[i] <= 1e6))
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s: channel %lld: mean %g and deviation %g, expected numbers up to 1e6 "
                           "and a deviation above 1e-6",
                           where, (long long)i, vae->latent_mean[i], vae->latent_std[i]);
    if (decoder->count && decoder->layers[0].kernel != 1)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: a mean and a deviation for each channel need an autoencoder with "
                       "post_quant_conv, and %s has none",
                       where, vae->path);
    return NL_OK;
}

static nl_status make_room(nl_vae *vae, int64_t count)
{
    nl_context *context = vae->device->context;
    NL_CHECK(NL_NEW_ARRAY(context, "latents_mean", count, &vae->latent_mean));
    return NL_NEW_ARRAY(context, "latents_std", count, &vae->latent_std);
}

/* ---- config.json */

static nl_status take_numbers(const nl_json *json, const char *key, const cJSON *list, double *to)
{
    for (const cJSON *item = list->child; item; item = item->next, to++) {
        if (!cJSON_IsNumber(item))
            return nl_fail(json->context, NL_ERROR_INPUT, "%s: \"%s\": expected numbers",
                           json->where, key);
        *to = item->valuedouble;
    }
    return NL_OK;
}

nl_status nl_vae_stats_of_config(const nl_json *json, nl_vae *vae)
{
    static const char mean_key[] = "latents_mean", std_key[] = "latents_std";
    const cJSON *mean = cJSON_GetObjectItemCaseSensitive(json->object, mean_key);
    const cJSON *std = cJSON_GetObjectItemCaseSensitive(json->object, std_key);
    bool no_mean = !mean || cJSON_IsNull(mean), no_std = !std || cJSON_IsNull(std);
    if (no_mean && no_std)
        return NL_OK;
    int count = cJSON_GetArraySize(mean);
    if (no_mean != no_std || !cJSON_IsArray(mean) || !cJSON_IsArray(std) ||
        count != cJSON_GetArraySize(std))
        return nl_fail(
            json->context, NL_ERROR_INPUT,
            "%s: expected \"%s\" and \"%s\" together, lists of a number for each channel",
            json->where, mean_key, std_key);
    NL_CHECK(make_room(vae, count));
    NL_CHECK(take_numbers(json, mean_key, mean, vae->latent_mean));
    NL_CHECK(take_numbers(json, std_key, std, vae->latent_std));
    NL_CHECK(check(vae, json->where, count));
    if (!isnan(vae->said_shift) && vae->said_shift != 0)
        return nl_fail(json->context, NL_ERROR_INPUT,
                       "%s: \"shift_factor\" and \"%s\": nothing says which comes first",
                       json->where, mean_key);
    return NL_OK;
}

/* ---- latents_stats.pt */

static nl_status take_tensor(const nl_checkpoint *stats, const char *name, int64_t channels,
                             double *to)
{
    nl_context *context = stats->context;
    const nl_entry *entry = nl_checkpoint_find(stats, name);
    float *values = NULL;
    nl_status status = NL_OK;
    if (!entry || nl_entry_count(entry) != channels)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected tensors mean and std of %lld numbers, one for each channel of "
                       "the latent: %s %s",
                       stats->path, (long long)channels, name,
                       entry ? "has others" : "is not there");
    NL_TRY(NL_NEW_ARRAY(context, name, channels, &values));
    NL_TRY(nl_entry_read(stats, entry, values));
    for (int64_t i = 0; i < channels; i++)
        to[i] = values[i];
cleanup:
    nl_free(context, values);
    return status;
}

static nl_status read_file(nl_vae *vae, const char *path)
{
    nl_checkpoint *stats = NULL;
    nl_status status;
    NL_TRY(nl_checkpoint_open(vae->device->context, path, &stats));
    NL_TRY(make_room(vae, vae->latent_channels));
    NL_TRY(take_tensor(stats, "mean", vae->latent_channels, vae->latent_mean));
    NL_TRY(take_tensor(stats, "std", vae->latent_channels, vae->latent_std));
    NL_TRY(check(vae, path, vae->latent_channels));
    vae->said_scale = isnan(vae->said_scale) ? 1 : vae->said_scale;
    vae->said_shift = 0;
cleanup:
    nl_checkpoint_close(stats);
    return status;
}

nl_status nl_vae_stats_of_file(nl_vae *vae)
{
    static const char *const names[] = {"latents_stats.pt", "latents_stats.safetensors"};
    nl_context *context = vae->device->context;
    nl_status status = NL_OK;
    char *path = NULL;
    if (vae->kind != NL_VAE_KL || vae->latent_mean || !strcmp(vae->path, "-"))
        return NL_OK;
    const char *slash = strrchr(vae->path, '/');
    int folder = nl_path_is_folder(vae->path) ? (int)strlen(vae->path)
                 : slash                      ? (int)(slash - vae->path)
                                              : 0;
    for (int i = 0; i < NL_COUNT(names) && !vae->latent_mean; i++) {
        nl_free(context, path);
        path = NULL;
        NL_TRY(
            nl_format(context, &path, "%.*s%s%s", folder, vae->path, folder ? "/" : "", names[i]));
        if (nl_path_exists(path))
            NL_TRY(read_file(vae, path));
    }
cleanup:
    nl_free(context, path);
    return status;
}

/* ---- Weights */

/* The row of the encoder's last layer: a channel's mean, or behind those its log variance. */
static void fold_encoder(const nl_vae *vae, const nl_vae_parameter *parameter, float *values)
{
    int64_t channels = vae->latent_channels, rows = parameter->shape[0], size = 1;
    for (int axis = 1; axis < parameter->ndim; axis++)
        size *= parameter->shape[axis];
    for (int64_t row = 0; row < rows; row++) {
        double std = vae->latent_std[row % channels], mean = vae->latent_mean[row % channels];
        bool variance = row >= channels, bias = parameter->ndim == 1;
        for (float *x = values + row * size; x < values + (row + 1) * size; x++)
            *x = (float)(!variance ? (*x - (bias ? mean : 0)) / std
                         : bias    ? *x - 2 * log(std)
                                   : *x);
    }
}

static nl_status fold_decoder(const nl_vae *vae, const nl_vae_layer *layer,
                              const nl_vae_parameter *parameter, const nl_vae_item *weight,
                              float *values)
{
    nl_context *context = vae->device->context;
    int64_t channels = layer->in;
    float *matrix = NULL;
    nl_status status = NL_OK;
    if (parameter->ndim > 1) {
        for (int64_t i = 0; i < layer->out * channels; i++)
            values[i] = (float)(values[i] * vae->latent_std[i % channels]);
        return NL_OK;
    }
    NL_TRY(NL_NEW_ARRAY(context, "post_quant_conv", layer->out * channels, &matrix));
    NL_TRY(nl_entry_read(weight->checkpoint, weight->entry, matrix));
    for (int64_t row = 0; row < layer->out; row++) {
        double sum = values[row];
        for (int64_t i = 0; i < channels; i++)
            sum += (double)matrix[row * channels + i] * vae->latent_mean[i];
        values[row] = (float)sum;
    }
cleanup:
    nl_free(context, matrix);
    return status;
}

nl_status nl_vae_fold_stats(const nl_vae *vae, const nl_vae_layer *layer,
                            const nl_vae_parameter *parameter, const nl_vae_inventory *inventory,
                            float *values)
{
    const nl_vae_network *encoder = &vae->halves[NL_VAE_ENCODER];
    if (!vae->latent_mean)
        return NL_OK;
    if (encoder->count && layer == &encoder->layers[encoder->count - 1])
        fold_encoder(vae, parameter, values);
    else if (layer == vae->halves[NL_VAE_DECODER].layers)
        return fold_decoder(vae, layer, parameter,
                            nl_vae_find_item(inventory, "%s.weight", layer->name), values);
    return NL_OK;
}
