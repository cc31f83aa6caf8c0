/* SPDX-License-Identifier: MIT */
/*
 * Dormand-Prince 5(4) with the step control, the error weights and the interpolation of torchdiffeq
 * (docs/public-code.md B4): steps overshoot the end, and the result is read off a quartic through the last one.
 *
 * Unlike there, time and step belong to each image, so that a picture does not depend on its batch;
 * batch_control pools the error norm over the batch as torchdiffeq does. Images are evaluated together.
 * One that has arrived stays as it is (step 0) until the last has.
 *
 * A rejected step may hold NaN (the VP path has no sigma beyond t = 1). NaN times 0 is NaN, so states are
 * chosen by copying the images that were accepted, never by coefficients of 0 and 1.
 */
#include <math.h>

#include "nl_plan.h"

enum { STAGES = 7, MAX_ATTEMPTS = 10000 };

/* Times that a network cannot tell apart. */
static const double smallest_step = 1e-12;

static const nl_tableau dormand_prince = {
    .stages = STAGES,
    .c = {0, 1.0 / 5, 3.0 / 10, 4.0 / 5, 8.0 / 9, 1, 1},
    .a = {{0},
          {1.0 / 5},
          {3.0 / 40, 9.0 / 40},
          {44.0 / 45, -56.0 / 15, 32.0 / 9},
          {19372.0 / 6561, -25360.0 / 2187, 64448.0 / 6561, -212.0 / 729},
          {9017.0 / 3168, -355.0 / 33, 46732.0 / 5247, 49.0 / 176, -5103.0 / 18656},
          {35.0 / 384, 0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84}},
    .b = {35.0 / 384, 0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84, 0}};

/* Of the embedded fourth-order solution: not the textbook's, but torchdiffeq's (after Shampine). */
static const double fourth_order[STAGES] = {
    1951.0 / 21600, 0, 22642.0 / 50085, 451.0 / 720, -12231.0 / 42400, 649.0 / 6300, 1.0 / 60};

/* y(t + h / 2) = y + h sum_i middle_i k_i */
static const double middle[STAGES] = {
    6025192743.0 / 30085553152.0 / 2,     0,
    51252292925.0 / 65400821598.0 / 2,    -2691868925.0 / 45128329728.0 / 2,
    187940372067.0 / 1594534317056.0 / 2, -1776094331.0 / 19743644256.0 / 2,
    11237099.0 / 235043384.0 / 2};

typedef struct nl_solver {
    nl_run *run;
    nl_tensor k[STAGES];  /* k[0] is the drift at the state (first same as last) */
    nl_tensor stage;      /* after the last stage: the state at t + h */
    nl_tensor scratch;    /* error, or interpolated state */
    double *t, *h;        /* [batch] */
    double *norm;         /* [batch] */
    double *coefficients; /* [NL_MAX_TERMS, batch] */
    bool *active;         /* [batch] */
    bool *accepted;       /* [batch] */
    bool *arrived;        /* [batch]: with the step just taken */
} nl_solver;

static nl_status solver_create(nl_run *run, nl_solver *solver)
{
    nl_context *context = run->job->device->context;
    int64_t batch = run->batch, doubles;
    *solver = (nl_solver){.run = run};
    for (int stage = 0; stage < STAGES; stage++)
        NL_CHECK(nl_run_tensor(run, &solver->k[stage]));
    NL_CHECK(nl_run_tensor(run, &solver->stage));
    NL_CHECK(nl_run_tensor(run, &solver->scratch));
    if (!nl_mul_size(batch, 3 + NL_MAX_TERMS, &doubles))
        return nl_fail(context, NL_ERROR_INTERNAL, "dopri5: %lld images", (long long)batch);
    NL_CHECK(NL_NEW_ZEROS(context, "step control", doubles, &solver->t));
    solver->h = solver->t + batch;
    solver->norm = solver->h + batch;
    solver->coefficients = solver->norm + batch;
    NL_CHECK(NL_NEW_ZEROS(context, "step control", (size_t)batch * 3, &solver->active));
    solver->accepted = solver->active + batch;
    solver->arrived = solver->accepted + batch;
    for (int64_t image = 0; image < batch; image++) {
        solver->t[image] = run->sampler->t0;
        /* What is measured must be enough for times that differ. */
        if (run->job->device->measuring && !run->sampler->options.batch_control)
            solver->t[image] += 1e-3 * (double)image / (double)batch;
        solver->active[image] = true;
    }
    run->active = solver->active;
    return NL_OK;
}

