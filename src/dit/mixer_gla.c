/* SPDX-License-Identifier: MIT */
/*
 * Gated linear attention, the mixer of DiG (Zhu et al. 2024): q and k have half of the width, the gates of the decays come
 * through GATE_RANK numbers, and a norm of each head and a gate stand before the projection. The blocks go through the tokens
 * in four orders in turn: by rows, backwards by rows, by columns, backwards by columns.
 */
#include <math.h>

#include "attention.h"

enum {
    IN_WEIGHT,   /* [3D + GATE_RANK, D]: rows q | k | v | g | what the decays' gates are made of */
    GATE_WEIGHT, /* [D / 2, GATE_RANK] */
    GATE_BIAS,
    NORM_WEIGHT, /* [d] */
    OUT_WEIGHT,  /* [D, D] */
    NO_BIAS      /* the last product has none */
};
enum {
    IN = NL_KEPT_QKV,        /* [B T, 3D + GATE_RANK] */
    OUT = NL_KEPT_ATTENTION, /* [B T, D] */
    GATE                     /* [B T, D / 2] */
};
enum { GATE_RANK = 16, NORMALIZER = 16 };
static const float norm_eps = 1e-6f;

static int64_t in_columns(const nl_config *config)
{
    return 3 * (int64_t)config->hidden_size + GATE_RANK;
}

/* The products' and the gates'. */
static int64_t columns(const nl_config *config)
{
    return in_columns(config) + config->hidden_size / 2;
}

static void params(nl_param_list *list, nl_tensor *params)
{
    const nl_config *config = &list->dit->config;
    int64_t d = config->hidden_size;
    nl_add_parts(list, &params[IN_WEIGHT], (const int64_t[]){d / 2, d / 2, d, d, GATE_RANK, 0}, d,
                 "attn.in_proj.weight");
    nl_add_linear(list, &params[GATE_WEIGHT], NL_INIT_XAVIER_SMALL, d / 2, GATE_RANK,
                  "attn.gk_proj");
    nl_add_vector(list, &params[NORM_WEIGHT], NL_INIT_ONE, d / config->num_heads,
                  "attn.norm.weight");
    nl_add_parts(list, &params[OUT_WEIGHT], (const int64_t[]){d, 0}, d, "attn.out_proj.weight");
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    const nl_config *config = &stream->dit->config;
    int64_t rows = stream->batch * stream->tokens, d = config->hidden_size, in = in_columns(config);
    kept[IN] = nl_part_of_room(&stream->wide, 0, in);
    kept[GATE] = nl_part_of_room(&stream->wide, in, d / 2);
    kept[OUT] = stream->h;
    if (!stream->keep)
        return NL_OK;
    NL_CHECK(nl_activation_tensor(stream->device, rows, in, &kept[IN]));
    NL_CHECK(nl_activation_tensor(stream->device, rows, d / 2, &kept[GATE]));
    NL_CHECK(nl_activation_tensor(stream->device, rows, d, &kept[OUT]));
    return NL_OK;
}

