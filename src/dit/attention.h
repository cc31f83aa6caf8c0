/* SPDX-License-Identifier: MIT */
/* What the mixers that attend share: one product for q, k and v, and a projection. */
#ifndef NL_ATTENTION_H
#define NL_ATTENTION_H

#include "network.h"

/* Their parameters. */
enum {
    NL_QKV_WEIGHT, /* [3D or 4D, D]: rows q | k | v (| g) */
    NL_QKV_BIAS,
    NL_PROJ_WEIGHT, /* [D, D] */
    NL_PROJ_BIAS,
    NL_Q_NORM, /* [d], with qk_norm */
    NL_K_NORM,
    NL_Q_NORM_BIAS, /* [d], where that is a LayerNorm */
    NL_K_NORM_BIAS,
    NL_ATTENTION_OWN /* from here on a mixer's own */
};

/* Sizes that the operations of attention take. */
typedef struct nl_attention_sizes {
    int64_t hidden_size, heads, head_size, grid_height, grid_width;
} nl_attention_sizes;
nl_attention_sizes nl_attention_sizes_of(const nl_config *config);

/* With qk_norm the weights of its norms. */
void nl_attention_params(nl_param_list *list, nl_tensor *params);

/* kept[NL_KEPT_QKV] with `columns`, and kept[NL_KEPT_ATTENTION]. */
nl_status nl_attention_room(const nl_stream *stream, int64_t columns, nl_tensor *kept);

/* q k v (g) = h W^T + b; with qk_norm the heads of q and k normalised. */
nl_status nl_attention_enter(nl_stream *stream, const nl_branch_at *at);
/* With a table of angles (softmax with rope) q and k turned by them, or their gradients back. */
nl_status nl_attention_turn(nl_device *device, const nl_dit *dit, const nl_tensor *qkv, bool back);
/* out = x W^T + b */
nl_status nl_attention_leave(nl_stream *stream, const nl_branch_at *at, const nl_tensor *x);

/* Room for the gradient of q k v (g), in pass->wide. */
nl_tensor nl_attention_dqkv(const nl_pass *pass, const nl_branch_at *at);
/* From dqkv to pass->dh. summed: the gradient of its bias is complete, which with qk_norm it cannot be. */
nl_status nl_attention_enter_backward(nl_pass *pass, const nl_branch_at *at, const nl_tensor *dqkv,
                                      bool summed, nl_linear_backward_weight_args *first);

#endif
