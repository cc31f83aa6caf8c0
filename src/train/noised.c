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

enum { DISTILLED = 3 };
static nl_tensor *distilled(nl_noised *noised, int index)
{
    nl_tensor *const tensors[DISTILLED] = {&noised->velocity, &noised->moved, &noised->onward};
    return tensors[index];
}

nl_status nl_noised_take(const nl_feed *feed, const nl_config *config, nl_device *device,
                         nl_noised *noised)
{
    int64_t shape[4] = {feed->size, config->in_channels, config->input_height, config->input_width};
    *noised = (nl_noised){0};
    if (has_moments(feed, config))
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->posterior));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->data));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->noise));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->x));
    for (int i = 0; i < (nl_feed_distills(feed) ? DISTILLED : feed->options.converts); i++)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, distilled(noised, i)));
    shape[1] *= learns_variance(config) ? 2 : 1;
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->prediction));
    if (config->middle_head && !config->internal_guidance)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &noised->middle));
    if (feed->options.converts) {
        noised->guided =
            (nl_guided){.teacher = feed->options.teacher, .times = feed->t, .labels = feed->labels};
    } else if (feed->options.teacher) {
        noised->guided = (nl_guided){.teacher = feed->options.teacher,
                                     .times = feed->distill.teacher_times,
                                     .labels = feed->distill.teacher_labels,
                                     .guide = feed->distill.guide,
                                     .internal = feed->options.distill.internal};
        NL_CHECK(
            nl_guided_take(feed->options.distill.guidance, device, &noised->x, &noised->guided));
    }
    return NL_OK;
}

nl_status nl_noised_draw(const nl_feed *feed, nl_device *device, uint64_t seed,
                         const nl_noised *noised)
{
    const int64_t *samples = nl_feed_samples(feed);
    NL_CHECK(NL_OP(device, normal, .y = noised->noise, .seed = seed,
                   .stream = NL_STREAM_TRAIN_NOISE, .images = samples));
    if (noised->posterior.data)
        NL_CHECK(NL_OP(device, normal, .y = noised->posterior, .seed = seed,
                       .stream = NL_STREAM_POSTERIOR, .images = samples));
    return NL_OK;
}

nl_status nl_noised_mix(const nl_feed *feed, const nl_dit *student, nl_device *device,
                        const nl_noised *noised)
{
    const nl_config *config = &student->config;
    NL_CHECK(NL_OP(device, latents, .x = feed->x, .noise = noised->posterior, .y = noised->data,
                   .scale = (float)config->latent_scale,
                   .shift = (float)(-config->latent_scale * config->latent_shift)));
    NL_CHECK(NL_OP(device, diffuse, .data = noised->data, .noise = noised->noise,
                   .coefficients = feed->coefficients, .y = noised->x));
    if (!feed->options.teacher)
        return NL_OK;
    NL_CHECK(nl_guided_velocity(&noised->guided, device, &noised->x, &noised->velocity));
    if (feed->options.converts)
        return NL_OK;
    NL_CHECK(NL_OP(device, diffuse, .data = noised->x, .noise = noised->velocity,
                   .coefficients = feed->distill.move, .y = noised->moved));
    return nl_dit_forward(student, device, &noised->moved, &feed->distill.later, &feed->labels,
                          NULL, &noised->onward, NULL);
}

const nl_tensor *nl_noised_times(const nl_feed *feed)
{
    return nl_feed_distills(feed) ? &feed->distill.times : &feed->t;
}

nl_status nl_noised_loss(const nl_feed *feed, const nl_config *config, nl_device *device,
                         const nl_noised *noised, const nl_tensor *loss,
                         const nl_tensor *dprediction, float gradient_scale)
{
    const nl_tensor none = {0};
    bool distill = nl_feed_distills(feed), taught = feed->options.teacher != NULL;
    NL_CHECK(NL_OP(device, regression_loss, .prediction = noised->prediction,
                   .data = taught ? noised->velocity : noised->data,
                   .noise = distill ? noised->onward : noised->noise,
                   .coefficients = distill ? feed->distill.target : feed->coefficients,
                   .loss = *loss, .dprediction = dprediction ? *dprediction : none,
                   .gradient_scale = gradient_scale,
                   .adaptive = distill ? (float)feed->options.distill.adaptive : 0));
    if (learns_variance(config))
        NL_CHECK(NL_OP(device, variational_loss, .prediction = noised->prediction, .x = noised->x,
                       .data = noised->data, .coefficients = feed->variational,
                       .predicts_x_start = config->predicts == NL_PREDICTS_X_START, .loss = *loss,
                       .dprediction = dprediction ? *dprediction : none,
                       .gradient_scale = gradient_scale));
    return NL_OK;
}
