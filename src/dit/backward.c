/* SPDX-License-Identifier: MIT */
/*
 * The backward pass. In a block, products by the weights come first: the normalisation before them then leaves its
 * output once more in `h`, and the weight gradient takes it from there. So no normalised activation is kept by the
 * forward pass, and the room needed beside what it kept is six [B T, D]: what is used up serves as room.
 */
#include "network.h"

static nl_branch_at branch_at(const nl_pass *pass, int number)
{
    int block = number / NL_BRANCHES, kind = number % NL_BRANCHES;
    return (nl_branch_at){.number = number,
                          .params = pass->dit->blocks[block].branches[kind],
                          .gradients = pass->gradients->blocks[block].branches[kind],
                          .saved = &pass->saved->blocks[block].branches[kind]};
}

/* From dh, through the normalisation of x for branch `number` or a head: dx, h, and dout of the branch `before`, which
 * was added there (negative: none was). */
static nl_status norm_backward(nl_pass *pass, int number, int before, const nl_tensor *x)
{
    const nl_config *config = &pass->dit->config;
    const nl_tensor *modulation = &pass->saved->modulation, *dmodulation = &pass->dmodulation;
    nl_layernorm_modulate_backward_args args = {
        .x = *x,
        .shift = nl_modulation_piece(modulation, config, number, NL_SHIFT),
        .scale = nl_modulation_piece(modulation, config, number, NL_SCALE),
        .dy = pass->dh,
        .dx = pass->dx,
        .dshift = nl_modulation_piece(dmodulation, config, number, NL_SHIFT),
        .dscale = nl_modulation_piece(dmodulation, config, number, NL_SCALE),
        .y = pass->h,
        .norm = config->norm,
        .weight = nl_norm_weight(pass->dit, number),
        .dweight = nl_norm_weight(pass->gradients, number),
        .rows_per_image = pass->tokens,
        .eps = nl_norm_eps(config, number),
    };
    if (before >= 0) {
        nl_branch_at at = branch_at(pass, before);
        args.branch = at.saved->out;
        args.gate = nl_modulation_piece(modulation, config, before, NL_GATE);
        args.dbranch = pass->dout;
        args.dgate = nl_modulation_piece(dmodulation, config, before, NL_GATE);
        args.dbias = at.gradients[nl_branch_of(config, before % NL_BRANCHES)->out_bias];
    }
    return nl_op_layernorm_modulate_backward(pass->device, &args);
}

/* Gradients from `tensor` on (NULL: the first one) up to `end` (NULL: the last) are complete. */
static nl_status report(const nl_pass *pass, const nl_tensor *tensor, const nl_tensor *end)
{
    const float *flat = pass->gradients->storage;
    int64_t first = tensor ? (const float *)tensor->data - flat : 0;
    int64_t last = end ? (const float *)end->data - flat
                       : pass->gradients->storage_bytes / (int64_t)sizeof(float);
    return pass->ready ? pass->ready(pass->user, first, last - first) : NL_OK;
}

/* The first gradient of a block, or of the head. */
static const nl_tensor *first_of(const nl_pass *pass, int block)
{
    const nl_dit *gradients = pass->gradients;
    return block < pass->dit->config.depth
               ? gradients->params[gradients->blocks[block].first].tensor
               : &gradients->head.weight;
}

void nl_pass_borrow(nl_pass *pass, const nl_tensor *room)
{
    int64_t d = pass->dit->config.hidden_size;
    pass->h = nl_part_of_room(room, 0, d);
    pass->dh = nl_part_of_room(room, d, d);
}

