/* SPDX-License-Identifier: MIT */
/*
 * nalagen: class-conditional image generation with DiT, SiT, NaLaDiT and NaLaSiT.
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
} nl_progress;

typedef struct nl_context_options {
    size_t size;
    const char *device; /* "auto" (NULL), "cpu", "cuda", "cuda:1", "reference" (slow, for tests) */
    const char *dtype;  /* arithmetic of matrix products: "auto" (NULL), "f32", "bf16" */
    int threads;        /* of the CPU; 0: all that this process may use (see below) */
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
    const char *path;           /* checkpoint: safetensors, torch's .pt or a folder of diffusers;
                                 NULL: the model that ships */
    const char *config_path;    /* JSON that replaces the checkpoint's own configuration, or NULL */
    const char *architecture;   /* "DiT", "SiT", "NaLaDiT", "NaLaSiT"; for files that do not say */
    const char *transport_path; /* "linear", "gvp", "vp", or NULL */
    const char *prediction;     /* "velocity", "noise", "score", or NULL */
    const char *vae;            /* autoencoder file, "none" (latents only), or NULL: the model's */
    int height, width;          /* of the picture in pixels; 0: the model's own size */
    const char *key; /* dict of a training checkpoint, "ema" or "model"; NULL: the best */
} nl_model_options;

NL_API nl_status nl_model_load(nl_context *context, const nl_model_options *options,
                               nl_model **model);
NL_API void nl_model_destroy(nl_model *model);

/* The model's configuration as JSON text (docs/formats.md, Configuration). Owned by the model. */
NL_API const char *nl_model_config(const nl_model *model);
/* sha256 of the checkpoint file in hexadecimal (computed on first use). Owned by the model. */
NL_API nl_status nl_model_sha256(nl_model *model, const char **hex);
/* Index of a class given as "17", "n03028079" or "church". */
NL_API nl_status nl_model_class(nl_model *model, const char *text, int *index);

/* ---- 4. Pictures -------------------------------------------------------------------------- */

typedef struct nl_sampling { /* cleared: the model's defaults */
    size_t size;
    const char *sampler;   /* ddpm ddim euler midpoint heun heun2 rk4 dopri5 sde-euler sde-heun flow;
                            NULL: the model's default */
    int64_t steps;         /* steps taken; 0: the sampler's default */
    const char *respacing; /* DDPM/DDIM: "250", "ddim50", or NULL: from steps */
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
    bool clip_denoised;    /* DDPM/DDIM: clamp the predicted x_0 to [-1, 1] (pixel-space models) */
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
    int64_t reserved[4];  /* 0; for what a request will hold */
    nl_sampling sampling; /* last, so that it can grow */
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

#ifdef __cplusplus
}
#endif
#endif
