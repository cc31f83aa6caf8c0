/* SPDX-License-Identifier: MIT */
/* Transports with fixed steps: probability-flow ODEs and SDEs (docs/public-code.md B3 to B5), Adams-Bashforth 2, flow maps. */
#include <math.h>

#include "nl_plan.h"

/* Refuses with the reason when a coefficient at time t is not finite. */
static nl_status check_form(const nl_sampler *sampler, double t, nl_linear_form form)
{
    const nl_sampler_options *options = &sampler->options;
    if (isfinite(form.x) && isfinite(form.f))
        return NL_OK;
    bool sde = nl_method_is_sde(options->method);
    const char *advice = "a \"sample_eps\" above 0 in the configuration, such as 0.001";
    if (sde && t == 0 && options->sde_form == NL_SDE_SBDM)
        advice =
            "another SDE form, such as sigma, or a \"sample_eps\" above 0 in the configuration";
    else if (sde && t == 1)
        advice = "a last step, such as mean, or a \"sample_eps\" above 0 in the configuration";
    return nl_fail(sampler->context, NL_ERROR_USAGE,
                   "%s on the path %s with prediction %s%s%s divides by zero at t = %g: choose %s",
                   nl_method_names[options->method], nl_path_names[options->path],
                   nl_prediction_names[options->prediction], sde ? " and SDE form " : "",
                   sde ? nl_sde_form_names[options->sde_form] : "", t, advice);
}

/* v, or v + w s for an SDE. */
static nl_status drift_at(const nl_sampler *sampler, double t, nl_drift *drift)
{
    const nl_sampler_options *options = &sampler->options;
    *drift = (nl_drift){t, nl_path_velocity(options->path, options->prediction, t)};
    if (nl_method_is_sde(options->method)) {
        nl_linear_form score = nl_path_score(options->path, options->prediction, t);
        double w = nl_path_diffusion(options->path, options->sde_form, options->sde_norm, t);
        drift->form.x += w * score.x;
        drift->form.f += w * score.f;
    }
    return check_form(sampler, t, drift->form);
}

/* The step that ends an SDE at t1, as one linear form. */
static nl_status plan_last(nl_sampler *sampler)
{
    const nl_sampler_options *options = &sampler->options;
    double t = sampler->t1, size = options->last_step_size;
    nl_drift drift;
    nl_path_point point = nl_path_at(options->path, t);
    nl_linear_form score = nl_path_score(options->path, options->prediction, t);
    nl_linear_form velocity = nl_path_velocity(options->path, options->prediction, t);
    NL_CHECK(drift_at(sampler, t, &drift));
    if (options->last_step == NL_LAST_MEAN) {
        sampler->last.form = (nl_linear_form){1 + size * drift.form.x, size * drift.form.f};
    } else if (options->last_step == NL_LAST_EULER) {
        sampler->last.form = (nl_linear_form){1 + size * velocity.x, size * velocity.f};
    } else { /* Tweedie: E[x_1 | x] = (x + sigma^2 s) / alpha */
        double variance = point.sigma * point.sigma;
        sampler->last.form = (nl_linear_form){(1 + variance * score.x) / point.alpha,
                                              variance * score.f / point.alpha};
    }
    sampler->last.t = t;
    return check_form(sampler, t, sampler->last.form);
}

/* Where step k of `move_count` begins on a grid that is not even; the ends are the path's. */
static double uneven_time(const nl_sampler *sampler, int k)
{
    const nl_sampler_options *options = &sampler->options;
    double t0 = sampler->t0, t1 = sampler->t1, shift = options->time_shift;
    int count = sampler->move_count;
    if (k == 0 || k == count)
        return k ? t1 : t0;
    if (options->rho == 0) /* u = 1 - fraction becomes shift u / (1 + (shift - 1) u) */
        return t0 + (t1 - t0) * k / (k + shift * (count - k));
    /* EDM's noise levels, of which the first is pure noise here; a step to no noise at all comes after the least. */
    const double most = 80, least = 0.002;
    nl_path_point from = nl_path_at(options->path, t0), to = nl_path_at(options->path, t1);
    double first = fmin(most, from.sigma / from.alpha), last = to.sigma / to.alpha;
    return nl_path_time(options->path,
                        nl_rho_between(first, fmax(last, least), options->rho,
                                       (double)k / (last < least ? count - 1 : count)));
}

static bool switched(const double interval[2], double before, double t)
{
    return nl_guided_between(interval[0], interval[1], (float)before) !=
           nl_guided_between(interval[0], interval[1], (float)t);
}