/* Through head `number`, which took the stream x with branch `before` added. */
static nl_status head_backward(nl_pass *pass, int number, int before, const nl_tensor *x,
                               const nl_tensor *dprediction)
{
    nl_status status;
    const nl_dit *dit = pass->dit;
    const nl_head_params *head = nl_head_of(dit, number);
    const nl_head_params *gradients = nl_head_of(pass->gradients, number);
    nl_device *device = pass->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor dpatches;
    nl_pass_borrow(pass, &pass->wide);
    NL_TRY(nl_activation_tensor(device, pass->rows, head->weight.shape[0], &dpatches));
    NL_TRY(NL_OP(device, unpatchify_backward, .dx = *dprediction, .dtokens = dpatches,
                 .patch = dit->config.patch_size,
                 .head_channels = nl_config_head_channels(&dit->config)));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dpatches, .weight = head->weight,
                 .dx = pass->dh));
    NL_TRY(norm_backward(pass, number, before, x));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dpatches, .x = pass->h,
                 .dweight = gradients->weight, .dbias = gradients->bias));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* The branch that is added to the stream before this block's, or negative: that was done at the end of the block. */
static int last_before(const nl_pass *pass, int block)
{
    return pass->dit->config.dw_conv ? -1 : NL_BRANCHES * block - 1;
}

/* Whether the middle head stands before this branch, and was asked: then it is what the branch before was added for. */
static bool middle_before(const nl_pass *pass, int number)
{
    return pass->dmiddle && number == NL_BRANCHES * pass->dit->config.middle_head;
}

static nl_status branch_backward(nl_pass *pass, int number)
{
    nl_status status;
    nl_branch_at at = branch_at(pass, number);
    nl_linear_backward_weight_args first;
    int before = number % NL_BRANCHES          ? number - 1
                 : middle_before(pass, number) ? -1
                                               : last_before(pass, number / NL_BRANCHES);
    NL_TRY(nl_branch_of(&pass->dit->config, number % NL_BRANCHES)->backward(pass, &at, &first));
    NL_TRY(norm_backward(pass, number, before, &at.saved->x));
    first.x = pass->h;
    NL_TRY(nl_op_linear_backward_weight(pass->device, &first));
cleanup:
    return status;
}

/* With dw_conv, the end of a block: dx of the convolved stream becomes that of the block's sum, which is computed again,
 * then dout of its last branch. */
static nl_status convolution_backward(nl_pass *pass, int index)
{
    const nl_config *config = &pass->dit->config;
    nl_branch_at at = branch_at(pass, NL_BRANCHES * index + NL_BRANCH_MLP);
    const nl_tensor *weights = pass->dit->blocks[index].dw_conv;
    const nl_tensor *gradients = pass->gradients->blocks[index].dw_conv;
    const nl_tensor *modulation = &pass->saved->modulation, *dmodulation = &pass->dmodulation;
    int64_t d = config->hidden_size;
    nl_pass_borrow(pass, &pass->wide);
    nl_tensor sum = nl_part_of_room(&pass->wide, 2 * d, d), dsum = pass->dout;
    NL_CHECK(nl_add_branch(pass->device, pass->dit, modulation, at.number, &at.saved->x,
                           &at.saved->out, &sum, &pass->h));
    NL_CHECK(NL_OP(pass->device, zero, .x = dsum)); /* the gradient adds to it */
    NL_CHECK(NL_OP(pass->device, depthwise_conv_backward, .x = sum, .weight = weights[0],
                   .dout = pass->dx, .dx = dsum, .dweight = gradients[0], .dbias = gradients[1],
                   .batch = pass->batch, .grid_height = config->input_height / config->patch_size,
                   .grid_width = config->input_width / config->patch_size));
    pass->dout = pass->dx;
    pass->dx = dsum;
    /* The sum without the norm: that has no gradient, and the branch's own shift and scale get theirs later. */
    NL_CHECK(NL_OP(pass->device, zero, .x = pass->dh));
    NL_CHECK(NL_OP(pass->device, layernorm_modulate_backward, .x = sum,
                   .scale = nl_modulation_piece(modulation, config, at.number, NL_SCALE),
                   .dy = pass->dh, .dx = pass->dx, .branch = at.saved->out,
                   .gate = nl_modulation_piece(modulation, config, at.number, NL_GATE),
                   .dbranch = pass->dout,
                   .dbias = at.gradients[nl_branch_of(config, NL_BRANCH_MLP)->out_bias],
                   .dshift = nl_modulation_piece(dmodulation, config, at.number, NL_SHIFT),
                   .dscale = nl_modulation_piece(dmodulation, config, at.number, NL_SCALE),
                   .dgate = nl_modulation_piece(dmodulation, config, at.number, NL_GATE),
                   .norm = config->norm, .weight = nl_norm_weight(pass->dit, at.number),
                   .dweight = nl_norm_weight(pass->gradients, at.number),
                   .rows_per_image = pass->tokens, .eps = nl_norm_eps(config, at.number)));
    return NL_OK;
}

