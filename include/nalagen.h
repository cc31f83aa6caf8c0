/* SPDX-License-Identifier: MIT */
/*
 * nalagen: class-conditional image generation with DiT, SiT, NaLaDiT, NaLaSiT, GLADiT, GLASiT, MediatorDiT and MediatorSiT.
 *
 * The whole public interface, in calling order. Everything returns an nl_status; the message that
 * belongs to a failure is nl_last_error(). No function ends the process or keeps global state: two
 * contexts share nothing. A context and what was made from it belong to one thread at a time.
 */
#ifndef NALAGEN_H
#define NALAGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NL_VERSION_MAJOR 0
#define NL_VERSION_MINOR 1
#define NL_VERSION_PATCH 0
#define NL_VERSION       "0.1.0"

#if defined(__GNUC__)
#define NL_API __attribute__((visibility("default")))
#else
#define NL_API
#endif

/* ---- 1. Status ---------------------------------------------------------------------------- */

/* What a call came to; the same numbers are the exit codes of the command line program. */
typedef enum nl_status {
    NL_OK = 0,
    NL_ERROR_INTERNAL = 1,   /* a defect of nalagen */
    NL_ERROR_USAGE = 2,      /* an argument or option out of its range */
    NL_ERROR_INPUT = 3,      /* a file that cannot be read or is not what it should be */
    NL_ERROR_MEMORY = 4,     /* host or device memory; the message says need and have */
    NL_ERROR_DEVICE = 5,     /* no such device, or it failed */
    NL_ERROR_NOT_FINITE = 6, /* NaN or infinity; the message says step and tensor */
    NL_ERROR_WRITE = 7,      /* a file that cannot be written in full */
    NL_CANCELLED = 130       /* stopped by the progress callback or Ctrl-C; finished work is kept */
} nl_status;

NL_API const char *nl_status_name(nl_status status);
NL_API const char *nl_version(void); /* of the library; NL_VERSION: of this header */

/* Structures of options begin with their size, so that they can grow. NL_INIT clears one, which means
 * all defaults, and says its size; size 0 is the structure as it was in version 0.1. A library takes
 * structures of older and of newer headers, and refuses what a newer one asks for that it lacks. */
#define NL_INIT(options)                                                                           \
    (memset((options), 0, sizeof(*(options))), (void)((options)->size = sizeof(*(options))))

/* ---- 2. Context --------------------------------------------------------------------------- */

typedef struct nl_context nl_context;

typedef enum nl_log_level { NL_LOG_ERROR, NL_LOG_WARNING, NL_LOG_INFO, NL_LOG_DEBUG } nl_log_level;

typedef struct nl_progress {
    const char *stage; /* "sampling", "decoding", ... */
    int64_t step;      /* steps done in this batch, of `steps` (0: not known beforehand) */
    int64_t steps;
    int64_t image; /* pictures finished, of `images` */
    int64_t images;
    int64_t batch;        /* pictures at work */
    const float *preview; /* a latent [C, H, W] on the host to preview, or NULL */
    int preview_shape[3];
    /* Of a training: the part of the run that lies behind, 0 to 1, by its steps or its minutes. */
    double done;
} nl_progress;

typedef struct nl_context_options {
    size_t size;
    const char *device; /* "auto" (NULL), "cpu", "cuda", "cuda:1", "reference" (slow, for tests) */
    const char
        *dtype;  /* of matrix products: "auto" (NULL), "f32", "bf16"; "fp8", not in training */
    int threads; /* of the CPU; 0: all that this process may use (see below) */
    int64_t max_memory; /* bytes that may be allocated in all; 0: no limit */
    void (*log)(void *user, nl_log_level level, const char *message); /* NULL: silent */
    bool (*progress)(void *user, const nl_progress *progress); /* false cancels; may be NULL */
    void *user;
    char *
        message; /* takes the reason when there comes no context whose last error would say it; or NULL */
    size_t message_size;
} nl_context_options;

