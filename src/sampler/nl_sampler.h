/* SPDX-License-Identifier: MIT */
/*
 * Samplers: pure functions over a model function. A sampler is a plan (times and coefficients, computed in
 * double before the first step) and a step; dopri5 alone decides as it goes. Knows operations and tensors,
 * not backbones. Source: docs/public-code.md A4 (DDPM, DDIM), B2 to B5 (transports).
 */
#ifndef NL_SAMPLER_H
#define NL_SAMPLER_H

#include "nl_config.h"
#include "ops.h"

/* The network as a sampler sees it: prediction(x, t). x [B, C, H, W], t [B] on the host (all equal except
 * for dopri5), prediction [B, C or 2C, H, W]; on the device. */
typedef struct nl_model_function {
    nl_status (*call)(void *user, const nl_tensor *x, const float *t, const nl_tensor *prediction);
    void *user;
} nl_model_function;

/* Noise as a sampler sees it: standard normals for step k (0: the first step) into noise [B, C, H, W]. */
typedef struct nl_noise_function {
    nl_status (*call)(void *user, int k, const nl_tensor *noise);
    void *user;
} nl_noise_function;

typedef enum nl_method {
    NL_METHOD_DDPM,
    NL_METHOD_DDIM,
    NL_METHOD_EULER,
    NL_METHOD_MIDPOINT,
    NL_METHOD_HEUN,
    NL_METHOD_HEUN2,
    NL_METHOD_RK4,
    NL_METHOD_DOPRI5,
    NL_METHOD_SDE_EULER,
    NL_METHOD_SDE_HEUN
} nl_method;
extern const char *const nl_method_names[]; /* as on the command line, ended by NULL */

typedef enum nl_sde_form {
    NL_SDE_CONSTANT,
    NL_SDE_SBDM,
    NL_SDE_SIGMA,
    NL_SDE_LINEAR,
    NL_SDE_DECREASING,
    NL_SDE_INCREASING_DECREASING
} nl_sde_form;
extern const char *const nl_sde_form_names[];

typedef enum nl_last_step {
    NL_LAST_NONE,
    NL_LAST_MEAN,
    NL_LAST_TWEEDIE,
    NL_LAST_EULER
} nl_last_step;
extern const char *const nl_last_step_names[];

/* Everything that decides a trajectory besides the network and the noise. */
typedef struct nl_sampler_options {
    nl_method method;
    int steps; /* steps taken; an SDE's last step, if it has one, counts; DDPM, DDIM: the respaced
                              length */
    const char *respacing; /* DDPM, DDIM: "250", "ddim50", "10,15,20"; NULL: from steps */
    /* diffusion (DiT) */
    nl_schedule schedule;
    int diffusion_steps;
    nl_predicts predicts;
    nl_variance variance;
    double eta;
    bool clip_denoised;
    bool reverse; /* DDIM: from data to noise */
    /* transport (SiT) */
    nl_path path;
    nl_prediction prediction;
    double sample_eps; /* negative: by docs/public-code.md B3 */
    nl_sde_form sde_form;
    double sde_norm;
    nl_last_step last_step;
    double last_step_size;
    double atol, rtol;  /* dopri5 */
    bool batch_control; /* dopri5: one step size for the whole batch, as torchdiffeq (tests) */
} nl_sampler_options;

/* heun, 1 norm, sigma, mean, 0.04, 1e-6, 1e-3, ... */
void nl_sampler_options_init(nl_sampler_options *options);

typedef struct nl_sampler nl_sampler;

/* Refuses (NL_ERROR_USAGE, with the reason) what divides by zero or does not belong together. */
nl_status nl_sampler_create(nl_context *context, const nl_sampler_options *options,
                            nl_sampler **sampler);
void nl_sampler_destroy(nl_sampler *sampler);
int nl_sampler_steps(const nl_sampler *sampler); /* 0 for dopri5 */
bool nl_sampler_needs_noise(const nl_sampler *sampler);
/* Original DDPM timesteps of the respaced schedule, ascending (docs/public-code.md A4). */
const int *nl_sampler_timesteps(const nl_sampler *sampler, int *count);

typedef struct nl_sample_job {
    nl_device *device; /* intermediate tensors come from its arena */
    nl_model_function model;
    nl_noise_function noise; /* call may be NULL for methods without noise */
    /* Called after each step with the number of steps taken, of `steps` (0: not known beforehand); a GPU may still
     * be at work on the last of them. x is the state; t the time it has reached, or the timestep that DDPM and DDIM
     * have just worked on. NULL: nothing. Anything but NL_OK ends the run. */
    nl_status (*step)(void *user, int step, int steps, double t, const nl_tensor *x);
    void *user;
    int64_t *evaluations; /* [B] of the network, added to; or NULL */
} nl_sample_job;

/* x [B, C, H, W]: noise on entry, the result on return (in place). A state with NaN or infinity ends the run
 * with NL_ERROR_NOT_FINITE and the number of the step. Runs on a measuring device too. */
nl_status nl_sampler_run(const nl_sampler *sampler, const nl_sample_job *job, const nl_tensor *x);

/* ---- Guidance as a model function around a network that takes labels. Evaluates the conditional and the
 * unconditional half as one batch, and the conditional one alone where guidance is off. */

typedef struct nl_guidance {
    nl_device *device;
    /* network(x, t, labels): t [t_count] with t_count 1 or B */
    nl_status (*network)(void *user, const nl_tensor *x, const float *t, int64_t t_count,
                         const nl_tensor *labels, const nl_tensor *prediction);
    void *user;
    nl_tensor labels; /* I32 [2B] on the device: B labels, then B times the null class */
    double scale;     /* 1: none */
    int channels;     /* 0: all of C (the variance channels are never guided) */
    double low, high; /* guidance only for low <= t <= high; both 0: everywhere */
} nl_guidance;

nl_model_function nl_guidance_model(nl_guidance *guidance); /* refers to *guidance */

#endif
