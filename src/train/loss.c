/* SPDX-License-Identifier: MIT */
/* What is predicted and how it is weighed: coefficients of the losses at a time, and how times are drawn. */
#include "loss.h"

#include <math.h>

#include "nl_diffusion.h"
#include "nl_path.h"
#include "nl_random.h"

struct nl_loss {
    nl_context *context;
    nl_loss_options options;
    bool diffusion; /* DiT */
    /* DiT */
    nl_diffusion_level *levels; /* [level_count] */
    int level_count;
    nl_predicts predicts;
    bool variational;
    /* SiT */
    nl_path path;
    nl_prediction prediction;
    double t0, t1; /* training interval */
};

static const double pi = 3.14159265358979323846;

/* docs/public-code.md B3 */
static void training_interval(const nl_config *config, double *t0, double *t1)
{
    bool vp = config->path == NL_PATH_VP;
    double eps = config->train_eps >= 0 ? config->train_eps : vp ? 1e-5 : 1e-3;
    bool whole = !vp && config->prediction == NL_PREDICTION_VELOCITY;
    *t0 = whole || vp ? 0 : eps;
    *t1 = whole ? 1 : 1 - eps;
}

static nl_status check(nl_context *context, const nl_config *config, const nl_loss_options *options)
{
    bool diffusion = config->architecture == NL_ARCH_DIT;
    bool of_path = options->weighting == NL_WEIGHTING_VELOCITY ||
                   options->weighting == NL_WEIGHTING_LIKELIHOOD;
    if (of_path && (diffusion || config->prediction == NL_PREDICTION_VELOCITY))
        return nl_fail(context, NL_ERROR_USAGE,
                       "the weightings velocity and likelihood belong to a SiT that predicts noise "
                       "or score; this model predicts %s",
                       diffusion ? "as DiT" : "the velocity");
    if (options->weighting == NL_WEIGHTING_MIN_SNR && !(options->min_snr > 0))
        return nl_fail(context, NL_ERROR_USAGE, "min-SNR: expected a gamma above 0, found %g",
                       options->min_snr);
    return NL_OK;
}

nl_status nl_loss_create(nl_context *context, const nl_config *config,
                         const nl_loss_options *options, nl_loss **result)
{
    nl_status status;
    nl_loss *loss = NULL;
    *result = NULL;
    NL_TRY(check(context, config, options));
    NL_TRY(NL_NEW(context, "a loss", &loss));
    *loss = (nl_loss){.context = context,
                      .options = *options,
                      .diffusion = config->architecture == NL_ARCH_DIT,
                      .path = config->path,
                      .prediction = config->prediction,
                      .predicts = config->predicts};
    loss->variational =
        loss->diffusion && config->learn_sigma && config->variance == NL_VARIANCE_LEARNED_RANGE;
    if (loss->diffusion)
        NL_TRY(nl_diffusion_levels(context,
                                   &(nl_noise_schedule){config->schedule, config->diffusion_steps,
                                                        config->beta_start, config->beta_end},
                                   NULL, &loss->levels, &loss->level_count));
    else
        training_interval(config, &loss->t0, &loss->t1);
    *result = loss;
    loss = NULL;
cleanup:
    nl_loss_destroy(loss);
    return status;
}

void nl_loss_destroy(nl_loss *loss)
{
    if (!loss)
        return;
    nl_free(loss->context, loss->levels);
    nl_free(loss->context, loss);
}

bool nl_loss_is_variational(const nl_loss *loss)
{
    return loss->variational;
}

/* ---- Coefficients at one time */

/* min(SNR, gamma) ||x_0 - predicted x_0||^2, where an error e of the prediction is one of x_0_error e. */
static double min_snr_weight(const nl_loss *loss, double snr, double x_0_error)
{
    double error = x_0_error * x_0_error;
    return error > 0 ? fmin(snr, loss->options.min_snr) * error : 0;
}

/* docs/public-code.md A4; t is a timestep. */
static void diffusion_row(const nl_loss *loss, double t, float *row, float *variational)
{
    const nl_diffusion_level *level = &loss->levels[(int)fmax(0, fmin(t, loss->level_count - 1))];
    double data = sqrt(level->alpha_bar), noise = sqrt(1 - level->alpha_bar), weight = 1;
    double snr = level->alpha_bar / (1 - level->alpha_bar);
    bool x_start = loss->predicts == NL_PREDICTS_X_START, v = loss->predicts == NL_PREDICTS_V;
    if (loss->options.weighting == NL_WEIGHTING_MIN_SNR)
        weight = min_snr_weight(loss, snr, x_start ? 1 : v ? noise : noise / data);
    row[NL_LOSS_DATA] = (float)data;
    row[NL_LOSS_NOISE] = (float)noise;
    row[NL_LOSS_TARGET_DATA] = (float)(x_start ? 1 : v ? -noise : 0);
    row[NL_LOSS_TARGET_NOISE] = (float)(x_start ? 0 : v ? data : 1);
    row[NL_LOSS_WEIGHT] = (float)weight;
    if (!loss->variational)
        return;
    variational[NL_VB_X_0_FROM_X] = (float)(v ? data : 1 / data);
    variational[NL_VB_X_0_FROM_EPS] = (float)(v ? noise : noise / data);
    variational[NL_VB_MEAN_FROM_X_0] = (float)level->mean_from_x_0;
    variational[NL_VB_MEAN_FROM_X] = (float)level->mean_from_x;
    variational[NL_VB_LOG_BETA] = (float)log(level->beta);
    variational[NL_VB_LOG_POSTERIOR] = (float)level->posterior_log_variance;
    variational[NL_VB_FIRST] = level == loss->levels;
    variational[NL_VB_WEIGHT] = 1;
}

