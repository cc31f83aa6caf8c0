/* SPDX-License-Identifier: MIT */
/* The MLP of DiT and SiT: a hidden layer four times as wide, GELU in its tanh form. */
#include "mlp.h"

enum { FC1_WEIGHT, FC1_BIAS, FC2_WEIGHT, FC2_BIAS }; /* [4D, D], [D, 4D] */
enum { HIDDEN };                                     /* [B T, 4D]: before the GELU */

static int64_t columns(const nl_config *config)
{
    return 4 * (int64_t)config->hidden_size;
}

static void params(nl_param_list *list, nl_tensor *params)
{
    int64_t d = list->dit->config.hidden_size, width = columns(&list->dit->config);
    nl_add_linear(list, &params[FC1_WEIGHT], NL_INIT_XAVIER, width, d, "mlp.fc1");
    nl_add_linear(list, &params[FC2_WEIGHT], NL_INIT_XAVIER, d, width, "mlp.fc2");
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    return stream->keep ? nl_activation_tensor(stream->device, stream->batch * stream->tokens,
                                               columns(&stream->dit->config), &kept[HIDDEN])
                        : NL_OK;
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    nl_status status;
    const nl_tensor *params = at->params, *hidden = &at->saved->kept[HIDDEN];
    nl_tensor h = nl_branch_input(stream, params);
    if (stream->again)
        return NL_OP(stream->device, linear, .x = h, .weight = params[FC1_WEIGHT],
                     .bias = params[FC1_BIAS], .y = *hidden);
    nl_tensor room = nl_part_of_room(&stream->wide, 0, columns(&stream->dit->config));
    nl_tensor active = nl_product_input(stream, &params[FC2_WEIGHT], &room);
    nl_linear_args first = {.x = h,
                            .weight = params[FC1_WEIGHT],
                            .bias = params[FC1_BIAS],
                            .y = active,
                            .epilogue = NL_EPILOGUE_GELU_TANH};
    if (active.dtype == NL_F8) {
        first.room = room;
        first.weight_norm = at->row_norms[FC1_WEIGHT];
        first.bias_norm = at->row_norms[FC1_BIAS];
    } else {
        first.pre = *hidden;
    }
    NL_TRY(nl_op_linear(stream->device, &first));
    NL_TRY(nl_drop(stream->device, &stream->dropout, stream->tokens, at->number, &active));
    NL_TRY(NL_OP(stream->device, linear, .x = active, .weight = params[FC2_WEIGHT],
                 .bias = params[FC2_BIAS], .y = at->saved->out));
cleanup:
    return status;
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    nl_status status;
    nl_device *device = pass->device;
    const nl_tensor *params = at->params, *gradients = at->gradients;
    const nl_tensor *hidden = &at->saved->kept[HIDDEN];
    const nl_dropout *dropout = &pass->saved->dropout;
    const bool drops = dropout->probability > 0; /* then the bias is summed after it */
    nl_tensor dhidden = nl_part_of_room(&pass->wide, 0, columns(&pass->dit->config));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dout, .weight = params[FC2_WEIGHT],
                 .pre = *hidden, .epilogue = NL_EPILOGUE_GELU_TANH, .dx = dhidden, .x = *hidden,
                 .dbias = drops ? (nl_tensor){0} : gradients[FC1_BIAS]));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, &dhidden));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, hidden));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dout, .x = *hidden,
                 .dweight = gradients[FC2_WEIGHT]));
    nl_pass_borrow(pass, hidden);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dhidden, .weight = params[FC1_WEIGHT],
                 .dx = pass->dh));
    *first = (nl_linear_backward_weight_args){.dy = dhidden, .dweight = gradients[FC1_WEIGHT]};
    if (drops)
        first->dbias = gradients[FC1_BIAS];
cleanup:
    return status;
}

static double work(const nl_config *config)
{
    return 2 * (double)columns(config) * config->hidden_size;
}

static const char *const kept_names[] = {"MLP's hidden values", NULL};

const nl_branch nl_mlp_gelu = {.told_by = "mlp.fc1.weight",
                               .kept_names = kept_names,
                               .out_bias = FC2_BIAS,
                               .params = params,
                               .columns = columns,
                               .room = room,
                               .forward = forward,
                               .backward = backward,
                               .work = work};
