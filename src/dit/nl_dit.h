/* SPDX-License-Identifier: MIT */
/*
 * The backbone: DiT, SiT and their NaLa twins are one transformer (docs/formats.md), written once in terms of
 * operations. Source: docs/public-code.md A and B, docs/nala-attention.md.
 */
#ifndef NL_DIT_H
#define NL_DIT_H

#include "nl_config.h"
#include "ops.h"

/* ---- The parameter table: one list that yields name, shape, initial value and place of every parameter.
 * Reading, writing, initialising, counting, EMA and AdamW walk it. */

typedef enum nl_init {
    NL_INIT_ZERO,
    NL_INIT_ONE,
    NL_INIT_XAVIER,       /* uniform, fan in and out of the [rows, rest] view */
    NL_INIT_NORMAL_002,   /* N(0, 0.02^2) */
    NL_INIT_LEPE,         /* torch's Conv2d default: uniform within 1 / sqrt(fan in) */
    NL_INIT_MIX,          /* the same of 3 x 3 */
    NL_INIT_XAVIER_SMALL, /* XAVIER of each of a weight's parts, times 2^-2.5 (GLA) */
    NL_INIT_IDENTITY,     /* of a depthwise convolution: 1 in the middle; its bias 0 */
    NL_INIT_VALUE         /* the parameter's `value` */
} nl_init;

enum { NL_PARAM_PARTS = 6 };
typedef struct nl_param {
    char name[96]; /* the public name: "blocks.3.attn.qkv.weight" */
    int ndim;
    int64_t shape[NL_MAX_DIMS];
    nl_init init;
    float value; /* of VALUE */
    bool
        matrix; /* weight of a matrix product: stored in the device's dtype (its bias in the device's
                       activation type); others are F32 */
    bool decay;                    /* takes weight decay when there is any */
    int64_t parts[NL_PARAM_PARTS]; /* rows of each product in a weight, ended by 0; none: one */
    int64_t query_rows;            /* rows at its beginning that make the queries of NaLa */
    float *row_norm;               /* in nl_block_params.row_norms, or NULL */
    nl_tensor *tensor;             /* where it lives in the model */
} nl_param;

/* A block is two branches beside the residual stream: each takes the normalised stream and adds its output to it. */
enum { NL_BRANCH_MIXER, NL_BRANCH_MLP, NL_BRANCHES };
enum { NL_BRANCH_PARAMS = 14 }; /* at most, in one branch */

typedef struct nl_block_params {
    int first;                                         /* its first row in the table */
    nl_tensor branches[NL_BRANCHES][NL_BRANCH_PARAMS]; /* as the file of each numbers them */
    nl_tensor norms[NL_BRANCHES];                      /* [D], of RMS */
    /* With --dtype fp8, of each parameter of a branch the largest 2-norm of a row (of a vector, of an element). */
    float row_norms[NL_BRANCHES][NL_BRANCH_PARAMS];
    nl_tensor dw_conv[2];               /* with dw_conv: weight [D, 1, 3, 3] and bias [D] */
    nl_tensor adaln_weight, adaln_bias; /* [6D, D]: views of nl_dit.adaln_weight */
} nl_block_params;

/* What makes a prediction of the stream. */
typedef struct nl_head_params {
    nl_tensor weight, bias;             /* [patch_size^2 C_out, D] */
    nl_tensor adaln_weight, adaln_bias; /* [2D, D]: views of nl_dit.adaln_weight */
    nl_tensor norm;                     /* [D], of RMS */
} nl_head_params;

typedef struct nl_dit {
    nl_device *device;
    nl_config config;
    bool flat; /* a twin: nl_dit_train.h */
    nl_tensor patch_weight, patch_bias;
    nl_tensor time_weight[2], time_bias[2];
    nl_tensor label_table;
    nl_tensor crop_weight; /* F32 [D, NL_CROP_NUMBERS], with crop_conditioning */
    nl_block_params *blocks;
    nl_tensor adaln_weight,
        adaln_bias; /* of all blocks, the head and the middle one: [(6 depth + 2 or 4) D, D] */
    nl_head_params head, middle; /* the latter with middle_head */
    nl_tensor position;          /* [T, D], computed for the grid in double, rounded to float */
    nl_tensor rope; /* [T, d] of softmax with rope: cosines and sines of the angles; or empty */
    int param_count;
    nl_param *params;
    void *storage; /* one allocation on the device holds all parameters */
    int64_t storage_bytes;
} nl_dit;

/* A model of this configuration (copied) with uninitialised parameters. */
nl_status nl_dit_create(nl_device *device, const nl_config *config, nl_dit **dit);
void nl_dit_destroy(nl_dit *dit);

/* Fills the parameters. Strict: every missing, unexpected or misshaped tensor is named. */
nl_status nl_dit_load(nl_dit *dit, const nl_checkpoint *checkpoint);
/* The recipe's initial weights by nl_random (docs/public-code.md A3, Init). */
nl_status nl_dit_initialize(nl_dit *dit, uint64_t seed);
/* From now on nobody writes the parameters: a back end may keep copies of them (kernels/frozen.h). Not for those that are
 * trained. */
