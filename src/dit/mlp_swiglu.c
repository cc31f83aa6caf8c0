/* SPDX-License-Identifier: MIT */
/* The MLP of LightningDiT: out = W3 (silu(x1) x2) + b3, x1 | x2 = W12 h + b12; with 2/3 of the usual width it has as
 * many parameters as the usual one. */
#include "mlp.h"

enum { W12_WEIGHT, W12_BIAS, W3_WEIGHT, W3_BIAS }; /* [2 width, D], [D, width] */
enum { HIDDEN };                                   /* [B T, 2 width]: x1 | x2 */

/* As Python's int(2 / 3 * (4 * D)). */
static int64_t width_of(const nl_config *config)
{
    return (int64_t)(2.0 / 3.0 * (4.0 * config->hidden_size));
}

/* x1 | x2 and the product. */
static int64_t columns(const nl_config *config)
{
    return 3 * width_of(config);
}

static void params(nl_param_list *list, nl_tensor *params)
{
    int64_t d = list->dit->config.hidden_size, width = width_of(&list->dit->config);
    nl_add_linear(list, &params[W12_WEIGHT], NL_INIT_XAVIER, 2 * width, d, "mlp.w12");
    nl_add_linear(list, &params[W3_WEIGHT], NL_INIT_XAVIER, d, width, "mlp.w3");
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    int64_t width = width_of(&stream->dit->config);
    if (stream->keep)
        return nl_activation_tensor(stream->device, stream->batch * stream->tokens, 2 * width,
                                    &kept[HIDDEN]);
    kept[HIDDEN] = nl_part_of_room(&stream->wide, 0, 2 * width);
    return NL_OK;
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_tensor *params = at->params, *hidden = &at->saved->kept[HIDDEN];
    int64_t width = width_of(&stream->dit->config);
    NL_TRY(NL_OP(device, linear, .x = nl_branch_input(stream, params), .weight = params[W12_WEIGHT],
                 .bias = params[W12_BIAS], .y = *hidden));
    if (stream->again)
        return NL_OK;
    nl_tensor active = nl_part_of_room(&stream->wide, 2 * width, width);
    NL_TRY(NL_OP(device, swiglu, .x = *hidden, .y = active));
    NL_TRY(nl_drop(device, &stream->dropout, stream->tokens, at->number, &active));
    NL_TRY(nl_product(stream, &active, &params[W3_WEIGHT], &params[W3_BIAS], &at->saved->out));
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
    int64_t width = width_of(&pass->dit->config);
    nl_tensor dhidden = nl_part_of_room(&pass->wide, 0, 2 * width);
    nl_tensor dactive = nl_part_of_room(&pass->wide, 2 * width, width);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dout, .weight = params[W3_WEIGHT],
                 .dx = dactive));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, &dactive));
    NL_TRY(
        NL_OP(device, swiglu_backward, .x = *hidden, .dy = dactive, .dx = dhidden, .y = dactive));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, &dactive)); /* forward's output now */
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dout, .x = dactive,
                 .dweight = gradients[W3_WEIGHT]));
    nl_pass_borrow(pass, hidden);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dhidden, .weight = params[W12_WEIGHT],
                 .dx = pass->dh));
    *first = (nl_linear_backward_weight_args){
        .dy = dhidden, .dweight = gradients[W12_WEIGHT], .dbias = gradients[W12_BIAS]};
cleanup:
    return status;
}

static double work(const nl_config *config)
{
    return 3 * (double)width_of(config) * config->hidden_size;
}

static const char *const kept_names[] = {"MLP's hidden values", NULL};

const nl_branch nl_mlp_swiglu = {.told_by = "mlp.w12.weight",
                                 .kept_names = kept_names,
                                 .out_bias = W3_BIAS,
                                 .params = params,
                                 .columns = columns,
                                 .room = room,
                                 .forward = forward,
                                 .backward = backward,
                                 .work = work};