/* options may be NULL. On failure *context is NULL, the status says why, and options->message and
 * the log in words.
 *
 * The CPU back end works with OpenMP. An idle thread of GCC's OpenMP spins for milliseconds, which
 * makes everything many times slower where other programs want the processors too: start a program
 * that shares them with GOMP_SPINCOUNT=5000 in its environment, as `nalagen` starts itself. OpenMP
 * reads it before main. */
NL_API nl_status nl_context_create(const nl_context_options *options, nl_context **context);
NL_API void nl_context_destroy(nl_context *context);

/* The message of the last failure in this context, "" when there was none. Valid until the next. */
NL_API const char *nl_last_error(const nl_context *context);

/* Asks the running call to stop with NL_CANCELLED. The one function that a signal handler or
 * another thread may call. */
NL_API void nl_cancel(nl_context *context);

/* ---- 3. Model ----------------------------------------------------------------------------- */

typedef struct nl_model nl_model; /* a backbone and its autoencoder, on the context's device */

typedef struct nl_model_options {
    size_t size;
    const char *path;        /* checkpoint: safetensors, torch's .pt or a folder of diffusers;
                                 NULL: the model that ships */
    const char *config_path; /* JSON that replaces the checkpoint's own configuration, or NULL */
    const char *
        architecture; /* "DiT", "SiT", "NaLaDiT", "NaLaSiT", "GLADiT", "GLASiT", "MediatorDiT", "MediatorSiT"; for files that do not say */
    const char *transport_path; /* "linear", "gvp", "vp", or NULL */
    const char *prediction;     /* "velocity", "noise", "score", or NULL */
    const char *vae;            /* autoencoder file, "none" (latents only), or NULL: the model's */
    int height, width;          /* of the picture in pixels; 0: the model's own size */
    const char *key; /* dict of a training checkpoint, "ema" or "model"; NULL: the best */
    const char
        *guide; /* another checkpoint of the same latents and classes, smaller or less trained, that
                          guides it (autoguidance: nl_sampling.guide_scale), or NULL */
    /* The bytes of a checkpoint's file in place of a path, which then is a name for messages and records. They are
     * read by nl_model_load and not needed after it. Without `key`. */
    const void *data;
    size_t data_size;
} nl_model_options;

NL_API nl_status nl_model_load(nl_context *context, const nl_model_options *options,
                               nl_model **model);
NL_API void nl_model_destroy(nl_model *model);

/* The model's configuration as JSON text (docs/formats.md, Configuration). Owned by the model. */
NL_API const char *nl_model_config(const nl_model *model);
/* sha256 of the checkpoint file in hexadecimal (computed on first use). Owned by the model. */
NL_API nl_status nl_model_sha256(nl_model *model, const char **hex);
/* Index of a class given as "n03028079" or "church", as "17" where none is called so, or as "number:17". */
NL_API nl_status nl_model_class(nl_model *model, const char *text, int *index);

/* ---- 4. Pictures -------------------------------------------------------------------------- */

typedef struct nl_sampling { /* cleared: the model's defaults */
    size_t size;
    const char *sampler;   /* ddpm ddim dpmpp-2m dpmpp-2m-sde unipc euler midpoint heun heun2 rk4
                            ab2 dopri5 sde-euler sde-heun flow flow-sde; NULL: the model's default */
    int64_t steps;         /* steps taken; 0: the sampler's default */
    const char *respacing; /* of a DiT: "250", "ddim50", or NULL: from steps */
    double
        cfg_scale; /* guidance; 1: none; 0 or less: the model's default, for SiT with its interval */
    int cfg_channels;       /* channels guided; 0: all; 3: the public code's habit */
    double cfg_interval[2]; /* guidance only for t from the one to the other; both 0: everywhere */
    double eta;             /* DDIM: 0 deterministic, 1 as noisy as DDPM */
    double atol, rtol;      /* dopri5; 0: 1e-6 and 1e-3 */
    const char
        *sde_form;   /* constant sbdm sigma linear decreasing increasing-decreasing; NULL: sigma */
    double sde_norm; /* 0: 1 */
    const char *last_step; /* none mean tweedie euler; NULL: mean */
    double last_step_size; /* 0: 0.04 */
    bool clip_denoised;    /* of a DiT: clamp the predicted x_0 to [-1, 1] (pixel-space models) */
    /* A part of the picture, of a model trained with crop_conditioning: its side over the picture's (0.01 to 1; 0: 1,
     * the whole), then how far its centre is below and to the right of the picture's, in sides of the picture. */
    double crop[3];
    /* Of a model trained with middle_head: wherever the network is asked, what it predicts becomes
     * middle + internal_guidance (head - middle), without another evaluation; cfg_scale then works on that. 0 or 1: none. */
    double internal_guidance;
    /* Of a model with a guide, whose prediction is g where the model's is v: (guide_scale - 1) (v - g) is added
     * to what is predicted, for t from the one to the other (both 0: everywhere). 1: nothing; 0: 2. Without a
     * cfg_scale there is no other guidance then. */
    double guide_scale, guide_interval[2];
    double time_shift; /* SiT, fixed steps: above 1 more of them in the noise, as SD3; 0: 1, even */
    double rho; /* SiT with fixed steps, dpmpp-2m, unipc: noise levels as EDM's, 7 usual; 0: not */
} nl_sampling;

