/* SPDX-License-Identifier: MIT */
/* Pictures of latents while they are sampled: the tiny autoencoder, or a linear map to colours. */
#include "model.h"

/* Mean colour of a latent's 8 x 8 pixels as a linear function of its four channels (the latent space that the
 * Stable Diffusion VAE and TAESD share, scaled to unit variance): least squares over 20 pictures of the shipped
 * model, 92 % of the variance.
 * Rows: the channels, then the constant; columns: red, green, blue in [-1, 1]. */
static const float linear_rgb[5][3] = {
    {0.2835f, 0.2532f, 0.2816f},    {0.2097f, 0.2369f, 0.1433f},    {-0.0427f, 0.1106f, 0.1897f},
    {-0.2666f, -0.3268f, -0.4989f}, {-0.0487f, -0.1034f, -0.2004f},
};

static bool is_tiny(const nl_model *model)
{
    return model->vae && nl_vae_get_kind(model->vae) == NL_VAE_TINY;
}

nl_status nl_preview_bytes(const nl_model *model, const int shape[3], int64_t *bytes)
{
    nl_device measuring;
    nl_tensor latents, rgb, pixels;
    *bytes = 0;
    if (!is_tiny(model))
        return NL_OK;
    int64_t factor = nl_vae_factor(model->vae);
    int64_t rgb_shape[] = {1, shape[1] * factor, shape[2] * factor, 3};
    nl_device_measuring(model->context->device, &measuring);
    NL_CHECK(nl_arena_tensor(&measuring, NL_F32, 4, (int64_t[]){1, shape[0], shape[1], shape[2]},
                             &latents));
    NL_CHECK(nl_arena_tensor(&measuring, NL_F32, 4, rgb_shape, &rgb));
    NL_CHECK(nl_arena_tensor(&measuring, NL_U8, 4, rgb_shape, &pixels));
    NL_CHECK(nl_vae_decode(model->vae, &measuring, &latents, &rgb));
    *bytes = measuring.arena_peak;
    return NL_OK;
}

static void linear_preview(const float *latent, int channels, int64_t pixels, uint8_t *rgb)
{
    for (int64_t i = 0; i < pixels; i++)
        for (int k = 0; k < 3; k++) {
            float x = linear_rgb[4][k];
            for (int c = 0; c < NL_MIN(channels, 4); c++)
                x += linear_rgb[c][k] * latent[c * pixels + i];
            if (channels == 3) /* pixel space */
                x = latent[k * pixels + i];
            x = 127.5f * x + 128;
            rgb[3 * i + k] = x >= 255 ? 255 : x > 0 ? (uint8_t)x : 0;
        }
}

nl_status nl_model_preview(nl_model *model, const float *latent, const int shape[3], uint8_t **rgb,
                           int *height, int *width)
{
    nl_context *context = model->context;
    nl_status status = NL_OK;
    bool tiny = is_tiny(model);
    int factor = tiny ? nl_vae_factor(model->vae) : 1;
    int64_t pixels = (int64_t)shape[1] * shape[2];
    *rgb = NULL;
    *height = shape[1] * factor;
    *width = shape[2] * factor;
    NL_TRY(NL_NEW_SIZED(context, "preview", pixels * factor * factor, 3, rgb));
    if (tiny)
        NL_TRY(nl_vae_decode_pictures(model->vae, latent, 1, shape[1], shape[2], *rgb));
    else
        linear_preview(latent, shape[0], pixels, *rgb);
cleanup:
    if (status != NL_OK) {
        nl_free(context, *rgb);
        *rgb = NULL;
    }
    return status;
}
