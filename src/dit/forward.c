/* SPDX-License-Identifier: MIT */
/* The network, once, in operations; it runs on every back end and on a measuring device. */
#include "network.h"

#include <string.h>

nl_status nl_activation_tensor(nl_device *device, int64_t rows, int64_t columns, nl_tensor *tensor)
{
    return nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, columns}, tensor);
}

nl_tensor nl_part_of_room(const nl_tensor *x, int64_t first, int64_t columns)
{
    int64_t rows = x->shape[0];
    char *data = x->data;
    return nl_tensor_of(data ? data + first * rows * nl_dtype_size(x->dtype) : NULL, x->dtype, 2,
                        (int64_t[]){rows, columns});
}

/* What --dtype fp8 needs beside the others. */
static nl_status f8_room(nl_stream *stream)
{
    nl_status status = NL_OK;
    nl_tensor scales[2];
    int64_t rows = stream->batch * stream->tokens;
    if (!stream->device->fp8)
        return NL_OK;
    NL_TRY(nl_arena_tensor(stream->device, NL_F8, 2,
                           (int64_t[]){rows, nl_wide_columns(&stream->dit->config)},
                           &stream->narrow));
    for (int i = 0; i < 2; i++)
        NL_TRY(nl_arena_tensor(stream->device, NL_F32, 1, &rows, &scales[i]));
    stream->narrow.scale = scales[0].data;
    stream->h_scale = scales[1].data;
cleanup:
    return status;
}

static nl_tensor as_f8(const nl_tensor *room, int64_t columns, float *scale)
{
    nl_tensor f8 = nl_tensor_of(room->data, NL_F8, 2, (int64_t[]){room->shape[0], columns});
    f8.scale = scale;
    return f8;
}

nl_tensor nl_branch_input(const nl_stream *stream, const nl_tensor *params)
{
    return params[0].dtype == NL_F8 ? as_f8(&stream->h, params[0].shape[1], stream->h_scale)
                                    : stream->h;
}

nl_tensor nl_product_input(const nl_stream *stream, const nl_tensor *weight, const nl_tensor *x)
{
    return weight->dtype == NL_F8 ? as_f8(&stream->narrow, weight->shape[1], stream->narrow.scale)
                                  : *x;
}

nl_status nl_product(const nl_stream *stream, const nl_tensor *x, const nl_tensor *weight,
                     const nl_tensor *bias, const nl_tensor *y)
{
    nl_status status = NL_OK;
    nl_tensor input = x->dtype == NL_F8 ? *x : nl_product_input(stream, weight, x);
    if (input.dtype != x->dtype)
        NL_TRY(NL_OP(stream->device, quantize, .x = *x, .y = input));
    NL_TRY(NL_OP(stream->device, linear, .x = input, .weight = *weight, .bias = *bias, .y = *y));
cleanup:
    return status;
}

/* Where the tensors of a block's branches go. */
static nl_status block_room(const nl_stream *stream, nl_block_saved *block)
{
    nl_status status = NL_OK;
    for (int kind = 0; kind < NL_BRANCHES; kind++)
        NL_TRY(nl_branch_of(&stream->dit->config, kind)->room(stream, block->branches[kind].kept));
cleanup:
    return status;
}

/* modulation [B, (6 depth + 2 or 4) D] = adaLN(SiLU(time MLP(t) + label + to->crop's)), for all layers at once; of a flow
 * map's two times each makes its own layers'. */