/* As cfg_scale: the unconditional prediction alone, a scale of 0. */
#define NL_CFG_UNCONDITIONAL 2.2250738585072014e-308

static inline void nl_sampling_init(nl_sampling *sampling)
{
    NL_INIT(sampling);
}

static inline nl_sampling nl_sampling_default(void)
{
    nl_sampling sampling;
    nl_sampling_init(&sampling);
    return sampling;
}
#define NL_SAMPLING_DEFAULT nl_sampling_default()

/* How x in [-1, 1] becomes a byte. */
typedef enum nl_rounding {
    NL_ROUNDING_DIT, /* trunc(127.5 x + 128), as DiT and SiT */
    NL_ROUNDING_ADM  /* trunc(127.5 x + 127.5), as ADM and REPA */
} nl_rounding;

/* Another picture, and how far towards it one goes: its initial noise and that of its steps are cos(90 part) of its own and
 * sin(90 part) of the other's (slerp of independent draws: normal again), its class the mean of both, weighted by part,
 * after the embedding. 0: the picture itself, 1: the other, bit for bit. */
typedef struct nl_mix {
    int label;
    uint64_t seed;
    int64_t index;
    double part; /* 0 to 1 */
} nl_mix;

typedef struct nl_request {
    size_t size;
    const int *labels; /* [count]; num_classes: unconditional */
    int64_t count;
    uint64_t seed;
    int64_t first_index; /* image index of labels[0]: noise is a function of (seed, image index) */
    const int64_t *indices; /* [count] in place of first_index, + 1, + 2, ...; or NULL */
    int batch;              /* 0: as large as pays and the memory allows */
    int preview_every;      /* steps between previews through the progress callback; 0: none */
    const float *noise;     /* [count, C, H, W] initial latents, or NULL: drawn */
    nl_rounding rounding;
    const uint64_t *seeds; /* [count] of each picture, in place of seed; or NULL */
    const nl_mix *mixes;   /* [count] of each picture; or NULL. Without `noise` */
    int64_t reserved[2];   /* 0; for what a request will hold */
    nl_sampling sampling;  /* last, so that it can grow */
} nl_request;

typedef struct nl_picture {
    int64_t index; /* image index */
    int label;
    int height, width;
    const uint8_t *rgb;   /* [height, width, 3], or NULL without an autoencoder */
    const float *latents; /* [C, H, W], final */
    int latent_shape[3];
    int64_t evaluations; /* of the network, for this picture */
} nl_picture;

/* Makes the pictures in the order of the request and hands each to `picture`, whose pointers are
 * valid during the call; its status other than NL_OK ends the work and is returned. */
NL_API nl_status nl_generate(nl_model *model, const nl_request *request,
                             nl_status (*picture)(void *user, const nl_picture *picture),
                             void *user);

/* Between pictures and latents, through the model's autoencoder.
 * rgb [count, height, width, 3]; latents [count, C, height / 8, width / 8]. */
NL_API nl_status nl_decode(nl_model *model, const float *latents, int count, int latent_height,
                           int latent_width, uint8_t *rgb);
