/* SPDX-License-Identifier: MIT */
/* The network, once, in operations; it runs on every back end and on a measuring device. */
#include <math.h>

#include "network.h"

nl_status nl_activation_tensor(nl_device *device, int64_t rows, int64_t columns, nl_tensor *tensor)
{
    return nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, columns}, tensor);
}

/* modulation [B, (6 depth + 2) D] = adaLN(SiLU(time MLP(t) + label)), for all layers at once. */
static nl_status condition(const nl_stream *stream, const nl_tensor *t, const nl_tensor *labels,
                           const nl_dit_saved *to)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    nl_device *device = stream->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor embedded;
    NL_TRY(nl_activation_tensor(device, t->shape[0], dit->config.hidden_size, &embedded));
    NL_TRY(NL_OP(device, time_features, .t = *t, .features = to->time_features));
    NL_TRY(NL_OP(device, linear, .x = to->time_features, .weight = dit->time_weight[0],
                 .bias = dit->time_bias[0], .y = to->time_hidden, .epilogue = NL_EPILOGUE_SILU,
                 .pre = to->time_pre));
    NL_TRY(NL_OP(device, linear, .x = to->time_hidden, .weight = dit->time_weight[1],
                 .bias = dit->time_bias[1], .y = embedded));
    NL_TRY(NL_OP(device, add_label, .time = embedded, .table = dit->label_table, .labels = *labels,
                 .c = to->c, .y = to->silu_c));
    NL_TRY(NL_OP(device, linear, .x = to->silu_c, .weight = dit->adaln_weight,
                 .bias = dit->adaln_bias, .y = to->modulation));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* h [B T, D] becomes the projected attention of it. */
static nl_status attention_branch(nl_stream *stream, const nl_block_params *block,
                                  const nl_block_saved *to)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_config *config = &stream->dit->config;
    int64_t d = config->hidden_size, heads = config->num_heads, head_size = d / heads;
    int64_t grid_height = config->input_height / config->patch_size;
    int64_t grid_width = config->input_width / config->patch_size;
    nl_tensor out = to->attention;
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = block->qkv_weight,
                 .bias = block->qkv_bias, .y = to->qkv));
    if (config->attention == NL_ATTENTION_SOFTMAX) {
        NL_TRY(NL_OP(device, softmax_attention, .qkv = to->qkv, .out = out, .lse = to->lse,
                     .batch = stream->batch, .tokens = stream->tokens, .heads = heads,
                     .head_size = head_size, .scale = 1 / sqrtf((float)head_size)));
    } else {
        NL_TRY(NL_OP(device, nala_attention, .qkvg = to->qkv, .out = out, .state = to->state,
                     .total = to->total, .batch = stream->batch, .tokens = stream->tokens,
                     .heads = heads, .head_size = head_size, .feature_map = config->feature_map,
                     .lambda = (float)config->lambda, .tau = (float)config->tau,
                     .rope = config->rope, .grid_height = grid_height, .grid_width = grid_width));
        if (config->lepe)
            NL_TRY(NL_OP(device, depthwise_conv, .x = nl_tensor_columns(&to->qkv, 2 * d, d),
                         .weight = block->lepe_weight, .bias = block->lepe_bias,
                         .addend = to->mixed.data == out.data ? (nl_tensor){0} : out,
                         .out = to->mixed, .batch = stream->batch, .grid_height = grid_height,
                         .grid_width = grid_width));
        nl_tensor gate = config->gate ? nl_tensor_columns(&to->qkv, 3 * d, d) : (nl_tensor){0};
        NL_TRY(NL_OP(device, layernorm_gate, .x = to->mixed, .weight = block->ln_weight,
                     .bias = block->ln_bias, .g = gate, .y = stream->h, .eps = 1e-5f));
        out = stream->h;
    }
    NL_TRY(NL_OP(device, linear, .x = out, .weight = block->proj_weight, .bias = block->proj_bias,
                 .y = to->attention_branch));
    stream->branch = to->attention_branch;
cleanup:
    return status;
}

/* x += gate * branch (gate: its piece, or -1 when there is nothing to add), the sum going to `sum` where that is a
 * tensor; h = LN(x) modulated by pieces shift, shift + 1. */