static nl_status condition(const nl_stream *stream, const nl_tensor *t, const nl_tensor *labels,
                           const nl_dit_saved *to)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    nl_device *device = stream->device;
    int64_t mark = nl_arena_mark(device), kinds = t->ndim, batch = stream->batch;
    int64_t count = nl_tensor_count(t), each = count / kinds;
    nl_tensor embedded, times = nl_tensor_of(t->data, t->dtype, 1, &count);
    NL_TRY(nl_activation_tensor(device, count, dit->config.hidden_size, &embedded));
    NL_TRY(NL_OP(device, time_features, .t = times, .features = to->time_features,
                 .divisor = dit->config.of_diffusers ? 127 : 0));
    NL_TRY(NL_OP(device, linear, .x = to->time_features, .weight = dit->time_weight[0],
                 .bias = dit->time_bias[0], .y = to->time_hidden, .epilogue = NL_EPILOGUE_SILU,
                 .pre = to->time_pre));
    NL_TRY(NL_OP(device, linear, .x = to->time_hidden, .weight = dit->time_weight[1],
                 .bias = dit->time_bias[1], .y = embedded));
    for (int kind = 0; kind < kinds; kind++) {
        nl_layers layers = nl_layers_of_time(dit, kind, (int)kinds);
        nl_tensor silu_c = nl_tensor_rows(&to->silu_c, kind * batch, batch);
        NL_TRY(NL_OP(device, add_label, .time = nl_tensor_rows(&embedded, kind * each, each),
                     .table = dit->label_table, .labels = *labels, .crop = to->crop,
                     .crop_weight = to->crop.data ? dit->crop_weight : to->crop,
                     .c = to->c.data ? nl_tensor_rows(&to->c, kind * batch, batch) : to->c,
                     .y = silu_c));
        NL_TRY(NL_OP(device, linear, .x = silu_c,
                     .weight = nl_tensor_rows(&dit->adaln_weight, layers.first, layers.count),
                     .bias = nl_tensor_rows(&dit->adaln_bias, layers.first, layers.count),
                     .y = nl_tensor_columns(&to->modulation, layers.first, layers.count)));
    }
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* x += gate out of branch `before` (negative: of none), the sum going to `sum` where that is a tensor; h = LN(x)
 * modulated for branch `number` or a head. */
static nl_status add_and_modulate(nl_stream *stream, int number, int before, const nl_tensor *sum)
{
    const nl_config *config = &stream->dit->config;
    const nl_tensor *modulation = &stream->modulation;
    nl_layernorm_modulate_args args = {
        .x = stream->x,
        .y = number >= nl_head_number(config)
                 ? stream->h
                 : nl_branch_input(
                       stream,
                       stream->dit->blocks[number / NL_BRANCHES].branches[number % NL_BRANCHES]),
        .shift = nl_modulation_piece(modulation, config, number, NL_SHIFT),
        .scale = nl_modulation_piece(modulation, config, number, NL_SCALE),
        .norm = config->norm,
        .weight = nl_norm_weight(stream->dit, number),
        .rows_per_image = stream->tokens,
        .eps = nl_norm_eps(config, number),
    };
    if (before >= 0) {
        args.branch = stream->out;
        args.gate = nl_modulation_piece(modulation, config, before, NL_GATE);
        args.sum = *sum;
    }
    nl_status status = nl_op_layernorm_modulate(stream->device, &args);
    if (args.sum.data)
        stream->x = args.sum;
    return status;
}

nl_status nl_add_branch(nl_device *device, const nl_dit *dit, const nl_tensor *modulation,
                        int number, const nl_tensor *x, const nl_tensor *out, const nl_tensor *sum,
                        const nl_tensor *room)
{
    const nl_config *config = &dit->config;
    return NL_OP(device, layernorm_modulate, .x = *x, .branch = *out,
                 .gate = nl_modulation_piece(modulation, config, number, NL_GATE),
                 .shift = nl_modulation_piece(modulation, config, number, NL_SHIFT),
                 .scale = nl_modulation_piece(modulation, config, number, NL_SCALE), .y = *room,
                 .sum = sum ? *sum : (nl_tensor){0}, .norm = config->norm,
                 .weight = nl_norm_weight(dit, number), .rows_per_image = nl_config_tokens(config),
                 .eps = nl_norm_eps(config, number));
}

/* added: the branch before is in the stream already. */
static nl_status run_block(nl_stream *stream, int index, bool added, const nl_block_saved *to)
{
    nl_status status = NL_OK;
    for (int kind = 0; kind < NL_BRANCHES; kind++) {
        int number = NL_BRANCHES * index + kind;
        int before = added && kind == 0 ? -1 : number - 1;
        nl_branch_at at = {.number = number,
                           .params = stream->dit->blocks[index].branches[kind],
                           .row_norms = stream->dit->blocks[index].row_norms[kind],
                           .saved = &to->branches[kind]};
        NL_TRY(add_and_modulate(stream, number, before, &to->branches[kind].x));
        NL_TRY(nl_branch_of(&stream->dit->config, kind)->forward(stream, &at));
        stream->out = at.saved->out;
    }
cleanup:
    return status;
}

