/* SPDX-License-Identifier: MIT */
/* What a model's pictures are made with when nothing is said, and the sampler's options. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "model.h"
#include "nl_json.h"
#include "nl_random.h"

static nl_status find_name(nl_context *context, const char *what, const char *name,
                           const char *const *names, int *index)
{
    for (*index = 0; names[*index]; ++*index)
        if (!strcmp(names[*index], name))
            return NL_OK;
    const char *near = nl_nearest(name, names);
    return nl_fail(context, NL_ERROR_USAGE, "%s: there is no \"%s\"%s%s%s", what, name,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

double nl_sampling_scale(const nl_sampling *resolved)
{
    return resolved->cfg_scale == NL_CFG_UNCONDITIONAL ? 0 : resolved->cfg_scale;
}

bool nl_sampling_crop(const nl_sampling *sampling, float crop[NL_CROP_NUMBERS])
{
    double side = sampling->crop[0] == 0 ? 1 : sampling->crop[0];
    memset(crop, 0, NL_CROP_NUMBERS * sizeof(*crop));
    crop[NL_CROP_SCALE] = (float)log2(side);
    crop[NL_CROP_DOWN] = (float)sampling->crop[1];
    crop[NL_CROP_RIGHT] = (float)sampling->crop[2];
    return side != 1 || sampling->crop[1] != 0 || sampling->crop[2] != 0;
}

/* A part of the picture, of a model that can be asked for one. */
static nl_status check_crop(nl_context *context, const nl_config *config, const nl_sampling *given)
{
    const double *crop = given->crop, slack = 1e-6; /* decimals of an edge */
    double side = crop[0] == 0 ? 1 : crop[0], room = (1 - side) / 2 + slack;
    float told[NL_CROP_NUMBERS];
    if (!(side >= 0.01 && side <= 1 && fabs(crop[1]) <= room && fabs(crop[2]) <= room))
        return nl_fail(context, NL_ERROR_USAGE,
                       "a crop of %g, %g, %g: expected a part of the picture: its side, 0.01 to 1, "
                       "and how far its centre is below and to the right of the picture's, "
                       "(1 - side) / 2 at most",
                       crop[0], crop[1], crop[2]);
    if (nl_sampling_crop(given, told) && !config->crop_conditioning)
        return nl_fail(context, NL_ERROR_USAGE,
                       "the model cannot be asked for a part of a picture: it was trained without "
                       "\"crop_conditioning\"; leave out --crop");
    return NL_OK;
}

static nl_status check_internal_guidance(nl_context *context, const nl_config *config,
                                         const nl_sampling *given)
{
    if (!(given->internal_guidance >= 0 && given->internal_guidance <= 1000))
        return nl_fail(context, NL_ERROR_USAGE,
                       "internal guidance of %g: expected 0 to 1000; 1 is none",
                       given->internal_guidance);
    if (nl_guides_inside(given->internal_guidance) && config->internal_guidance)
        return nl_fail(context, NL_ERROR_USAGE,
                       "internal guidance of %g: the model's own, of %g, is in what it predicts, "
                       "and cannot be had twice; leave it out",
                       given->internal_guidance, config->internal_guidance);
    if (nl_guides_inside(given->internal_guidance) && !config->middle_head)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "the model has no middle head, which internal guidance needs: it was trained "
            "without \"middle_head\"; leave out --internal-guidance");
    return NL_OK;
}

/* A program that uses the library has no table of options that looks at these first. */
static nl_status check_guidance(nl_context *context, const nl_sampling *given)
{
    const struct {
        const char *name;
        const double *ends;
    } intervals[] = {{"cfg_interval", given->cfg_interval},
                     {"guide_interval", given->guide_interval}};
    if (!(given->cfg_scale <= 1000))
        return nl_fail(context, NL_ERROR_USAGE, "cfg_scale is %g: expected 1000 at most",
                       given->cfg_scale);
    for (int i = 0; i < NL_COUNT(intervals); i++) {
        const double *ends = intervals[i].ends;
        if (!(ends[0] >= 0 && ends[0] <= ends[1] && ends[1] <= 1e6))
            return nl_fail(context, NL_ERROR_USAGE,
                           "%s is %g to %g: expected two numbers of 0 to 1e6, the second not below "
                           "the first",
                           intervals[i].name, ends[0], ends[1]);
    }
    return NL_OK;
}

enum { GUIDE_SCALE = 2 };
/* time_shift of flow-sde with two steps or three, and with two whose first goes to the data. */
static const double SHIFT_OF_FEW = 0.7, SHIFT_OF_WHOLE = 0.5;

/* Whether the first step of flow-sde goes to the data: of two, where a second set of weights makes it. */
static bool begins_whole(const nl_config *config, int64_t steps)
{
    return config->one_step == NL_ONE_STEP_BESIDE && steps == 2;
}