static nl_status add_and_modulate(nl_stream *stream, int64_t gate, int64_t shift,
                                  const nl_tensor *sum)
{
    nl_tensor none = {0};
    int64_t d = stream->dit->config.hidden_size;
    nl_tensor to = gate < 0 ? none : *sum;
    nl_status status =
        NL_OP(stream->device, layernorm_modulate, .x = stream->x, .y = stream->h, .sum = to,
              .branch = gate < 0 ? none : stream->branch,
              .gate = gate < 0 ? none : nl_modulation_piece(&stream->modulation, gate, d),
              .shift = nl_modulation_piece(&stream->modulation, shift, d),
              .scale = nl_modulation_piece(&stream->modulation, shift + 1, d),
              .rows_per_image = stream->tokens, .eps = 1e-6f);
    if (to.data)
        stream->x = to;
    return status;
}

/* x += gate_msa * attention(modulated LN(x)); x += gate_mlp * MLP(modulated LN(x)), where the last sum is left to
 * whoever normalises x next: each pass over x adds one branch and normalises for the other. */
static nl_status run_block(nl_stream *stream, int index, const nl_block_saved *to)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_block_params *block = &stream->dit->blocks[index];
    int64_t first = NL_PIECES * (int64_t)index;
    NL_TRY(add_and_modulate(stream, index == 0 ? -1 : first - NL_PIECES + NL_GATE_MLP,
                            first + NL_SHIFT_MSA, &to->x));
    NL_TRY(attention_branch(stream, block, to));
    NL_TRY(add_and_modulate(stream, first + NL_GATE_MSA, first + NL_SHIFT_MLP, &to->middle));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = block->fc1_weight,
                 .bias = block->fc1_bias, .y = stream->wide, .epilogue = NL_EPILOGUE_GELU_TANH,
                 .pre = to->hidden));
    NL_TRY(NL_OP(device, linear, .x = stream->wide, .weight = block->fc2_weight,
                 .bias = block->fc2_bias, .y = to->mlp_branch));
    stream->branch = to->mlp_branch;
cleanup:
    return status;
}

nl_status nl_block_again(nl_stream *stream, int index, const nl_block_saved *to)
{
    nl_status status;
    const nl_block_params *block = &stream->dit->blocks[index];
    int64_t first = NL_PIECES * (int64_t)index;
    stream->x = to->x;
    NL_TRY(add_and_modulate(stream, -1, first + NL_SHIFT_MSA, &to->x));
    NL_TRY(attention_branch(stream, block, to));
    NL_TRY(add_and_modulate(stream, first + NL_GATE_MSA, first + NL_SHIFT_MLP, &to->middle));
    NL_TRY(NL_OP(stream->device, linear, .x = stream->h, .weight = block->fc1_weight,
                 .bias = block->fc1_bias, .y = to->hidden));
cleanup:
    return status;
}

/* prediction [B, C_out, H, W] = unpatchify(head(modulated LN(x))) */
static nl_status run_head(nl_stream *stream, const nl_tensor *last, const nl_tensor *prediction)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    nl_device *device = stream->device;
    int64_t first = NL_PIECES * (int64_t)dit->config.depth;
    nl_tensor patches;
    NL_TRY(nl_arena_tensor(device, NL_F32, 2,
                           (int64_t[]){stream->batch * stream->tokens, dit->head_weight.shape[0]},
                           &patches));
    NL_TRY(add_and_modulate(stream, first - NL_PIECES + NL_GATE_MLP, first, last));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = dit->head_weight, .bias = dit->head_bias,
                 .y = patches));
    NL_TRY(NL_OP(device, unpatchify, .tokens = patches, .x = *prediction,
                 .patch = dit->config.patch_size,
                 .head_channels = nl_config_head_channels(&dit->config)));
cleanup:
    return status;
}

/* The whole network. to->blocks: one for each block, or one for all of them (one_block); stream->x: where the
 * tokens go. */
static nl_status run(nl_stream *stream, const nl_tensor *x, const nl_tensor *t,
                     const nl_tensor *labels, const nl_dit_saved *to, bool one_block,
                     const nl_tensor *prediction)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    NL_TRY(condition(stream, t, labels, to));
    NL_TRY(NL_OP(stream->device, patch_embed, .x = *x, .weight = dit->patch_weight,
                 .bias = dit->patch_bias, .position = dit->position, .tokens = stream->x));
    for (int i = 0; i < dit->config.depth; i++)
        NL_TRY(run_block(stream, i, &to->blocks[one_block ? 0 : i]));
    NL_TRY(run_head(stream, &to->last, prediction));