nl_status nl_block_again(nl_stream *stream, int index, const nl_block_saved *to)
{
    stream->again = true;
    stream->x = to->branches[0].x;
    return run_block(stream, index, true, to);
}

/* With dw_conv, the end of a block: its last output is added to the stream, which is then convolved, where it is kept into
 * `next`. */
static nl_status convolve(nl_stream *stream, int index, const nl_tensor *next)
{
    const nl_config *config = &stream->dit->config;
    const nl_tensor *weights = stream->dit->blocks[index].dw_conv;
    nl_tensor x = stream->x;
    const nl_tensor *sum = stream->keep ? &stream->spare : &x;
    NL_CHECK(nl_add_branch(stream->device, stream->dit, &stream->modulation,
                           NL_BRANCHES * index + NL_BRANCH_MLP, &x, &stream->out,
                           stream->keep ? sum : NULL, &stream->h));
    stream->x = stream->keep ? *next : stream->spare;
    NL_CHECK(NL_OP(stream->device, zero, .x = stream->x)); /* the convolution adds to it */
    NL_CHECK(NL_OP(stream->device, depthwise_conv, .x = *sum, .weight = weights[0],
                   .bias = weights[1], .out = stream->x, .batch = stream->batch,
                   .grid_height = config->input_height / config->patch_size,
                   .grid_width = config->input_width / config->patch_size));
    if (!stream->keep)
        stream->spare = x;
    return NL_OK;
}

/* prediction [B, C_out, H, W] = unpatchify(head(modulated LN(x))), of head `number` behind branch `before`, which is added
 * to the stream, in `sum` where that is a tensor. */
static nl_status run_head(nl_stream *stream, int number, int before, const nl_tensor *sum,
                          const nl_tensor *prediction)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    const nl_head_params *head = nl_head_of(dit, number);
    nl_device *device = stream->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor patches;
    NL_TRY(nl_arena_tensor(device, NL_F32, 2,
                           (int64_t[]){stream->batch * stream->tokens, head->weight.shape[0]},
                           &patches));
    NL_TRY(add_and_modulate(stream, number, before, sum));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = head->weight, .bias = head->bias,
                 .y = patches));
    NL_TRY(NL_OP(device, unpatchify, .tokens = patches, .x = *prediction,
                 .patch = dit->config.patch_size,
                 .head_channels = nl_config_head_channels(&dit->config)));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* The whole network, or with prediction NULL its blocks before the middle head. to->blocks: one for each block, or one for
 * all of them (one_block); stream->x: where the tokens go. */
static nl_status run(nl_stream *stream, const nl_tensor *x, const nl_tensor *t,
                     const nl_tensor *labels, const nl_dit_saved *to, bool one_block,
                     const nl_tensor *prediction, const nl_tensor *middle)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    int head = nl_head_number(&dit->config), depth = dit->config.depth;
    bool whole = dit->config.dw_conv; /* a block leaves nothing to be added */
    NL_TRY(condition(stream, t, labels, to));
    NL_TRY(NL_OP(stream->device, patch_embed, .x = *x, .weight = dit->patch_weight,
                 .bias = dit->patch_bias, .position = dit->position, .tokens = stream->x));
    for (int i = 0; i < depth; i++) {
        const nl_block_saved *block = &to->blocks[one_block ? 0 : i];
        bool asked = middle && i == dit->config.middle_head;
        if (asked)
            NL_TRY(run_head(stream, nl_middle_number(&dit->config),
                            whole ? -1 : NL_BRANCHES * i - 1, &block->branches[0].x, middle));
        if (asked && !prediction)
            return NL_OK;
        NL_TRY(run_block(stream, i, asked || whole, block));
        if (whole)
            NL_TRY(convolve(stream, i,
                            i + 1 < depth ? &to->blocks[one_block ? 0 : i + 1].branches[0].x
                                          : &to->last));
    }
    NL_TRY(run_head(stream, head, whole ? -1 : head - 1, &to->last, prediction));
