/* SPDX-License-Identifier: MIT */
/* A sampler: options checked, the plan made by its family, a run whose steps the host stays one behind. */
#include <math.h>
#include <stdio.h>

#include "nl_plan.h"

const char *const nl_sde_form_names[] = {NL_SDE_FORMS(NL_LIST_NAME) NULL};
const char *const nl_last_step_names[] = {NL_LAST_STEPS(NL_LIST_NAME) NULL};

enum { MAX_STEPS = 100000 };

void nl_sampler_options_init(nl_sampler_options *options)
{
    *options = (nl_sampler_options){
        .method = NL_METHOD_HEUN,
        .steps = 20,
        .schedule = NL_SCHEDULE_LINEAR,
        .diffusion_steps = 1000,
        .predicts = NL_PREDICTS_EPSILON,
        .variance = NL_VARIANCE_LEARNED_RANGE,
        .path = NL_PATH_LINEAR,
        .prediction = NL_PREDICTION_VELOCITY,
        .sample_eps = -1,
        .time_shift = 1,
        .sde_form = NL_SDE_SIGMA,
        .sde_norm = 1,
        .last_step = NL_LAST_MEAN,
        .last_step_size = 0.04,
        .atol = 1e-6,
        .rtol = 1e-3,
    };
}

static nl_status check_range(nl_context *context, const char *what, double value, double low,
                             double high)
{
    if (value >= low && value <= high)
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE, "%s is %g: expected %g to %g", what, value, low, high);
}

static nl_status check_diffusion_options(nl_context *context, const nl_sampler_options *options)
{
    bool below =
        nl_methods[options->method].family == NL_FAMILY_MULTISTEP; /* timestep 0 is left out */
    if (!options->respacing)
        NL_CHECK(
            check_range(context, "steps", options->steps, 1, options->diffusion_steps - below));
    if (options->reverse && options->method != NL_METHOD_DDIM)
        return nl_fail(context, NL_ERROR_USAGE, "%s does not run from data to noise: choose ddim",
                       nl_method_names[options->method]);
    if (options->method == NL_METHOD_DDIM)
        NL_CHECK(check_range(context, "eta", options->eta, 0, 1));
    if (options->reverse && options->eta != 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "eta is %g: ddim from data to noise draws no noise, choose 0", options->eta);
    return NL_OK;
}

static nl_status check_transport_options(nl_context *context, const nl_sampler_options *options)
{
    const char *method = nl_method_names[options->method];
    if (options->respacing)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "respacing '%s' belongs to the samplers of a DiT; %s takes a number of steps",
            options->respacing, method);
    if (options->reverse)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s does not run from data to noise: that takes a DiT and ddim", method);
    if (options->sample_eps >= 0 || isnan(options->sample_eps))
        NL_CHECK(check_range(context, "sample_eps", options->sample_eps, 0, 0.4));
    if (nl_methods[options->method].family == NL_FAMILY_ADAPTIVE) {
        NL_CHECK(check_range(context, "atol", options->atol, 1e-12, 1e3));
        NL_CHECK(check_range(context, "rtol", options->rtol, 0, 1e3));
        return NL_OK;
    }
    int fewest = 1;
    if (nl_method_is_sde(options->method)) {
        NL_CHECK(check_range(context, "sde_norm", options->sde_norm, 0, 1e3));
        if (options->last_step != NL_LAST_NONE) {
            NL_CHECK(check_range(context, "last_step_size", options->last_step_size, 1e-6, 0.5));
            fewest = 2; /* the last step counts */
        }
    }
    return check_range(context, "steps", options->steps, fewest, MAX_STEPS);
}

