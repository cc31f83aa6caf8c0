/* SPDX-License-Identifier: MIT */
/* DDPM and DDIM (docs/public-code.md A4), and the levels of all samplers of a DiT. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_plan.h"

/* Karras' noise levels, as diffusers has them: from the highest of the schedule to the lowest, each with the timestep whose
 * level is nearest (between two, in the logarithm). */
static nl_status plan_rho(nl_sampler *sampler, const nl_noise_schedule *schedule)
{
    nl_status status = NL_OK;
    nl_diffusion_level *all = NULL;
    double *logs = NULL;
    int count, steps = sampler->options.steps, low = 0;
    NL_TRY(nl_diffusion_levels(sampler->context, schedule, NULL, &all, &count));
    NL_TRY(NL_NEW_ARRAY(sampler->context, "noise levels", count, &logs));
    for (int i = 0; i < count; i++)
        logs[i] = (log1p(-all[i].alpha_bar) - log(all[i].alpha_bar)) / 2;
    NL_TRY(NL_NEW_ARRAY(sampler->context, "noise schedule", steps, &sampler->levels));
    for (int i = 0; i < steps; i++) { /* ascending */
        double fraction = steps > 1 ? (steps - 1.0 - i) / (steps - 1) : 0;
        double sigma =
            nl_rho_between(exp(logs[count - 1]), exp(logs[0]), sampler->options.rho, fraction);
        while (low < count - 2 && logs[low + 1] <= log(sigma))
            low++;
        double above = count > 1 ? (log(sigma) - logs[low]) / (logs[low + 1] - logs[low]) : 0;
        sampler->levels[i] =
            (nl_diffusion_level){.timestep = (int)rint(low + fmin(fmax(above, 0), 1)),
                                 .alpha_bar = 1 / (1 + sigma * sigma)};
    }
    sampler->steps = steps;
cleanup:
    nl_free(sampler->context, logs);
    nl_free(sampler->context, all);
    return status;
}

/* Those kept of the schedule. */
static nl_status plan_kept(nl_sampler *sampler, const nl_noise_schedule *schedule)
{
    nl_status status = NL_OK;
    const nl_sampler_options *options = &sampler->options;
    static const char *const spacings[] = {"", "leading", "trailing"};
    nl_diffusion_level *all = NULL;
    char steps[48];
    int offset = options->spacing == NL_SPACING_LEADING ? options->steps_offset : 0, count;
    /* Multistep methods end at the data itself, as diffusers has it: of one level more the lowest, which is all but there,
     * is left out. */
    bool multistep = nl_methods[options->method].family == NL_FAMILY_MULTISTEP;
    int surplus = multistep && options->spacing != NL_SPACING_TRAILING && !options->respacing;
    const char *spacing = surplus && options->spacing == NL_SPACING_LINSPACE
                              ? "linspace"
                              : spacings[options->spacing];
    snprintf(steps, sizeof(steps), offset ? "%s%d+%d" : "%s%d", spacing, options->steps + surplus,
             offset);
    NL_TRY(nl_diffusion_levels(sampler->context, schedule,
                               options->respacing ? options->respacing : steps, &sampler->levels,
                               &sampler->steps));
    if (surplus)
        memmove(sampler->levels, sampler->levels + surplus,
                (size_t)(sampler->steps -= surplus) * sizeof(*sampler->levels));
    if (options->final_alpha_first && options->method == NL_METHOD_DDIM) {
        NL_TRY(nl_diffusion_levels(sampler->context, schedule, NULL, &all, &count));
        sampler->levels[0].alpha_bar_before = all[0].alpha_bar;
    }
cleanup:
    nl_free(sampler->context, all);
    return status;
}

nl_status nl_diffusion_plan(nl_sampler *sampler)
{
    const nl_sampler_options *options = &sampler->options;
    nl_noise_schedule schedule = {options->schedule, options->diffusion_steps, options->beta_start,
                                  options->beta_end};
    NL_CHECK(options->rho != 0 ? plan_rho(sampler, &schedule) : plan_kept(sampler, &schedule));
    NL_CHECK(NL_NEW_ARRAY(sampler->context, "timesteps", sampler->steps, &sampler->timesteps));
    for (int i = 0; i < sampler->steps; i++)
        sampler->timesteps[i] = sampler->levels[i].timestep;
    return NL_OK;
}

/* From level i to the one below: y = sqrt(a') x_0 + sqrt(1 - a' - s^2) eps + s noise. */
static void ddim_coefficients(const nl_diffusion_level *level, double eta,
                              nl_diffusion_step_args *args)
{
    double a = level->alpha_bar, before = level->alpha_bar_before;
    double sigma = eta * sqrt((1 - before) / (1 - a)) * sqrt(1 - a / before);
    args->ddim_x_0 = (float)sqrt(before);
    args->ddim_eps = (float)sqrt(fmax(1 - before - sigma * sigma, 0));
    args->ddim_noise = (float)sigma;
}

