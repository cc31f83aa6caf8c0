/* SPDX-License-Identifier: MIT */
/* Which autoencoder goes with a model, and the public calls that use it. */
#include <math.h>
#include <string.h>

#include "model.h"
#include "nl_image.h"

/* Files and folders under the names that they are published with; "vae" is a part of a diffusers pipeline. */
static const char *const kl_files[] = {"vae",
                                       "sd-vae-ft-ema.safetensors",
                                       "sd-vae-ft-mse.safetensors",
                                       "sd-vae-ft-ema",
                                       "sd-vae-ft-mse",
                                       "vae-ft-ema-560000-ema-pruned.safetensors",
                                       "vae-ft-mse-840000-ema-pruned.safetensors",
                                       "vae-ft-ema-560000-ema-pruned.ckpt",
                                       "vae-ft-mse-840000-ema-pruned.ckpt",
                                       NULL};

static nl_status find_own(nl_model *model, char **path)
{
    nl_context *context = model->context;
    nl_status status = NL_OK;
    bool tiny = model->config.autoencoder == NL_AUTOENCODER_TINY;
    char *folder = NULL, *what = NULL;
    const char *slash = strrchr(model->path, '/');
    NL_TRY(nl_format(context, &folder, "%.*s", slash ? (int)(slash - model->path) : 1,
                     slash ? model->path : "."));
    if (tiny)
        NL_TRY(nl_find_data(context, folder, nl_shipped_autoencoder, path));
    else
        for (int i = 0; kl_files[i] && !*path; i++)
            NL_TRY(nl_find_data(context, folder, kl_files[i], path));
    if (*path)
        goto cleanup;
    NL_TRY(nl_format(context, &what, "the autoencoder of %s", model->path));
    status = nl_data_missing(context, what, folder,
                             tiny ? (const char *const[]){nl_shipped_autoencoder, NULL} : kl_files,
                             tiny ? "give a file of TAESD's layout with --vae FILE, or --vae none "
                                    "for latents only"
                                  : "it does not ship with nalagen: give the Stable Diffusion VAE, "
                                    "a file or folder, with --vae FILE, or --vae none for latents "
                                    "only");
cleanup:
    nl_free(context, what);
    nl_free(context, folder);
    return status;
}

/* TAESD comes in two files: the other half is the one whose name has "encoder" for "decoder". */
nl_status nl_open_other_half(nl_context *context, const char *path, nl_checkpoint **other)
{
    static const char *const halves[] = {"decoder", "encoder"};
    nl_status status = NL_OK;
    char *name = NULL;
    for (int i = 0; i < 2 && !*other; i++) {
        const char *slash = strrchr(path, '/'), *at = strstr(slash ? slash : path, halves[i]);
        if (!at)
            continue;
        NL_TRY(nl_format(context, &name, "%.*s%s%s", (int)(at - path), path, halves[1 - i],
                         at + strlen(halves[i])));
        if (nl_path_exists(name))
            NL_TRY(nl_checkpoint_open(context, name, other));
        nl_free(context, name);
        name = NULL;
    }
cleanup:
    nl_free(context, name);
    return status;
}

/* Scale and shift belong to the autoencoder: what the configuration says, when it is of the configuration's kind;
 * otherwise what the autoencoder says. Two that say different things do not belong together. */
static nl_status set_scale(nl_model *model, const char *path)
{
    const nl_config *config = &model->config;
    nl_vae *vae = model->vae;
    bool tiny = nl_vae_get_kind(vae) == NL_VAE_TINY;
    bool said = config->latent_said && tiny == (config->autoencoder == NL_AUTOENCODER_TINY);
    double scale = config->latent_scale, shift = config->latent_shift, own, own_shift;
    if (!said)
        NL_CHECK(nl_vae_latent_scale(vae, &scale, &shift));
    else if (nl_vae_says_scale(vae))
        NL_CHECK(nl_vae_latent_scale(vae, &own, &own_shift));
    if (said && nl_vae_says_scale(vae) &&
        (fabs(own - scale) > 1e-6 * fabs(own) || fabs(own_shift - shift) > 1e-6))
        return nl_fail(
            model->context, NL_ERROR_INPUT,
            "%s says latent_scale %g and latent_shift %g, config.json of the autoencoder "
            "%s scaling_factor %g and shift_factor %g: give the autoencoder that it was "
            "trained with (--vae), or what is right with --config",
            model->path, scale, shift, path, own, own_shift);
    nl_vae_set_scale(vae, scale, shift);
    return NL_OK;
}

