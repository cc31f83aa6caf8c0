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
cleanup:
    return status;
}

nl_status nl_attention_enter(nl_stream *stream, const nl_branch_at *at)
{
    return NL_OP(stream->device, linear, .x = stream->h, .weight = at->params[NL_QKV_WEIGHT],
                 .bias = at->params[NL_QKV_BIAS], .y = at->saved->kept[NL_KEPT_QKV]);
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
    *first = (nl_linear_backward_weight_args){.dy = *dqkv, .dweight = at->gradients[NL_QKV_WEIGHT]};
    if (!summed)
        first->dbias = at->gradients[NL_QKV_BIAS];
    return NL_OP(pass->device, linear_backward_data, .dy = *dqkv,
                 .weight = at->params[NL_QKV_WEIGHT], .dx = pass->dh);
}