/* From level i to the one above; over the highest lies pure noise. */
static void ddim_reverse_coefficients(const nl_sampler *sampler, int i,
                                      nl_diffusion_step_args *args)
{
    double next = i + 1 < sampler->steps ? sampler->levels[i + 1].alpha_bar : 0;
    args->ddim_x_0 = (float)sqrt(next);
    args->ddim_eps = (float)sqrt(1 - next);
}

/* x_0 = a x - s v with a = sqrt(alpha_bar), s = sqrt(1 - alpha_bar) has the form of x_0 from eps. What the step then
 * takes for eps', (a x - x_0) / s, is v', and eps' = v' / a + x_0 s / a. */
static void v_coefficients(const nl_diffusion_level *level, nl_diffusion_step_args *args)
{
    double a = sqrt(level->alpha_bar), s = sqrt(1 - level->alpha_bar), of_eps = args->ddim_eps;
    args->x_0_from_x = (float)a;
    args->x_0_from_eps = (float)s;
    args->ddim_x_0 = (float)(args->ddim_x_0 + of_eps * s / a);
    args->ddim_eps = (float)(of_eps / a);
}

nl_diffusion_step_args nl_diffusion_x_0(const nl_sampler *sampler, int i)
{
    const nl_sampler_options *options = &sampler->options;
    double alpha_bar = sampler->levels[i].alpha_bar;
    nl_diffusion_step_args args = {
        .predicts_x_start = options->predicts == NL_PREDICTS_X_START,
        .learned_range = options->variance == NL_VARIANCE_LEARNED_RANGE,
        .clip = options->clip_denoised,
        .ddim = true,
        .x_0_from_x = (float)sqrt(1 / alpha_bar),
        .x_0_from_eps = (float)sqrt(1 / alpha_bar - 1),
        .ddim_x_0 = 1,
    };
    if (options->predicts == NL_PREDICTS_V)
        v_coefficients(&sampler->levels[i], &args);
    return args;
}

static nl_diffusion_step_args step_args(const nl_sampler *sampler, int i)
{
    const nl_sampler_options *options = &sampler->options;
    const nl_diffusion_level *level = &sampler->levels[i];
    nl_diffusion_step_args args = {
        .predicts_x_start = options->predicts == NL_PREDICTS_X_START,
        .learned_range = options->variance == NL_VARIANCE_LEARNED_RANGE,
        .clip = options->clip_denoised,
        .ddim = options->method == NL_METHOD_DDIM,
        .x_0_from_x = (float)sqrt(1 / level->alpha_bar),
        .x_0_from_eps = (float)sqrt(1 / level->alpha_bar - 1),
        .mean_from_x_0 = (float)level->mean_from_x_0,
        .mean_from_x = (float)level->mean_from_x,
        .log_beta = (float)log(level->beta),
        .log_posterior = (float)level->posterior_log_variance,
        .log_variance =
            (float)(options->variance == NL_VARIANCE_FIXED_LARGE ? log(level->beta)
                                                                 : level->posterior_log_variance),
        .noise_scale = 1,
    };
    if (args.ddim && options->reverse)
        ddim_reverse_coefficients(sampler, i, &args);
    else if (args.ddim)
        ddim_coefficients(level, options->eta, &args);
    if (options->predicts == NL_PREDICTS_V)
        v_coefficients(level, &args);
    return args;
}

nl_status nl_diffusion_prediction(nl_run *run, nl_tensor *prediction)
{
    int64_t shape[NL_MAX_DIMS];
    for (int i = 0; i < run->x.ndim; i++)
        shape[i] = run->x.shape[i];
    if (run->sampler->options.variance == NL_VARIANCE_LEARNED_RANGE)
        shape[1] *= 2;
    return nl_arena_tensor(run->job->device, NL_F32, run->x.ndim, shape, prediction);
}

nl_status nl_diffusion_run(nl_run *run)
{
    const nl_sampler *sampler = run->sampler;
    const nl_sample_job *job = run->job;
    bool needs_noise = nl_sampler_needs_noise(sampler);
    nl_tensor prediction, noise = {0};
    NL_CHECK(nl_diffusion_prediction(run, &prediction));
    if (needs_noise)
        NL_CHECK(nl_run_tensor(run, &noise));
    for (int k = 0; k < sampler->steps; k++) {
        int i = sampler->options.reverse ? k : sampler->steps - 1 - k;
        nl_diffusion_step_args args = step_args(sampler, i);
        nl_run_set_time(run, sampler->timesteps[i]);
        NL_CHECK(nl_run_evaluate(run, &run->x, &prediction));
        if (needs_noise && i > 0) { /* the last step is the mean */
            NL_CHECK(job->noise.call(job->noise.user, k, &noise));
            args.noise = noise;
        }
        args.x = args.y = run->x;
        args.prediction = prediction;
        NL_CHECK(nl_op_diffusion_step(job->device, &args));
        NL_CHECK(nl_run_step_done(run, k + 1, sampler->timesteps[i]));
    }
    return NL_OK;
}