cleanup:
    return status;
}

static nl_status check_arguments(const nl_dit *dit, const nl_tensor *x, const nl_tensor *t,
                                 const nl_tensor *labels, const nl_tensor *crop,
                                 const nl_tensor *prediction, const nl_tensor *middle)
{
    const nl_config *config = &dit->config;
    const nl_tensor *predicted = prediction ? prediction : middle;
    int64_t batch = x->shape[0], channels = predicted->shape[1];
    bool ok = x->ndim == 4 && x->shape[1] == config->in_channels &&
              x->shape[2] == config->input_height && x->shape[3] == config->input_width;
    ok = ok && predicted->ndim == 4 && predicted->shape[0] == batch &&
         (channels == config->in_channels || channels == nl_config_head_channels(config)) &&
         predicted->shape[2] == x->shape[2] && predicted->shape[3] == x->shape[3];
    ok = ok && labels->ndim == 1 && labels->shape[0] == batch;
    int64_t times = t->shape[t->ndim - 1];
    ok = ok && (times == 1 || times == batch) &&
         (t->ndim == 1 || (t->ndim == 2 && t->shape[0] == 2 && config->flow_map));
    ok = ok && (!crop || (config->crop_conditioning && crop->ndim == 2 &&
                          (crop->shape[0] == 1 || crop->shape[0] == batch) &&
                          crop->shape[1] == NL_CROP_NUMBERS));
    ok = ok && (!middle || (config->middle_head && middle->ndim == 4 &&
                            !memcmp(middle->shape, predicted->shape, 4 * sizeof(int64_t))));
    if (ok)
        return NL_OK;
    char input[128], output[128];
    return nl_fail(
        dit->device->context, NL_ERROR_INTERNAL,
        "network: input %s, prediction %s, %lld labels, %lld times and %s crop do not fit a model "
        "of %d x %d x %d%s%s%s",
        nl_shape_text(x->ndim, x->shape, input, sizeof(input)),
        nl_shape_text(predicted->ndim, predicted->shape, output, sizeof(output)),
        (long long)labels->shape[0], (long long)nl_tensor_count(t), crop ? "a" : "no",
        config->in_channels, config->input_height, config->input_width,
        config->flow_map ? "" : " and one time", config->crop_conditioning ? "" : ", no crop",
        middle ? ", or the middle head does not" : "");
}

/* Room for what condition() makes of the times t. */
static nl_status condition_room(const nl_dit *dit, nl_device *device, int64_t batch,
                                const nl_tensor *t, nl_dit_saved *to)
{
    nl_status status;
    int64_t d = dit->config.hidden_size, times = nl_tensor_count(t);
    NL_TRY(nl_activation_tensor(device, batch, dit->adaln_weight.shape[0], &to->modulation));
    NL_TRY(nl_activation_tensor(device, times, dit->time_weight[0].shape[1], &to->time_features));
    NL_TRY(nl_activation_tensor(device, times, d, &to->time_hidden));
    NL_TRY(nl_activation_tensor(device, t->ndim * batch, d, &to->silu_c));
cleanup:
    return status;
}

/* What each of the heads predicts. */
static nl_status forward_heads(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                               const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                               const nl_tensor *prediction, const nl_tensor *middle)
{
    nl_status status;
    const nl_config *config = &dit->config;
    int64_t mark = nl_arena_mark(device), d = config->hidden_size;
    nl_stream stream = {
        .dit = dit, .device = device, .batch = x->shape[0], .tokens = nl_config_tokens(config)};
    int64_t rows = stream.batch * stream.tokens;
    nl_block_saved block = {0};
    nl_dit_saved to = {.blocks = &block};
    NL_TRY(check_arguments(dit, x, t, labels, crop, prediction, middle));
    NL_TRY(condition_room(dit, device, stream.batch, t, &to));
    if (crop)
        to.crop = *crop;
    stream.modulation = to.modulation;
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.x));
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.h));
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.out));
    NL_TRY(nl_activation_tensor(device, rows, nl_wide_columns(config), &stream.wide));
    if (config->dw_conv)
        NL_TRY(nl_activation_tensor(device, rows, d, &stream.spare));
    NL_TRY(f8_room(&stream));
    NL_TRY(block_room(&stream, &block));
    for (int kind = 0; kind < NL_BRANCHES; kind++)
        block.branches[kind].out = stream.out;
    NL_TRY(run(&stream, x, t, labels, &to, true, prediction, middle));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* Room for both heads' predictions, in one tensor as well. */