static nl_status middle_backward(nl_pass *pass)
{
    int index = pass->dit->config.middle_head;
    return head_backward(pass, nl_middle_number(&pass->dit->config), last_before(pass, index),
                         &pass->saved->blocks[index].branches[0].x, pass->dmiddle);
}

static nl_status block_backward(nl_pass *pass, int index)
{
    nl_status status;
    if (pass->saved->checkpointing) {
        nl_pass_borrow(pass, &pass->wide);
        nl_stream stream = {.dit = pass->dit,
                            .device = pass->device,
                            .batch = pass->batch,
                            .tokens = pass->tokens,
                            .h = pass->h,
                            .modulation = pass->saved->modulation};
        NL_TRY(nl_block_again(&stream, index, &pass->saved->blocks[index]));
    }
    if (pass->dit->config.dw_conv)
        NL_TRY(convolution_backward(pass, index));
    for (int kind = NL_BRANCHES - 1; kind >= 0; kind--)
        NL_TRY(branch_backward(pass, NL_BRANCHES * index + kind));
    if (middle_before(pass, NL_BRANCHES * index))
        NL_TRY(middle_backward(pass));
    NL_TRY(report(pass, first_of(pass, index), first_of(pass, index + 1)));
cleanup:
    return status;
}

/* From dmodulation to the embeddings of time and label. */
static nl_status condition_backward(nl_pass *pass)
{
    nl_status status;
    const nl_dit *dit = pass->dit;
    const nl_dit_saved *saved = pass->saved;
    nl_dit *gradients = pass->gradients;
    nl_device *device = pass->device;
    int64_t mark = nl_arena_mark(device), d = dit->config.hidden_size;
    int64_t batch = saved->batch, times = saved->c.shape[0];
    int kinds = (int)(times / batch);
    nl_tensor dsilu, dtime, dhidden;
    NL_TRY(nl_activation_tensor(device, times, d, &dsilu));
    NL_TRY(nl_activation_tensor(device, times, d, &dtime));
    NL_TRY(nl_activation_tensor(device, times, d, &dhidden));
    for (int kind = 0; kind < kinds; kind++) {
        nl_layers layers = nl_layers_of_time(dit, kind, kinds);
        nl_tensor dy = nl_tensor_columns(&pass->dmodulation, layers.first, layers.count);
        nl_tensor dx = nl_tensor_rows(&dsilu, kind * batch, batch);
        NL_TRY(
            NL_OP(device, linear_backward_weight, .dy = dy,
                  .x = nl_tensor_rows(&saved->silu_c, kind * batch, batch),
                  .dweight = nl_tensor_rows(&gradients->adaln_weight, layers.first, layers.count),
                  .dbias = nl_tensor_rows(&gradients->adaln_bias, layers.first, layers.count)));
        NL_TRY(NL_OP(device, linear_backward_data, .dy = dy,
                     .weight = nl_tensor_rows(&dit->adaln_weight, layers.first, layers.count),
                     .dx = dx));
        NL_TRY(NL_OP(device, add_label_backward,
                     .c = nl_tensor_rows(&saved->c, kind * batch, batch), .labels = saved->labels,
                     .dy = dx, .dtime = nl_tensor_rows(&dtime, kind * batch, batch),
                     .dtable = gradients->label_table, .crop = saved->crop,
                     .dcrop_weight = gradients->crop_weight));
    }
    NL_TRY(report(pass, &gradients->adaln_weight, NULL));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dtime, .x = saved->time_hidden,
                 .dweight = gradients->time_weight[1], .dbias = gradients->time_bias[1]));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dtime, .weight = dit->time_weight[1],
                 .pre = saved->time_pre, .epilogue = NL_EPILOGUE_SILU, .dx = dhidden));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dhidden, .x = saved->time_features,
                 .dweight = gradients->time_weight[0], .dbias = gradients->time_bias[0]));
    NL_TRY(report(pass, NULL, first_of(pass, 0)));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status reserve(nl_pass *pass)
{
    nl_status status;
    nl_device *device = pass->device;
    int64_t d = pass->dit->config.hidden_size;
    nl_tensor *narrow[] = {&pass->dx, &pass->dout};
    NL_TRY(nl_activation_tensor(device, pass->saved->batch, pass->saved->modulation.shape[1],
                                &pass->dmodulation));
    for (int i = 0; i < NL_COUNT(narrow); i++)
        NL_TRY(nl_activation_tensor(device, pass->rows, d, narrow[i]));
    NL_TRY(
        nl_activation_tensor(device, pass->rows, nl_wide_columns(&pass->dit->config), &pass->wide));
cleanup:
    return status;
}