NL_API nl_status nl_encode(nl_model *model, const uint8_t *rgb, int count, int height, int width,
                           float *latents);

/* Writes an RGB picture as PNG, whole or not at all. text: pairs of keyword and UTF-8 value, ended
 * by NULL; may be NULL. */
NL_API nl_status nl_write_png(nl_context *context, const char *path, const uint8_t *rgb, int height,
                              int width, const char *const *text);

/* ---- 5. Evaluation ------------------------------------------------------------------------ */

/* What a set of pictures is measured by. Distances: the smaller the better; the others: the larger. */
typedef enum nl_metric {
    NL_METRIC_FID,       /* Frechet distance of features (Heusel 2017) */
    NL_METRIC_SFID,      /* of spatial features (Nash 2021) */
    NL_METRIC_IS,        /* Inception Score (Salimans 2016) */
    NL_METRIC_PRECISION, /* Kynkaanniemi 2019, in [0, 1] */
    NL_METRIC_RECALL,    /* the same */
    NL_METRIC_KID,       /* kernel distance (Binkowski 2018) */
    NL_METRIC_FID_INFINITY, /* FID of infinitely many samples (Chong 2020); only when asked for by name */
    NL_METRICS
} nl_metric;

/* "fid", "sfid", "is", "precision", "recall", "kid", "fid_infinity"; NULL of another number. */
NL_API const char *nl_metric_name(nl_metric metric);

typedef struct nl_evaluation_options { /* cleared: the defaults in brackets */
    size_t size;
    /* What is compared with: a folder of pictures, or an .npz with pictures (arr_0), with statistics
     * (mu, sigma, mu_s, sigma_s), or with both. */
    const char *reference;
    /* A folder of pictures, or an .npz with arr_0; NULL: `model` makes them. */
    const char *samples;

    /* The model, of this context or another one; its pictures are not kept. How many it makes (50000),
     * from which seed and image index; picture i gets labels[i % label_count], or, NULL, a class that
     * is drawn by the seed. */
    nl_model *model;
    int64_t count;
    uint64_t seed;
    int64_t first_index;
    const int *labels;
    int64_t label_count;
    int batch; /* 0: as large as pays and the memory allows */
    nl_rounding rounding;

    /* The FID network: pytorch-fid's .pth or .safetensors (found by that name in $NALAGEN_WEIGHTS);
     * "openai", "pytorch-fid", "clean-fid", "torch-fidelity" (openai); on a GPU "fp32", "tf32", "fp16"
     * (tf32); "pool_3", "mixed_7", "pool_192", "pool_64" (the first that the weights give). */
    const char *weights, *preset, *precision, *features;

    const char *metrics; /* "fid,kid": these alone; NULL: all but fid_infinity */
    bool fid_infinity;   /* that one as well */
    bool
        allow_small; /* fewer pictures than a feature has numbers: not comparable with other results */
    bool half_distances; /* precision and recall from distances in fp16, as the public evaluator */
    int64_t is_split;    /* pictures of a split of the Inception Score; 0: the preset's */
    int64_t kid_subsets, kid_subset_size; /* (100 of 1000) */
    int64_t bootstrap;                    /* resamplings for the 95 % interval of FID; 0: none */
    int64_t reserved[4];                  /* 0; for what options will hold */
    nl_sampling sampling;                 /* of the model; last, so that it can grow */
} nl_evaluation_options;

typedef struct nl_metric_value {
    bool known; /* computed */
    double value;
    double deviation;  /* over the parts, of IS and KID; of the bootstrap, of FID */
    int64_t parts;     /* splits of IS, subsets of KID; 1: there is no deviation */
    int64_t part_size; /* pictures of a subset of KID */
    double low, high;  /* of the bootstrap: a 95 % interval; both 0: none */
    char missing[256]; /* why it is not known; "" when it was not asked for */
} nl_metric_value;

