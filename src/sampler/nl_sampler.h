/* SPDX-License-Identifier: MIT */
/*
 * Samplers: pure functions over a model function. A sampler is a plan (times and coefficients, computed in
 * double before the first step) and a step; dopri5 alone decides as it goes. Knows operations and tensors,
 * not backbones. Source: docs/public-code.md A4 (DDPM, DDIM), A6 (multistep), B2 to B5 (transports).
 */
#ifndef NL_SAMPLER_H
#define NL_SAMPLER_H

#include "nl_config.h"
#include "ops.h"

/* The network as a sampler sees it: prediction(x, t). x [B, C, H, W], t [B] on the host (all equal except
 * for dopri5), prediction [B, C or 2C, H, W]; on the device. s: of a flow map, the time at which the step of all images
 * ends; otherwise NULL. */
typedef struct nl_model_function {
    nl_status (*call)(void *user, const nl_tensor *x, const float *t, const float *s,
                      const nl_tensor *prediction);
    void *user;
} nl_model_function;

/* Noise as a sampler sees it: standard normals for step k (0: the first step) into noise [B, C, H, W]. */
typedef struct nl_noise_function {
    nl_status (*call)(void *user, int k, const nl_tensor *noise);
    void *user;
} nl_noise_function;

/* How a method works: by the noise levels of a diffusion, alone or two at a time; along a flow by a Runge-Kutta tableau with fixed steps, by the
 * drift of the step before as well, with steps of its own choice, or with noise; or by a network that predicts whole steps (nl_config.flow_map). */
typedef enum nl_family {
    NL_FAMILY_DIFFUSION, /* of a DiT, one level after the other */
    NL_FAMILY_MULTISTEP, /* of a DiT, by what was predicted at two levels; all others: of a SiT */
    NL_FAMILY_ODE,
    NL_FAMILY_ADAMS,
    NL_FAMILY_ADAPTIVE,
    NL_FAMILY_SDE,
    NL_FAMILY_FLOW
} nl_family;

/* Every method: constant, name on the command line, family, default steps, whether it draws noise (ETA: when eta > 0), the
 * tableau of its steps and that of the last one (methods.c). Default steps: 20 evaluations of the network for methods of
 * second order, whose pictures 40 do not better (docs/results.md), 40 for the others; the noisy ones as the public code. */
#define NL_METHODS(X)                                                                              \
    X(NL_METHOD_DDPM, "ddpm", DIFFUSION, 250, ALWAYS, none, none)                                  \
    X(NL_METHOD_DDIM, "ddim", DIFFUSION, 50, ETA, none, none)                                      \
    X(NL_METHOD_DPMPP_2M, "dpmpp-2m", MULTISTEP, 20, NEVER, none, none)                            \
    X(NL_METHOD_DPMPP_2M_SDE, "dpmpp-2m-sde", MULTISTEP, 40, ALWAYS, none, none)                   \
    X(NL_METHOD_UNIPC, "unipc", MULTISTEP, 20, NEVER, none, none)                                  \
    X(NL_METHOD_EULER, "euler", ODE, 40, NEVER, euler, euler)                                      \
    X(NL_METHOD_MIDPOINT, "midpoint", ODE, 10, NEVER, midpoint, midpoint)                          \
    X(NL_METHOD_HEUN, "heun", ODE, 10, NEVER, trapezoid, euler)                                    \
    X(NL_METHOD_HEUN2, "heun2", ODE, 10, NEVER, trapezoid, trapezoid)                              \
    X(NL_METHOD_RK4, "rk4", ODE, 10, NEVER, three_eighths, three_eighths)                          \
    X(NL_METHOD_AB2, "ab2", ADAMS, 16, NEVER, euler, trapezoid)                                    \
    X(NL_METHOD_DOPRI5, "dopri5", ADAPTIVE, 0, NEVER, none, none)                                  \
    X(NL_METHOD_SDE_EULER, "sde-euler", SDE, 250, ALWAYS, euler, euler)                            \
    X(NL_METHOD_SDE_HEUN, "sde-heun", SDE, 250, ALWAYS, trapezoid, trapezoid)                      \
    X(NL_METHOD_FLOW, "flow", FLOW, 4, NEVER, euler, euler)                                        \
    X(NL_METHOD_FLOW_SDE, "flow-sde", FLOW, 4, ALWAYS, euler, euler)

typedef enum nl_method { NL_METHODS(NL_LIST_CONSTANT) } nl_method;
enum { NL_METHOD_COUNT = 0 NL_METHODS(NL_LIST_COUNT) };

