/* SPDX-License-Identifier: MIT */
/*
 * Training the backbone: the forward pass that keeps what the backward pass needs, the backward pass, and
 * twins of the parameter table in which the optimiser works.
 *
 * A twin holds one number for each parameter, F32, all in one flat array: gradients, master weights, Adam's
 * moments and moving averages are twins, and an operation over all parameters is one over flat arrays. Twins of
 * one configuration are laid out alike: parameters in the order of the table, each aligned to 256 bytes, the
 * adaLN weights and biases of all layers at the end. The gaps are 0 and stay so.
 */
#ifndef NL_DIT_TRAIN_H
#define NL_DIT_TRAIN_H

#include "nl_dit.h"

/* ---- Twins */

/* All zeros. Freed by nl_dit_destroy. A twin is no network: nl_dit_load, nl_dit_initialize and the functions
 * below take it, nl_dit_forward does not. */
nl_status nl_dit_create_flat(nl_device *device, const nl_config *config, nl_dit **twin);
/* [n] F32: the parameters with their gaps. */
nl_tensor nl_dit_flat(const nl_dit *twin);
/* Where each run of a twin's flat array goes in the model: for adamw. *segments is freed with nl_free; the
 * adamw operation wants a copy on the device. query_rate: the learning rate of NaLa's query rows, in those of all
 * others. */
nl_status nl_dit_segments(const nl_dit *dit, const nl_dit *twin, float query_rate,
                          nl_segment **segments, int *count);
/* Multiplies the rows of a twin that make NaLa's queries. Waits. */
nl_status nl_dit_scale_queries(nl_dit *twin, float scale);
/* The numbers of a model or twin into a twin or model, rounded where the target is BF16. Waits. */
nl_status nl_dit_copy(const nl_dit *from, nl_dit *to);

/* ---- Files of several models of one configuration: "blocks.0.mlp.fc1.weight" of the one with the prefix
 * "ema." stands there as "ema.blocks.0.mlp.fc1.weight". */

typedef struct nl_dit_named {
    const nl_dit *dit;
    const char *prefix; /* "" for none */
} nl_dit_named;

/* Safetensors, F32, one model after the other. metadata: pairs that end with NULL, beside the configuration of
 * the first model, which is there under "nalagen". */
nl_status nl_dit_save_named(const nl_dit_named *models, int count, const char *path, bool overwrite,
                            const char *const *metadata);
/* Fills the model from the tensors with the prefix; each must be there in its shape. Others are not looked at. */
nl_status nl_dit_load_named(nl_dit *dit, const nl_checkpoint *checkpoint, const char *prefix);

/* ---- Forward and backward */

/* What one branch of a block leaves for its backward pass; T tokens an image, D the hidden size. With checkpointing
 * only the block's input and its last output are kept: the rest is shared by all blocks and computed again. */
enum { NL_BRANCH_KEPT = 8 };
typedef struct nl_branch_saved {
    nl_tensor x;                    /* [B T, D] the stream, with the branch before added */
    nl_tensor kept[NL_BRANCH_KEPT]; /* the branch's own, as its file numbers them */
    nl_tensor out;                  /* [B T, D] what it adds to the stream */
} nl_branch_saved;

/* In `kept` of every mixer that attends. */
enum {
    NL_KEPT_QKV,       /* [B T, 3D or 4D] q k v (g) */
    NL_KEPT_ATTENTION, /* [B T, D] */
    NL_KEPT_RAW,       /* [B T, 2D] q k before their normalisation, with qk_norm */
    NL_KEPT_OWN        /* from here on its own */
};

typedef struct nl_block_saved {
    nl_branch_saved branches[NL_BRANCHES];
} nl_block_saved;

/* What kept[i] is, for messages: "queries, keys and values"; NULL beyond the last. */
const char *nl_branch_kept_name(const nl_config *config, int branch, int i);

/* What training drops at random from the MLPs' hidden layers; zeros: nothing. */
typedef struct nl_dropout {
    float probability;
    uint64_t seed;
    nl_tensor samples; /* [B] I64 on the device: numbers of the samples */
} nl_dropout;

typedef struct nl_dit_saved {
    bool checkpointing;
    nl_dropout dropout;
    int64_t batch;
    nl_tensor x, labels, crop; /* the caller's */
    /* One row for each time: B, or 2 B with a flow map's two. */
    nl_tensor time_features, time_pre, time_hidden; /* [B, 256], [B, D], [B, D] */
    nl_tensor c, silu_c;                            /* [B, D] */
    nl_tensor modulation;                           /* [B, (6 depth + 2 or 4) D] */
    nl_tensor last;         /* [B T, D]: the stream that the head normalises */
    nl_block_saved *blocks; /* [depth], on the host */
} nl_dit_saved;

/* nl_dit_forward with one time, or two, and one crop for each image (t [B] or [2, B]). What the backward pass needs
 * stays on the arena above the caller's mark; x, labels, crop and the numbers of the samples must live as long. dropout:
 * NULL for none. prediction NULL: the middle head alone is asked, and no block behind it. *saved, uninitialised before, is given back with nl_dit_saved_free (after a failure too), the arena by
 * the caller. */
nl_status nl_dit_forward_saving(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                                const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                                bool checkpointing, const nl_dropout *dropout,
                                const nl_tensor *prediction, const nl_tensor *middle,
                                nl_dit_saved *saved);
void nl_dit_saved_free(nl_device *device, nl_dit_saved *saved);

/* Called when the operations that complete gradients [first, first + count) of the flat array are queued:
 * the runs are disjoint and together are the whole array. */
typedef nl_status (*nl_gradients_ready)(void *user, int64_t first, int64_t count);

/* Adds the gradients of all parameters to the twin `gradients`, which belongs to `device` or is seen by a measuring one.
 * What was saved is used up. dmiddle: of the middle head, where the forward pass asked it, or NULL; as there. dprediction
 * NULL: nothing comes from the head, and blocks behind the middle head keep their gradients. dx: F32 as x,
 * overwritten, or NULL. ready may be NULL. */
nl_status nl_dit_backward(const nl_dit *dit, nl_device *device, const nl_dit_saved *saved,
                          const nl_tensor *dprediction, const nl_tensor *dmiddle, nl_dit *gradients,
                          const nl_tensor *dx, nl_gradients_ready ready, void *user);

#endif
