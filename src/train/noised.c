/* SPDX-License-Identifier: MIT */
/* A noised batch and its loss: latents, noise, mixture, and the loss's operations in their order. */
#include "nl_random.h"
#include "step.h"

/* Whether the head's second half of channels is trained to be a variance. */
static bool learns_variance(const nl_config *config)
{
    return config->architecture == NL_ARCH_DIT && config->learn_sigma &&
           config->variance == NL_VARIANCE_LEARNED_RANGE;
}

static bool has_moments(const nl_feed *feed, const nl_config *config)
{
    return feed->x.shape[1] == 2 * (int64_t)config->in_channels;
}

nl_status nl_noised_take(const nl_feed *feed, const nl_config *config, nl_device *device,
                         nl_noised *noised)
{
    nl_status status = NL_OK;
    int64_t shape[4] = {feed->size, config->in_channels, config->input_height, config->input_width};
    *noised = (nl_noised){0};
    if (has_moments(feed, config))
        NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &noised->posterior));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &noised->data));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &noised->noise));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &noised->x));
    shape[1] *= learns_variance(config) ? 2 : 1;
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, shape, &noised->prediction));
cleanup:
    return status;
}

nl_status nl_noised_draw(const nl_feed *feed, nl_device *device, uint64_t seed,
                         const nl_noised *noised)
{
    nl_status status = NL_OK;
    const int64_t *samples = nl_feed_samples(feed);
    NL_TRY(NL_OP(device, normal, .y = noised->noise, .seed = seed, .stream = NL_STREAM_TRAIN_NOISE,
                 .images = samples));
    if (noised->posterior.data)
        NL_TRY(NL_OP(device, normal, .y = noised->posterior, .seed = seed,
                     .stream = NL_STREAM_POSTERIOR, .images = samples));
cleanup:
    return status;
}

nl_status nl_noised_mix(const nl_feed *feed, const nl_config *config, nl_device *device,
                        const nl_noised *noised)
{
    nl_status status = NL_OK;
    NL_TRY(NL_OP(device, latents, .x = feed->x, .noise = noised->posterior, .y = noised->data,
                 .scale = (float)config->latent_scale,
                 .shift = (float)(-config->latent_scale * config->latent_shift)));
    NL_TRY(NL_OP(device, diffuse, .data = noised->data, .noise = noised->noise,
                 .coefficients = feed->coefficients, .y = noised->x));
cleanup:
    return status;
}

nl_status nl_noised_loss(const nl_feed *feed, const nl_config *config, nl_device *device,
                         const nl_noised *noised, const nl_tensor *loss,
                         const nl_tensor *dprediction, float gradient_scale)
{
    nl_status status = NL_OK;
    const nl_tensor none = {0};
    NL_TRY(NL_OP(device, regression_loss, .prediction = noised->prediction, .data = noised->data,
                 .noise = noised->noise, .coefficients = feed->coefficients, .loss = *loss,
                 .dprediction = dprediction ? *dprediction : none,
                 .gradient_scale = gradient_scale));
    if (learns_variance(config))
        NL_TRY(NL_OP(device, variational_loss, .prediction = noised->prediction, .x = noised->x,
                     .data = noised->data, .coefficients = feed->variational,
                     .predicts_x_start = config->predicts == NL_PREDICTS_X_START, .loss = *loss,
                     .dprediction = dprediction ? *dprediction : none,
                     .gradient_scale = gradient_scale));
cleanup:
    return status;
}
