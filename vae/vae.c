/* SPDX-License-Identifier: MIT */
/* Decoding and encoding on the device, and what an autoencoder says about itself. */
#include "layers.h"

nl_status nl_vae_none(nl_device *device, nl_vae **out)
{
    *out = NULL;
    nl_vae *vae;
    NL_CHECK(NL_NEW(device->context, "an autoencoder", &vae));
    *vae = (nl_vae){.device = device,
                    .kind = NL_VAE_NONE,
                    .scale = 1,
                    .shift = 0,
                    .said_scale = 1,
                    .said_shift = 0,
                    .factor = 1,
                    .latent_channels = 3};
    *out = vae;
    return NL_OK;
}

void nl_vae_destroy(nl_vae *vae)
{
    if (!vae)
        return;
    nl_device *device = vae->device;
    if (vae->weights)
        device->ops->free(device, vae->weights, vae->weight_bytes);
    for (int half = 0; half < NL_VAE_HALVES; half++)
        nl_free(device->context, vae->halves[half].layers);
    nl_free(device->context, vae->latent_mean);
    nl_free(device->context, vae->latent_std);
    nl_free(device->context, vae->path);
    nl_free(device->context, vae);
}

nl_vae_kind nl_vae_get_kind(const nl_vae *vae)
{
    return vae->kind;
}

int nl_vae_factor(const nl_vae *vae)
{
    return vae->factor;
}

int nl_vae_latent_channels(const nl_vae *vae)
{
    return (int)vae->latent_channels;
}

static nl_status check_shapes(const nl_vae *vae, nl_vae_half half, const nl_tensor *rgb,
                              const nl_tensor *latents)
{
    nl_context *context = vae->device->context;
    static const char *const names[] = {"encoder", "decoder"};
    if (vae->kind != NL_VAE_NONE && vae->halves[half].count == 0)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s has no %s: give a file that has one, or both halves of TAESD", vae->path,
                       names[half]);
    if (rgb->ndim == 4 && latents->ndim == 4 && rgb->shape[0] == latents->shape[0] &&
        rgb->shape[1] == latents->shape[2] * vae->factor &&
        rgb->shape[2] == latents->shape[3] * vae->factor && rgb->shape[3] == 3 &&
        latents->shape[1] == vae->latent_channels && nl_tensor_count(latents) > 0)
        return NL_OK;
    char a[64], b[64];
    return nl_fail(context, NL_ERROR_INTERNAL,
                   "%s: pictures %s and latents %s do not belong together (factor %d, %d channels)",
                   names[half], nl_shape_text(rgb->ndim, rgb->shape, a, sizeof(a)),
                   nl_shape_text(latents->ndim, latents->shape, b, sizeof(b)), vae->factor,
                   (int)vae->latent_channels);
}

/* The three slots for a batch of pictures of the size at the network's first layer. */
static nl_status start_run(const nl_vae_network *network, nl_device *device, int64_t batch,
                           int64_t height, int64_t width, nl_vae_run *run)
{
    *run = (nl_vae_run){
        .device = device, .batch = batch, .height = height, .width = width, .branch = -1};
    run->channels = network->layers[0].in;
    int64_t bytes = nl_vae_slot_bytes(network, device, height, width);
    for (int i = 0; i < 3; i++) {
        nl_tensor slot;
        NL_CHECK(nl_arena_tensor(device, NL_U8, 2, (int64_t[]){batch, bytes}, &slot));
        run->slots[i] = slot.data;
    }
    return NL_OK;
}

nl_status nl_vae_decode(const nl_vae *vae, nl_device *device, const nl_tensor *latents,
                        const nl_tensor *rgb)
{
    nl_status status = check_shapes(vae, NL_VAE_DECODER, rgb, latents);
    if (status != NL_OK)
        return status;
    if (vae->kind == NL_VAE_NONE)
        return NL_OP(device, layout, .x = *latents, .y = *rgb, .to_nhwc = true, .scale = 1);

    const nl_vae_network *network = &vae->halves[NL_VAE_DECODER];
    int64_t mark = nl_arena_mark(device);
    nl_vae_run run;
    NL_TRY(
        start_run(network, device, latents->shape[0], latents->shape[2], latents->shape[3], &run));
    NL_TRY(NL_OP(device, layout, .x = *latents, .y = nl_vae_run_tensor(&run, 0, run.channels),
                 .to_nhwc = true, .scale = (float)(1 / vae->scale), .shift = (float)vae->shift));
    for (int i = 0; i < network->count; i++)
        NL_TRY(nl_vae_run_layer(&run, &network->layers[i]));
    nl_tensor picture = nl_vae_run_tensor(&run, 0, 3);
    /* TAESD's pictures are in [0, 1] */
    bool tiny = vae->kind == NL_VAE_TINY;
    NL_TRY(nl_vae_affine(device, &picture, tiny ? 2 : 1, tiny ? -1 : 0, rgb));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* The last layer for output channels [first, first + count) only, into latents [B, count, h, w]. */
static nl_status encode_channels(nl_vae_run run, const nl_vae_layer *last, int64_t first,
                                 int64_t count, double scale, double shift,
                                 const nl_tensor *latents)
{
    nl_vae_layer part = *last;
    part.out = count;
    part.parameters[0] = nl_tensor_rows(&last->parameters[0], first, count);
    if (last->bias)
        part.parameters[1] = nl_tensor_rows(&last->parameters[1], first, count);
    NL_CHECK(nl_vae_run_layer(&run, &part));
    return NL_OP(run.device, layout, .x = nl_vae_run_tensor(&run, 0, count), .y = *latents,
                 .to_nhwc = false, .scale = (float)scale, .shift = (float)shift);
}

nl_status nl_vae_encode(const nl_vae *vae, nl_device *device, const nl_tensor *rgb,
                        const nl_tensor *latents, const nl_tensor *logvar)
{
    nl_status status = check_shapes(vae, NL_VAE_ENCODER, rgb, latents);
    if (status != NL_OK)
        return status;
    if (logvar && vae->kind != NL_VAE_KL)
        return nl_fail(
            device->context, NL_ERROR_USAGE,
            "only AutoencoderKL has a posterior to draw from; this autoencoder's latents "
            "are what they are");
    if (vae->kind == NL_VAE_NONE)
        return NL_OP(device, layout, .x = *rgb, .y = *latents, .to_nhwc = false, .scale = 1);

    const nl_vae_network *network = &vae->halves[NL_VAE_ENCODER];
    bool tiny = vae->kind == NL_VAE_TINY;
    int64_t mark = nl_arena_mark(device), channels = vae->latent_channels;
    nl_vae_run run;
    NL_TRY(start_run(network, device, rgb->shape[0], rgb->shape[1], rgb->shape[2], &run));
    nl_tensor picture = nl_vae_run_tensor(&run, 0, 3);
    NL_TRY(nl_vae_affine(device, rgb, tiny ? 0.5 : 1, tiny ? 0.5 : 0, &picture));
    for (int i = 0; i < network->count - 1; i++)
        NL_TRY(nl_vae_run_layer(&run, &network->layers[i]));
    const nl_vae_layer *last = &network->layers[network->count - 1];
    double scale = logvar ? 1 : vae->scale, shift = logvar ? 0 : -vae->scale * vae->shift;
    NL_TRY(encode_channels(run, last, 0, channels, scale, shift, latents));
    if (logvar)
        NL_TRY(encode_channels(run, last, channels, channels, 1, 0, logvar));
cleanup:
    nl_arena_release(device, mark);
    return status;
}