/* The order of the tokens in the block of this branch. */
static nl_scan scan_of(const nl_attention_sizes *sizes, int branch)
{
    int block = branch / NL_BRANCHES;
    return (nl_scan){.grid_height = sizes->grid_height,
                     .grid_width = sizes->grid_width,
                     .reversed = block % 2,
                     .transposed = block / 2 % 2};
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    nl_device *device = stream->device;
    const nl_tensor *params = at->params, *kept = at->saved->kept;
    nl_attention_sizes sizes = nl_attention_sizes_of(&stream->dit->config);
    int64_t d = sizes.hidden_size, key_size = sizes.head_size / 2;
    NL_CHECK(NL_OP(device, linear, .x = nl_branch_input(stream, params),
                   .weight = params[IN_WEIGHT], .y = kept[IN]));
    NL_CHECK(NL_OP(device, linear, .x = nl_tensor_columns(&kept[IN], 3 * d, GATE_RANK),
                   .weight = params[GATE_WEIGHT], .bias = params[GATE_BIAS], .y = kept[GATE]));
    NL_CHECK(NL_OP(device, gated_linear_attention, .qkv = nl_tensor_columns(&kept[IN], 0, 2 * d),
                   .gate = kept[GATE], .out = kept[OUT], .batch = stream->batch,
                   .heads = sizes.heads, .key_size = key_size, .head_size = sizes.head_size,
                   .scan = scan_of(&sizes, at->number), .scale = 1 / sqrtf((float)key_size),
                   .normalizer = NORMALIZER));
    NL_CHECK(NL_OP(device, head_norm_gate, .x = kept[OUT], .weight = params[NORM_WEIGHT],
                   .g = nl_tensor_columns(&kept[IN], 2 * d, d), .y = stream->h, .eps = norm_eps));
    return NL_OP(device, linear, .x = stream->h, .weight = params[OUT_WEIGHT], .y = at->saved->out);
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    nl_device *device = pass->device;
    const nl_tensor *params = at->params, *gradients = at->gradients, *kept = at->saved->kept;
    nl_attention_sizes sizes = nl_attention_sizes_of(&pass->dit->config);
    int64_t d = sizes.hidden_size, key_size = sizes.head_size / 2;
    int64_t in = in_columns(&pass->dit->config);
    nl_tensor din = nl_part_of_room(&pass->wide, 0, in);
    nl_tensor dgate = nl_part_of_room(&pass->wide, in, d / 2);
    nl_tensor low = nl_tensor_columns(&kept[IN], 3 * d, GATE_RANK);
    NL_CHECK(NL_OP(device, linear_backward_data, .dy = pass->dout, .weight = params[OUT_WEIGHT],
                   .dx = pass->dh));
    NL_CHECK(NL_OP(device, head_norm_gate_backward, .x = kept[OUT], .weight = params[NORM_WEIGHT],
                   .g = nl_tensor_columns(&kept[IN], 2 * d, d), .dy = pass->dh, .dx = pass->dh,
                   .dg = nl_tensor_columns(&din, 2 * d, d), .dweight = gradients[NORM_WEIGHT],
                   .y = pass->h, .eps = norm_eps));
    NL_CHECK(NL_OP(device, linear_backward_weight, .dy = pass->dout, .x = pass->h,
                   .dweight = gradients[OUT_WEIGHT]));
    NL_CHECK(NL_OP(device, gated_linear_attention_backward,
                   .qkv = nl_tensor_columns(&kept[IN], 0, 2 * d), .gate = kept[GATE],
                   .dout = pass->dh, .dqkv = nl_tensor_columns(&din, 0, 2 * d), .dgate = dgate,
                   .batch = pass->batch, .heads = sizes.heads, .key_size = key_size,
                   .head_size = sizes.head_size, .scan = scan_of(&sizes, at->number),
                   .scale = 1 / sqrtf((float)key_size), .normalizer = NORMALIZER));
    NL_CHECK(NL_OP(device, linear_backward_weight, .dy = dgate, .x = low,
                   .dweight = gradients[GATE_WEIGHT], .dbias = gradients[GATE_BIAS]));
    NL_CHECK(NL_OP(device, linear_backward_data, .dy = dgate, .weight = params[GATE_WEIGHT],
                   .dx = nl_tensor_columns(&din, 3 * d, GATE_RANK)));
    NL_CHECK(NL_OP(device, linear_backward_data, .dy = din, .weight = params[IN_WEIGHT],
                   .dx = pass->dh));
    *first = (nl_linear_backward_weight_args){.dy = din, .dweight = gradients[IN_WEIGHT]};
    return NL_OK;
}

/* The products, then S += k^T v and q S. */
static double work(const nl_config *config)
{
    double d = config->hidden_size, key_size = d / config->num_heads / 2;
    return ((double)in_columns(config) + d + GATE_RANK / 2.0) * d + 2 * key_size * d;
}

static const char *const kept_names[] = {"queries, keys, values and gates", "attention's output",
                                         "gates of its decays", NULL};

const nl_branch nl_mixer_gla = {.told_by = "attn.in_proj.weight",
                                .kept_names = kept_names,
                                .out_bias = NO_BIAS,
                                .params = params,
                                .columns = columns,
                                .room = room,
                                .forward = forward,
                                .backward = backward,
                                .work = work};
