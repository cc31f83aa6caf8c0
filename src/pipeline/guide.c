/* SPDX-License-Identifier: MIT */
/* The other network of autoguidance: loaded beside a model whose predictions its own can be compared with. */
#include <math.h>
#include <string.h>

#include "model.h"

static bool same_latents(const nl_config *a, const nl_config *b)
{
    bool said = a->latent_said && b->latent_said;
    return a->autoencoder == b->autoencoder && nl_model_factor(a) == nl_model_factor(b) &&
           (!said || (fabs(a->latent_scale - b->latent_scale) <= 1e-6 * fabs(a->latent_scale) &&
                      fabs(a->latent_shift - b->latent_shift) <= 1e-6));
}

/* What makes the predictions of the two mean different things, or NULL. What a block consists of, how many there are and
 * the patch are the network's own affair. */
static const char *difference(const nl_config *a, const nl_config *b)
{
    bool dit = a->architecture == NL_ARCH_DIT;
    const struct {
        bool same;
        const char *what;
    } facts[] = {
        {a->architecture == b->architecture, "one is a DiT, the other a SiT"},
        {a->in_channels == b->in_channels, "they have other \"in_channels\""},
        {a->input_height == b->input_height && a->input_width == b->input_width,
         "they have another \"input_size\""},
        {same_latents(a, b), "they have another autoencoder, or another scale of its latents"},
        {a->num_classes == b->num_classes && nl_config_other_class(a, b) < 0,
         "they have other classes"},
        {dit || a->path == b->path, "they have another \"path\""},
        {dit || a->prediction == b->prediction, "they have another \"prediction\""},
        {!dit || (a->schedule == b->schedule && a->diffusion_steps == b->diffusion_steps &&
                  a->beta_start == b->beta_start && a->beta_end == b->beta_end),
         "they have another \"schedule\""},
        {!dit || a->predicts == b->predicts, "they have another \"predicts\""},
        {!dit || a->learn_sigma == b->learn_sigma, "one alone has \"learn_sigma\""},
    };
    for (int i = 0; i < NL_COUNT(facts); i++)
        if (!facts[i].same)
            return facts[i].what;
    return a->flow_map || b->flow_map ? "a flow map takes whole steps"
           : a->guided || b->guided   ? "guidance is in the weights of one"
                                      : NULL;
}

const nl_config *nl_model_guide_config(const nl_model *model)
{
    return model->guide ? &model->guide->config : NULL;
}

nl_status nl_model_open_guide(nl_model *model, const nl_model_options *options)
{
    nl_context *context = model->context;
    nl_checkpoint *checkpoint = NULL;
    nl_status status = NL_OK;
    nl_config config;
    nl_config_init(&config);
    NL_TRY(nl_backbone_path(context, options->guide, &model->guide_path));
    NL_TRY(nl_dit_open(context, model->guide_path, NULL, &checkpoint));
    bool silent = !nl_checkpoint_metadata(checkpoint, "nalagen");
    const nl_model_options own = {.architecture = silent ? options->architecture : NULL,
                                  .transport_path = silent ? options->transport_path : NULL,
                                  .prediction = silent ? options->prediction : NULL,
                                  .height = options->height,
                                  .width = options->width};
    NL_TRY(nl_read_config(checkpoint, &own, &config));
    const char *why = difference(&model->config, &config);
    if (why)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s cannot guide %s: %s; the guide is a smaller or an earlier model of the "
                       "same latents and classes",
                       model->guide_path, model->path, why));
    NL_TRY(nl_dit_create(context->device, &config, &model->guide));
    NL_TRY(nl_dit_load(model->guide, checkpoint));
    NL_TRY(nl_dit_freeze(model->guide));
    nl_log(context, NL_LOG_DEBUG, "%lld parameters of the guide",
           (long long)nl_dit_parameter_count(model->guide));
cleanup:
    nl_config_free(context, &config);
    nl_checkpoint_close(checkpoint);
    return status;
}
