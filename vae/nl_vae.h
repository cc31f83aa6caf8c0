/* SPDX-License-Identifier: MIT */
/*
 * Autoencoders between pictures and latents: "tiny" (TAESD's layout), "kl" (AutoencoderKL, the Stable
 * Diffusion VAE) and "none" (pixel-space models: latents are pixels in [-1, 1]).
 * Source: docs/public-code.md D.
 */
#ifndef NL_VAE_H
#define NL_VAE_H

#include "nl_checkpoint.h"
#include "ops.h"

/* Of the Stable Diffusion VAE, where no configuration says another. */
#define NL_SD_LATENT_SCALE 0.18215

typedef enum nl_vae_kind { NL_VAE_KL, NL_VAE_TINY, NL_VAE_NONE } nl_vae_kind;

typedef struct nl_vae nl_vae;

/* Tells the kind from the tensors' names. A file may hold one half only (TAESD's come in two files: a
 * second checkpoint may be given, or NULL); the missing half is an error when it is first used. Names:
 * TAESD's with or without "encoder." / "decoder." in front; AutoencoderKL's in diffusers' and CompVis'
 * spelling. config.json in the same folder is used: groups of the norms, the attention in the middle; what it says
 * that nalagen does not have is refused by name. scale, shift: latent = scale * (encoded - shift). */
nl_status nl_vae_load(nl_device *device, const nl_checkpoint *checkpoint,
                      const nl_checkpoint *second, double scale, double shift, nl_vae **vae);
/* Whether the names are those of an autoencoder; nothing is said about completeness. */
bool nl_vae_recognizes(const nl_checkpoint *checkpoint);
/* Whether nl_vae_load would take the tensors, of what kind they are and how many parameters that
 * makes. Reads no numbers. */
nl_status nl_vae_fits(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                      nl_vae_kind *kind, int64_t *parameters);
/* Writes one file under the canonical names: those of diffusers' AutoencoderKL, which
 * load_state_dict takes, or TAESD's with "encoder." and "decoder." in front. Matrices and kernels
 * as matrix_dtype (F32, BF16, F16, I8 with row scales, or NL_DTYPE_COUNT: as they are), vectors
 * F32. Tensor by tensor. diffusers: the tiny one under the names of diffusers' AutoencoderTiny, which has no int8. */
nl_status nl_vae_convert(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                         const char *path, bool overwrite, nl_dtype matrix_dtype, bool diffusers);
/* Allocated: config.json of diffusers' AutoencoderKL or AutoencoderTiny. NL_ERROR_INPUT for half of an autoencoder. */
nl_status nl_vae_diffusers_config(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                                  char **json);
/* "none": decode and encode pass pixels through. */
nl_status nl_vae_none(nl_device *device, nl_vae **vae);
void nl_vae_destroy(nl_vae *vae);

/* How latents of this autoencoder are scaled: by scaling_factor and shift_factor of its config.json; without one as
 * the Stable Diffusion VAE's or TAESD's. NL_ERROR_INPUT where neither can be known: other channels than 4, no config.json. */
nl_status nl_vae_latent_scale(const nl_vae *vae, double *scale, double *shift);
/* Whether config.json says so. */
bool nl_vae_says_scale(const nl_vae *vae);
/* In place of what nl_vae_load was given; scale is finite and not 0. */
void nl_vae_set_scale(nl_vae *vae, double scale, double shift);

nl_vae_kind nl_vae_get_kind(const nl_vae *vae);
int nl_vae_factor(
    const nl_vae
        *vae); /* pixels for one latent: 2^(levels - 1), 8 in Stable Diffusion; 1 for none */
int nl_vae_latent_channels(const nl_vae *vae); /* 4, 16, ..., or 3 */

/* Both on the device. rgb [B, H, W, 3] in [-1, 1] nominally (decode does not clamp); latents [B, C, h, w].
 * `device` is the vae's own or a measuring one; activations come from its arena.
 * KL: decode starts at latents / scale + shift; encode yields the posterior's mean (or, when `logvar` is not
 * NULL, mean and log variance [B, C, h, w], both unscaled and
 * before the public code's clamp of the log variance to [-30, 20]). */
nl_status nl_vae_decode(const nl_vae *vae, nl_device *device, const nl_tensor *latents,
                        const nl_tensor *rgb);
nl_status nl_vae_encode(const nl_vae *vae, nl_device *device, const nl_tensor *rgb,
                        const nl_tensor *latents, const nl_tensor *logvar);

/* The same for pictures of any size on the host, in batches and overlapping tiles that fit the memory left:
 * latents [count, C, h, w] -> rgb [count, h f, w f, 3] uint8 (trunc(127.5 x + 128)). A picture that fits is
 * decoded whole (without a budget: one that takes at most 4 GiB); otherwise tiles are blended with a linear
 * ramp so that seams do not show. */
nl_status nl_vae_decode_pictures(nl_vae *vae, const float *latents, int64_t count, int64_t height,
                                 int64_t width, uint8_t *rgb);
/* The same with trunc(127.5 x + shift). */
nl_status nl_vae_decode_rounded(nl_vae *vae, const float *latents, int64_t count, int64_t height,
                                int64_t width, float shift, uint8_t *rgb);
nl_status nl_vae_encode_pictures(nl_vae *vae, const uint8_t *rgb, int64_t count, int64_t height,
                                 int64_t width, float *latents);

/* ---- Samples for training: pictures of one size in uint8 [count, h f, w f, 3] to [count, K, h, w] floats, whole
 * and in batches that fit the memory left; the result does not depend on the batch. KL: mean and log
 * variance, K = 2 C, as nl_vae_encode gives them; tiny: K = C, scaled as the autoencoder was loaded. */
int nl_vae_sample_channels(const nl_vae *vae); /* K */
/* Pictures at once; handing over multiples of it wastes nothing. */
nl_status nl_vae_encode_batch(const nl_vae *vae, int64_t height, int64_t width, int64_t *batch);
nl_status nl_vae_encode_samples(const nl_vae *vae, const uint8_t *rgb, int64_t count,
                                int64_t height, int64_t width, float *samples);

#endif