static void solver_destroy(nl_solver *solver)
{
    nl_context *context = solver->run->job->device->context;
    nl_free(context, solver->t);
    nl_free(context, solver->active);
    solver->run->active = NULL;
}

/* k = drift(x, t + c h) */
static nl_status evaluate(nl_solver *solver, double c, const nl_tensor *x, const nl_tensor *k)
{
    nl_run *run = solver->run;
    const nl_sampler_options *options = &run->sampler->options;
    int64_t batch = run->batch;
    for (int64_t image = 0; image < batch; image++) {
        double t = solver->t[image] + c * solver->h[image];
        nl_linear_form form = nl_path_velocity(options->path, options->prediction, t);
        run->t[image] = (float)t;
        solver->coefficients[image] = form.x;
        solver->coefficients[batch + image] = form.f;
    }
    NL_CHECK(nl_run_evaluate(run, x, k));
    if (options->prediction != NL_PREDICTION_VELOCITY)
        NL_CHECK(NL_OP(run->job->device, combine, .terms = 2, .x = {*x, *k},
                       .coefficients = solver->coefficients, .per_image = true, .y = *k));
    return NL_OK;
}

/* y = base + h sum_i weights_i k_i; without base, the sum alone. weights: those of one image after
 * those of another, `stride` apart; 0: the same for all. */
static nl_status weigh(nl_solver *solver, const nl_tensor *base, int stages, const double *weights,
                       int stride, const nl_tensor *y)
{
    int64_t batch = solver->run->batch;
    nl_combine_args args = {.coefficients = solver->coefficients, .per_image = true, .y = *y};
    if (base) {
        for (int64_t image = 0; image < batch; image++)
            solver->coefficients[image] = 1;
        args.x[args.terms++] = *base;
    }
    for (int stage = 0; stage < stages; stage++) {
        if (stride == 0 && weights[stage] == 0)
            continue;
        for (int64_t image = 0; image < batch; image++)
            solver->coefficients[args.terms * batch + image] =
                solver->h[image] * weights[image * stride + stage];
        args.x[args.terms++] = solver->k[stage];
    }
    return nl_op_combine(solver->run->job->device, &args);
}

/* solver->norm = rms of x / (atol + rtol max(|a|, |b|)), pooled over the batch if so asked. */
static nl_status scaled_norm(nl_solver *solver, const nl_tensor *x, const nl_tensor *a,
                             const nl_tensor *b)
{
    const nl_sampler_options *options = &solver->run->sampler->options;
    int64_t batch = solver->run->batch;
    double squares = 0;
    nl_scaled_norm_args args = {
        .x = *x, .a = *a, .atol = options->atol, .rtol = options->rtol, .rms = solver->norm};
    if (b)
        args.b = *b;
    NL_CHECK(nl_op_scaled_norm(solver->run->job->device, &args));
    if (!options->batch_control)
        return NL_OK;
    for (int64_t image = 0; image < batch; image++)
        squares += solver->norm[image] * solver->norm[image];
    for (int64_t image = 0; image < batch; image++)
        solver->norm[image] = sqrt(squares / (double)batch);
    return NL_OK;
}

