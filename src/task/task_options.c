/* SPDX-License-Identifier: MIT */
/* Options of every command that samples: which model, which pictures, how. */
#include "nl_sampler.h"
#include "nl_task.h"

#include <string.h>

#define FIELD(member) offsetof(nl_task_options, member)

static const char *const channels[] = {"all", "3", NULL};
static const char *const roundings[] = {"dit", "adm", NULL};

const nl_option nl_sampling_options[] = {
    {"model", 'm', NL_OPTION_FILE, FIELD(model), "FILE", .where = NL_COMMON, .group = "Model",
     .help = "safetensors, .pt, folder (shipped NaLaSiT-S/2)"},
    {"key", 0, NL_OPTION_TEXT, FIELD(key), "NAME", .where = NL_IN_PICTURE,
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"config", 0, NL_OPTION_FILE, FIELD(config), "FILE",
     .help = "JSON configuration in place of the checkpoint's"},
    {"arch", 0, NL_OPTION_CHOICE, FIELD(arch), "NAME", .choices = nl_architecture_names,
     .where = NL_IN_PICTURE, .help = "kind of network, where the file does not say it",
     .detail = "DiT, SiT, NaLaDiT, NaLaSiT, GLADiT, GLASiT, MediatorDiT, MediatorSiT."},
    {"path", 0, NL_OPTION_CHOICE, FIELD(path), "NAME", .choices = nl_path_names,
     .where = NL_IN_PICTURE, .help = "SiT: linear, gvp or vp"},
    {"prediction", 0, NL_OPTION_CHOICE, FIELD(prediction), "NAME", .choices = nl_prediction_names,
     .where = NL_IN_PICTURE, .help = "SiT: velocity, noise or score"},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .where = NL_COMMON,
     .help = "autoencoder, tiny, or none: latents only"},
    {"guide", 0, NL_OPTION_FILE, FIELD(guide), "FILE",
     .help = "smaller or earlier model that guides it",
     .detail =
         "Of the same latents, classes and path, such as an earlier checkpoint of the same run "
         "(its average). Pictures move away from its mistakes."},
    {"size", 0, NL_OPTION_EXTENT, FIELD(size), "HxW", 1, 16384, .where = NL_COMMON | NL_IN_PICTURE,
     .help = "pixels, N or HxW (the model's own)"},

    {"class", 'c', NL_OPTION_CLASS, FIELD(classes), "LIST", .where = NL_COMMON | NL_IN_BOTH,
     .group = "Pictures", .completes = "classes",
     .help = "church, n03028079, 1,4, 0-9, null, random, balanced",
     .detail =
         "Picture i takes entry i modulo the length of the list. random draws the class of each "
         "picture from the seed and its index; balanced takes all classes in turn; null is "
         "unconditional; number:2 is the third class, also where another one is called 2. Default: "
         "random."},
    {"number", 'n', NL_OPTION_INT, FIELD(n), "N", 1, 1e9, .where = NL_COMMON | NL_IN_BOTH,
     .help = "pictures in all (one for each class named)"},
    {"seed", 's', NL_OPTION_SEED, FIELD(seed), "N", .where = NL_COMMON | NL_IN_BOTH,
     .help = "noise is a function of seed and picture index (0)"},
    {"first-index", 0, NL_OPTION_INT, FIELD(first_index), "N", 0, 1e15, .where = NL_IN_BOTH,
     .help = "index of the first picture (0)",
     .detail =
         "A run may be split: -n 10 makes the pictures that -n 5 and -n 5 --first-index 5 make."},
    {"rounding", 0, NL_OPTION_CHOICE, FIELD(rounding), "HOW", .choices = roundings,
     .where = NL_IN_BOTH, .help = "dit: trunc(127.5x + 128), adm: + 127.5 (dit)"},

    {"sampler", 0, NL_OPTION_CHOICE, FIELD(sampling.sampler), "NAME", .choices = nl_method_names,
     .where = NL_COMMON | NL_IN_BOTH, .group = "Sampler",
     .help =
         "heun, dopri5, ...; DiT: ddpm, dpmpp-2m, ...\nDiT: ddpm ddim dpmpp-2m dpmpp-2m-sde "
         "unipc\nSiT: euler midpoint heun heun2 rk4 ab2 dopri5\nsde-euler sde-heun flow flow-sde",
     .detail =
         "heun's last step is Euler at the end of the "
         "interval; heun2's is not (the explicit trapezoid). ab2 is Adams-Bashforth 2: an "
         "evaluation a step, but two in the first, the last and where guidance switches. "
         "flow takes whole steps of a "
         "flow map (nalagen distill), flow-sde goes beyond each by a share of what is left and "
         "back by new noise. dpmpp-2m is DPM-Solver++ (2M), dpmpp-2m-sde its SDE, "
         "unipc UniPC of order 2: pictures of a DiT in 10 to 20 steps, on the levels that "
         "diffusers' schedulers take."},
    {"steps", 0, NL_OPTION_INT, FIELD(sampling.steps), "N", 1, 10000,
     .where = NL_COMMON | NL_IN_BOTH, .help = "steps taken (the public SiT code's N is N - 1 here)",
     .detail = "The public SiT code counts the points instead of the steps. SDEs: N counts the "
               "last step. "
               "DiT: the respaced length."},
    {"respacing", 0, NL_OPTION_TEXT, FIELD(sampling.respacing), "TEXT", .where = NL_IN_BOTH,
     .help = "DiT: 250, ddim50 or 10,15,20"},
    {"time-shift", 0, NL_OPTION_REAL, FIELD(sampling.time_shift), "S", 0.01, 100,
     .where = NL_IN_BOTH, .help = "SiT: times as SD3's shift; 3: more steps in noise",
     .detail = "u = 1 - t on an even grid becomes S u / (1 + (S - 1) u). 1: even. For samplers of "
               "fixed steps."},
    {"rho", 0, NL_OPTION_REAL, FIELD(sampling.rho), "X", 1, 100, .where = NL_IN_BOTH,
     .help = "noise levels as EDM's and Karras' (7 there)",
     .detail = "sigma / alpha in even steps of its power 1 / X. A SiT with fixed steps: from 80 to "
               "0.002, then to the end of its path. dpmpp-2m, dpmpp-2m-sde and unipc: over the "
               "levels of the model, as diffusers' use_karras_sigmas does with 7."},
    {"eta", 0, NL_OPTION_REAL, FIELD(sampling.eta), "X", 0, 1, .where = NL_IN_BOTH,
     .help = "DDIM: 0 deterministic to 1 as noisy as DDPM (0)"},
    {"atol", 0, NL_OPTION_REAL, FIELD(sampling.atol), "X", 1e-12, 1, .where = NL_IN_BOTH,
     .help = "dopri5: absolute tolerance (1e-6)"},
    {"rtol", 0, NL_OPTION_REAL, FIELD(sampling.rtol), "X", 1e-12, 1, .where = NL_IN_BOTH,
     .help = "dopri5: relative tolerance (1e-3)"},
    {"sde-form", 0, NL_OPTION_CHOICE, FIELD(sampling.sde_form), "NAME",
     .choices = nl_sde_form_names, .where = NL_IN_BOTH,
     .help = "sigma, constant, sbdm, linear, decreasing, ..."},
    {"sde-norm", 0, NL_OPTION_REAL, FIELD(sampling.sde_norm), "X", 1e-9, 1000, .where = NL_IN_BOTH,
     .help = "SDE: size of the diffusion (1)"},
    {"last-step", 0, NL_OPTION_CHOICE, FIELD(sampling.last_step), "NAME",
     .choices = nl_last_step_names, .where = NL_IN_BOTH,
     .help = "SDE: mean, none, tweedie or euler (mean)"},
    {"last-step-size", 0, NL_OPTION_REAL, FIELD(sampling.last_step_size), "X", 1e-6, 0.5,
     .where = NL_IN_BOTH, .help = "SDE: length of the last step (0.04)"},
    {"clip-denoised", 0, NL_OPTION_FLAG, FIELD(sampling.clip_denoised), .where = NL_IN_BOTH,
     .help = "DiT: clamp x_0 to [-1, 1] (pixel models)"},
    {"cfg-scale", 0, NL_OPTION_REAL, FIELD(sampling.cfg_scale), "X", 0, 1000,
     .where = NL_COMMON | NL_IN_BOTH, .help = "guidance; 1: none"},
    {"cfg-channels", 0, NL_OPTION_CHOICE, FIELD(cfg_channels), "all|3", .choices = channels,
     .where = NL_IN_BOTH, .help = "channels guided; 3 as the public code (all)"},
    {"cfg-interval", 0, NL_OPTION_INTERVAL, FIELD(sampling.cfg_interval), "A,B", 0, 1e6,
     .where = NL_IN_BOTH, .help = "guidance only for A <= t <= B",
     .detail = "Everywhere where --cfg-scale is given; otherwise the model's default, for a SiT "
               "0.1,0.9."},
    {"internal-guidance", 0, NL_OPTION_REAL, FIELD(sampling.internal_guidance), "W", 0.01, 1000,
     .where = NL_IN_BOTH, .help = "away from the middle head's prediction; 1: none",
     .detail = "Of a model trained with \"middle_head\": middle + W (head - middle) wherever the "
               "network is asked, in one evaluation, and at every t. --cfg-scale works on what "
               "comes of it, with the class and without."},
    {"crop", 0, NL_OPTION_PLACE, FIELD(sampling.crop), "SIDE,Y,X", -0.5, 1, .where = NL_IN_BOTH,
     .help = "a part: side, its centre (1,0,0: the whole)",
     .detail =
         "Of a model trained with \"crop_conditioning\". SIDE is the part's over the whole "
         "picture's, Y and X say how far its centre is below and to the right of the "
         "picture's, in sides of the picture: 0.5,-0.25,0.25 is the quarter at the top right."},
    {"guide-scale", 0, NL_OPTION_REAL, FIELD(sampling.guide_scale), "W", 0.001, 1000,
     .where = NL_IN_BOTH, .help = "of --guide; 1: none (2)",
     .detail =
         "v is the model's prediction, g the guide's: (W - 1) (v - g) is added, to class guidance "
         "too, which with --guide is off unless --cfg-scale is given."},
    {"guide-interval", 0, NL_OPTION_INTERVAL, FIELD(sampling.guide_interval), "A,B", 0, 1e6,
     .where = NL_IN_BOTH, .help = "--guide only for A <= t <= B (everywhere)"},
    {0},
};

