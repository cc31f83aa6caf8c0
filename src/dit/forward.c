/* The network, once, in operations; it runs on every back end and on a measuring device. */
#include <math.h>

#include "nl_dit.h"

/* The residual stream and what one block needs beside it; T tokens an image, D the hidden size. */
typedef struct nl_stream {
    const nl_config *config;
    nl_device *device;
    int64_t batch, tokens;
    nl_tensor x;          /* [B T, D] */
    nl_tensor h;          /* [B T, D]: normalised input of a branch, then the attention's output */
    nl_tensor branch;     /* [B T, D]: output of the last branch, not yet added to x */
    nl_tensor wide;       /* [B T, 4D]: q k v g, then the hidden layer of the MLP */
    nl_tensor modulation; /* [B, (6 depth + 2) D] */
} nl_stream;

/* One of the D columns wide pieces of the modulation, [B, D]. */
static nl_tensor piece(const nl_stream *stream, int64_t index)
{
    int64_t d = stream->config->hidden_size;
    return nl_tensor_columns(&stream->modulation, index * d, d);
}

/* modulation [B, (6 depth + 2) D] = adaLN(SiLU(time MLP(t) + label)), for all layers at once. */
static nl_status condition(const nl_dit *dit, const nl_tensor *t, const nl_tensor *labels,
                           nl_stream *stream)
{
    nl_status status;
    nl_device *device = stream->device;
    int64_t d = dit->config.hidden_size, batch = stream->batch, t_count = t->shape[0];
    nl_tensor features, hidden, embedded, c;
    NL_TRY(nl_arena_tensor(device, device->activation, 2,
                           (int64_t[]){batch, dit->adaln_weight.shape[0]}, &stream->modulation));
    int64_t mark = nl_arena_mark(device);
    NL_TRY(nl_arena_tensor(device, device->activation, 2,
                           (int64_t[]){t_count, dit->time_weight[0].shape[1]}, &features));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){t_count, d}, &hidden));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){t_count, d}, &embedded));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){batch, d}, &c));
    NL_TRY(NL_OP(device, time_features, .t = *t, .features = features));
    NL_TRY(NL_OP(device, linear, .x = features, .weight = dit->time_weight[0],
                 .bias = dit->time_bias[0], .y = hidden, .epilogue = NL_EPILOGUE_SILU));
    NL_TRY(NL_OP(device, linear, .x = hidden, .weight = dit->time_weight[1],
                 .bias = dit->time_bias[1], .y = embedded));
    NL_TRY(NL_OP(device, add_label, .time = embedded, .table = dit->label_table, .labels = *labels,
                 .y = c));
    NL_TRY(NL_OP(device, linear, .x = c, .weight = dit->adaln_weight, .bias = dit->adaln_bias,
                 .y = stream->modulation));
    nl_arena_release(device, mark);
cleanup:
    return status;
}

/* out [B T, D] = attention of the product qkv(g) in stream->wide, through stream->h. */
static nl_status attention(const nl_block_params *block, nl_stream *stream)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_config *config = stream->config;
    int64_t d = config->hidden_size, heads = config->num_heads, head_size = d / heads;
    int64_t rows = stream->batch * stream->tokens;
    int64_t grid_height = config->input_height / config->patch_size;
    int64_t grid_width = config->input_width / config->patch_size;
    int64_t columns = block->qkv_weight.shape[0];
    /* Without a gate the product is narrower than `wide`, and contiguous all the same. */
    nl_tensor qkv =
        nl_tensor_of(stream->wide.data, device->activation, 2, (int64_t[]){rows, columns});
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = block->qkv_weight,
                 .bias = block->qkv_bias, .y = qkv));
    if (config->attention == NL_ATTENTION_SOFTMAX)
        return NL_OP(device, softmax_attention, .qkv = qkv, .out = stream->h,
                     .batch = stream->batch, .tokens = stream->tokens, .heads = heads,
                     .head_size = head_size, .scale = 1 / sqrtf((float)head_size));
    NL_TRY(NL_OP(device, nala_attention, .qkvg = qkv, .out = stream->h, .batch = stream->batch,
                 .tokens = stream->tokens, .heads = heads, .head_size = head_size,
                 .feature_map = config->feature_map, .lambda = (float)config->lambda,
                 .tau = (float)config->tau, .rope = config->rope, .grid_height = grid_height,
                 .grid_width = grid_width));
    if (config->lepe)
        NL_TRY(NL_OP(device, depthwise_conv, .x = nl_tensor_columns(&qkv, 2 * d, d),
                     .weight = block->lepe_weight, .bias = block->lepe_bias, .out = stream->h,
                     .batch = stream->batch, .grid_height = grid_height, .grid_width = grid_width));
    nl_tensor gate = config->gate ? nl_tensor_columns(&qkv, 3 * d, d) : (nl_tensor){0};
    NL_TRY(NL_OP(device, layernorm_gate, .x = stream->h, .weight = block->ln_weight,
                 .bias = block->ln_bias, .g = gate, .y = stream->h, .eps = 1e-5f));
