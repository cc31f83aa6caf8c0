/* SPDX-License-Identifier: MIT */
/*
 * DPM-Solver++ (2M, and its SDE) and UniPC of order 2, for the noise levels of a DiT: Lu et al. 2022, Zhao et al. 2023.
 *
 * With lambda = log(alpha / sigma) the flow is dx / dlambda = (sigma' / sigma) x + alpha m, m the predicted x_0, and its linear
 * part is solved exactly. m is a straight line through the last two predictions; the first step knows one, and the last, down to
 * sigma = 0, takes one: it ends at m. UniPC with B(h) = e^h - 1 has the same predictor, and when the network has been asked
 * at the end of a step, the state there is made again with that prediction in it, at no cost. Every coefficient is a
 * double that depends on the levels alone (docs/public-code.md A6).
 */
#include <math.h>

#include "nl_plan.h"

/* Of x at the start of a step; of x_0 as predicted there, and at the start of the step before; of x_0 as predicted where the
 * step ends (the corrector), or of the noise (SDE). */
enum { OF_X, OF_M, OF_EARLIER, OF_LATER, OF_NOISE = OF_LATER, TERMS };

typedef struct nl_noise_level {
    double alpha, sigma, lambda;
} nl_noise_level;

/* Level i from below; -1: the data. */
static nl_noise_level level_at(const nl_sampler *sampler, int i)
{
    if (i < 0)
        return (nl_noise_level){1, 0, INFINITY};
    double alpha_bar = sampler->levels[i].alpha_bar;
    return (nl_noise_level){sqrt(alpha_bar), sqrt(1 - alpha_bar),
                            (log(alpha_bar) - log1p(-alpha_bar)) / 2};
}

/* The step from level i has the prediction of a step before it, and an end that is not the data. */
static bool second_order(const nl_sampler *sampler, int i)
{
    return i > 0 && i < sampler->steps - 1;
}

/* From level i to the one below. */
static void predictor(const nl_sampler *sampler, int i, double weights[TERMS])
{
    bool sde = sampler->options.method == NL_METHOD_DPMPP_2M_SDE;
    nl_noise_level from = level_at(sampler, i), to = level_at(sampler, i - 1);
    double h = to.lambda - from.lambda, of_m = -to.alpha * expm1(sde ? -2 * h : -h);
    weights[OF_X] = to.sigma / from.sigma * (sde ? exp(-h) : 1);
    weights[OF_M] = of_m;
    weights[OF_EARLIER] = 0;
    weights[OF_NOISE] = sde ? to.sigma * sqrt(-expm1(-2 * h)) : 0;
    if (second_order(sampler, i)) {
        double ratio = (from.lambda - level_at(sampler, i + 1).lambda) / h;
        weights[OF_M] += of_m / (2 * ratio);
        weights[OF_EARLIER] = -of_m / (2 * ratio);
    }
}

/* UniC of the predictor's order, from level i to the one below, where the prediction is known now. */
static void corrector(const nl_sampler *sampler, int i, double weights[TERMS])
{
    nl_noise_level from = level_at(sampler, i), to = level_at(sampler, i - 1);
    double h = to.lambda - from.lambda, b = expm1(-h), phi = b / -h - 1;
    double of_earlier = 0, of_later = 0.5;
    if (second_order(sampler, i)) { /* rho_1 + rho_2 = b_1, r rho_1 + rho_2 = b_2 */
        double r = (level_at(sampler, i + 1).lambda - from.lambda) / h;
        double b_1 = phi / b, b_2 = 2 * (phi / -h - 0.5) / b, rho_1 = (b_1 - b_2) / (1 - r);
        of_earlier = rho_1 / r;
        of_later = b_1 - rho_1;
    }
    weights[OF_X] = to.sigma / from.sigma;
    weights[OF_M] = -to.alpha * b * (1 - of_earlier - of_later);
    weights[OF_EARLIER] = -to.alpha * b * of_earlier;
    weights[OF_LATER] = -to.alpha * b * of_later;
}

nl_status nl_multistep_run(nl_run *run)
{
    const nl_sampler *sampler = run->sampler;
    const nl_sample_job *job = run->job;
    bool needs_noise = nl_sampler_needs_noise(sampler);
    bool corrects = sampler->options.method == NL_METHOD_UNIPC;
    nl_tensor prediction, noise = {0}, start = run->x, m[3]; /* m[0] is the newest */
    NL_CHECK(nl_diffusion_prediction(run, &prediction));
    for (int i = 0; i < 3; i++)
        NL_CHECK(nl_run_tensor(run, &m[i]));
    if (needs_noise)
        NL_CHECK(nl_run_tensor(run, &noise));
    if (corrects) /* the state where a step starts outlives the prediction where it ends */
        NL_CHECK(nl_run_tensor(run, &start));
    for (int k = 0; k < sampler->steps; k++) {
        int i = sampler->steps - 1 - k;
        double weights[TERMS] = {1};
        nl_tensor oldest = m[2];
        m[2] = m[1], m[1] = m[0], m[0] = oldest;
        nl_diffusion_step_args args = nl_diffusion_x_0(sampler, i);
        args.x = run->x;
        args.prediction = prediction;
        args.y = m[0];
        nl_run_set_time(run, sampler->timesteps[i]);
        NL_CHECK(nl_run_evaluate(run, &run->x, &prediction));
        NL_CHECK(nl_op_diffusion_step(job->device, &args));
        if (corrects && k > 0) {
            corrector(sampler, i + 1, weights);
            NL_CHECK(nl_run_combine(run, TERMS, (nl_tensor[]){start, m[1], m[2], m[0]}, weights,
                                    &start));
        } else if (corrects) {
            NL_CHECK(nl_run_combine(run, 1, &run->x, weights, &start));
        }
        predictor(sampler, i, weights);
        if (weights[OF_NOISE] != 0)
            NL_CHECK(job->noise.call(job->noise.user, k, &noise));
        NL_CHECK(
            nl_run_combine(run, TERMS, (nl_tensor[]){start, m[0], m[1], noise}, weights, &run->x));
        NL_CHECK(nl_run_step_done(run, k + 1, sampler->timesteps[i]));
    }
    return NL_OK;
}
