/* SPDX-License-Identifier: MIT */
/* Softmax attention, the mixer of DiT and SiT. */
#include <math.h>

#include "attention.h"

enum { LSE = NL_KEPT_OWN }; /* [B h, T] F32 */

static void params(nl_param_list *list, nl_tensor *params)
{
    int64_t d = list->dit->config.hidden_size;
    nl_add_linear(list, &params[NL_QKV_WEIGHT], NL_INIT_XAVIER, 3 * d, d, "attn.qkv");
    nl_attention_params(list, params);
    nl_add_linear(list, &params[NL_PROJ_WEIGHT], NL_INIT_XAVIER, d, d, "attn.proj");
}

static int64_t columns(const nl_config *config)
{
    return 3 * (int64_t)config->hidden_size;
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    const nl_config *config = &stream->dit->config;
    NL_CHECK(nl_attention_room(stream, columns(config), kept));
    if (stream->keep)
        NL_CHECK(nl_arena_tensor(stream->device, NL_F32, 2,
                                 (int64_t[]){stream->batch * config->num_heads, stream->tokens},
                                 &kept[LSE]));
    return NL_OK;
}

static float scale_of(const nl_attention_sizes *sizes)
{
    return 1 / sqrtf((float)sizes->head_size);
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    const nl_tensor *kept = at->saved->kept;
    nl_attention_sizes sizes = nl_attention_sizes_of(&stream->dit->config);
    NL_CHECK(nl_attention_enter(stream, at));
    NL_CHECK(nl_attention_turn(stream->device, stream->dit, &kept[NL_KEPT_QKV], false));
    NL_CHECK(NL_OP(stream->device, softmax_attention, .qkv = kept[NL_KEPT_QKV],
                   .out = kept[NL_KEPT_ATTENTION], .lse = kept[LSE], .batch = stream->batch,
                   .tokens = stream->tokens, .heads = sizes.heads, .head_size = sizes.head_size,
                   .scale = scale_of(&sizes)));
    return nl_attention_leave(stream, at, &kept[NL_KEPT_ATTENTION]);
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    const nl_tensor *kept = at->saved->kept;
    nl_attention_sizes sizes = nl_attention_sizes_of(&pass->dit->config);
    nl_tensor dqkv = nl_attention_dqkv(pass, at);
    NL_CHECK(NL_OP(pass->device, linear_backward_data, .dy = pass->dout,
                   .weight = at->params[NL_PROJ_WEIGHT], .dx = pass->dh));
    NL_CHECK(NL_OP(pass->device, linear_backward_weight, .dy = pass->dout,
                   .x = kept[NL_KEPT_ATTENTION], .dweight = at->gradients[NL_PROJ_WEIGHT]));
    NL_CHECK(NL_OP(pass->device, softmax_attention_backward, .qkv = kept[NL_KEPT_QKV],
                   .out = kept[NL_KEPT_ATTENTION], .dout = pass->dh, .lse = kept[LSE], .dqkv = dqkv,
                   .batch = pass->batch, .tokens = pass->tokens, .heads = sizes.heads,
                   .head_size = sizes.head_size, .scale = scale_of(&sizes)));
    NL_CHECK(nl_attention_turn(pass->device, pass->dit, &dqkv, true));
    return nl_attention_enter_backward(pass, at, &dqkv, false, first);
}

/* The products, then q k^T and p v. */
static double work(const nl_config *config)
{
    double d = config->hidden_size;
    return 4 * d * d + 2 * (double)nl_config_tokens(config) * d;
}

static const char *const kept_names[] = {"queries, keys and values", "attention's output",
                                         "queries and keys before their normalisation",
                                         "attention's normaliser", NULL};

const nl_branch nl_mixer_softmax = {.told_by = "attn.qkv.weight",
                                    .kept_names = kept_names,
                                    .out_bias = NL_PROJ_BIAS,
                                    .params = params,
                                    .columns = columns,
                                    .room = room,
                                    .forward = forward,
                                    .backward = backward,
                                    .work = work};