/* Adams-Bashforth 2 takes the drift of the step before for a slope. The first step has none, and where guidance was switched
 * since it is another field's: these steps are trapezoidal, and so is the last one. */
static bool begins_anew(const nl_sampler *sampler, int k)
{
    const nl_sampler_options *options = &sampler->options;
    if (k == 0 || k == sampler->move_count - 1)
        return true;
    double before = sampler->moves[k - 1].t, t = sampler->moves[k].t;
    return switched(options->cfg_interval, before, t) ||
           switched(options->guide_interval, before, t);
}

/* How far of what is left behind a step flow-sde goes with the flow map before noise leads it back: with many steps by a rate, so
 * that they come to an SDE. Measured on the model that ships (bench/results/few-steps.md). */
static double share_beyond(int steps)
{
    return fmin(0.5, 2.4 / steps);
}

/* What is predicted, at the end of it, is alpha data + sigma noise there: keep makes its alpha that of the step's end, t, and noise its
 * sigma. */
static void plan_noise_of_flow(const nl_sampler *sampler, double t, nl_move *move)
{
    nl_path path = sampler->options.path;
    bool whole = sampler->options.whole_first && move == sampler->moves;
    move->beyond = (whole ? 1 : share_beyond(sampler->move_count)) * (sampler->t1 - t);
    nl_path_point end = nl_path_at(path, t + move->beyond), step = nl_path_at(path, t);
    move->keep = step.alpha / end.alpha;
    double kept = move->keep * end.sigma;
    move->noise = sqrt(step.sigma * step.sigma - kept * kept);
}

static nl_status plan_moves(nl_sampler *sampler)
{
    const nl_sampler_options *options = &sampler->options;
    const nl_method_row *method = &nl_methods[options->method];
    bool sde = nl_method_is_sde(options->method), adams = method->family == NL_FAMILY_ADAMS;
    int count = sampler->move_count;
    bool even = options->time_shift == 1 && options->rho == 0;
    double h = (sampler->t1 - sampler->t0) / count, t = sampler->t0;
    NL_CHECK(NL_NEW_ARRAY(sampler->context, "sampling plan", count, &sampler->moves));
    for (int k = 0; k < count; k++) {
        bool last = k == count - 1;
        nl_move *move = &sampler->moves[k];
        double next = even ? sampler->t0 + (k + 1) * h : uneven_time(sampler, k + 1);
        if (!even)
            h = next - t;
        *move = (nl_move){
            .t = t, .h = h, .keep = 1, .tableau = last ? method->last_tableau : method->tableau};
        if (adams && begins_anew(sampler, k))
            move->tableau = method->last_tableau;
        else if (adams)
            move->before = -h / (2 * sampler->moves[k - 1].h);
        for (int stage = 0; stage < move->tableau->stages; stage++) {
            double c = move->tableau->c[stage];
            bool end = last && c == 1; /* without rounding */
            NL_CHECK(drift_at(sampler, end ? sampler->t1 : t + c * h, &move->drift[stage]));
        }
        if (sde)
            move->noise = sqrt(
                2 * h *
                nl_path_diffusion(options->path, options->sde_form, options->sde_norm, move->t));
        if (options->method == NL_METHOD_FLOW_SDE && !last)
            plan_noise_of_flow(sampler, t + h, move);
        t = next;
    }
    return NL_OK;
}

nl_status nl_transport_plan(nl_sampler *sampler)
{
    const nl_sampler_options *options = &sampler->options;
    bool sde = nl_method_is_sde(options->method);
    bool last_step = sde && options->last_step != NL_LAST_NONE;
    nl_path_interval(options->path, options->prediction, sde, options->sde_form,
                     options->sample_eps, last_step ? options->last_step_size : 0, &sampler->t0,
                     &sampler->t1);
    if (nl_methods[options->method].family == NL_FAMILY_ADAPTIVE) {
        nl_drift drift;
        NL_CHECK(drift_at(sampler, sampler->t0, &drift));
        NL_CHECK(drift_at(sampler, sampler->t1, &drift));
        return NL_OK;
    }
    sampler->steps = options->steps;
    sampler->move_count = options->steps - last_step;
    NL_CHECK(plan_moves(sampler));
    if (last_step)
        NL_CHECK(plan_last(sampler));
    return NL_OK;
}

/* Evaluates the network at drift->t into k, and makes the drift of it. */
static nl_status evaluate_drift(nl_run *run, const nl_drift *drift, const nl_tensor *x,
                                const nl_tensor *k)
{
    nl_run_set_time(run, drift->t);
    NL_CHECK(nl_run_evaluate(run, x, k));
    if (drift->form.x != 0 || drift->form.f != 1)
        NL_CHECK(NL_OP(run->job->device, combine, .terms = 2, .x = {*x, *k},
                       .coefficients = (double[]){drift->form.x, drift->form.f}, .y = *k));
    return NL_OK;
}

