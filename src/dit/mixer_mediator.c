/* SPDX-License-Identifier: MIT */
/* Attention through mediators (Pu et al. 2024; docs/public-code.md G): a few queries, means over cells of the grid, gather
 * the values, from which each token takes; a depthwise convolution of v is added. */
#include <math.h>

#include "attention.h"

enum { DWC_WEIGHT = NL_ATTENTION_OWN, DWC_BIAS }; /* [D, 1, 3, 3], [D] */
enum {
    MEDIATORS = NL_KEPT_OWN, /* [B h, M, d] F32 */
    VALUES,                  /* [B h, M, d] F32 */
    LSE                      /* [B h, M] F32 */
};
enum { DWC = 3 };

static int64_t columns(const nl_config *config)
{
    return 3 * (int64_t)config->hidden_size;
}

static void params(nl_param_list *list, nl_tensor *params)
{
    int64_t d = list->dit->config.hidden_size;
    nl_add_linear(list, &params[NL_QKV_WEIGHT], NL_INIT_XAVIER, 3 * d, d, "attn.qkv");
    nl_attention_params(list, params);
    nl_add_depthwise(list, &params[DWC_WEIGHT], NL_INIT_MIX, d, DWC, "attn.dwc");
    nl_add_linear(list, &params[NL_PROJ_WEIGHT], NL_INIT_XAVIER, d, d, "attn.proj");
}

static nl_mediators mediators_of(const nl_config *config, int64_t batch)
{
    nl_attention_sizes sizes = nl_attention_sizes_of(config);
    return (nl_mediators){.batch = batch,
                          .heads = sizes.heads,
                          .head_size = sizes.head_size,
                          .grid_height = sizes.grid_height,
                          .grid_width = sizes.grid_width,
                          .side = llround(sqrt((double)config->mediators))};
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    const nl_config *config = &stream->dit->config;
    int64_t pairs = stream->batch * config->num_heads;
    int64_t shape[] = {pairs, config->mediators, config->hidden_size / config->num_heads};
    NL_CHECK(nl_attention_room(stream, columns(config), kept));
    NL_CHECK(nl_arena_tensor(stream->device, NL_F32, 3, shape, &kept[MEDIATORS]));
    NL_CHECK(nl_arena_tensor(stream->device, NL_F32, 3, shape, &kept[VALUES]));
    NL_CHECK(nl_arena_tensor(stream->device, NL_F32, 2, shape, &kept[LSE]));
    return NL_OK;
}

static float scale_of(const nl_mediators *sizes)
{
    return 1 / sqrtf((float)sizes->head_size);
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    const nl_tensor *kept = at->saved->kept, *out = &kept[NL_KEPT_ATTENTION];
    nl_mediators sizes = mediators_of(&stream->dit->config, stream->batch);
    int64_t d = stream->dit->config.hidden_size;
    NL_CHECK(nl_attention_enter(stream, at));
    NL_CHECK(NL_OP(stream->device, mediator_attention, .qkv = kept[NL_KEPT_QKV], .out = *out,
                   .mediators = kept[MEDIATORS], .values = kept[VALUES], .lse = kept[LSE],
                   .sizes = sizes, .scale = scale_of(&sizes)));
    NL_CHECK(NL_OP(
        stream->device, depthwise_conv, .x = nl_tensor_columns(&kept[NL_KEPT_QKV], 2 * d, d),
        .weight = at->params[DWC_WEIGHT], .bias = at->params[DWC_BIAS], .out = *out,
        .batch = stream->batch, .grid_height = sizes.grid_height, .grid_width = sizes.grid_width));
    NL_CHECK(nl_attention_leave(stream, at, out));
    return NL_OK;
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    const nl_tensor *kept = at->saved->kept;
    nl_mediators sizes = mediators_of(&pass->dit->config, pass->batch);
    nl_tensor dqkv = nl_attention_dqkv(pass, at);
    int64_t d = pass->dit->config.hidden_size;
    NL_CHECK(NL_OP(pass->device, linear_backward_data, .dy = pass->dout,
                   .weight = at->params[NL_PROJ_WEIGHT], .dx = pass->dh));
    NL_CHECK(NL_OP(pass->device, linear_backward_weight, .dy = pass->dout,
                   .x = kept[NL_KEPT_ATTENTION], .dweight = at->gradients[NL_PROJ_WEIGHT]));
    NL_CHECK(NL_OP(pass->device, mediator_attention_backward, .qkv = kept[NL_KEPT_QKV],
                   .mediators = kept[MEDIATORS], .values = kept[VALUES], .lse = kept[LSE],
                   .dout = pass->dh, .dqkv = dqkv, .sizes = sizes, .scale = scale_of(&sizes)));
    NL_CHECK(NL_OP(pass->device, depthwise_conv_backward,
                   .x = nl_tensor_columns(&kept[NL_KEPT_QKV], 2 * d, d),
                   .weight = at->params[DWC_WEIGHT], .dout = pass->dh,
                   .dx = nl_tensor_columns(&dqkv, 2 * d, d), .dweight = at->gradients[DWC_WEIGHT],
                   .dbias = at->gradients[DWC_BIAS], .batch = pass->batch,
                   .grid_height = sizes.grid_height, .grid_width = sizes.grid_width));
    NL_CHECK(nl_attention_enter_backward(pass, at, &dqkv, false, first));
    return NL_OK;
}

/* The products, then those of mediators with queries, keys and both kinds of values. */
static double work(const nl_config *config)
{
    double d = config->hidden_size;
    return 4 * d * d + 4 * (double)config->mediators * d + DWC * DWC * d;
}

static const char *const kept_names[] = {"queries, keys and values",
                                         "attention's output",
                                         "queries and keys before their normalisation",
                                         "mediators",
                                         "mediators' values",
                                         "mediators' normaliser",
                                         NULL};

const nl_branch nl_mixer_mediator = {.told_by = "attn.dwc.weight",
                                     .kept_names = kept_names,
                                     .out_bias = NL_PROJ_BIAS,
                                     .params = params,
                                     .columns = columns,
                                     .room = room,
                                     .forward = forward,
                                     .backward = backward,
                                     .work = work};