/* What places the steps, of those methods that have steps to place. */
static nl_status check_grid(nl_context *context, const nl_sampler_options *options)
{
    nl_family family = nl_methods[options->method].family;
    bool levels = family == NL_FAMILY_MULTISTEP;
    bool times = !nl_method_is_diffusion(options->method) && family != NL_FAMILY_ADAPTIVE;
    bool shifted = options->time_shift != 1, by_rho = options->rho != 0;
    const char *method = nl_method_names[options->method];
    if (shifted && !times)
        return nl_fail(context, NL_ERROR_USAGE,
                       "time_shift %g is for the fixed steps of a SiT: %s has none",
                       options->time_shift, method);
    if (by_rho && !times && !levels)
        return nl_fail(context, NL_ERROR_USAGE,
                       "rho %g is for dpmpp-2m, dpmpp-2m-sde, unipc and the fixed steps of a SiT: "
                       "it does not fit %s",
                       options->rho, method);
    if (by_rho && (shifted || options->respacing))
        return nl_fail(context, NL_ERROR_USAGE,
                       "rho %g and %s both say where steps lie: choose one", options->rho,
                       shifted ? "time_shift" : "respacing");
    if (shifted)
        NL_CHECK(check_range(context, "time_shift", options->time_shift, 0.01, 100));
    if (by_rho)
        NL_CHECK(check_range(context, "rho", options->rho, 1, 100));
    return NL_OK;
}

nl_status nl_sampler_create(nl_context *context, const nl_sampler_options *options,
                            nl_sampler **sampler)
{
    nl_status status = NL_OK;
    nl_sampler *made = NULL;
    bool diffusion = nl_method_is_diffusion(options->method);
    *sampler = NULL;
    NL_TRY(NL_NEW(context, "sampler", &made));
    made->context = context;
    made->options = *options;
    NL_TRY(diffusion ? check_diffusion_options(context, options)
                     : check_transport_options(context, options));
    NL_TRY(check_grid(context, options));
    NL_TRY(diffusion ? nl_diffusion_plan(made) : nl_transport_plan(made));
    made->options.respacing = NULL; /* the caller's memory */
    *sampler = made;
    made = NULL;
cleanup:
    nl_sampler_destroy(made);
    return status;
}

void nl_sampler_destroy(nl_sampler *sampler)
{
    if (!sampler)
        return;
    nl_free(sampler->context, sampler->levels);
    nl_free(sampler->context, sampler->timesteps);
    nl_free(sampler->context, sampler->moves);
    nl_free(sampler->context, sampler);
}

int nl_sampler_steps(const nl_sampler *sampler)
{
    return sampler->steps;
}

bool nl_sampler_needs_noise(const nl_sampler *sampler)
{
    const nl_method_row *method = &nl_methods[sampler->options.method];
    return method->noise == NL_NOISE_ALWAYS ||
           (method->noise == NL_NOISE_ETA && sampler->options.eta > 0);
}

const int *nl_sampler_timesteps(const nl_sampler *sampler, int *count)
{
    *count = sampler->timesteps ? sampler->steps : 0;
    return sampler->timesteps;
}

/* Step number `step`, which was queued, or 0: is it done, and is the state finite? */
static nl_status wait_for_step(nl_run *run, int step)
{
    int slot = step % 2;
    if (step == 0)
        return NL_OK;
    NL_CHECK(nl_download_wait(run->job->device, slot));
    if (run->seen[slot] == 0)
        return NL_OK;
    char of[32] = "";
    if (run->sampler->steps > 0)
        snprintf(of, sizeof(of), " of %d", run->sampler->steps);
    return nl_fail(run->job->device->context, NL_ERROR_NOT_FINITE,
                   "%s, step %d%s, t = %g: the latents hold NaN or infinity; try dtype f32, a "
                   "smaller guidance scale or more steps",
                   nl_method_names[run->sampler->options.method], step, of, run->reached[slot]);
    return NL_OK;
}

