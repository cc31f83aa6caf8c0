/* SPDX-License-Identifier: MIT */
/*
 * An autoencoder as data: each half is a list of layers, each layer a row of parameters. The list is
 * built from the file's names and shapes (tiny.c, kl.c), filled by load.c and run by layers.c.
 */
#ifndef NL_VAE_LAYERS_H
#define NL_VAE_LAYERS_H

#include "nl_json.h"
#include "nl_vae.h"

typedef enum nl_vae_half { NL_VAE_ENCODER, NL_VAE_DECODER, NL_VAE_HALVES } nl_vae_half;

typedef enum nl_layer_kind {
    NL_LAYER_CONV,
    NL_LAYER_ACTIVATE,
    NL_LAYER_NORM,      /* SiLU(GroupNorm(x)) */
    NL_LAYER_BLOCK,     /* TAESD: relu(conv(relu(conv(relu(conv(x))))) + x) */
    NL_LAYER_RESNET,    /* AutoencoderKL: shortcut(x) + conv(silu(norm(conv(silu(norm(x)))))) */
    NL_LAYER_ATTENTION, /* one head over all pixels, with its norm and residual */
    NL_LAYER_KINDS
} nl_layer_kind;

/* The Stable Diffusion VAE's, which files without config.json are taken to have. */
enum { NL_SD_GROUPS = 32, NL_SD_LATENT_CHANNELS = 4 };

enum { NL_LAYER_PARAMETERS = 10, NL_VAE_NAME_SIZE = 128 };

typedef struct nl_vae_layer {
    nl_layer_kind kind;
    char name[64];   /* canonical: "decoder.up_blocks.0.resnets.1" */
    int64_t in, out; /* channels */
    int kernel, stride;
    int groups;                /* of its norms */
    int pad_before, pad_after; /* rows above and columns to the left; below and to the right */
    bool doubled;              /* a convolution of the picture twice as high and wide */
    bool
        leaves_sum; /* the sum that it ends with is left to the norm that the next layer begins with */
    bool bias;
    nl_activation activation;
    nl_tensor
        parameters[NL_LAYER_PARAMETERS]; /* on the device; in the order of nl_vae_parameters */
} nl_vae_layer;

typedef struct nl_vae_network {
    nl_vae_layer *layers;
    int count, capacity; /* count 0: this half is not in the file */
} nl_vae_network;

struct nl_vae {
    nl_device *device;
    nl_vae_kind kind;
    char *path; /* of the first file, for messages */
    double scale, shift;
    /* of config.json, or as the Stable Diffusion VAE has it; NAN: it says no scale, no shift */
    double said_scale, said_shift;
    double *latent_mean, *latent_std; /* of each channel; NULL: none */
    int groups;
    bool mid_attention;
    int factor;
    int64_t latent_channels;
    nl_vae_network halves[NL_VAE_HALVES];
    void *weights; /* every parameter, one allocation on the device */
    int64_t weight_bytes;
};

/* ---- layers.c */

/* Appends a layer of stride 1 with the usual padding; the caller changes what is special. */
nl_status nl_vae_add_layer(nl_context *context, nl_vae_network *network, nl_layer_kind kind,
                           int64_t in, int64_t out, int kernel, nl_vae_layer **layer,
                           const char *name, ...) NL_PRINTF(8, 9);

/* A parameter of a layer as it stands in a file. */
typedef struct nl_vae_parameter {
    char name[NL_VAE_NAME_SIZE]; /* canonical */
    int ndim;
    int64_t shape[4];
    int index;       /* in nl_vae_layer.parameters */
    int part, parts; /* which of `parts` equal row blocks of that tensor (q, k, v of one matrix) */
    bool matrix;     /* stored in the device's type for matrices, otherwise F32 */
} nl_vae_parameter;

enum { NL_VAE_LAYER_ROWS = 10 };
/* The parameters of one layer, in file order; returns their number. */
int nl_vae_parameters(const nl_vae_layer *layer, nl_vae_parameter rows[NL_VAE_LAYER_ROWS]);

/* Activations NHWC in three slots of the arena that the layers take turns in. */
typedef struct nl_vae_run {
    nl_device *device;
    void *slots[3];
    int current; /* the slot that holds x */
    int64_t batch, height, width, channels;
    /* What is still to be added to x: the slot of a branch (-1: none) and a bias (without data: none). */
    int branch;
    nl_tensor addend;
} nl_vae_run;

