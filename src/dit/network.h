/* SPDX-License-Identifier: MIT */
/*
 * The network in parts. Its branches are numbered from 0 to 2 depth - 1, two for each block; each is
 *
 *     h = norm(x) (1 + scale) + shift;   out = branch(h);   x += gate out
 *
 * where the last sum is left to the operation that normalises x next: that of the following branch or of a head. The
 * head counts as number 2 depth, the middle one, which stands before branch 2 middle_head, as 2 depth + 1. forward.c
 * walks this list, once more for a block that is computed again, and backward.c walks it back. Passes differ in the
 * tensors that results go to (nl_branch_saved): kept ones, or room that is used again. What stands between h and out is
 * a struct nl_branch.
 */
#ifndef NL_NETWORK_H
#define NL_NETWORK_H

#include "nl_dit_train.h"
#include "params.h"

/* The pieces of a branch's modulation; heads have the first two. */
enum { NL_SHIFT, NL_SCALE, NL_GATE, NL_PIECES };

/* The residual stream and what a branch needs beside it; T tokens an image, D the hidden size. */
typedef struct nl_stream {
    const nl_dit *dit;
    nl_device *device;
    int64_t batch, tokens;
    nl_dropout dropout;
    bool keep;            /* for a backward pass: what it needs goes to tensors of its own */
    bool again;           /* only what the backward pass of a block needs is computed */
    nl_tensor x;          /* [B T, D] */
    nl_tensor out;        /* [B T, D]: output of the last branch, not yet added to x */
    nl_tensor h;          /* [B T, D] room: input of a branch */
    nl_tensor wide;       /* [B T, nl_wide_columns] room */
    nl_tensor spare;      /* [B T, D] room, with dw_conv */
    float *h_scale;       /* [B T] factors of h where that is F8 */
    nl_tensor narrow;     /* F8 [B T, nl_wide_columns] room, with --dtype fp8 */
    nl_tensor modulation; /* [B, (6 depth + 2 or 4) D] */
} nl_stream;

typedef struct nl_pass {
    const nl_dit *dit;
    nl_device *device;
    const nl_dit_saved *saved;
    nl_dit *gradients;
    nl_gradients_ready ready;
    void *user;
    const nl_tensor *dmiddle;    /* of the middle head's prediction, or NULL */
    int64_t batch, rows, tokens; /* B, B T, T */
    nl_tensor dx;                /* [B T, D] of the residual stream */
    nl_tensor dout;              /* [B T, D] of the branch that was added last */
    nl_tensor dh;                /* [B T, D] of the normalised input of a branch */
    nl_tensor h;                 /* [B T, D] that input once more */
    nl_tensor wide;              /* [B T, nl_wide_columns] room */
    nl_tensor dmodulation;       /* [B, (6 depth + 2 or 4) D] */
} nl_pass;

/* A branch at its place in the network. */
typedef struct nl_branch_at {
    int number;
    const nl_tensor *params, *gradients; /* [NL_BRANCH_PARAMS]; gradients in a backward pass */
    const float *row_norms;              /* nl_block_params.row_norms, in a forward pass */
    const nl_branch_saved *saved;
} nl_branch_at;

/* A kind of mixer or MLP. It begins with a product by a weight, params[0], and ends with one. */
typedef struct nl_branch {
    const char
        *told_by; /* "attn.qkv.weight": the tensor by which a block of a file shows its kind */
    const char *const *kept_names; /* of nl_branch_saved.kept, ended by NULL */
    int out_bias; /* the parameter that is the bias of its last product; one that is empty: none */
    void (*params)(nl_param_list *list, nl_tensor *params);
    /* Columns of `wide` that it uses, in either pass. */
    int64_t (*columns)(const nl_config *config);
    /* Where its tensors go: with stream->keep to the arena, otherwise to the stream's room. */
    nl_status (*room)(const nl_stream *stream, nl_tensor *kept);
    /* nl_branch_input(stream, params) becomes at->saved->out; with stream->again only what is kept. */
    nl_status (*forward)(nl_stream *stream, const nl_branch_at *at);
    /* From pass->dout to pass->dh, and all gradients but that of the first weight: *first says what is missing
     * there but h, which the normalisation makes once more, into tensors named by nl_pass_borrow. */
    nl_status (*backward)(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first);
    /* Multiply-adds for one token. */
    double (*work)(const nl_config *config);
} nl_branch;

#define NL_ROW(NAME, name, prefix) extern const nl_branch nl_mixer_##name;
NL_MIXERS(NL_ROW)
#undef NL_ROW
#define NL_ROW(NAME, name) extern const nl_branch nl_mlp_##name;
NL_MLPS(NL_ROW)
#undef NL_ROW

