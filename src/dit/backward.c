/* SPDX-License-Identifier: MIT */
/*
 * The backward pass. In a block, products by the weights come first: the normalisation before them then leaves its
 * output once more in `h`, and the weight gradient takes it from there. So no normalised activation is kept by the
 * forward pass, and the room needed beside what it kept is six [B T, D]: what is used up serves as room.
 */
#include <math.h>

#include "network.h"

typedef struct nl_pass {
    const nl_dit *dit;
    nl_device *device;
    const nl_dit_saved *saved;
    nl_dit *gradients;
    nl_gradients_ready ready;
    void *user;
    int64_t rows, tokens;  /* B T, T */
    nl_tensor dx;          /* [B T, D] of the residual stream */
    nl_tensor dbranch;     /* [B T, D] of the branch that was added last */
    nl_tensor dh;          /* [B T, D] of the normalised input of a branch */
    nl_tensor h;           /* [B T, D] that input once more */
    nl_tensor wide;        /* [B T, 4D] */
    nl_tensor dmodulation; /* [B, (6 depth + 2) D] */
} nl_pass;

/* What comes before a normalisation: the branch that its operation added to the stream. */
typedef struct nl_added {
    const nl_tensor *branch; /* NULL: none */
    int64_t gate;            /* its piece of the modulation */
    const nl_tensor *dbias;  /* of the layer that made it */
} nl_added;

/* From dh, through the normalisation of `stream` with modulation pieces shift, shift + 1: dx, dbranch, h. */
static nl_status norm_backward(nl_pass *pass, const nl_tensor *stream, nl_added added,
                               int64_t shift)
{
    int64_t d = pass->dit->config.hidden_size;
    const nl_tensor *modulation = &pass->saved->modulation;
    nl_layernorm_modulate_backward_args args = {
        .x = *stream,
        .shift = nl_modulation_piece(modulation, shift, d),
        .scale = nl_modulation_piece(modulation, shift + 1, d),
        .dy = pass->dh,
        .dx = pass->dx,
        .dshift = nl_modulation_piece(&pass->dmodulation, shift, d),
        .dscale = nl_modulation_piece(&pass->dmodulation, shift + 1, d),
        .y = pass->h,
        .rows_per_image = pass->tokens,
        .eps = 1e-6f,
    };
    if (added.branch) {
        args.branch = *added.branch;
        args.gate = nl_modulation_piece(modulation, added.gate, d);
        args.dbranch = pass->dbranch;
        args.dgate = nl_modulation_piece(&pass->dmodulation, added.gate, d);
        args.dbias = *added.dbias;
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

/* h and dh lie from now on in `room` [B T, 4D], which nothing else needs meanwhile. */
static void borrow(nl_pass *pass, const nl_tensor *room)
{
    int64_t d = pass->dit->config.hidden_size, half = 2 * pass->rows * d;
    const int64_t shape[] = {pass->rows, d};
    pass->h = nl_tensor_of(room->data, room->dtype, 2, shape);
    pass->dh =
        nl_tensor_of((char *)room->data + half * nl_dtype_size(room->dtype), room->dtype, 2, shape);
}

static nl_status head_backward(nl_pass *pass, const nl_tensor *dprediction, const nl_added *added)
{
    nl_status status;
    const nl_dit *dit = pass->dit;
    nl_dit *gradients = pass->gradients;
    nl_device *device = pass->device;
    int64_t mark = nl_arena_mark(device);
    nl_tensor dpatches;
    borrow(pass, &pass->wide);
    NL_TRY(nl_activation_tensor(device, pass->rows, dit->head_weight.shape[0], &dpatches));
    NL_TRY(NL_OP(device, unpatchify_backward, .dx = *dprediction, .dtokens = dpatches,
                 .patch = dit->config.patch_size,
                 .head_channels = nl_config_head_channels(&dit->config)));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dpatches, .weight = dit->head_weight,
                 .dx = pass->dh));
    NL_TRY(NL_OP(device, zero, .x = pass->dx)); /* nothing else reads the last stream */
    NL_TRY(norm_backward(pass, &pass->saved->last, *added, NL_PIECES * (int64_t)dit->config.depth));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dpatches, .x = pass->h,
                 .dweight = gradients->head_weight, .dbias = gradients->head_bias));
    NL_TRY(report(pass, &gradients->head_weight, &gradients->adaln_weight));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status mlp_backward(nl_pass *pass, int index)
{
    nl_status status;
    nl_device *device = pass->device;
    const nl_block_params *block = &pass->dit->blocks[index];
    const nl_block_saved *saved = &pass->saved->blocks[index];
    nl_block_params *gradients = &pass->gradients->blocks[index];
    int64_t first = NL_PIECES * (int64_t)index;
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dbranch, .weight = block->fc2_weight,
                 .pre = saved->hidden, .epilogue = NL_EPILOGUE_GELU_TANH, .dx = pass->wide,
                 .x = saved->hidden, .dbias = gradients->fc1_bias));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dbranch, .x = saved->hidden,
                 .dweight = gradients->fc2_weight));
    borrow(pass, &saved->hidden);
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->wide, .weight = block->fc1_weight,
                 .dx = pass->dh));
    NL_TRY(norm_backward(
        pass, &saved->middle,
        (nl_added){&saved->attention_branch, first + NL_GATE_MSA, &gradients->proj_bias},
        first + NL_SHIFT_MLP));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->wide, .x = pass->h,
                 .dweight = gradients->fc1_weight));
