/* SPDX-License-Identifier: MIT */
/* Distribution matching: the passes of student, teacher and fake at a draw, and their gradients. */
#include "matching.h"
#include "reduce.h"

enum { TENSORS = 9 };

nl_status nl_matched_take(const nl_matcher *matcher, nl_device *device, nl_matched *m)
{
    const nl_config *config = &matcher->student->model->config;
    int64_t shape[4] = {matcher->options.size, config->in_channels, config->input_height,
                        config->input_width};
    nl_tensor *tensors[TENSORS] = {&m->noise, &m->other,   &m->start, &m->u,       &m->x,
                                   &m->mixed, &m->teacher, &m->fake,  &m->gradient};
    *m = (nl_matched){.guided = {.teacher = matcher->teacher,
                                 .times = matcher->t,
                                 .labels = matcher->labels,
                                 .guide = matcher->guide,
                                 .internal = matcher->options.internal}};
    for (int i = 0; i < TENSORS; i++)
        NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, tensors[i]));
    if (matcher->options.adversarial > 0)
        NL_CHECK(nl_adversarial_take(matcher, device, m));
    return nl_guided_take(matcher->options.guidance, device, &m->x, &m->guided);
}

/* y = from + (to - from) u: jump `j` of the way. */
static nl_status jump(const nl_matcher *matcher, nl_device *device, int j, const nl_tensor *from,
                      const nl_tensor *u, const nl_tensor *y)
{
    nl_tensor labels = nl_matcher_labels(matcher);
    NL_CHECK(nl_dit_forward(matcher->student->model, device, from, &matcher->jump[j], &labels, NULL,
                            u, NULL));
    return NL_OP(device, diffuse, .data = *from, .noise = *u, .coefficients = matcher->move[j],
                 .y = *y);
}

/* x and its noisy one from the student; saved: what the backward pass of the last jump needs, or NULL. */
static nl_status generate(const nl_matcher *matcher, nl_device *device, const nl_matched *m,
                          nl_dit_saved *saved)
{
    const nl_dit *student = matcher->student->model;
    const nl_tensor *start = matcher->options.alone ? &m->noise : &m->start;
    nl_tensor labels = nl_matcher_labels(matcher);
    if (!matcher->options.alone) {
        NL_CHECK(jump(matcher, device, 0, &m->noise, &m->u, &m->x));
        NL_CHECK(jump(matcher, device, 1, &m->x, &m->u, &m->start));
    }
    NL_CHECK(
        saved ? nl_dit_forward_saving(student, device, start, &matcher->last, &labels, NULL,
                                      matcher->options.checkpointing, NULL, &m->u, NULL, saved)
              : nl_dit_forward(student, device, start, &matcher->last, &labels, NULL, &m->u, NULL));
    NL_CHECK(NL_OP(device, diffuse, .data = *start, .noise = m->u, .coefficients = matcher->end,
                   .y = m->x));
    return NL_OP(device, diffuse, .data = m->x, .noise = m->other, .coefficients = matcher->mix,
                 .y = m->mixed);
}

nl_status nl_match_student(const nl_matcher *matcher, nl_device *device, const nl_matched *m,
                           const nl_tensor *loss, nl_group *group)
{
    nl_status status = NL_OK;
    nl_dit_saved saved = {0}, discriminated = {0};
    const nl_dit *fake = matcher->fake->model;
    nl_tensor t = nl_matcher_times(matcher), labels = nl_matcher_labels(matcher);
    bool adversarial = matcher->options.adversarial > 0;
    int64_t mark = nl_arena_mark(device);
    NL_TRY(generate(matcher, device, m, &saved));
    NL_TRY(nl_guided_velocity(&m->guided, device, &m->mixed, &m->teacher));
    if (adversarial)
        NL_TRY(nl_dit_forward_saving(fake, device, &m->mixed, &t, &labels, NULL,
                                     matcher->options.checkpointing, NULL, &m->fake, &m->scores,
                                     &discriminated));
    else
        NL_TRY(nl_dit_forward(fake, device, &m->mixed, &t, &labels, NULL, &m->fake, NULL));
    NL_TRY(NL_OP(device, matching_loss, .data = m->x, .noise = m->other, .teacher = m->teacher,
                 .fake = m->fake, .coefficients = matcher->end, .loss = *loss,
                 .doutput = m->gradient, .gradient_scale = matcher->options.gradient_scale));
    if (adversarial)
        NL_TRY(nl_fool_discriminator(matcher, device, m, &discriminated));
    NL_TRY(nl_reduced_backward(group, matcher->student->model, device, &saved, &m->gradient, NULL,
                               matcher->student->gradient));
cleanup:
    nl_dit_saved_free(device, &discriminated);
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_match_fake(const nl_matcher *matcher, nl_device *device, const nl_matched *m,
                        const nl_tensor *loss, const nl_tensor *discriminator, nl_group *group)
{
    nl_status status = NL_OK;
    nl_dit_saved saved = {0};
    const nl_dit *fake = matcher->fake->model;
    nl_tensor t = nl_matcher_times(matcher), labels = nl_matcher_labels(matcher);
    bool adversarial = matcher->options.adversarial > 0;
    int64_t mark = nl_arena_mark(device);
    if (adversarial)
        NL_TRY(nl_discriminate_data(matcher, device, m));
    NL_TRY(generate(matcher, device, m, NULL));
    NL_TRY(nl_dit_forward_saving(fake, device, &m->mixed, &t, &labels, NULL,
                                 matcher->options.checkpointing, NULL, &m->fake,
                                 adversarial ? &m->scores : NULL, &saved));
    NL_TRY(NL_OP(device, regression_loss, .prediction = m->fake, .data = m->x, .noise = m->other,
                 .coefficients = matcher->mix, .loss = *loss, .dprediction = m->gradient,
                 .gradient_scale = matcher->options.gradient_scale));
    if (adversarial)
        NL_TRY(nl_discriminate_generated(matcher, device, m, discriminator));
    NL_TRY(nl_reduced_backward(group, fake, device, &saved, &m->gradient,
                               adversarial ? &m->dscores : NULL, matcher->fake->gradient));
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}
