/* SPDX-License-Identifier: MIT */
/* What the forward and the backward pass share. Every pass goes through the same operations; passes differ in the
 * tensors that the results go to, which nl_block_saved and nl_dit_saved list: kept ones, or room that is used again. */
#ifndef NL_NETWORK_H
#define NL_NETWORK_H

#include "nl_dit_train.h"

/* The residual stream and what a block needs beside it; T tokens an image, D the hidden size. */
typedef struct nl_stream {
    const nl_dit *dit;
    nl_device *device;
    int64_t batch, tokens;
    nl_tensor x;          /* [B T, D] */
    nl_tensor branch;     /* [B T, D]: output of the last branch, not yet added to x */
    nl_tensor h;          /* [B T, D] room: input of a branch */
    nl_tensor wide;       /* [B T, 4D] room: hidden layer of the MLP */
    nl_tensor modulation; /* [B, (6 depth + 2) D] */
} nl_stream;

/* The six pieces of a block's modulation; the final layer has the first two. */
enum {
    NL_SHIFT_MSA,
    NL_SCALE_MSA,
    NL_GATE_MSA,
    NL_SHIFT_MLP,
    NL_SCALE_MLP,
    NL_GATE_MLP,
    NL_PIECES
};

/* One of the D columns wide pieces of a modulation or its gradient, [B, D]. */
static inline nl_tensor nl_modulation_piece(const nl_tensor *modulation, int64_t index,
                                            int64_t hidden_size)
{
    return nl_tensor_columns(modulation, index * hidden_size, hidden_size);
}

/* An activation [rows, columns] from the arena. */
nl_status nl_activation_tensor(nl_device *device, int64_t rows, int64_t columns, nl_tensor *tensor);

/* Computes again what the backward pass of a block needs, from its input; uses stream->h. */
nl_status nl_block_again(nl_stream *stream, int index, const nl_block_saved *to);

#endif