/* Of both heads, where what was predicted is middle + W (head - middle). */
static nl_status share(nl_device *device, double inside, const nl_tensor *dprediction,
                       nl_tensor *dhead, nl_tensor *dmiddle)
{
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, dprediction->shape, dhead));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, dprediction->shape, dmiddle));
    NL_CHECK(NL_OP(device, combine, .terms = 1, .x = {*dprediction},
                   .coefficients = (const double[]){inside}, .y = *dhead));
    return NL_OP(device, combine, .terms = 1, .x = {*dprediction},
                 .coefficients = (const double[]){1 - inside}, .y = *dmiddle);
}

nl_status nl_dit_backward(const nl_dit *dit, nl_device *device, const nl_dit_saved *saved,
                          const nl_tensor *dprediction, const nl_tensor *dmiddle, nl_dit *gradients,
                          const nl_tensor *dx, nl_gradients_ready ready, void *user)
{
    nl_status status;
    bool inside = dit->config.internal_guidance > 0 && !dmiddle;
    nl_tensor dhead, dbelow;
    int64_t mark = nl_arena_mark(device), tokens = nl_config_tokens(&dit->config);
    int head = nl_head_number(&dit->config);
    nl_pass pass = {.dit = dit,
                    .device = device,
                    .saved = saved,
                    .gradients = gradients,
                    .dmiddle = inside ? &dbelow : dmiddle,
                    .ready = ready,
                    .user = user,
                    .batch = saved->batch,
                    .rows = saved->batch * tokens,
                    .tokens = tokens};
    NL_TRY(reserve(&pass));
    if (inside)
        NL_TRY(share(device, dit->config.internal_guidance, dprediction, &dhead, &dbelow));
    NL_TRY(NL_OP(device, zero, .x = pass.dx)); /* nothing else reads the last stream */
    if (!dprediction || (dit->config.middle_head && !pass.dmiddle)) /* some pieces nothing writes */
        NL_TRY(NL_OP(device, zero, .x = pass.dmodulation));
    if (dprediction) {
        NL_TRY(head_backward(&pass, head, last_before(&pass, dit->config.depth), &saved->last,
                             inside ? &dhead : dprediction));
        NL_TRY(report(&pass, first_of(&pass, dit->config.depth), &gradients->adaln_weight));
    } else {
        NL_TRY(middle_backward(&pass));
        NL_TRY(report(&pass, first_of(&pass, dit->config.middle_head), &gradients->adaln_weight));
    }
    for (int i = (dprediction ? dit->config.depth : dit->config.middle_head) - 1; i >= 0; i--)
        NL_TRY(block_backward(&pass, i));
    NL_TRY(NL_OP(device, patch_embed_backward, .x = saved->x, .weight = dit->patch_weight,
                 .dtokens = pass.dx, .dweight = gradients->patch_weight,
                 .dbias = gradients->patch_bias, .dx = dx ? *dx : (nl_tensor){0}));
    NL_TRY(condition_backward(&pass));
cleanup:
    nl_arena_release(device, mark);
    return status;
}
