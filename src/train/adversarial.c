/* SPDX-License-Identifier: MIT */
/* The adversarial term of distribution matching: the fake's middle head as a discriminator of noisy samples. */
#include "matching.h"

nl_status nl_adversarial_take(const nl_matcher *matcher, nl_device *device, nl_matched *m)
{
    const nl_config *config = &matcher->student->model->config;
    nl_tensor *tensors[] = {&m->data, &m->scores, &m->dscores, &m->dmixed};
    for (int i = 0; i < NL_COUNT(tensors); i++)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, m->x.shape, tensors[i]));
    if (matcher->options.channels != config->in_channels)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, m->x.shape, &m->posterior));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 1, m->x.shape, &m->of_data));
    return nl_arena_tensor(device, NL_F32, 1, m->x.shape, &m->of_generated);
}

/* Squared distance of the scores to the target that `rows` have, times their weight: loss [n] and m->dscores. */
static nl_status score_loss(const nl_matcher *matcher, nl_device *device, const nl_matched *m,
                            const nl_tensor *rows, const nl_tensor *loss, float gradient_scale)
{
    return NL_OP(device, regression_loss, .prediction = m->scores, .data = matcher->ones,
                 .noise = matcher->ones, .coefficients = *rows, .loss = *loss,
                 .dprediction = m->dscores, .gradient_scale = gradient_scale);
}

nl_status nl_discriminate_data(const nl_matcher *matcher, nl_device *device, const nl_matched *m)
{
    nl_status status = NL_OK;
    nl_dit_saved saved = {0};
    const nl_dit *fake = matcher->fake->model;
    const nl_config *config = &fake->config;
    nl_tensor t = nl_matcher_times(matcher), labels = nl_matcher_labels(matcher);
    int64_t mark = nl_arena_mark(device);
    NL_TRY(NL_OP(device, latents, .x = matcher->data, .noise = m->posterior, .y = m->start,
                 .scale = (float)config->latent_scale,
                 .shift = (float)(-config->latent_scale * config->latent_shift)));
    NL_TRY(NL_OP(device, diffuse, .data = m->start, .noise = m->other, .coefficients = matcher->mix,
                 .y = m->data));
    NL_TRY(nl_dit_forward_saving(fake, device, &m->data, &t, &labels, NULL,
                                 matcher->options.checkpointing, NULL, NULL, &m->scores, &saved));
    NL_TRY(score_loss(matcher, device, m, &matcher->real, &m->of_data,
                      matcher->options.gradient_scale));
    NL_TRY(nl_dit_backward(fake, device, &saved, NULL, &m->dscores, matcher->fake->gradient, NULL,
                           NULL, NULL));
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_discriminate_generated(const nl_matcher *matcher, nl_device *device,
                                    const nl_matched *m, const nl_tensor *loss)
{
    NL_CHECK(score_loss(matcher, device, m, &matcher->generated, &m->of_generated,
                        matcher->options.gradient_scale));
    return NL_OP(device, combine, .terms = 2, .x = {m->of_data, m->of_generated},
                 .coefficients = (const double[]){0.5, 0.5}, .y = *loss);
}

nl_status nl_fool_discriminator(const nl_matcher *matcher, nl_device *device, const nl_matched *m,
                                const nl_dit_saved *saved)
{
    const nl_train_state *fake = matcher->fake;
    float size = (float)(nl_tensor_count(&m->x) / m->x.shape[0]);
    NL_CHECK(score_loss(matcher, device, m, &matcher->real, &m->of_data, size));
    /* What it adds to the fake's gradient is wiped out before that is next wanted. */
    NL_CHECK(nl_dit_backward(fake->model, device, saved, NULL, &m->dscores, fake->gradient,
                             &m->dmixed, NULL, NULL));
    /* With nothing for both networks' predictions this makes the mean absolute value 1, times a weight. */
    NL_CHECK(NL_OP(device, matching_loss, .data = m->dmixed, .noise = matcher->zeros,
                   .teacher = matcher->zeros, .fake = m->dmixed, .coefficients = matcher->fool,
                   .loss = m->of_generated, .doutput = m->dscores,
                   .gradient_scale = matcher->options.gradient_scale));
    return NL_OP(device, combine, .terms = 2, .x = {m->gradient, m->dscores},
                 .coefficients = (const double[]){1, 1}, .y = m->gradient);
}