cleanup:
    return status;
}

/* The six pieces of a block's modulation; the final layer has the first two. */
enum { SHIFT_MSA, SCALE_MSA, GATE_MSA, SHIFT_MLP, SCALE_MLP, GATE_MLP, PIECES };

/* x += gate * branch (gate: its piece, or -1 before the first branch); h = LN(x) modulated by pieces shift, shift + 1. */
static nl_status add_and_modulate(nl_stream *stream, int64_t gate, int64_t shift)
{
    nl_tensor none = {0};
    return NL_OP(stream->device, layernorm_modulate, .x = stream->x, .y = stream->h,
                 .branch = gate < 0 ? none : stream->branch,
                 .gate = gate < 0 ? none : piece(stream, gate), .shift = piece(stream, shift),
                 .scale = piece(stream, shift + 1), .rows_per_image = stream->tokens, .eps = 1e-6f);
}

/* x += gate_msa * attention(modulated LN(x)); x += gate_mlp * MLP(modulated LN(x)), where the last sum is left to
 * whoever normalises x next: each pass over x adds one branch and normalises for the other. */
static nl_status run_block(const nl_dit *dit, int index, nl_stream *stream)
{
    nl_status status;
    nl_device *device = stream->device;
    const nl_block_params *block = &dit->blocks[index];
    int64_t first = PIECES * (int64_t)index;
    NL_TRY(
        add_and_modulate(stream, index == 0 ? -1 : first - PIECES + GATE_MLP, first + SHIFT_MSA));
    NL_TRY(attention(block, stream));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = block->proj_weight,
                 .bias = block->proj_bias, .y = stream->branch));
    NL_TRY(add_and_modulate(stream, first + GATE_MSA, first + SHIFT_MLP));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = block->fc1_weight,
                 .bias = block->fc1_bias, .y = stream->wide, .epilogue = NL_EPILOGUE_GELU_TANH));
    NL_TRY(NL_OP(device, linear, .x = stream->wide, .weight = block->fc2_weight,
                 .bias = block->fc2_bias, .y = stream->branch));
cleanup:
    return status;
}

/* prediction [B, C_out, H, W] = unpatchify(head(modulated LN(x))) */
static nl_status run_head(const nl_dit *dit, nl_stream *stream, const nl_tensor *prediction)
{
    nl_status status;
    nl_device *device = stream->device;
    int64_t first = PIECES * (int64_t)dit->config.depth;
    nl_tensor patches;
    NL_TRY(nl_arena_tensor(device, NL_F32, 2,
                           (int64_t[]){stream->batch * stream->tokens, dit->head_weight.shape[0]},
                           &patches));
    NL_TRY(add_and_modulate(stream, first - PIECES + GATE_MLP, first));
    NL_TRY(NL_OP(device, linear, .x = stream->h, .weight = dit->head_weight, .bias = dit->head_bias,
                 .y = patches));
    NL_TRY(NL_OP(device, unpatchify, .tokens = patches, .x = *prediction,
                 .patch = dit->config.patch_size,
                 .head_channels = nl_config_head_channels(&dit->config)));
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

nl_status nl_dit_forward(const nl_dit *dit, nl_device *device, const nl_tensor *x,
                         const nl_tensor *t, const nl_tensor *labels, const nl_tensor *prediction)
{
    nl_status status;
    const nl_config *config = &dit->config;
    int64_t mark = nl_arena_mark(device), d = config->hidden_size;
    nl_stream stream = {.config = config,
                        .device = device,
                        .batch = x->shape[0],
                        .tokens = nl_config_tokens(config)};
    int64_t rows = stream.batch * stream.tokens;
    NL_TRY(check_arguments(dit, x, t, labels, prediction));
    NL_TRY(condition(dit, t, labels, &stream));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, d}, &stream.x));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, d}, &stream.h));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, d}, &stream.branch));
    NL_TRY(nl_arena_tensor(device, device->activation, 2, (int64_t[]){rows, 4 * d}, &stream.wide));
    NL_TRY(NL_OP(device, patch_embed, .x = *x, .weight = dit->patch_weight, .bias = dit->patch_bias,
                 .position = dit->position, .tokens = stream.x));
    for (int i = 0; i < config->depth; i++)
        NL_TRY(run_block(dit, i, &stream));
    NL_TRY(run_head(dit, &stream, prediction));
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