static nl_status heads_room(nl_device *device, const nl_tensor *prediction, nl_tensor *both,
                            nl_tensor *head, nl_tensor *middle)
{
    int64_t shape[4], batch = prediction->shape[0];
    memcpy(shape, prediction->shape, sizeof(shape));
    shape[0] = 2 * batch;
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, both));
    *head = nl_tensor_rows(both, 0, batch);
    *middle = nl_tensor_rows(both, batch, batch);
    return NL_OK;
}

static nl_status guide_inside(nl_device *device, const nl_tensor *both, double scale,
                              int64_t channels, const nl_tensor *prediction)
{
    return NL_OP(device, guide, .prediction = *both, .y = *prediction, .scale = (float)scale,
                 .channels = channels);
}

nl_status nl_dit_forward(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                         const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                         const nl_tensor *prediction, const nl_tensor *middle)
{
    double inside = dit->config.internal_guidance;
    return inside > 0 && !middle
               ? nl_dit_forward_guided(dit, device, x, t, labels, crop, inside, prediction)
               : forward_heads(dit, device, x, t, labels, crop, prediction, middle);
}

nl_status nl_dit_forward_guided(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                                const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                                double internal_guidance, const nl_tensor *prediction)
{
    nl_status status = NL_OK;
    int64_t mark = nl_arena_mark(device);
    nl_tensor both, head, middle;
    if (!nl_guides_inside(internal_guidance))
        return nl_dit_forward(dit, device, x, t, labels, crop, prediction, NULL);
    NL_TRY(heads_room(device, prediction, &both, &head, &middle));
    NL_TRY(forward_heads(dit, device, x, t, labels, crop, &head, &middle));
    NL_TRY(guide_inside(device, &both, internal_guidance, x->shape[1], prediction));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* A call by its arguments; without padding, since it is compared as bytes. */
typedef struct nl_call {
    const nl_dit *dit;
    const void
        *storage; /* what may differ between networks at one address, copies with another table */
    nl_tensor table;
    nl_device *device;
    nl_tensor x, t, labels, crop, prediction;
    double internal_guidance;
} nl_call;

static nl_status forward(void *user)
{
    const nl_call *call = user;
    return nl_dit_forward_guided(call->dit, call->device, &call->x, &call->t, &call->labels,
                                 call->crop.data ? &call->crop : NULL, call->internal_guidance,
                                 &call->prediction);
}

nl_status nl_dit_replay(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                        const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                        double internal_guidance, const nl_tensor *prediction)
{
    const nl_tensor none = {0};
    nl_call call = {dit, dit->storage, dit->label_table,    device,      *x,
                    *t,  *labels,      crop ? *crop : none, *prediction, internal_guidance};
    return nl_replay(device, &call, sizeof(call), forward, &call);
}

/* ---- Training */

/* The input of each block and its last output are kept, the rest with checkpointing once for all blocks. */
static nl_status blocks_room(const nl_stream *stream, nl_dit_saved *saved)
{
    nl_status status = NL_OK;
    nl_device *device = stream->device;
    int64_t rows = stream->batch * stream->tokens, d = stream->dit->config.hidden_size;
    for (int i = 0; i < stream->dit->config.depth; i++) {
        nl_block_saved *block = &saved->blocks[i];
        nl_branch_saved *first = &block->branches[0], *last = &block->branches[NL_BRANCHES - 1];
        if (saved->checkpointing && i > 0) {
            *block = saved->blocks[0];
        } else {
            NL_TRY(block_room(stream, block));
            for (int kind = 1; kind < NL_BRANCHES; kind++) {
                NL_TRY(nl_activation_tensor(device, rows, d, &block->branches[kind - 1].out));
                NL_TRY(nl_activation_tensor(device, rows, d, &block->branches[kind].x));
            }
        }
        NL_TRY(nl_activation_tensor(device, rows, d, &first->x));
        NL_TRY(nl_activation_tensor(device, rows, d, &last->out));
    }
    NL_TRY(nl_activation_tensor(device, rows, d, &saved->last));
cleanup:
    return status;
}

static nl_status saved_room(const nl_stream *stream, const nl_tensor *x, const nl_tensor *t,
                            const nl_tensor *labels, bool checkpointing, nl_dit_saved *saved)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    nl_device *device = stream->device;
    *saved = (nl_dit_saved){
        .checkpointing = checkpointing, .batch = stream->batch, .x = *x, .labels = *labels};
    int64_t times = nl_tensor_count(t);
    NL_TRY(NL_NEW_ZEROS(device->context, "blocks", dit->config.depth, &saved->blocks));
    NL_TRY(condition_room(dit, device, stream->batch, t, saved));
    NL_TRY(nl_activation_tensor(device, times, dit->config.hidden_size, &saved->time_pre));
    NL_TRY(nl_activation_tensor(device, times, dit->config.hidden_size, &saved->c));
    NL_TRY(blocks_room(stream, saved));
cleanup:
    return status;
}

