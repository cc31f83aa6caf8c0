/* SPDX-License-Identifier: MIT */
/* The parameter table, apart from the model that fills and runs it. */
#ifndef NL_PARAMS_H
#define NL_PARAMS_H

#include "nl_dit.h"

/* Lists dit->params by dit->config, each pointing at its tensor in *dit, which gets type and shape
 * but no memory. */
nl_status nl_params_list(nl_dit *dit);
/* Places all parameters and the position table in dit->storage, which it allocates. */
nl_status nl_params_place(nl_dit *dit);

/* Whether it is a part of dit->adaln_weight or adaln_bias. */
bool nl_param_is_adaln(const nl_param *param);

/* The table while it is written: for the branches of a block (network.h). */
typedef struct nl_param_list {
    nl_dit *dit;
    char prefix[32]; /* "blocks.3." */
    int block;       /* of these */
} nl_param_list;

/* Take the next rows. A product's weight [rows, columns] and bias, tensors[0] and [1]: */
void nl_add_linear(nl_param_list *list, nl_tensor *tensors, nl_init init, int64_t rows,
                   int64_t columns, const char *name);
/* A depthwise convolution's weight [channels, 1, side, side] and bias, tensors[0] and [1]: */
void nl_add_depthwise(nl_param_list *list, nl_tensor *tensors, nl_init init, int64_t channels,
                      int64_t side, const char *name);
/* A product's weight without a bias, of several products of x one under the other: rows of each, ended by 0. */
void nl_add_parts(nl_param_list *list, nl_tensor *tensor, const int64_t *parts, int64_t columns,
                  const char *name);
void nl_add_vector(nl_param_list *list, nl_tensor *tensor, nl_init init, int64_t size,
                   const char *name);
/* A vector of one value. */
void nl_add_value(nl_param_list *list, nl_tensor *tensor, double value, int64_t size,
                  const char *name);

/* branch.c. What the names in a file tell; the first of the list when they tell nothing. */
nl_attention nl_told_mixer(const nl_checkpoint *checkpoint);
nl_mlp nl_told_mlp(const nl_checkpoint *checkpoint);

/* dit.c. nl_dit_create, or a twin (flat): all F32 in one array. */
nl_status nl_dit_create_as(nl_device *device, const nl_config *config, bool flat, nl_dit **dit);

/* Host memory for one parameter on its way to or from a device. */
typedef struct nl_staging {
    nl_context *context;
    int64_t count; /* elements of the largest parameter */
    float *values; /* [count] */
    void *packed;  /* the same in another type */
    float *scale;  /* factors of the rows of that, in F8 */
} nl_staging;

/* After a failure too, nl_staging_close is due. */
nl_status nl_staging_open(const nl_dit *dit, nl_staging *staging);
void nl_staging_close(nl_staging *staging);
/* staging->values to a tensor of the device, in its type, and back. Both wait. */
nl_status nl_staging_upload(nl_device *device, const nl_tensor *tensor, nl_staging *staging);
nl_status nl_staging_download(nl_device *device, const nl_tensor *tensor, nl_staging *staging);

/* save.c, dit.c. Names every tensor that is missing, misshapen or not expected; reads no numbers.
 */
nl_status nl_dit_check(const nl_dit *dit, const nl_checkpoint *checkpoint);

/* checkpoint->spelling: what the file calls its tensors, or does with time. */
extern const char nl_spelling_diffusers[], nl_spelling_repa[];
/* LightningDiT's networks, with rotary positions or without. */
extern const char nl_spelling_lightning[], nl_spelling_lightning_rope[];
extern const char nl_spelling_dig[]; /* DiG's blocks */

/* lightning.c: the tables of rotary positions are checked and left out; others stay as they are. */
nl_status nl_lightning_read(nl_checkpoint *checkpoint);

/* repa.c: a checkpoint of REPA becomes one of a SiT; others stay as they are. */
nl_status nl_repa_turn(nl_checkpoint *checkpoint);

/* Its numbers as floats of the checkpoint's own, to be changed. */
nl_status nl_take_values(nl_checkpoint *checkpoint, nl_entry *entry, float **values);

/* dig.c: a checkpoint of DiG becomes one of a GLADiT; others stay as they are. */
nl_status nl_dig_turn(nl_checkpoint *checkpoint);

/* ---- names.c: how diffusers spells the parameter with this name. */

enum { NL_NAME_SIZE = 128 };

/* How many tensors its rows are divided into; 0: diffusers has no such parameter. */
int nl_diffusers_parts(const char *name);
/* Whether every block has a copy of it. */
bool nl_diffusers_copied(const char *name);
/* The name of one of them, "" when there is none; `block` counts the copies. */
void nl_diffusers_name(const char *name, int part, int block, char text[NL_NAME_SIZE]);

/* ---- config_hints.c: what a file that is not ours says about itself apart from its tensors: a
 * training run's arguments, diffusers' config.json, the spelling of the names. *source: which of
 * them named the architecture, or NULL. */
nl_status nl_config_hints(const nl_checkpoint *checkpoint, nl_config *config, const char **source);

#endif