typedef struct nl_method_row {
    const char *name;
    nl_family family;
    int default_steps; /* 0: the method chooses its steps */
    enum { NL_NOISE_NEVER, NL_NOISE_ETA, NL_NOISE_ALWAYS } noise;
    const struct nl_tableau *tableau,
        *last_tableau; /* of the steps, of the last one (Adams: and the first) */
} nl_method_row;
extern const nl_method_row nl_methods[];
extern const char *const nl_method_names[]; /* ended by NULL */
bool nl_method_is_diffusion(nl_method method);
bool nl_method_is_sde(nl_method method);
bool nl_method_is_flow(nl_method method);
/* "ddpm, ddim or ...", or all others: for messages. */
const char *nl_method_list(bool diffusion, char *text, size_t size);

/* Of an SDE: its diffusion coefficient, and the step that ends it. */
#define NL_SDE_FORMS(X)                                                                            \
    X(NL_SDE_CONSTANT, "constant")                                                                 \
    X(NL_SDE_SBDM, "sbdm")                                                                         \
    X(NL_SDE_SIGMA, "sigma")                                                                       \
    X(NL_SDE_LINEAR, "linear")                                                                     \
    X(NL_SDE_DECREASING, "decreasing")                                                             \
    X(NL_SDE_INCREASING_DECREASING, "increasing-decreasing")
#define NL_LAST_STEPS(X)                                                                           \
    X(NL_LAST_NONE, "none")                                                                        \
    X(NL_LAST_MEAN, "mean")                                                                        \
    X(NL_LAST_TWEEDIE, "tweedie")                                                                  \
    X(NL_LAST_EULER, "euler")

typedef enum nl_sde_form { NL_SDE_FORMS(NL_LIST_CONSTANT) } nl_sde_form;
typedef enum nl_last_step { NL_LAST_STEPS(NL_LIST_CONSTANT) } nl_last_step;
extern const char *const nl_sde_form_names[], *const nl_last_step_names[]; /* ended by NULL */

/* Everything that decides a trajectory besides the network and the noise. */
typedef struct nl_sampler_options {
    nl_method method;
    int steps; /* steps taken; an SDE's last step, if it has one, counts; of a DiT: the respaced
                              length */
    double
        rho; /* multistep and fixed steps: noise levels sigma / alpha evenly in their power 1 / rho; 0: not */
    /* diffusion (DiT) */
    const char *respacing; /* "250", "ddim50", "10,15,20"; NULL: from steps */
    nl_schedule schedule;
    int diffusion_steps;
    double beta_start, beta_end; /* 0: the schedule's own */
    nl_spacing spacing;          /* of `steps`, with steps_offset; not of `respacing` */
    int steps_offset;
    bool final_alpha_first; /* DDIM: the last step goes to timestep 0's alpha_bar, not to 1 */
    nl_predicts predicts;
    nl_variance variance;
    double eta;
    bool clip_denoised;
    bool reverse; /* DDIM: from data to noise */
    /* transport (SiT) */
    nl_path path;
    nl_prediction prediction;
    double sample_eps; /* negative: by docs/public-code.md B3 */
    double
        time_shift; /* fixed steps: u = 1 - t at even times becomes s u / (1 + (s - 1) u); 1: even times */
    bool whole_first; /* flow-sde: its first step goes to the data before noise leads it back */
    nl_sde_form sde_form;
    double sde_norm;
    nl_last_step last_step;
    double last_step_size;
    /* ab2: where guidance by class and by a network act, so that no step takes a drift from the other side; both ends 0: it
     * does not switch */
    double cfg_interval[2], guide_interval[2];
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

/* ---- Guidance as a model function around a network that takes labels. With v the prediction for a class, u the
 * unconditional one and g that of another network for the class (autoguidance: Karras et al. 2024, a smaller or less
 * trained one), it predicts
 *   v + (scale - 1) (v - u) + (guide_scale - 1) (v - g)
 * each term where its interval has t. v and u are evaluated as one batch, v alone where only that is needed, g where it
 * counts. */

typedef nl_status (*nl_network_function)(void *user, const nl_tensor *x, const float *t,
                                         int64_t t_count, const float *s, const nl_tensor *labels,
                                         const nl_tensor *prediction);

typedef struct nl_guidance {
    nl_device *device;
    /* network(x, t, labels): t [t_count] with t_count 1 or B; s: NULL, or one number, as in nl_model_function. guide:
     * the other network, or NULL. */
    nl_network_function network, guide;
    void *user;       /* of both */
    nl_tensor labels; /* I32 [2B] on the device: B labels, then B times the null class */
    double scale;     /* 1: none */
    int channels;     /* 0: all of C (the variance channels are never guided) */
    double low, high; /* guidance only for low <= t <= high; both 0: everywhere */
    double guide_scale, guide_low, guide_high; /* the same of the other network, on all of C */
} nl_guidance;

/* Whether guidance of this interval acts at t, both ends included; both 0: everywhere. */
bool nl_guided_between(double low, double high, float t);

nl_model_function nl_guidance_model(nl_guidance *guidance); /* refers to *guidance */

#endif