cleanup:
    return status;
}

static nl_status check_arguments(const nl_dit *dit, const nl_tensor *x, const nl_tensor *t,
                                 const nl_tensor *labels, const nl_tensor *prediction)
{
    const nl_config *config = &dit->config;
    int64_t batch = x->shape[0], channels = prediction->shape[1];
    bool ok = x->ndim == 4 && x->shape[1] == config->in_channels &&
              x->shape[2] == config->input_height && x->shape[3] == config->input_width;
    ok = ok && prediction->ndim == 4 && prediction->shape[0] == batch &&
         (channels == config->in_channels || channels == nl_config_head_channels(config)) &&
         prediction->shape[2] == x->shape[2] && prediction->shape[3] == x->shape[3];
    ok = ok && labels->ndim == 1 && labels->shape[0] == batch;
    ok = ok && t->ndim == 1 && (t->shape[0] == 1 || t->shape[0] == batch);
    if (ok)
        return NL_OK;
    char input[128], output[128];
    return nl_fail(
        dit->device->context, NL_ERROR_INTERNAL,
        "network: input %s, prediction %s, %lld labels and %lld times do not fit a model "
        "of %d x %d x %d",
        nl_shape_text(x->ndim, x->shape, input, sizeof(input)),
        nl_shape_text(prediction->ndim, prediction->shape, output, sizeof(output)),
        (long long)labels->shape[0], (long long)t->shape[0], config->in_channels,
        config->input_height, config->input_width);
}

/* Room for what condition() makes of `times` different times. */
static nl_status condition_room(const nl_dit *dit, nl_device *device, int64_t batch, int64_t times,
                                nl_dit_saved *to)
{
    nl_status status;
    int64_t d = dit->config.hidden_size;
    NL_TRY(nl_activation_tensor(device, batch, dit->adaln_weight.shape[0], &to->modulation));
    NL_TRY(nl_activation_tensor(device, times, dit->time_weight[0].shape[1], &to->time_features));
    NL_TRY(nl_activation_tensor(device, times, d, &to->time_hidden));
    NL_TRY(nl_activation_tensor(device, batch, d, &to->silu_c));
cleanup:
    return status;
}

nl_status nl_dit_forward(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                         const nl_tensor *t, const nl_tensor *labels, const nl_tensor *prediction)
{
    nl_status status;
    const nl_config *config = &dit->config;
    int64_t mark = nl_arena_mark(device), d = config->hidden_size;
    nl_stream stream = {
        .dit = dit, .device = device, .batch = x->shape[0], .tokens = nl_config_tokens(config)};
    int64_t rows = stream.batch * stream.tokens;
    nl_block_saved block = {0};
    nl_dit_saved to = {.blocks = &block};
    NL_TRY(check_arguments(dit, x, t, labels, prediction));
    NL_TRY(condition_room(dit, device, stream.batch, t->shape[0], &to));
    stream.modulation = to.modulation;
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.x));
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.h));
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.branch));
    NL_TRY(nl_activation_tensor(device, rows, 4 * d, &stream.wide));
    /* Without a gate the product is narrower than `wide`, and contiguous all the same. */
    block.qkv = nl_tensor_of(stream.wide.data, device->activation, 2,
                             (int64_t[]){rows, dit->blocks[0].qkv_weight.shape[0]});
    block.attention = block.mixed = stream.h;
    block.attention_branch = block.mlp_branch = stream.branch;
    NL_TRY(run(&stream, x, t, labels, &to, true, prediction));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* A call by its arguments; without padding, since it is compared as bytes. */
typedef struct nl_call {
    const nl_dit *dit;
    nl_device *device;
    nl_tensor x, t, labels, prediction;
} nl_call;

static nl_status forward(void *user)
{
    const nl_call *call = user;
    return nl_dit_forward(call->dit, call->device, &call->x, &call->t, &call->labels,
                          &call->prediction);
}

nl_status nl_dit_replay(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                        const nl_tensor *t, const nl_tensor *labels, const nl_tensor *prediction)
{
    nl_call call = {dit, device, *x, *t, *labels, *prediction};
    return nl_replay(device, &call, sizeof(call), forward, &call);
}

/* ---- Training */