nl_status nl_dit_forward_saving(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                                const nl_tensor *t, const nl_tensor *labels, const nl_tensor *crop,
                                bool checkpointing, const nl_dropout *dropout,
                                const nl_tensor *prediction, const nl_tensor *middle,
                                nl_dit_saved *saved)
{
    nl_status status;
    nl_stream stream = {.dit = dit,
                        .device = device,
                        .batch = x->shape[0],
                        .tokens = nl_config_tokens(&dit->config),
                        .keep = true};
    int64_t rows = stream.batch * stream.tokens, d = dit->config.hidden_size, mark = -1;
    bool inside = dit->config.internal_guidance > 0 && !middle;
    nl_tensor both, of_head, of_middle;
    *saved = (nl_dit_saved){0};
    NL_TRY(check_arguments(dit, x, t, labels, crop, prediction, middle));
    if (t->shape[t->ndim - 1] != stream.batch || (crop && crop->shape[0] != stream.batch))
        NL_TRY(nl_fail(device->context, NL_ERROR_INTERNAL,
                       "network: %lld times, %lld crops for %lld images in training",
                       (long long)t->shape[t->ndim - 1], (long long)(crop ? crop->shape[0] : 0),
                       (long long)stream.batch));
    NL_TRY(saved_room(&stream, x, t, labels, checkpointing, saved));
    if (crop)
        saved->crop = *crop;
    if (dropout)
        saved->dropout = stream.dropout = *dropout;
    mark = nl_arena_mark(device);
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.h));
    NL_TRY(nl_activation_tensor(device, rows, nl_wide_columns(&dit->config), &stream.wide));
    if (dit->config.dw_conv)
        NL_TRY(nl_activation_tensor(device, rows, d, &stream.spare));
    NL_TRY(f8_room(&stream));
    if (inside)
        NL_TRY(heads_room(device, prediction, &both, &of_head, &of_middle));
    stream.modulation = saved->modulation;
    stream.x = saved->blocks[0].branches[0].x;
    NL_TRY(run(&stream, x, t, labels, saved, false, inside ? &of_head : prediction,
               inside ? &of_middle : middle));
    if (inside)
        NL_TRY(guide_inside(device, &both, dit->config.internal_guidance, x->shape[1], prediction));
cleanup:
    if (mark >= 0)
        nl_arena_release(device, mark);
    return status;
}

void nl_dit_saved_free(nl_device *device, nl_dit_saved *saved)
{
    nl_free(device->context, saved->blocks);
    saved->blocks = NULL;
}
