/* SPDX-License-Identifier: MIT */
/* Norm-aware linear attention (nala-attention.md): a gate and a normalisation over all heads before the projection;
 * lepe, a depthwise convolution of v, beside the attention. */
#include <math.h>

#include "attention.h"

enum {
    LN_WEIGHT = NL_ATTENTION_OWN, /* [D] */
    LN_BIAS,
    LEPE_WEIGHT, /* [D, 1, 5, 5] and [D], with lepe */
    LEPE_BIAS,
    LOG_LAMBDA, /* [h], with learn_exponents: their exponentials are above 0 whatever the optimiser does */
    LOG_TAU
};
enum {
    STATE = NL_KEPT_OWN, /* [B h, F, d] F32 */
    TOTAL,               /* [B h, F] F32 */
    MIXED                /* [B T, D]: with lepe added; the attention's output without lepe */
};
enum { LEPE = 5 };

static int64_t columns(const nl_config *config)
{
    return (config->gate ? 4 : 3) * (int64_t)config->hidden_size;
}

static void params(nl_param_list *list, nl_tensor *params)
{
    const nl_config *config = &list->dit->config;
    int64_t d = config->hidden_size;
    nl_add_linear(list, &params[NL_QKV_WEIGHT], NL_INIT_XAVIER, columns(config), d, "attn.qkvg");
    for (int i = 1; i <= 2; i++) /* weight and bias */
        list->dit->params[list->dit->param_count - i].query_rows = d;
    nl_attention_params(list, params);
    nl_add_vector(list, &params[LN_WEIGHT], NL_INIT_ONE, d, "attn.ln.weight");
    nl_add_vector(list, &params[LN_BIAS], NL_INIT_ZERO, d, "attn.ln.bias");
    if (config->learn_exponents) {
        nl_add_value(list, &params[LOG_LAMBDA], log(config->lambda), config->num_heads,
                     "attn.log_lambda");
        nl_add_value(list, &params[LOG_TAU], log(config->tau), config->num_heads, "attn.log_tau");
    }
    if (config->lepe)
        nl_add_depthwise(list, &params[LEPE_WEIGHT], NL_INIT_LEPE, d, LEPE, "attn.lepe");
    nl_add_linear(list, &params[NL_PROJ_WEIGHT], NL_INIT_XAVIER, d, d, "attn.out_proj");
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    nl_status status;
    const nl_config *config = &stream->dit->config;
    nl_attention_sizes sizes = nl_attention_sizes_of(config);
    int64_t pairs = stream->batch * sizes.heads;
    int64_t features = nl_feature_width(config->feature_map, sizes.head_size);
    NL_TRY(nl_attention_room(stream, columns(config), kept));
    kept[MIXED] = kept[NL_KEPT_ATTENTION];
    if (!stream->keep)
        return NL_OK;
    NL_TRY(nl_arena_tensor(stream->device, NL_F32, 3, (int64_t[]){pairs, features, sizes.head_size},
                           &kept[STATE]));
    NL_TRY(nl_arena_tensor(stream->device, NL_F32, 2, (int64_t[]){pairs, features}, &kept[TOTAL]));
    if (config->lepe)
        NL_TRY(nl_activation_tensor(stream->device, stream->batch * stream->tokens,
                                    sizes.hidden_size, &kept[MIXED]));
cleanup:
    return status;
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_config *config = &stream->dit->config;
    const nl_tensor *kept = at->saved->kept, *qkvg = &kept[NL_KEPT_QKV];
    const nl_tensor *out = &kept[NL_KEPT_ATTENTION], *mixed = &kept[MIXED];
    nl_attention_sizes sizes = nl_attention_sizes_of(config);
    int64_t d = sizes.hidden_size;
    NL_TRY(nl_attention_enter(stream, at));
    NL_TRY(NL_OP(device, nala_attention, .qkvg = *qkvg, .out = *out, .state = kept[STATE],
                 .total = kept[TOTAL], .batch = stream->batch, .tokens = stream->tokens,
                 .heads = sizes.heads, .head_size = sizes.head_size,
                 .feature_map = config->feature_map, .lambda = (float)config->lambda,
                 .tau = (float)config->tau, .log_lambda = at->params[LOG_LAMBDA],
                 .log_tau = at->params[LOG_TAU], .norm_scale = (float)nl_config_norm_scale(config),
                 .rope = config->rope, .grid_height = sizes.grid_height,
                 .grid_width = sizes.grid_width));
    if (config->lepe)
        NL_TRY(NL_OP(device, depthwise_conv, .x = nl_tensor_columns(qkvg, 2 * d, d),
                     .weight = at->params[LEPE_WEIGHT], .bias = at->params[LEPE_BIAS],
                     .addend = mixed->data == out->data ? (nl_tensor){0} : *out, .out = *mixed,
                     .batch = stream->batch, .grid_height = sizes.grid_height,
                     .grid_width = sizes.grid_width));
    NL_TRY(NL_OP(device, layernorm_gate, .x = *mixed, .weight = at->params[LN_WEIGHT],
                 .bias = at->params[LN_BIAS],
                 .g = config->gate ? nl_tensor_columns(qkvg, 3 * d, d) : (nl_tensor){0},
                 .y = stream->h, .eps = 1e-5f));
    NL_TRY(nl_attention_leave(stream, at, &stream->h));
cleanup:
    return status;
}