cleanup:
    return status;
}

/* Is the bias of qkv summed by the operations that make dqkv? lepe adds to dv after them. */
static bool sums_come_along(const nl_config *config)
{
    return config->attention == NL_ATTENTION_NALA && !config->lepe;
}

/* Then where they add the sums of columns [first, first + count); otherwise nothing. */
static nl_tensor qkv_sums(const nl_pass *pass, int index, int64_t first, int64_t count)
{
    if (!sums_come_along(&pass->dit->config))
        return (nl_tensor){0};
    return nl_tensor_rows(&pass->gradients->blocks[index].qkv_bias, first, count);
}

/* dh, the gradient of the gated output, becomes that of NaLa's output; dg goes into dqkv, the gated output into h. */
static nl_status gate_backward(nl_pass *pass, int index, const nl_tensor *dqkv)
{
    const nl_config *config = &pass->dit->config;
    const nl_block_params *block = &pass->dit->blocks[index];
    const nl_block_saved *saved = &pass->saved->blocks[index];
    nl_block_params *gradients = &pass->gradients->blocks[index];
    int64_t d = config->hidden_size;
    nl_layernorm_gate_backward_args args = {
        .x = saved->mixed,
        .weight = block->ln_weight,
        .bias = block->ln_bias,
        .dy = pass->dh,
        .dx = pass->dh,
        .dweight = gradients->ln_weight,
        .dbias = gradients->ln_bias,
        .y = pass->h,
        .eps = 1e-5f,
    };
    if (config->gate) {
        args.g = nl_tensor_columns(&saved->qkv, 3 * d, d);
        args.dg = nl_tensor_columns(dqkv, 3 * d, d);
        args.dg_sums = qkv_sums(pass, index, 3 * d, d);
    }
    return nl_op_layernorm_gate_backward(pass->device, &args);
}