const nl_option nl_walk_options[] = {
    {"walk", 0, NL_OPTION_INT, FIELD(walk), "N", 2, 10000, .where = NL_IN_BOTH, .group = "Walk",
     .help = "N pictures from one picture to another",
     .detail =
         "From picture 0 of --class and --seed to picture 0 of --to-class and --to-seed, which are "
         "the first and the last of them bit for bit. The noise turns from the one to the other "
         "(slerp), the class is a mean of both. Picture i of the walk has index i."},
    {"to-class", 0, NL_OPTION_CLASS, FIELD(to_class), "CLASS", .where = NL_IN_BOTH,
     .help = "where the walk ends (at the same class)"},
    {"to-seed", 0, NL_OPTION_TEXT, FIELD(to_seed), "N", .where = NL_IN_BOTH,
     .help = "where the walk ends (at the same seed)"},
    {0},
};

const nl_task_options nl_task_defaults = {.sampling.cfg_scale = -1};

nl_sampling nl_sampling_of(const nl_task_options *options)
{
    nl_sampling sampling = options->sampling;
    sampling.cfg_scale = nl_sampling_cfg(sampling.cfg_scale);
    sampling.cfg_channels = options->cfg_channels && !strcmp(options->cfg_channels, "3") ? 3 : 0;
    return sampling;
}

nl_rounding nl_rounding_of(const nl_task_options *options)
{
    return options->rounding && !strcmp(options->rounding, "adm") ? NL_ROUNDING_ADM
                                                                  : NL_ROUNDING_DIT;
}