typedef struct nl_evaluation {
    nl_metric_value metrics[NL_METRICS];
    int64_t samples, reference; /* pictures; reference 0: statistics only */
    bool small;       /* the covariance of the samples or the reference has not full rank */
    int64_t repeated; /* samples that are there before, byte for byte */
    int64_t copied;   /* samples that are pictures of the reference, byte for byte */
    struct {
        double samples, reference, metrics;
        double first_batch; /* of those of the samples, until the first was with the network: a GPU
                               loads kernels and makes plans for it */
    } seconds;
    /* what the numbers depend on */
    const char *features, *preset, *preprocessing, *precision; /* in words; they stay */
    char weights[1024], weights_sha256[65];
    char reference_sha256[65]; /* "" of a folder */
    int64_t evaluations;       /* of the network, for all samples of a model; 0: of files */
} nl_evaluation;

/* Measures pictures against others. The context's dtype has to be "f32"; a model on a GPU has a context of its own where
 * its dtype is another. Progress has the stages "samples", "reference", "bootstrap", "FID-infinity" (image of images) and
 * "metrics". What weights or reference cannot give is named in `missing` and the rest computed; NL_ERROR_INPUT: there is no
 * rest. */
NL_API nl_status nl_evaluate(nl_context *context, const nl_evaluation_options *options,
                             nl_evaluation *evaluation);

/* ---- 6. Training -------------------------------------------------------------------------- */