/* Hairer, Norsett, Wanner I, II.4, order 4. Leaves h; costs one evaluation beside k[0]. */
static nl_status first_step(nl_solver *solver, double *d0, double *d1)
{
    nl_run *run = solver->run;
    int64_t batch = run->batch;
    static const double one[] = {1}, minus_one_and_one[] = {-1, 1};
    NL_CHECK(scaled_norm(solver, &run->x, &run->x, NULL));
    for (int64_t image = 0; image < batch; image++)
        d0[image] = solver->norm[image];
    NL_CHECK(scaled_norm(solver, &solver->k[0], &run->x, NULL));
    for (int64_t image = 0; image < batch; image++) {
        d1[image] = solver->norm[image];
        bool tiny = d0[image] < 1e-5 || d1[image] < 1e-5;
        solver->h[image] = tiny ? 1e-6 : 0.01 * d0[image] / d1[image];
    }
    NL_CHECK(weigh(solver, &run->x, 1, one, 0, &solver->stage));
    NL_CHECK(evaluate(solver, 1, &solver->stage, &solver->k[1]));
    NL_CHECK(NL_OP(run->job->device, combine, .terms = 2, .x = {solver->k[0], solver->k[1]},
                   .coefficients = minus_one_and_one, .y = solver->scratch));
    NL_CHECK(scaled_norm(solver, &solver->scratch, &run->x, NULL));
    for (int64_t image = 0; image < batch; image++) {
        double h0 = solver->h[image], largest = fmax(d1[image], solver->norm[image] / h0);
        double h1 = largest <= 1e-15 ? fmax(1e-6, 1e-3 * h0) : pow(0.01 / largest, 1.0 / 5);
        solver->h[image] = fmin(100 * h0, h1);
        if (!isfinite(d1[image]) || !isfinite(solver->norm[image]))
            return nl_fail(run->job->device->context, NL_ERROR_NOT_FINITE,
                           "dopri5, step 1, t = %g: the network's prediction holds NaN or infinity",
                           solver->t[image]);
    }
    return NL_OK;
}

/* Quartic through y, y(t + h / 2), y(t + h) and both drifts, at t + x h, as weights of the stages. */
static void interpolation(double x, double weights[STAGES])
{
    double x2 = x * x, x3 = x2 * x, x4 = x2 * x2;
    double at_end = -5 * x2 + 14 * x3 - 8 * x4, at_middle = 16 * x2 - 32 * x3 + 16 * x4;
    for (int stage = 0; stage < STAGES; stage++)
        weights[stage] = at_end * dormand_prince.b[stage] + at_middle * middle[stage];
    weights[0] += x - 4 * x2 + 5 * x3 - 2 * x4;
    weights[STAGES - 1] += x2 - 3 * x3 + 2 * x4;
}

/* Copies the images that are marked; runs of neighbours at once. */
static nl_status copy_images(nl_solver *solver, const bool *marked, const nl_tensor *to,
                             const nl_tensor *from)
{
    nl_device *device = solver->run->job->device;
    int64_t batch = solver->run->batch;
    for (int64_t first = 0, end; first < batch; first = end) {
        for (end = first + 1; end < batch && marked[end] == marked[first]; end++)
            ;
        if (!marked[first])
            continue;
        nl_tensor rows = nl_tensor_rows(to, first, end - first);
        nl_tensor source = nl_tensor_rows(from, first, end - first);
        NL_CHECK(device->ops->copy(device, rows.data, source.data, nl_tensor_bytes(&rows)));
    }
    return NL_OK;
}

/* Six evaluations; solver->norm is the error's. */
static nl_status try_step(nl_solver *solver)
{
    const nl_tensor *x = &solver->run->x;
    double error[STAGES];
    for (int stage = 1; stage < STAGES; stage++) {
        NL_CHECK(weigh(solver, x, stage, dormand_prince.a[stage], 0, &solver->stage));
        NL_CHECK(evaluate(solver, dormand_prince.c[stage], &solver->stage, &solver->k[stage]));
    }
    for (int stage = 0; stage < STAGES; stage++)
        error[stage] = dormand_prince.b[stage] - fourth_order[stage];
    NL_CHECK(weigh(solver, NULL, STAGES, error, 0, &solver->scratch));
    return scaled_norm(solver, &solver->scratch, x, &solver->stage);
}