/* From dh, the gradient of the attention's output, to dqkv. */
static nl_status qkv_backward(nl_pass *pass, int index, const nl_tensor *dqkv)
{
    nl_status status;
    const nl_config *config = &pass->dit->config;
    const nl_block_saved *saved = &pass->saved->blocks[index];
    nl_block_params *gradients = &pass->gradients->blocks[index];
    int64_t d = config->hidden_size, heads = config->num_heads, head_size = d / heads;
    int64_t batch = pass->saved->batch;
    int64_t grid_height = config->input_height / config->patch_size;
    int64_t grid_width = config->input_width / config->patch_size;
    if (config->attention == NL_ATTENTION_SOFTMAX)
        return NL_OP(pass->device, softmax_attention_backward, .qkv = saved->qkv,
                     .out = saved->attention, .dout = pass->dh, .lse = saved->lse, .dqkv = *dqkv,
                     .batch = batch, .tokens = pass->tokens, .heads = heads, .head_size = head_size,
                     .scale = 1 / sqrtf((float)head_size));
    NL_TRY(NL_OP(pass->device, nala_attention_backward, .qkvg = saved->qkv, .out = saved->attention,
                 .dout = pass->dh, .state = saved->state, .total = saved->total, .dqkv = *dqkv,
                 .sums = qkv_sums(pass, index, 0, 3 * d), .batch = batch, .tokens = pass->tokens,
                 .heads = heads, .head_size = head_size, .feature_map = config->feature_map,
                 .lambda = (float)config->lambda, .tau = (float)config->tau, .rope = config->rope,
                 .grid_height = grid_height, .grid_width = grid_width));
    if (config->lepe)
        NL_TRY(NL_OP(pass->device, depthwise_conv_backward,
                     .x = nl_tensor_columns(&saved->qkv, 2 * d, d),
                     .weight = pass->dit->blocks[index].lepe_weight, .dout = pass->dh,
                     .dx = nl_tensor_columns(dqkv, 2 * d, d), .dweight = gradients->lepe_weight,
                     .dbias = gradients->lepe_bias, .batch = batch, .grid_height = grid_height,
                     .grid_width = grid_width));
cleanup:
    return status;
}

static nl_status attention_backward(nl_pass *pass, int index, const nl_added *added)
{
    nl_status status;
    nl_device *device = pass->device;
    const nl_block_params *block = &pass->dit->blocks[index];
    const nl_block_saved *saved = &pass->saved->blocks[index];
    nl_block_params *gradients = &pass->gradients->blocks[index];
    nl_tensor dqkv = nl_tensor_of(pass->wide.data, pass->wide.dtype, 2,
                                  (int64_t[]){pass->rows, saved->qkv.shape[1]});
    bool nala = pass->dit->config.attention == NL_ATTENTION_NALA;
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dbranch, .weight = block->proj_weight,
                 .dx = pass->dh));
    if (nala)
        NL_TRY(gate_backward(pass, index, &dqkv));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dbranch,
                 .x = nala ? pass->h : saved->attention, .dweight = gradients->proj_weight));
    NL_TRY(qkv_backward(pass, index, &dqkv));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dqkv, .weight = block->qkv_weight,
                 .dx = pass->dh));
    NL_TRY(norm_backward(pass, &saved->x, *added, NL_PIECES * (int64_t)index + NL_SHIFT_MSA));
    NL_TRY(NL_OP(
        device, linear_backward_weight, .dy = dqkv, .x = pass->h, .dweight = gradients->qkv_weight,
        .dbias = sums_come_along(&pass->dit->config) ? (nl_tensor){0} : gradients->qkv_bias));
cleanup:
    return status;
}

/* What was added to the stream just before block `index`, or before the head when that is the depth. */
static nl_added added_before(const nl_pass *pass, int index)
{
    if (index == 0)
        return (nl_added){0};
    return (nl_added){&pass->saved->blocks[index - 1].mlp_branch,
                      NL_PIECES * (int64_t)(index - 1) + NL_GATE_MLP,
                      &pass->gradients->blocks[index - 1].fc2_bias};
}