/* NL_INIT, then nl_train_recipe, which sets what is in brackets. */
typedef struct nl_train_options {
    size_t size;
    /* The model: a name such as "NaLaSiT-S/2" (size, channels and classes follow from the data), or a
     * checkpoint whose weights come first (its own model when `model` is NULL); a JSON file of
     * configuration over it, or that JSON itself ("{...}"), or NULL. */
    const char *model, *init, *config;
    /* Folders: data sets that `nalagen encode` has made, to train on and held out (or NULL); the run's. */
    const char *data, *validation, *out;
    /* Distillation into a flow map (docs/training.md): the model is the teacher's, a SiT that predicts the
     * velocity on the linear path, and starts with its weights; NULL: ordinary training. Its guidance,
     * from now on inside the weights (1: none), and where that acts; first blocks that see t (0: two
     * thirds); least alpha (0.02, say; 0: ordinary training) and a number of the
     * adaptive loss (0.001). */
    const char *teacher;
    double guidance, guidance_interval[2];
    int64_t teacher_samples; /* its own, drawn to learn from where `data` is NULL */
    int64_t flow_map;
    double alpha_floor, adaptive;
    /* "auto": from the newest checkpoint in `out`, if there is one; "none"; a checkpoint (auto). */
    const char *resume;
    /* How long; what is 0 does not end the run. */
    int64_t steps, epochs;
    double minutes;

    /* A step: its samples, of all processes together (256), and the parts that a process takes its own
     * in (1); less memory for a third more work. */
    int64_t batch, accumulate;
    bool checkpointing;
    /* AdamW: learning rate (1e-4), beta (0.9, 0.999), epsilon (1e-8), decay of weights (0), largest norm
     * of the gradient (0: any). */
    double rate, beta1, beta2, epsilon, decay, clip;
    /* "constant", "cosine", "cooldown" (constant); part of the run that cools down (0.2); where both end,
     * as a part of `rate` (0); steps of a linear start (0). */
    const char *schedule;
    double cooldown, last_rate;
    int64_t warmup;
    /* s: NaLa's query rows start s times as large and learn at s times the rate (1). Adam makes that the
     * training of a model whose exponent is lambda (tau + tanh(s |q|)). */
    double query_scale;
    /* Decays of moving averages, "0.9999,0.999" (auto): the first is the model's; each at most
     * (1 + step) / (10 + step). "power:0.1": an average whose width is that part of the run. "auto": 0.9999
     * with ema_warmup. */
    const char *ema;
    bool ema_warmup;

    /* The loss. Times: "uniform", "logit-normal" (uniform), of a normal (0, 1). Weighting: "none",
     * "velocity", "likelihood", "min-snr" (none), the latter's gamma (5). */
    const char *times;
    double times_mean, times_deviation;
    const char *weighting;
    double min_snr;
    double dropout; /* part of the hidden layers of MLPs that is dropped (0) */
    /* Part of samples without their class; negative: the configuration's (-1). */
    double label_dropout;
    bool no_flip;    /* no mirrored pictures */
    uint64_t seed;   /* of weights, order, noise, times, dropout */
    int64_t overfit; /* the first so many samples alone; 0: all */

    /* What is said and kept, in steps; 0: never. Negative (-1): by the length of the run, at most
     * 100, 5000, 10000, 5000. */
    int64_t log_every, validate_every, sample_every, save_every;
    int64_t validation_count; /* samples; 0: all; more: again, at other times with other noise */
    int64_t keep;             /* newest checkpoints; 0: all (3) */
    int64_t samples;          /* pictures of a grid (16) */
    int64_t sample_steps;     /* 0: the sampler's default */
    double cfg_scale;         /* of grids; 0 or less: the model's default */
    const char *vae;          /* of grids; "none"; NULL: the model's own */
    int64_t max_skipped; /* steps in a row that are not finite, before the run is given up (10) */
    int64_t dump;        /* steps whose samples are written down, for comparison with other code */
    bool dry_run, profile; /* say what the run takes, or where the time goes; write nothing */
    const char *record;    /* JSON of the options, for config.json; or NULL */
    /* Steps between snapshots of the averages of power functions (0: none), from which `nalagen average` makes
     * others; where `ema` has none, power:0.05 and power:0.1 are kept beside it. As many stay at most (32). */
    int64_t snapshot_every, snapshots;
    /* The run ends after so many validations without a better one (0: it does not), and its model is the
     * average that had the best. */
    int64_t patience;
    /* Distribution matching in a distillation (docs/training.md): weight of its term (0: none), the part of the run that
     * lies before it (0.5), the teacher's guidance in it (0: `guidance`); learning rate of the fake (0: `rate`), and its
     * updates for each of the student's (3). In brackets: what `nalagen distill` has. */
    double match, match_from, match_guidance;
    double fake_rate;
    int64_t fake_updates;
    /* The teacher's internal guidance, as nl_sampling.internal_guidance; the student keeps the middle head and has it inside. */
    double internal_guidance;
    /* Part of each class' pictures, to 0.5, that `data` keeps from training and that is validated on in place of
     * `validation` (0: none). */
    double hold_out;
    /* A distillation whose student has another network: configuration over the teacher's, as `config`. Without `flow_map` the
     * student is an ordinary model that learns the teacher's predictions on `data`; guidance has then to be 1, or what
     * `nalagen distill` has. NULL: the teacher's network. */
    const char *student_config;
    /* Beside distribution matching: weight of the adversarial term, whose discriminator is the fake's middle head (0: none);
     * of a student with a middle head, from whole pictures. */
    double adversarial;
    /* Distribution matching of the one jump from noise to data, and no target beside it: the student makes its pictures in one
     * step and in no other way. Its teacher may be a flow map. */
    bool one_step;
} nl_train_options;

/* After NL_INIT: the public recipe. */
NL_API void nl_train_recipe(nl_train_options *options);

typedef struct nl_training {
    int64_t step;      /* steps done of the whole run, those of earlier calls included */
    int64_t steps;     /* of the whole run; 0: not known */
    int64_t images;    /* samples trained on so far */
    int64_t skipped;   /* steps that were not finite and changed nothing */
    double loss;       /* of the last step of this call that was finite; NaN: there was none */
    double validation; /* the last validation loss of this call; NaN: there was none */
    char model[1024];  /* path of the model, which nl_model_load takes; "": the run is not over */
    int64_t best_step; /* with patience: where the validation loss was best; 0: not known */
} nl_training;

/* Trains until the run is over, or resumes the run in options->out: bit by bit the one that was not stopped. nl_cancel,
 * or a progress callback that returns false, stops it: it is saved, and NL_CANCELLED returned. Progress has the stage
 * "training" (step of steps, image of images). training: filled in as far as the run came, also after a failure; or NULL. */
NL_API nl_status nl_train(nl_context *context, const nl_train_options *options,
                          nl_training *training);

#ifdef __cplusplus
}
#endif
#endif