/* Is the bias of qkvg summed by the operations that make its gradient? lepe adds to dv after them, and qk_norm changes dq
 * and dk. */
static bool sums_come_along(const nl_config *config)
{
    return !config->lepe && !config->qk_norm;
}

/* Then where they add the sums of columns [first, first + count); otherwise nothing. */
static nl_tensor sums(const nl_pass *pass, const nl_branch_at *at, int64_t first, int64_t count)
{
    if (!sums_come_along(&pass->dit->config))
        return (nl_tensor){0};
    return nl_tensor_rows(&at->gradients[NL_QKV_BIAS], first, count);
}

/* dh, the gradient of the gated output, becomes that of the attention's; dg goes into dqkvg, the gated output into h. */
static nl_status gate_backward(nl_pass *pass, const nl_branch_at *at, const nl_tensor *dqkvg)
{
    int64_t d = pass->dit->config.hidden_size;
    nl_layernorm_gate_backward_args args = {
        .x = at->saved->kept[MIXED],
        .weight = at->params[LN_WEIGHT],
        .bias = at->params[LN_BIAS],
        .dy = pass->dh,
        .dx = pass->dh,
        .dweight = at->gradients[LN_WEIGHT],
        .dbias = at->gradients[LN_BIAS],
        .y = pass->h,
        .eps = 1e-5f,
    };
    if (pass->dit->config.gate) {
        args.g = nl_tensor_columns(&at->saved->kept[NL_KEPT_QKV], 3 * d, d);
        args.dg = nl_tensor_columns(dqkvg, 3 * d, d);
        args.dg_sums = sums(pass, at, 3 * d, d);
    }
    return nl_op_layernorm_gate_backward(pass->device, &args);
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    nl_status status;
    nl_device *device = pass->device;
    const nl_config *config = &pass->dit->config;
    const nl_tensor *kept = at->saved->kept;
    nl_attention_sizes sizes = nl_attention_sizes_of(config);
    int64_t d = sizes.hidden_size;
    nl_tensor dqkvg = nl_attention_dqkv(pass, at);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dout,
                 .weight = at->params[NL_PROJ_WEIGHT], .dx = pass->dh));
    NL_TRY(gate_backward(pass, at, &dqkvg));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dout, .x = pass->h,
                 .dweight = at->gradients[NL_PROJ_WEIGHT]));
    NL_TRY(NL_OP(device, nala_attention_backward, .qkvg = kept[NL_KEPT_QKV],
                 .out = kept[NL_KEPT_ATTENTION], .dout = pass->dh, .state = kept[STATE],
                 .total = kept[TOTAL], .dqkv = dqkvg, .sums = sums(pass, at, 0, 3 * d),
                 .batch = pass->batch, .tokens = pass->tokens, .heads = sizes.heads,
                 .head_size = sizes.head_size, .feature_map = config->feature_map,
                 .lambda = (float)config->lambda, .tau = (float)config->tau,
                 .log_lambda = at->params[LOG_LAMBDA], .log_tau = at->params[LOG_TAU],
                 .dlog_lambda = at->gradients[LOG_LAMBDA], .dlog_tau = at->gradients[LOG_TAU],
                 .norm_scale = (float)nl_config_norm_scale(config), .rope = config->rope,
                 .grid_height = sizes.grid_height, .grid_width = sizes.grid_width));
    if (config->lepe)
        NL_TRY(NL_OP(
            device, depthwise_conv_backward, .x = nl_tensor_columns(&kept[NL_KEPT_QKV], 2 * d, d),
            .weight = at->params[LEPE_WEIGHT], .dout = pass->dh,
            .dx = nl_tensor_columns(&dqkvg, 2 * d, d), .dweight = at->gradients[LEPE_WEIGHT],
            .dbias = at->gradients[LEPE_BIAS], .batch = pass->batch,
            .grid_height = sizes.grid_height, .grid_width = sizes.grid_width));
    NL_TRY(nl_attention_enter_backward(pass, at, &dqkvg, sums_come_along(config), first));
cleanup:
    return status;
}

/* The products, then S = phi(k)^T v and phi(q) S, and z. */
static double work(const nl_config *config)
{
    double d = config->hidden_size;
    int64_t features =
        nl_feature_width(config->feature_map, config->hidden_size / config->num_heads);
    return (double)columns(config) * d + d * d + 2 * (double)features * d;
}

static const char *const kept_names[] = {"queries, keys and values",
                                         "attention's output",
                                         "queries and keys before their normalisation",
                                         "attention's state",
                                         "attention's normaliser",
                                         "attention's output with lepe",
                                         NULL};

const nl_branch nl_mixer_nala = {.told_by = "attn.qkvg.weight",
                                 .kept_names = kept_names,
                                 .out_bias = NL_PROJ_BIAS,
                                 .params = params,
                                 .columns = columns,
                                 .room = room,
                                 .forward = forward,
                                 .backward = backward,
                                 .work = work};