/* d alpha / dt and d sigma / dt */
static void path_slopes(nl_path path, double t, const nl_path_point *p, double *alpha,
                        double *sigma)
{
    if (path == NL_PATH_LINEAR) {
        *alpha = 1;
        *sigma = -1;
    } else if (path == NL_PATH_GVP) {
        *alpha = pi / 2 * cos(pi / 2 * t);
        *sigma = -pi / 2 * sin(pi / 2 * t);
    } else {
        *alpha = p->rho * p->alpha;
        *sigma = -p->alpha * p->alpha * p->rho / p->sigma;
    }
}

/* docs/public-code.md B3. (prediction sigma + noise)^2 of the score is sigma^2 (prediction - target)^2. */
static void transport_row(const nl_loss *loss, double t, float *row)
{
    nl_path_point p = nl_path_at(loss->path, t);
    double d_alpha, d_sigma, weight = 1, x_0_error;
    bool velocity = loss->prediction == NL_PREDICTION_VELOCITY;
    path_slopes(loss->path, t, &p, &d_alpha, &d_sigma);
    row[NL_LOSS_DATA] = (float)p.alpha;
    row[NL_LOSS_NOISE] = (float)p.sigma;
    row[NL_LOSS_TARGET_DATA] = velocity ? (float)d_alpha : 0;
    row[NL_LOSS_TARGET_NOISE] = velocity                                  ? (float)d_sigma
                                : loss->prediction == NL_PREDICTION_NOISE ? 1
                                                                          : (float)(-1 / p.sigma);
    if (loss->options.weighting == NL_WEIGHTING_VELOCITY)
        weight = p.drift_var / p.sigma * (p.drift_var / p.sigma);
    else if (loss->options.weighting == NL_WEIGHTING_LIKELIHOOD)
        weight = p.drift_var / (p.sigma * p.sigma);
    x_0_error = velocity ? p.sigma / (d_alpha * p.sigma - p.alpha * d_sigma) : p.sigma / p.alpha;
    if (loss->options.weighting == NL_WEIGHTING_MIN_SNR)
        weight = min_snr_weight(loss, p.alpha * p.alpha / (p.sigma * p.sigma), x_0_error);
    if (loss->prediction == NL_PREDICTION_SCORE)
        weight *= p.sigma * p.sigma;
    row[NL_LOSS_WEIGHT] = (float)weight;
}

void nl_loss_rows(const nl_loss *loss, const double *times, int64_t count, float *t,
                  float *coefficients, float *variational)
{
    for (int64_t i = 0; i < count; i++) {
        float *row = coefficients + i * NL_LOSS_COLUMNS, *vb = variational + i * NL_VB_COLUMNS;
        for (int column = 0; column < NL_VB_COLUMNS; column++)
            vb[column] = 0;
        double time = loss->diffusion ? times[i] : fmin(fmax(times[i], loss->t0), loss->t1);
        t[i] = (float)time;
        if (loss->diffusion)
            diffusion_row(loss, time, row, vb);
        else
            transport_row(loss, time, row);
    }
}

/* In (0, 1). */
static double draw_part(const nl_loss *loss, uint64_t seed, int64_t sample)
{
    uint32_t words[4];
    float normals[4];
    if (loss->options.times == NL_TIMES_LOGIT_NORMAL) {
        nl_philox_normal4(seed, (uint64_t)sample, NL_STREAM_TIME, 0, normals);
        return 1 /
               (1 + exp(-loss->options.times_mean - loss->options.times_deviation * normals[0]));
    }
    nl_philox(seed, (uint64_t)sample, NL_STREAM_TIME, 0, words);
    return (words[0] + 0.5) * 0x1p-32;
}

void nl_loss_draw(const nl_loss *loss, uint64_t seed, const int64_t *samples, int64_t count,
                  float *t, float *coefficients, float *variational)
{
    for (int64_t i = 0; i < count; i++) {
        double part = draw_part(loss, seed, samples[i]);
        double time = loss->diffusion ? floor(part * loss->level_count)
                                      : loss->t0 + part * (loss->t1 - loss->t0);
        nl_loss_rows(loss, &time, 1, t + i, coefficients + i * NL_LOSS_COLUMNS,
                     variational + i * NL_VB_COLUMNS);
    }
}