static nl_status block_backward(nl_pass *pass, int index)
{
    nl_status status;
    nl_dit *gradients = pass->gradients;
    nl_added added = added_before(pass, index);
    if (pass->saved->checkpointing) {
        borrow(pass, &pass->wide);
        nl_stream stream = {.dit = pass->dit,
                            .device = pass->device,
                            .batch = pass->saved->batch,
                            .tokens = pass->tokens,
                            .h = pass->h,
                            .modulation = pass->saved->modulation};
        NL_TRY(nl_block_again(&stream, index, &pass->saved->blocks[index]));
    }
    NL_TRY(mlp_backward(pass, index));
    NL_TRY(attention_backward(pass, index, &added));
    NL_TRY(report(pass, &gradients->blocks[index].qkv_weight,
                  index + 1 < pass->dit->config.depth ? &gradients->blocks[index + 1].qkv_weight
                                                      : &gradients->head_weight));
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
    nl_tensor dsilu, dtime, dhidden;
    NL_TRY(nl_activation_tensor(device, saved->batch, d, &dsilu));
    NL_TRY(nl_activation_tensor(device, saved->batch, d, &dtime));
    NL_TRY(nl_activation_tensor(device, saved->batch, d, &dhidden));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = pass->dmodulation, .x = saved->silu_c,
                 .dweight = gradients->adaln_weight, .dbias = gradients->adaln_bias));
    NL_TRY(report(pass, &gradients->adaln_weight, NULL));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = pass->dmodulation, .weight = dit->adaln_weight,
                 .dx = dsilu));
    NL_TRY(NL_OP(device, add_label_backward, .c = saved->c, .labels = saved->labels, .dy = dsilu,
                 .dtime = dtime, .dtable = gradients->label_table));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dtime, .x = saved->time_hidden,
                 .dweight = gradients->time_weight[1], .dbias = gradients->time_bias[1]));
    NL_TRY(NL_OP(device, linear_backward_data, .dy = dtime, .weight = dit->time_weight[1],
                 .pre = saved->time_pre, .epilogue = NL_EPILOGUE_SILU, .dx = dhidden));
    NL_TRY(NL_OP(device, linear_backward_weight, .dy = dhidden, .x = saved->time_features,
                 .dweight = gradients->time_weight[0], .dbias = gradients->time_bias[0]));
    NL_TRY(report(pass, NULL, &gradients->blocks[0].qkv_weight));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status reserve(nl_pass *pass)
{
    nl_status status;
    nl_device *device = pass->device;
    int64_t d = pass->dit->config.hidden_size;
    nl_tensor *narrow[] = {&pass->dx, &pass->dbranch};
    NL_TRY(nl_activation_tensor(device, pass->saved->batch, pass->saved->modulation.shape[1],
                                &pass->dmodulation));
    for (int i = 0; i < NL_COUNT(narrow); i++)
        NL_TRY(nl_activation_tensor(device, pass->rows, d, narrow[i]));
    NL_TRY(nl_activation_tensor(device, pass->rows, 4 * d, &pass->wide));
cleanup:
    return status;
}

nl_status nl_dit_backward(const nl_dit *dit, nl_device *device, const nl_dit_saved *saved,
                          const nl_tensor *dprediction, nl_dit *gradients, const nl_tensor *dx,
                          nl_gradients_ready ready, void *user)
{
    nl_status status;
    int64_t mark = nl_arena_mark(device), tokens = nl_config_tokens(&dit->config);
    nl_pass pass = {.dit = dit,
                    .device = device,
                    .saved = saved,
                    .gradients = gradients,
                    .ready = ready,
                    .user = user,
                    .rows = saved->batch * tokens,
                    .tokens = tokens};
    nl_added added = added_before(&pass, dit->config.depth);
    NL_TRY(reserve(&pass));
    NL_TRY(head_backward(&pass, dprediction, &added));
    for (int i = dit->config.depth - 1; i >= 0; i--)
        NL_TRY(block_backward(&pass, i));
    NL_TRY(NL_OP(device, patch_embed_backward, .x = saved->x, .weight = dit->patch_weight,
                 .dtokens = pass.dx, .dweight = gradients->patch_weight,
                 .dbias = gradients->patch_bias, .dx = dx ? *dx : (nl_tensor){0}));
    NL_TRY(condition_backward(&pass));
cleanup:
    nl_arena_release(device, mark);
    return status;
}