/* The model's own word, or else the autoencoder's. */
static nl_status set_factor(nl_model *model, const char *path)
{
    nl_config *config = &model->config;
    int factor = nl_vae_factor(model->vae);
    if (nl_vae_latent_channels(model->vae) == config->in_channels &&
        (factor == nl_model_factor(config) || !config->latent_factor)) {
        if (factor != nl_model_factor(config))
            config->latent_factor = factor;
        return NL_OK;
    }
    return nl_fail(model->context, NL_ERROR_INPUT,
                   "%s: expected an autoencoder of %d %s at 1/%d of the size for %s, found "
                   "%d at 1/%d",
                   path, config->in_channels, nl_plural(config->in_channels, "channel", "channels"),
                   nl_model_factor(config), model->path, nl_vae_latent_channels(model->vae),
                   factor);
}

nl_status nl_model_open_vae(nl_model *model, const char *path)
{
    nl_context *context = model->context;
    const nl_config *config = &model->config;
    nl_status status = NL_OK;
    nl_checkpoint *file = NULL, *other = NULL;
    char *own = NULL;
    bool pixels = config->autoencoder == NL_AUTOENCODER_NONE;
    if (pixels && path && strcmp(path, "none"))
        nl_log(context, NL_LOG_WARNING, "%s works on pixels: the autoencoder %s is not used",
               model->path, path);
    if (pixels && config->in_channels == 3)
        return nl_vae_none(context->device, &model->vae);
    if (pixels || (path && !strcmp(path, "none")))
        return NL_OK;
    if (!path) {
        NL_TRY(find_own(model, &own));
        path = own;
    }
    NL_TRY(nl_open_autoencoder(context, path, &file));
    NL_TRY(nl_open_other_half(context, path, &other));
    NL_TRY(nl_vae_load(context->device, file, other, 1, 0, &model->vae));
    NL_TRY(set_factor(model, path));
    NL_TRY(set_scale(model, path));
cleanup:
    nl_free(context, own);
    nl_checkpoint_close(file);
    nl_checkpoint_close(other);
    return status;
}

static nl_status need_vae(const nl_model *model)
{
    if (model->vae)
        return NL_OK;
    return nl_fail(model->context, NL_ERROR_USAGE,
                   "%s was loaded without an autoencoder: there are latents only", model->path);
}

nl_status nl_decode(nl_model *model, const float *latents, int count, int latent_height,
                    int latent_width, uint8_t *rgb)
{
    NL_CHECK(need_vae(model));
    if (count < 1 || latent_height < 1 || latent_width < 1)
        return nl_fail(model->context, NL_ERROR_USAGE, "decode: %d latents of %d x %d", count,
                       latent_height, latent_width);
    return nl_vae_decode_pictures(model->vae, latents, count, latent_height, latent_width, rgb);
}

nl_status nl_encode(nl_model *model, const uint8_t *rgb, int count, int height, int width,
                    float *latents)
{
    NL_CHECK(need_vae(model));
    int factor = nl_vae_factor(model->vae);
    if (count < 1 || height < 1 || width < 1 || height % factor || width % factor)
        return nl_fail(model->context, NL_ERROR_USAGE,
                       "encode: expected pictures whose size %d divides, found %d of %d x %d",
                       factor, count, height, width);
    return nl_vae_encode_pictures(model->vae, rgb, count, height, width, latents);
}

nl_status nl_write_png(nl_context *context, const char *path, const uint8_t *rgb, int height,
                       int width, const char *const *text)
{
    return nl_png_write(context, path, true, rgb, height, width, text);
}