/* h' = h clamp(0.9 ratio^(-1/5), low, 10), low = 1 after a step within tolerance, else 0.2. */
static double next_step(double h, double ratio)
{
    if (ratio == 0)
        return h * 10;
    if (!isfinite(ratio))
        return h * 0.2;
    return h * fmin(10, fmax(0.9 * pow(ratio, -1.0 / 5), ratio < 1 ? 1 : 0.2));
}

/* Marks what was accepted and what has arrived. Moves the state to the end of accepted steps, or to
 * t1 on the quartic. */
static nl_status accept(nl_solver *solver, double *weights)
{
    nl_run *run = solver->run;
    double end = run->sampler->t1;
    bool any_arrived = false;
    for (int64_t image = 0; image < run->batch; image++) {
        double t = solver->t[image], h = solver->h[image];
        solver->accepted[image] = solver->active[image] && solver->norm[image] <= 1;
        solver->arrived[image] = solver->accepted[image] && t + h >= end;
        any_arrived |= solver->arrived[image];
        interpolation(solver->arrived[image] ? (end - t) / h : 0, weights + image * STAGES);
    }
    if (any_arrived)
        NL_CHECK(weigh(solver, &run->x, STAGES, weights, STAGES, &solver->scratch));
    NL_CHECK(copy_images(solver, solver->accepted, &run->x, &solver->stage));
    NL_CHECK(copy_images(solver, solver->accepted, &solver->k[0], &solver->k[STAGES - 1]));
    if (any_arrived)
        NL_CHECK(copy_images(solver, solver->arrived, &run->x, &solver->scratch));
    return NL_OK;
}

/* Times and steps after accept; *earliest is where the last image stands. */
static nl_status control(nl_solver *solver, int attempt, double *earliest)
{
    nl_run *run = solver->run;
    nl_context *context = run->job->device->context;
    double end = run->sampler->t1;
    *earliest = end;
    for (int64_t image = 0; image < run->batch; image++) {
        if (!solver->active[image])
            continue;
        double t = solver->t[image], h = solver->h[image], ratio = solver->norm[image];
        if (solver->accepted[image])
            t += h;
        h = next_step(h, ratio);
        if (solver->arrived[image]) {
            t = end;
            h = 0;
            solver->active[image] = false;
        } else if (h < smallest_step || attempt == MAX_ATTEMPTS) {
            if (!isfinite(ratio))
                return nl_fail(context, NL_ERROR_NOT_FINITE,
                               "dopri5, step %d, t = %g: the network's predictions hold NaN or "
                               "infinity however small the step",
                               attempt, t);
            return nl_fail(context, NL_ERROR_USAGE,
                           "dopri5: not within tolerance after %d steps, at t = %g with step %g; "
                           "choose larger atol and rtol (now %g and %g)",
                           attempt, t, h, run->sampler->options.atol, run->sampler->options.rtol);
        }
        solver->t[image] = t;
        solver->h[image] = h;
        *earliest = fmin(*earliest, t);
    }
    return NL_OK;
}

nl_status nl_dopri5_run(nl_run *run)
{
    nl_status status = NL_OK;
    nl_context *context = run->job->device->context;
    nl_solver solver = {.run = run};
    double *scratch = NULL; /* [batch, STAGES] */
    double earliest = run->sampler->t0;
    NL_TRY(solver_create(run, &solver));
    NL_TRY(NL_NEW_ARRAY(context, "step control", STAGES * run->batch, &scratch));
    NL_TRY(evaluate(&solver, 0, &run->x, &solver.k[0]));
    NL_TRY(first_step(&solver, scratch, scratch + run->batch));
    for (int attempt = 1; earliest < run->sampler->t1; attempt++) {
        NL_TRY(try_step(&solver));
        NL_TRY(accept(&solver, scratch));
        NL_TRY(control(&solver, attempt, &earliest));
        NL_TRY(nl_run_step_done(run, attempt, earliest));
    }
cleanup:
    solver_destroy(&solver);
    nl_free(context, scratch);
    return status;
}