nl_status nl_sampler_run(const nl_sampler *sampler, const nl_sample_job *job, const nl_tensor *x)
{
    nl_status status = NL_OK;
    nl_device *device = job->device;
    nl_run run = {.sampler = sampler, .job = job, .x = *x, .batch = x->shape[0]};
    nl_method method = sampler->options.method;
    int64_t mark = nl_arena_mark(device);
    if (x->ndim < 2 || x->dtype != NL_F32 || !nl_tensor_contiguous(x) || nl_tensor_count(x) < 1)
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "sampler: the state must be a contiguous F32 tensor [B, C, ...]");
    if (nl_sampler_needs_noise(sampler) && !job->noise.call)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "%s needs a noise function",
                       nl_method_names[method]);
    NL_TRY(NL_NEW_ARRAY(device->context, "times", run.batch, &run.t));
    NL_TRY(nl_arena_tensor(device, NL_I32, 1, (int64_t[]){1}, &run.bad));
    NL_TRY(device->ops->upload(device, run.bad.data, &(int32_t){0}, sizeof(int32_t)));
    switch (nl_methods[method].family) {
    case NL_FAMILY_DIFFUSION:
        NL_TRY(nl_diffusion_run(&run));
        break;
    case NL_FAMILY_MULTISTEP:
        NL_TRY(nl_multistep_run(&run));
        break;
    case NL_FAMILY_ADAPTIVE:
        NL_TRY(nl_dopri5_run(&run));
        break;
    case NL_FAMILY_ODE:
    case NL_FAMILY_ADAMS:
    case NL_FAMILY_SDE:
    case NL_FAMILY_FLOW:
        NL_TRY(nl_transport_run(&run));
        break;
    }
    NL_TRY(wait_for_step(&run, run.queued));
cleanup:
    nl_free(device->context, run.t);
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_run_evaluate(nl_run *run, const nl_tensor *x, const nl_tensor *prediction)
{
    const nl_sample_job *job = run->job;
    bool flow = nl_method_is_flow(run->sampler->options.method);
    nl_status status =
        job->model.call(job->model.user, x, run->t, flow ? &run->s : NULL, prediction);
    if (status == NL_OK && job->evaluations)
        for (int64_t image = 0; image < run->batch; image++)
            job->evaluations[image] += !run->active || run->active[image];
    return status;
}

void nl_run_set_time(nl_run *run, double t)
{
    for (int64_t image = 0; image < run->batch; image++)
        run->t[image] = (float)t;
}

/* One step is queued while the one before it is at work, so that the device never waits for the host and the host is
 * never further ahead: what is said about progress is true and Ctrl-C acts at once. */
nl_status nl_run_step_done(nl_run *run, int step, double t)
{
    const nl_sample_job *job = run->job;
    nl_device *device = job->device;
    NL_CHECK(NL_OP(device, finite, .x = run->x, .found = run->bad, .mark = step));
    NL_CHECK(nl_download_start(device, step % 2, &run->seen[step % 2], run->bad.data,
                               sizeof(run->seen[0])));
    run->queued = step;
    run->reached[step % 2] = t;
    NL_CHECK(wait_for_step(run, nl_device_queues(device) ? step - 1 : step));
    NL_CHECK(nl_check_cancelled(device->context));
    if (job->step)
        NL_CHECK(job->step(job->user, step, run->sampler->steps, t, &run->x));
    return NL_OK;
}

nl_status nl_run_tensor(nl_run *run, nl_tensor *tensor)
{
    return nl_arena_tensor(run->job->device, NL_F32, run->x.ndim, run->x.shape, tensor);
}

nl_status nl_run_combine(nl_run *run, int count, const nl_tensor *x, const double *weights,
                         const nl_tensor *y)
{
    double coefficients[NL_MAX_TERMS];
    nl_combine_args args = {.coefficients = coefficients, .y = *y};
    for (int term = 0; term < count; term++) {
        if (weights[term] == 0)
            continue;
        coefficients[args.terms] = weights[term];
        args.x[args.terms++] = x[term];
    }
    return nl_op_combine(run->job->device, &args);
}