/* branch.c. kind: NL_BRANCH_MIXER or NL_BRANCH_MLP. */
const nl_branch *nl_branch_of(const nl_config *config, int kind);
int64_t nl_wide_columns(const nl_config *config);

/* Numbers of the heads, and their parameters in a model or twin. */
static inline int nl_head_number(const nl_config *config)
{
    return NL_BRANCHES * config->depth;
}

static inline int nl_middle_number(const nl_config *config)
{
    return NL_BRANCHES * config->depth + 1;
}

static inline const nl_head_params *nl_head_of(const nl_dit *dit, int number)
{
    return number == nl_head_number(&dit->config) ? &dit->head : &dit->middle;
}

/* The weight of the norm before branch `number` or a head; empty without. */
static inline nl_tensor nl_norm_weight(const nl_dit *dit, int number)
{
    if (number >= nl_head_number(&dit->config))
        return nl_head_of(dit, number)->norm;
    return dit->blocks[number / NL_BRANCHES].norms[number % NL_BRANCHES];
}

/* eps of the norm before branch `number` or a head: 1e-6, before the MLP of diffusers 1e-5. */
static inline float nl_norm_eps(const nl_config *config, int number)
{
    bool mlp = number < nl_head_number(config) && number % NL_BRANCHES == NL_BRANCH_MLP;
    return config->of_diffusers && mlp ? 1e-5f : 1e-6f;
}

/* Piece NL_SHIFT, ... of branch `number` or a head: D columns of a modulation or its gradient, [B, D]. The middle
 * head's follow the two of the head. */
static inline nl_tensor nl_modulation_piece(const nl_tensor *modulation, const nl_config *config,
                                            int number, int piece)
{
    int64_t first = (int64_t)NL_PIECES * number - (number > nl_head_number(config) ? 1 : 0);
    return nl_tensor_columns(modulation, (first + piece) * config->hidden_size,
                             config->hidden_size);
}

/* Rows of the adaLN matrix, columns of a modulation. */
typedef struct nl_layers {
    int64_t first, count;
} nl_layers;

/* Of those that time number `kind` of `kinds` modulates: all of them, or of a flow map's two t those of the first blocks,
 * s the others' and the head's. */
static inline nl_layers nl_layers_of_time(const nl_dit *dit, int kind, int kinds)
{
    int64_t all = dit->adaln_weight.shape[0];
    int64_t seeing_t = kinds == 1 ? all
                                  : (int64_t)NL_BRANCHES * NL_PIECES * dit->config.flow_map *
                                        dit->config.hidden_size;
    return kind == 0 ? (nl_layers){0, seeing_t} : (nl_layers){seeing_t, all - seeing_t};
}

/* An activation [rows, columns] from the arena. */
nl_status nl_activation_tensor(nl_device *device, int64_t rows, int64_t columns, nl_tensor *tensor);
/* [rows of x, columns], contiguous, in the room of x from its column `first` on, as if that were contiguous too. */
nl_tensor nl_part_of_room(const nl_tensor *x, int64_t first, int64_t columns);

/* The input of a branch with these parameters: stream->h, of F8 where its first weight is. */
nl_tensor nl_branch_input(const nl_stream *stream, const nl_tensor *params);
/* Where the input [B T, K] of another product, by `weight`, is to be written: to x, or where the weight is F8 to
 * stream->narrow. */
nl_tensor nl_product_input(const nl_stream *stream, const nl_tensor *weight, const nl_tensor *x);
/* y = x W^T + bias; where the weight is F8 and x is not yet, it becomes that on the way. */
nl_status nl_product(const nl_stream *stream, const nl_tensor *x, const nl_tensor *weight,
                     const nl_tensor *bias, const nl_tensor *y);

/* h and dh lie from now on in `room` [B T, 2D or wider], which nothing else needs meanwhile. */
void nl_pass_borrow(nl_pass *pass, const nl_tensor *room);

/* sum = x + gate out of branch `number`; NULL: into x. room [B T, D]: for the norm that comes along and is not wanted. */
nl_status nl_add_branch(nl_device *device, const nl_dit *dit, const nl_tensor *modulation,
                        int number, const nl_tensor *x, const nl_tensor *out, const nl_tensor *sum,
                        const nl_tensor *room);

/* Computes again what the backward pass of a block needs, from its input; uses stream->h. */
nl_status nl_block_again(nl_stream *stream, int block, const nl_block_saved *to);

#endif
