/* SPDX-License-Identifier: MIT */
/* What the mixers that attend share. */
#include "attention.h"

nl_attention_sizes nl_attention_sizes_of(const nl_config *config)
{
    return (nl_attention_sizes){.hidden_size = config->hidden_size,
                                .heads = config->num_heads,
                                .head_size = config->hidden_size / config->num_heads,
                                .grid_height = config->input_height / config->patch_size,
                                .grid_width = config->input_width / config->patch_size};
}

/* Of LightningDiT's RMS norm, and of timm's LayerNorm. */
static float qk_norm_eps(const nl_config *config)
{
    return config->qk_norm_layer ? 1e-5f : 1e-6f;
}

static nl_norm qk_norm_of(const nl_config *config)
{
    return config->qk_norm_layer ? NL_NORM_LAYER : NL_NORM_RMS;
}

void nl_attention_params(nl_param_list *list, nl_tensor *params)
{
    const nl_config *config = &list->dit->config;
    int64_t size = config->hidden_size / config->num_heads;
    if (!config->qk_norm)
        return;
    nl_add_vector(list, &params[NL_Q_NORM], NL_INIT_ONE, size, "attn.q_norm.weight");
    nl_add_vector(list, &params[NL_K_NORM], NL_INIT_ONE, size, "attn.k_norm.weight");
    if (!config->qk_norm_layer)
        return;
    nl_add_vector(list, &params[NL_Q_NORM_BIAS], NL_INIT_ZERO, size, "attn.q_norm.bias");
    nl_add_vector(list, &params[NL_K_NORM_BIAS], NL_INIT_ZERO, size, "attn.k_norm.bias");
}

nl_status nl_attention_room(const nl_stream *stream, int64_t columns, nl_tensor *kept)
{
    nl_status status = NL_OK;
    int64_t rows = stream->batch * stream->tokens, d = stream->dit->config.hidden_size;
    if (!stream->keep) {
        kept[NL_KEPT_QKV] = nl_part_of_room(&stream->wide, 0, columns);
        kept[NL_KEPT_ATTENTION] = stream->h;
        return NL_OK;
    }
    NL_TRY(nl_activation_tensor(stream->device, rows, columns, &kept[NL_KEPT_QKV]));
    NL_TRY(nl_activation_tensor(stream->device, rows, d, &kept[NL_KEPT_ATTENTION]));
    if (stream->dit->config.qk_norm)
        NL_TRY(nl_activation_tensor(stream->device, rows, 2 * d, &kept[NL_KEPT_RAW]));
cleanup:
    return status;
}

nl_status nl_attention_enter(nl_stream *stream, const nl_branch_at *at)
{
    nl_status status;
    const nl_config *config = &stream->dit->config;
    const nl_tensor *params = at->params, *kept = at->saved->kept;
    NL_TRY(NL_OP(stream->device, linear, .x = nl_branch_input(stream, params),
                 .weight = params[NL_QKV_WEIGHT], .bias = params[NL_QKV_BIAS],
                 .y = kept[NL_KEPT_QKV]));
    if (config->qk_norm)
        NL_TRY(NL_OP(
            stream->device, qk_norm,
            .x = nl_tensor_columns(&kept[NL_KEPT_QKV], 0, 2 * (int64_t)config->hidden_size),
            .raw = kept[NL_KEPT_RAW], .q_weight = params[NL_Q_NORM], .k_weight = params[NL_K_NORM],
            .q_bias = params[NL_Q_NORM_BIAS], .k_bias = params[NL_K_NORM_BIAS],
            .norm = qk_norm_of(config), .eps = qk_norm_eps(config)));
cleanup:
    return status;
}

nl_status nl_attention_turn(nl_device *device, const nl_dit *dit, const nl_tensor *qkv, bool back)
{
    if (!dit->rope.data)
        return NL_OK;
    return NL_OP(device, rope, .x = nl_tensor_columns(qkv, 0, 2 * (int64_t)dit->config.hidden_size),
                 .table = dit->rope, .back = back);
}

nl_status nl_attention_leave(nl_stream *stream, const nl_branch_at *at, const nl_tensor *x)
{
    return NL_OP(stream->device, linear, .x = *x, .weight = at->params[NL_PROJ_WEIGHT],
                 .bias = at->params[NL_PROJ_BIAS], .y = at->saved->out);
}

nl_tensor nl_attention_dqkv(const nl_pass *pass, const nl_branch_at *at)
{
    return nl_part_of_room(&pass->wide, 0, at->saved->kept[NL_KEPT_QKV].shape[1]);
}

nl_status nl_attention_enter_backward(nl_pass *pass, const nl_branch_at *at, const nl_tensor *dqkv,
                                      bool summed, nl_linear_backward_weight_args *first)
{
    nl_status status;
    const nl_config *config = &pass->dit->config;
    const nl_tensor *params = at->params, *gradients = at->gradients;
    if (config->qk_norm)
        NL_TRY(NL_OP(pass->device, qk_norm_backward, .raw = at->saved->kept[NL_KEPT_RAW],
                     .dx = nl_tensor_columns(dqkv, 0, 2 * (int64_t)config->hidden_size),
                     .q_weight = params[NL_Q_NORM], .k_weight = params[NL_K_NORM],
                     .dq_weight = gradients[NL_Q_NORM], .dk_weight = gradients[NL_K_NORM],
                     .dq_bias = gradients[NL_Q_NORM_BIAS], .dk_bias = gradients[NL_K_NORM_BIAS],
                     .norm = qk_norm_of(config), .eps = qk_norm_eps(config)));
    *first = (nl_linear_backward_weight_args){.dy = *dqkv, .dweight = gradients[NL_QKV_WEIGHT]};
    if (!summed)
        first->dbias = gradients[NL_QKV_BIAS];
    NL_TRY(NL_OP(pass->device, linear_backward_data, .dy = *dqkv, .weight = params[NL_QKV_WEIGHT],
                 .dx = pass->dh));
cleanup:
    return status;
}