static nl_status resolve_guide(nl_context *context, const nl_config *guide,
                               const nl_sampling *given, nl_sampling *resolved)
{
    bool asked =
        given->guide_scale != 0 || given->guide_interval[0] != 0 || given->guide_interval[1] != 0;
    if (asked && !guide)
        return nl_fail(context, NL_ERROR_USAGE,
                       "guide_scale and guide_interval belong to another model that guides this "
                       "one: name it (--guide FILE)");
    if (!(given->guide_scale >= 0 && given->guide_scale <= 1000))
        return nl_fail(context, NL_ERROR_USAGE,
                       "guide_scale is %g: expected 0 (the default, %d) to 1000",
                       given->guide_scale, GUIDE_SCALE);
    float crop[NL_CROP_NUMBERS];
    if (guide && !guide->crop_conditioning && nl_sampling_crop(given, crop))
        return nl_fail(context, NL_ERROR_USAGE,
                       "the guide cannot be asked for a part of a picture: it was trained "
                       "without \"crop_conditioning\"; leave out --crop or --guide");
    if (guide && given->guide_scale == 0)
        resolved->guide_scale = GUIDE_SCALE;
    return NL_OK;
}

/* Refuses what is asked of a sampler that has none of it. */
static nl_status check_of_method(nl_context *context, nl_method method, const nl_sampling *given)
{
    const nl_method_row *row = &nl_methods[method];
    bool sde = nl_method_is_sde(method), adaptive = row->family == NL_FAMILY_ADAPTIVE;
    bool ends = !given->last_step || strcmp(given->last_step, "none") != 0;
    const struct {
        const char *name;
        bool given, taken;
        const char *who;
    } options[] = {
        {"eta", given->eta != 0, row->noise == NL_NOISE_ETA, "ddim"},
        {"atol", given->atol != 0, adaptive, "dopri5"},
        {"rtol", given->rtol != 0, adaptive, "dopri5"},
        {"sde_form", given->sde_form != NULL, sde, "sde-euler and sde-heun"},
        {"sde_norm", given->sde_norm != 0, sde, "sde-euler and sde-heun"},
        {"last_step", given->last_step != NULL, sde, "sde-euler and sde-heun"},
        {"last_step_size", given->last_step_size != 0, sde && ends,
         "sde-euler and sde-heun where they have a last step"},
        {"clip_denoised", given->clip_denoised, nl_method_is_diffusion(method), "those of a DiT"},
    };
    for (int i = 0; i < NL_COUNT(options); i++)
        if (options[i].given && !options[i].taken)
            return nl_fail(context, NL_ERROR_USAGE, "sampler %s has no %s, which is for %s",
                           row->name, options[i].name, options[i].who);
    return NL_OK;
}

nl_status nl_sampling_resolve(nl_context *context, const nl_config *config, const nl_config *guide,
                              const nl_sampling *given, nl_sampling *resolved)
{
    bool dit = config->architecture == NL_ARCH_DIT;
    char list[128];
    int method;
    *resolved = *given;
    if (!given->sampler)
        resolved->sampler = dit ? "ddpm" : config->flow_map ? "flow-sde" : "heun";
    NL_CHECK(find_name(context, "sampler", resolved->sampler, nl_method_names, &method));
    if (dit != nl_method_is_diffusion((nl_method)method))
        return nl_fail(context, NL_ERROR_USAGE, "sampler %s does not fit a %s: use %s",
                       resolved->sampler, dit ? "DiT" : "SiT",
                       nl_method_list(dit, list, sizeof(list)));
    bool flow = nl_method_is_flow((nl_method)method);
    if (flow && !config->flow_map)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "sampler %s takes the steps that a flow map predicts, and this model is none "
            "(nalagen distill makes one): use heun",
            resolved->sampler);
    if (config->one_step == NL_ONE_STEP_ALONE && (!flow || given->steps > 1))
        return nl_fail(
            context, NL_ERROR_USAGE,
            "this model makes its pictures in one step: leave out the sampler and steps");
    NL_CHECK(check_of_method(context, (nl_method)method, given));
    if (config->guided && given->cfg_scale > 0 && given->cfg_scale != 1)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "a guidance scale of %g: guidance is inside this model's weights, and cannot "
            "be had twice; leave it out",
            nl_sampling_scale(given));
    NL_CHECK(check_guidance(context, given));
    NL_CHECK(check_crop(context, config, given));
    NL_CHECK(check_internal_guidance(context, config, given));
    if (given->steps < 0 || given->steps > INT_MAX)
        return nl_fail(context, NL_ERROR_USAGE, "steps is %lld", (long long)given->steps);
    if (given->steps && !nl_methods[method].default_steps)
        return nl_fail(context, NL_ERROR_USAGE, "%s chooses its steps: give --atol and --rtol",
                       resolved->sampler);
    if (!given->steps && !given->respacing)
        resolved->steps =
            config->one_step == NL_ONE_STEP_ALONE ? 1 : nl_methods[method].default_steps;
    if (dit && !given->respacing) /* one that goes two levels at a time leaves the lowest out */
        resolved->steps =
            NL_MIN(resolved->steps,
                   config->diffusion_steps - (nl_methods[method].family == NL_FAMILY_MULTISTEP));
    bool few = resolved->steps == 2 || resolved->steps == 3;
    if (method == NL_METHOD_FLOW_SDE && few && given->time_shift == 0 && given->rho == 0)
        resolved->time_shift =
            begins_whole(config, resolved->steps) ? SHIFT_OF_WHOLE : SHIFT_OF_FEW;
    NL_CHECK(resolve_guide(context, guide, given, resolved));
    bool guidable = config->num_classes && nl_config_learnt_null(config);
    bool autoguided = guide && resolved->guide_scale != 1;
    if (given->cfg_scale <= 0 && (config->guided || config->flow_map || autoguided)) {
        resolved->cfg_scale = 1;
    } else if (given->cfg_scale <= 0) {
        resolved->cfg_scale = !guidable ? 1 : dit ? 4 : 3;
        if (!dit && resolved->cfg_scale != 1 && given->cfg_interval[0] == 0 &&
            given->cfg_interval[1] == 0)
            resolved->cfg_interval[0] = 0.1, resolved->cfg_interval[1] = 0.9;
    }
    if (!guidable && resolved->cfg_scale != 1)
        return nl_fail(
            context, NL_ERROR_USAGE, "the model %s: leave out --cfg-scale, or give 1",
            config->num_classes
                ? "has no null class (trained with class_dropout_prob 0), which guidance needs"
                : "has no classes, towards which guidance would go");
    bool within = given->cfg_interval[0] != 0 || given->cfg_interval[1] != 0;
    if (resolved->cfg_scale == 1 && (within || given->cfg_channels))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s says how guidance acts, and the guidance scale is 1: none",
                       within ? "cfg_interval" : "cfg_channels");
    return NL_OK;
}

