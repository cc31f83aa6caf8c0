/* SPDX-License-Identifier: MIT */
/* A Mix-FFN (SegFormer's; SANA's without its gate): a depthwise 3 x 3 convolution over the token grid, padded with
 * zeros, between the first layer and the GELU. */
#include "mlp.h"

enum { FC1_WEIGHT, FC1_BIAS, CONV_WEIGHT, CONV_BIAS, FC2_WEIGHT, FC2_BIAS };
enum { HIDDEN, MIXED }; /* [B T, 4D]: before and after the convolution */
enum { SIDE = 3 };

static int64_t width_of(const nl_config *config)
{
    return 4 * (int64_t)config->hidden_size;
}

static int64_t columns(const nl_config *config)
{
    return 2 * width_of(config);
}

static void params(nl_param_list *list, nl_tensor *params)
{
    int64_t d = list->dit->config.hidden_size, width = width_of(&list->dit->config);
    nl_add_linear(list, &params[FC1_WEIGHT], NL_INIT_XAVIER, width, d, "mlp.fc1");
    nl_add_depthwise(list, &params[CONV_WEIGHT], NL_INIT_MIX, width, SIDE, "mlp.dwconv");
    nl_add_linear(list, &params[FC2_WEIGHT], NL_INIT_XAVIER, d, width, "mlp.fc2");
}

static nl_status room(const nl_stream *stream, nl_tensor *kept)
{
    nl_status status = NL_OK;
    int64_t rows = stream->batch * stream->tokens, width = width_of(&stream->dit->config);
    for (int i = HIDDEN; i <= MIXED; i++) {
        kept[i] = nl_part_of_room(&stream->wide, i * width, width);
        if (stream->keep)
            NL_TRY(nl_activation_tensor(stream->device, rows, width, &kept[i]));
    }
cleanup:
    return status;
}

static nl_status forward(nl_stream *stream, const nl_branch_at *at)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_config *config = &stream->dit->config;
    const nl_tensor *params = at->params, *kept = at->saved->kept;
    NL_TRY(NL_OP(device, linear, .x = nl_branch_input(stream, params), .weight = params[FC1_WEIGHT],
                 .bias = params[FC1_BIAS], .y = kept[HIDDEN]));
    NL_TRY(NL_OP(device, zero, .x = kept[MIXED])); /* the convolution adds to it */
    NL_TRY(NL_OP(device, depthwise_conv, .x = kept[HIDDEN], .weight = params[CONV_WEIGHT],
                 .bias = params[CONV_BIAS], .out = kept[MIXED], .batch = stream->batch,
                 .grid_height = config->input_height / config->patch_size,
                 .grid_width = config->input_width / config->patch_size));
    if (stream->again)
        return NL_OK;
    nl_tensor active = nl_part_of_room(&stream->wide, 0, width_of(config));
    NL_TRY(NL_OP(device, activate, .x = kept[MIXED], .y = active, .activation = NL_ACT_GELU_TANH));
    NL_TRY(nl_drop(device, &stream->dropout, stream->tokens, at->number, &active));
    NL_TRY(nl_product(stream, &active, &params[FC2_WEIGHT], &params[FC2_BIAS], &at->saved->out));
cleanup:
    return status;
}

static nl_status backward(nl_pass *pass, const nl_branch_at *at,
                          nl_linear_backward_weight_args *first)
{
    nl_status status;
    nl_device *device = pass->device;
    const nl_config *config = &pass->dit->config;
    const nl_tensor *params = at->params, *gradients = at->gradients, *kept = at->saved->kept;
    const nl_dropout *dropout = &pass->saved->dropout;
    nl_tensor dmixed = nl_part_of_room(&pass->wide, 0, width_of(config));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dout, .weight = params[FC2_WEIGHT],
                 .pre = kept[MIXED], .epilogue = NL_EPILOGUE_GELU_TANH, .dx = dmixed,
                 .x = kept[MIXED]));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, &dmixed));
    NL_TRY(nl_drop(device, dropout, pass->tokens, at->number, &kept[MIXED]));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dout, .x = kept[MIXED],
                 .dweight = gradients[FC2_WEIGHT]));
    nl_tensor dhidden = kept[MIXED]; /* used up */
    NL_TRY(NL_OP(device, zero, .x = dhidden));
    NL_TRY(NL_OP(device, depthwise_conv_backward, .x = kept[HIDDEN], .weight = params[CONV_WEIGHT],
                 .dout = dmixed, .dx = dhidden, .dweight = gradients[CONV_WEIGHT],
                 .dbias = gradients[CONV_BIAS], .batch = pass->batch,
                 .grid_height = config->input_height / config->patch_size,
                 .grid_width = config->input_width / config->patch_size));
    nl_pass_borrow(pass, &kept[HIDDEN]);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dhidden, .weight = params[FC1_WEIGHT],
                 .dx = pass->dh));
    *first = (nl_linear_backward_weight_args){
        .dy = dhidden, .dweight = gradients[FC1_WEIGHT], .dbias = gradients[FC1_BIAS]};
cleanup:
    return status;
}

static double work(const nl_config *config)
{
    return (double)width_of(config) * (2.0 * config->hidden_size + SIDE * SIDE);
}

static const char *const kept_names[] = {"MLP's hidden values", "MLP's convolution", NULL};

const nl_branch nl_mlp_mix = {.told_by = "mlp.dwconv.weight",
                              .kept_names = kept_names,
                              .out_bias = FC2_BIAS,
                              .params = params,
                              .columns = columns,
                              .room = room,
                              .forward = forward,
                              .backward = backward,
                              .work = work};