nl_status nl_dit_freeze(nl_dit *dit);
/* Writes the parameters as safetensors with the configuration as metadata. matrix_dtype: F32, BF16, F16,
 * or I8 with row scales (then small tensors, embeddings and the head stay BF16). */
nl_status nl_dit_save(const nl_dit *dit, const char *path, bool overwrite, nl_dtype matrix_dtype);

/* ---- Files of other programs */

/* Opens a checkpoint of a backbone (see nl_checkpoint_open_key; without a key the averages "ema." of a
 * training checkpoint), its entries under the names of the
 * parameter table whatever the file calls them: public DiT and SiT, or diffusers'
 * DiTTransformer2DModel. */
nl_status nl_dit_open(nl_context *context, const char *path, const char *key,
                      nl_checkpoint **checkpoint);
/* The same of a file's bytes (nl_checkpoint_open_memory). */
nl_status nl_dit_open_memory(nl_context *context, const char *name, const void *data, int64_t size,
                             nl_checkpoint **checkpoint);
/* Whether pos_embed, when the file has one, is a table of its own and no table of sines and cosines:
 * config->stored_position. nl_config_from_checkpoint asks where the file has no configuration. */
nl_status nl_config_read_position(const nl_checkpoint *checkpoint, nl_config *config);
/* The second half of that, for a checkpoint that is open already. */
nl_status nl_dit_rename(nl_checkpoint *checkpoint);

typedef enum nl_dit_spelling {
    NL_SPELLING_NALAGEN, /* the parameter table's names; the configuration as metadata */
    NL_SPELLING_PUBLIC, /* the same and pos_embed: what load_state_dict of the public code expects */
    NL_SPELLING_DIFFUSERS /* DiTTransformer2DModel */
} nl_dit_spelling;

/* One file to another, tensor by tensor, without a model in memory. Strict like nl_dit_load.
 * matrix_dtype as in nl_dit_save (I8 only with our own names), or NL_DTYPE_COUNT: every tensor
 * keeps its type. */
nl_status nl_dit_convert(const nl_checkpoint *checkpoint, const nl_config *config, const char *path,
                         bool overwrite, nl_dtype matrix_dtype, nl_dit_spelling spelling);
/* Whether it would: nothing is written. path: for the message. */
nl_status nl_dit_convertible(const nl_checkpoint *checkpoint, const nl_config *config,
                             const char *path, nl_dtype matrix_dtype, nl_dit_spelling spelling);
/* Whether nl_dit_load would take the checkpoint's tensors for this configuration, and how many
 * parameters that are. */
nl_status nl_dit_fits(const nl_checkpoint *checkpoint, const nl_config *config,
                      int64_t *parameters);
/* The config.json that diffusers expects beside its file: allocated text. */
nl_status nl_dit_diffusers_config(nl_context *context, const nl_config *config, char **json);

int64_t nl_dit_parameter_count(const nl_dit *dit);
/* Multiply-adds of products and attention in one block, for one token. */
double nl_dit_block_work(const nl_config *config);

/* prediction = network(x, t, label), all on the device. Queues operations alone.
 *   x           [B, C, H, W]
 *   t           F32 [B], or [1] when all images share it; of a flow map (nl_config.flow_map) also [2, B] or [2, 1]: t, then
 *               the time s at which the step ends
 *   labels      I32 [B]; num_classes: the null class
 *   crop        F32 [B, NL_CROP_NUMBERS], or [1, NL_CROP_NUMBERS] when all images share it, of a network with
 *               crop_conditioning; NULL: the whole picture, as zeros
 *   prediction  [B, C_out, H, W] where C_out is C or, with learn_sigma, C or 2C: as many channels as the tensor has
 *   middle      as prediction, of the middle head (nl_config.middle_head); NULL: it is not asked, and what is predicted
 *               has the internal guidance of the configuration
 * Takes its activations from device's arena and gives them back; `device` is the model's own or a measuring one. */
nl_status nl_dit_forward(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                         const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                         const nl_tensor *prediction, const nl_tensor *middle);

/* Whether this scale of internal guidance is any. */
static inline bool nl_guides_inside(double internal_guidance)
{
    return internal_guidance != 0 && internal_guidance != 1;
}

/* With internal guidance (of a model with middle_head; 0 or 1: none): prediction = middle + internal_guidance (head -
 * middle). */
nl_status nl_dit_forward_guided(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                                const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                                double internal_guidance, const nl_tensor *prediction);

/* The same through nl_replay: what is called again and again with tensors at the same places. dit may be a copy with another
 * table of classes. */
nl_status nl_dit_replay(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                        const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                        double internal_guidance, const nl_tensor *prediction);

/* [rows * columns, D] position table into `table` (a model with stored_position has its own; docs/public-code.md A3). */
void nl_position_table(int64_t rows, int64_t columns, int64_t hidden_size, float *table);
/* [rows * columns, size] for the operation rope, as LightningDiT (EVA-02) has it: the first quarter of the angles by the row,
 * the second by the column; size a multiple of 4. */
void nl_rope_table(int64_t rows, int64_t columns, int64_t size, float *table);

#endif