nl_status nl_sampler_options_for(nl_context *context, const nl_config *config,
                                 const nl_sampling *sampling, nl_sampler_options *options)
{
    int method, form = NL_SDE_SIGMA, last = NL_LAST_MEAN;
    nl_sampler_options_init(options);
    NL_CHECK(find_name(context, "sampler", sampling->sampler, nl_method_names, &method));
    if (sampling->sde_form)
        NL_CHECK(find_name(context, "sde_form", sampling->sde_form, nl_sde_form_names, &form));
    if (sampling->last_step)
        NL_CHECK(find_name(context, "last_step", sampling->last_step, nl_last_step_names, &last));
    options->method = (nl_method)method;
    options->steps = (int)sampling->steps;
    options->respacing = sampling->respacing;
    options->schedule = config->schedule;
    options->diffusion_steps = config->diffusion_steps;
    options->beta_start = config->beta_start;
    options->beta_end = config->beta_end;
    options->spacing = config->spacing;
    options->steps_offset = config->steps_offset;
    options->final_alpha_first = config->final_alpha_first;
    options->predicts = config->predicts;
    options->variance = config->variance;
    options->eta = sampling->eta;
    options->clip_denoised = sampling->clip_denoised || config->clip_denoised;
    options->path = config->path;
    options->prediction = config->prediction;
    options->sample_eps = config->sample_eps;
    options->sde_form = (nl_sde_form)form;
    options->last_step = (nl_last_step)last;
    if (sampling->sde_norm != 0)
        options->sde_norm = sampling->sde_norm;
    if (sampling->last_step_size != 0)
        options->last_step_size = sampling->last_step_size;
    if (sampling->time_shift != 0)
        options->time_shift = sampling->time_shift;
    options->rho = sampling->rho;
    options->whole_first = begins_whole(config, sampling->steps);
    for (int end = 0; end < 2 && nl_sampling_scale(sampling) != 1; end++)
        options->cfg_interval[end] = sampling->cfg_interval[end];
    for (int end = 0; end < 2 && sampling->guide_scale != 1; end++)
        options->guide_interval[end] = sampling->guide_interval[end];
    if (sampling->atol != 0)
        options->atol = sampling->atol;
    if (sampling->rtol != 0)
        options->rtol = sampling->rtol;
    return NL_OK;
}

nl_status nl_sampling_check(nl_context *context, const nl_config *config,
                            const nl_sampling *resolved)
{
    nl_sampler_options options;
    nl_sampler *sampler = NULL;
    nl_status status;
    NL_TRY(nl_sampler_options_for(context, config, resolved, &options));
    NL_TRY(nl_sampler_create(context, &options, &sampler));
cleanup:
    nl_sampler_destroy(sampler);
    return status;
}

int nl_draw_class(uint64_t seed, int64_t index, int classes)
{
    uint32_t words[4];
    nl_philox(seed, (uint64_t)index, NL_STREAM_LABEL, 0, words);
    return (int)(((uint64_t)words[0] * (uint64_t)classes) >> 32);
}