/* y = keep (x + h sum_j weights_j k_j) (+ scale noise) */
static nl_status advance(nl_run *run, double keep, double h, int stages, const double *weights,
                         const nl_tensor *k, double scale, const nl_tensor *noise,
                         const nl_tensor *y)
{
    double coefficients[NL_MAX_TERMS] = {keep};
    nl_tensor x[NL_MAX_TERMS] = {run->x};
    for (int stage = 0; stage < stages; stage++) {
        coefficients[stage + 1] = keep * h * weights[stage];
        x[stage + 1] = k[stage];
    }
    if (scale != 0) {
        coefficients[stages + 1] = scale;
        x[stages + 1] = *noise;
    }
    return nl_run_combine(run, stages + 2, x, coefficients, y);
}

typedef struct nl_workspace {
    nl_tensor k[4];
    nl_tensor stage;  /* with more than one stage */
    nl_tensor noise;  /* SDE, flow-sde */
    nl_tensor before; /* Adams: the first drift of the step before */
} nl_workspace;

/* Euler-Maruyama adds the noise after its drift, Heun before its first. */
static nl_status run_move(nl_run *run, int index, const nl_workspace *work)
{
    const nl_move *move = &run->sampler->moves[index];
    const nl_tableau *tableau = move->tableau;
    const nl_sample_job *job = run->job;
    double noise = move->noise;
    bool last = index == run->sampler->move_count - 1;
    run->s = (float)(last ? run->sampler->t1 : move->t + move->h + move->beyond);
    if (noise != 0 || nl_method_is_sde(run->sampler->options.method))
        NL_CHECK(job->noise.call(job->noise.user, index, &work->noise));
    if (nl_method_is_sde(run->sampler->options.method) &&
        tableau->stages > 1) { /* every stage starts from the state with its noise */
        NL_CHECK(advance(run, 1, 0, 0, NULL, NULL, noise, &work->noise, &run->x));
        noise = 0;
    }
    for (int stage = 0; stage < tableau->stages; stage++) {
        const nl_tensor *x = stage ? &work->stage : &run->x;
        if (stage)
            NL_CHECK(advance(run, 1, move->h, stage, tableau->a[stage], work->k, 0, NULL, x));
        NL_CHECK(evaluate_drift(run, &move->drift[stage], x, &work->k[stage]));
    }
    if (move->before != 0)
        return advance(run, 1, move->h, 2, (double[]){1 - move->before, move->before},
                       (nl_tensor[]){work->k[0], work->before}, 0, NULL, &run->x);
    return advance(run, move->keep, move->h + move->beyond, tableau->stages, tableau->b, work->k,
                   noise, &work->noise, &run->x);
}

nl_status nl_transport_run(nl_run *run)
{
    const nl_sampler *sampler = run->sampler;
    nl_device *device = run->job->device;
    int stages = sampler->moves[0].tableau->stages;
    nl_workspace work = {0};
    for (int stage = 0; stage < stages; stage++)
        NL_CHECK(nl_run_tensor(run, &work.k[stage]));
    if (stages > 1)
        NL_CHECK(nl_run_tensor(run, &work.stage));
    if (nl_sampler_needs_noise(sampler))
        NL_CHECK(nl_run_tensor(run, &work.noise));
    if (nl_methods[sampler->options.method].family == NL_FAMILY_ADAMS)
        NL_CHECK(nl_run_tensor(run, &work.before));
    for (int index = 0; index < sampler->move_count; index++) {
        const nl_move *move = &sampler->moves[index];
        NL_CHECK(run_move(run, index, &work));
        if (index + 1 < sampler->move_count &&
            move[1].before != 0) /* k[0] stays in its place: nl_replay */
            NL_CHECK(device->ops->copy(device, work.before.data, work.k[0].data,
                                       nl_tensor_bytes(&work.before)));
        NL_CHECK(nl_run_step_done(run, index + 1, move->t + move->h));
    }
    if (sampler->steps > sampler->move_count) {
        nl_run_set_time(run, sampler->last.t);
        NL_CHECK(nl_run_evaluate(run, &run->x, &work.k[0]));
        NL_CHECK(NL_OP(run->job->device, combine, .terms = 2, .x = {run->x, work.k[0]},
                       .coefficients = (double[]){sampler->last.form.x, sampler->last.form.f},
                       .y = run->x));
        NL_CHECK(nl_run_step_done(run, sampler->steps, 1));
    }
    return NL_OK;
}