/* Finds out which layers may leave their sum to the next one; once the list is complete. */
void nl_vae_leave_sums(nl_vae_network *network);
/* Bytes that one picture of height x width at the first layer needs in each slot. */
int64_t nl_vae_slot_bytes(const nl_vae_network *network, const nl_device *device, int64_t height,
                          int64_t width);
/* x, or slot `ahead` steps after it, as [B, H, W, C] of the run's present size. */
nl_tensor nl_vae_run_tensor(const nl_vae_run *run, int ahead, int64_t channels);
nl_status nl_vae_run_layer(nl_vae_run *run, const nl_vae_layer *layer);
/* y = scale x + shift element by element; of as many elements, in the order in which they lie, each of its own type. */
nl_status nl_vae_affine(nl_device *device, const nl_tensor *x, double scale, double shift,
                        const nl_tensor *y);

/* ---- names.c: every spelling to one. Canonical are diffusers' names for AutoencoderKL and TAESD's
 * own with "encoder." or "decoder." in front for the tiny one. */

typedef struct nl_vae_spelling {
    nl_vae_kind kind;
    const char *prefix; /* "first_stage_model." or "" */
    nl_vae_half bare;   /* tiny: the half that names without a half belong to */
    int up_levels;      /* CompVis counts decoder.up from the picture, diffusers from the latent */
} nl_vae_spelling;

/* false: not an autoencoder that we know. */
bool nl_vae_find_spelling(const nl_checkpoint *checkpoint, nl_vae_spelling *spelling);
/* false: a tensor that belongs to something else in the same file. A name that fits no rule is
 * returned as it is (cut to size), to be reported as unexpected. */
bool nl_vae_canonical_name(const nl_vae_spelling *spelling, const char *name,
                           char canonical[NL_VAE_NAME_SIZE]);

/* ---- load.c: the tensors of one or two files under their canonical names. */

typedef struct nl_vae_item {
    char name[NL_VAE_NAME_SIZE];
    const nl_checkpoint *checkpoint;
    const nl_entry *entry;
    bool used;
} nl_vae_item;

typedef struct nl_vae_inventory {
    nl_vae_item *items; /* sorted by name */
    int64_t count;
} nl_vae_inventory;

nl_vae_item *nl_vae_find_item(const nl_vae_inventory *inventory, const char *format, ...)
    NL_PRINTF(2, 3);
/* Size `axis` of a tensor, 0 when there is no such tensor or axis. */
int64_t nl_vae_item_size(const nl_vae_inventory *inventory, int axis, const char *format, ...)
    NL_PRINTF(3, 4);

/* The autoencoder without its weights (a device is needed when they come), every tensor accounted
 * for by name and shape. The caller frees inventory->items. */
nl_status nl_vae_describe(nl_device *device, const nl_checkpoint *const checkpoints[2],
                          nl_vae_inventory *inventory, nl_vae **vae);

/* config.c: what the checkpoint's config.json says, into the fields for it; the kind is known. Then, once the layers
 * are, what it says of each channel. */
nl_status nl_vae_read_config(const nl_checkpoint *checkpoint, nl_vae *vae);
nl_status nl_vae_read_stats(const nl_checkpoint *checkpoint, nl_vae *vae);
/* Allocated: what config.json, or the file beside the autoencoder, said that nobody would assume of its tensors, as a
 * config.json; NULL: nothing. */
nl_status nl_vae_said(const nl_vae *vae, char **json);

/* latent_stats.c: what config.json, or latents_stats.pt beside the file, says of each channel of the latent; layers and
 * channels are known. */
nl_status nl_vae_stats_of_config(const nl_json *json, nl_vae *vae);
nl_status nl_vae_stats_of_file(nl_vae *vae);
/* The values of a parameter as they stand in the file become those that normalise. */
nl_status nl_vae_fold_stats(const nl_vae *vae, const nl_vae_layer *layer,
                            const nl_vae_parameter *parameter, const nl_vae_inventory *inventory,
                            float *values);

/* Both halves, when there are two, must agree. */
void nl_vae_set_geometry(nl_vae *vae, int factor, int64_t latent_channels, nl_problems *problems);

/* ---- tiny.c, kl.c: the layers of a half, none when the inventory has nothing of it. */

nl_status nl_vae_tiny_network(nl_vae *vae, nl_vae_half half, const nl_vae_inventory *inventory,
                              nl_problems *problems);
nl_status nl_vae_kl_network(nl_vae *vae, nl_vae_half half, const nl_vae_inventory *inventory,
                            nl_problems *problems);

#endif