/* Room for what one block keeps, from qkv to hidden. */
static nl_status block_room(const nl_stream *stream, nl_block_saved *block)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_config *config = &stream->dit->config;
    int64_t rows = stream->batch * stream->tokens, d = config->hidden_size;
    int64_t pairs = stream->batch * config->num_heads, head_size = d / config->num_heads;
    int64_t features = nl_feature_width(config->feature_map, head_size);
    NL_TRY(nl_activation_tensor(device, rows, stream->dit->blocks[0].qkv_weight.shape[0],
                                &block->qkv));
    if (config->attention == NL_ATTENTION_SOFTMAX) {
        NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){pairs, stream->tokens}, &block->lse));
    } else {
        NL_TRY(nl_arena_tensor(device, NL_F32, 3, (int64_t[]){pairs, features, head_size},
                               &block->state));
        NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){pairs, features}, &block->total));
    }
    NL_TRY(nl_activation_tensor(device, rows, d, &block->attention));
    block->mixed = block->attention;
    if (config->attention == NL_ATTENTION_NALA && config->lepe)
        NL_TRY(nl_activation_tensor(device, rows, d, &block->mixed));
    NL_TRY(nl_activation_tensor(device, rows, d, &block->attention_branch));
    NL_TRY(nl_activation_tensor(device, rows, d, &block->middle));
    NL_TRY(nl_activation_tensor(device, rows, 4 * d, &block->hidden));
cleanup:
    return status;
}

static nl_status blocks_room(const nl_stream *stream, nl_dit_saved *saved)
{
    nl_status status = NL_OK;
    int64_t rows = stream->batch * stream->tokens, d = stream->dit->config.hidden_size;
    for (int i = 0; i < stream->dit->config.depth; i++) {
        nl_block_saved *block = &saved->blocks[i];
        if (saved->checkpointing && i > 0)
            *block = saved->blocks[0];
        else
            NL_TRY(block_room(stream, block));
        NL_TRY(nl_activation_tensor(stream->device, rows, d, &block->x));
        NL_TRY(nl_activation_tensor(stream->device, rows, d, &block->mlp_branch));
    }
    NL_TRY(nl_activation_tensor(stream->device, rows, d, &saved->last));
cleanup:
    return status;
}

static nl_status saved_room(const nl_stream *stream, const nl_tensor *x, const nl_tensor *labels,
                            bool checkpointing, nl_dit_saved *saved)
{
    nl_status status;
    const nl_dit *dit = stream->dit;
    nl_device *device = stream->device;
    void *memory;
    *saved = (nl_dit_saved){
        .checkpointing = checkpointing, .batch = stream->batch, .x = *x, .labels = *labels};
    NL_TRY(nl_alloc_zero(device->context, "blocks",
                         (size_t)dit->config.depth * sizeof(nl_block_saved), &memory));
    saved->blocks = memory;
    NL_TRY(condition_room(dit, device, stream->batch, stream->batch, saved));
    NL_TRY(nl_activation_tensor(device, stream->batch, dit->config.hidden_size, &saved->time_pre));
    NL_TRY(nl_activation_tensor(device, stream->batch, dit->config.hidden_size, &saved->c));
    NL_TRY(blocks_room(stream, saved));
cleanup:
    return status;
}

nl_status nl_dit_forward_saving(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                                const nl_tensor *t, const nl_tensor *labels, bool checkpointing,
                                const nl_tensor *prediction, nl_dit_saved *saved)
{
    nl_status status;
    nl_stream stream = {.dit = dit,
                        .device = device,
                        .batch = x->shape[0],
                        .tokens = nl_config_tokens(&dit->config)};
    int64_t rows = stream.batch * stream.tokens, d = dit->config.hidden_size, mark = -1;
    *saved = (nl_dit_saved){0};
    NL_TRY(check_arguments(dit, x, t, labels, prediction));
    if (t->shape[0] != stream.batch)
        NL_TRY(nl_fail(device->context, NL_ERROR_INTERNAL,
                       "network: %lld times for %lld images in training", (long long)t->shape[0],
                       (long long)stream.batch));
    NL_TRY(saved_room(&stream, x, labels, checkpointing, saved));
    mark = nl_arena_mark(device);
    NL_TRY(nl_activation_tensor(device, rows, d, &stream.h));
    NL_TRY(nl_activation_tensor(device, rows, 4 * d, &stream.wide));
    stream.modulation = saved->modulation;
    stream.x = saved->blocks[0].x;
    NL_TRY(run(&stream, x, t, labels, saved, false, prediction));
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
