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

static const float qk_norm_eps = 1e-6f;

void nl_attention_params(nl_param_list *list, nl_tensor *params)
{
    const nl_config *config = &list->dit->config;
    int64_t size = config->hidden_size / config->num_heads;
    if (!config->qk_norm)
        return;
    nl_add_vector(list, &params[NL_Q_NORM], NL_INIT_ONE, size, "attn.q_norm.weight");
    nl_add_vector(list, &params[NL_K_NORM], NL_INIT_ONE, size, "attn.k_norm.weight");
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
    NL_TRY(NL_OP(stream->device, linear, .x = stream->h, .weight = params[NL_QKV_WEIGHT],
                 .bias = params[NL_QKV_BIAS], .y = kept[NL_KEPT_QKV]));
    if (config->qk_norm)
        NL_TRY(
            NL_OP(stream->device, qk_norm,
                  .x = nl_tensor_columns(&kept[NL_KEPT_QKV], 0, 2 * (int64_t)config->hidden_size),
                  .raw = kept[NL_KEPT_RAW], .q_weight = params[NL_Q_NORM],
                  .k_weight = params[NL_K_NORM], .eps = qk_norm_eps));
cleanup:
    return status;
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
                     .eps = qk_norm_eps));
    *first = (nl_linear_backward_weight_args){.dy = *dqkv, .dweight = gradients[NL_QKV_WEIGHT]};
    if (!summed)
        first->dbias = gradients[NL_QKV_BIAS];
    NL_TRY(NL_OP(pass->device, linear_backward_data, .dy = *dqkv, .weight = params[NL_QKV_WEIGHT],
                 .dx = pass->dh));
cleanup:
    return status;
}
