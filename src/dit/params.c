/* SPDX-License-Identifier: MIT */
/* The parameter table: every parameter's name, shape and initial value, and its place in the one allocation. */
#include "params.h"

#include <stdio.h>
#include <string.h>

enum {
    TIME_FEATURES = 256,
    LEPE = 5,
    FIXED_PARAMS = 11, /* outside the blocks */
    BLOCK_PARAMS = 14, /* at most, in one block */
    ALIGNMENT = 256
};

static nl_dtype matrix_dtype(const nl_dit *dit)
{
    return dit->flat ? NL_F32 : dit->device->dtype;
}

static nl_dtype bias_dtype(const nl_dit *dit)
{
    return dit->flat ? NL_F32 : dit->device->activation;
}

/* Takes the next row of the table. shape ends with 0. */
static void add(nl_dit *dit, nl_tensor *tensor, nl_init init, bool matrix, const int64_t *shape,
                const char *format, ...) NL_PRINTF(6, 7);

static void add(nl_dit *dit, nl_tensor *tensor, nl_init init, bool matrix, const int64_t *shape,
                const char *format, ...)
{
    nl_param *param = &dit->params[dit->param_count++];
    va_list list;
    va_start(list, format);
    vsnprintf(param->name, sizeof(param->name), format, list);
    va_end(list);
    for (int i = 0; i < NL_MAX_DIMS; i++)
        param->shape[i] = 1;
    for (; shape[param->ndim]; param->ndim++)
        param->shape[param->ndim] = shape[param->ndim];
    param->init = init;
    param->matrix = matrix;
    param->decay = param->ndim > 1;
    param->tensor = tensor;
    *tensor = nl_tensor_of(NULL, matrix ? matrix_dtype(dit) : NL_F32, param->ndim, param->shape);
}

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__, 0})

/* A product's weight [rows, columns] and bias. */
static void add_linear(nl_dit *dit, nl_tensor *weight, nl_tensor *bias, nl_init init, int64_t rows,
                       int64_t columns, const char *name)
{
    add(dit, weight, init, true, SHAPE(rows, columns), "%s.weight", name);
    add(dit, bias, NL_INIT_ZERO, false, SHAPE(rows), "%s.bias", name);
    bias->dtype = bias_dtype(dit); /* an epilogue adds it in the type of its output */
}

static void add_block(nl_dit *dit, int index)
{
    const nl_config *config = &dit->config;
    nl_block_params *block = &dit->blocks[index];
    int64_t d = config->hidden_size;
    bool nala = config->attention == NL_ATTENTION_NALA;
    char name[64];
#define NAME(part) (snprintf(name, sizeof(name), "blocks.%d." part, index), name)
    add_linear(dit, &block->qkv_weight, &block->qkv_bias, NL_INIT_XAVIER,
               (nala && config->gate ? 4 : 3) * d, d, nala ? NAME("attn.qkvg") : NAME("attn.qkv"));
    if (nala) {
        for (int i = 1; i <= 2; i++) /* weight and bias */
            dit->params[dit->param_count - i].query_rows = d;
        add(dit, &block->ln_weight, NL_INIT_ONE, false, SHAPE(d), "%s.weight", NAME("attn.ln"));
        add(dit, &block->ln_bias, NL_INIT_ZERO, false, SHAPE(d), "%s.bias", NAME("attn.ln"));
    }
    if (nala && config->lepe) {
        add(dit, &block->lepe_weight, NL_INIT_LEPE, false, SHAPE(d, 1, LEPE, LEPE), "%s.weight",
            NAME("attn.lepe"));
        add(dit, &block->lepe_bias, NL_INIT_LEPE, false, SHAPE(d), "%s.bias", NAME("attn.lepe"));
    }
    add_linear(dit, &block->proj_weight, &block->proj_bias, NL_INIT_XAVIER, d, d,
               nala ? NAME("attn.out_proj") : NAME("attn.proj"));
    add_linear(dit, &block->fc1_weight, &block->fc1_bias, NL_INIT_XAVIER, 4 * d, d,
               NAME("mlp.fc1"));
    add_linear(dit, &block->fc2_weight, &block->fc2_bias, NL_INIT_XAVIER, d, 4 * d,
               NAME("mlp.fc2"));
    add_linear(dit, &block->adaln_weight, &block->adaln_bias, NL_INIT_ZERO, 6 * d, d,
               NAME("adaLN_modulation.1"));
#undef NAME
}

nl_status nl_params_list(nl_dit *dit)
{
    nl_status status;
    nl_context *context = dit->device->context;
    const nl_config *config = &dit->config;
    int64_t d = config->hidden_size, p = config->patch_size;
    void *memory = NULL;
    NL_TRY(
        nl_alloc_zero(context, "blocks", (size_t)config->depth * sizeof(nl_block_params), &memory));
    dit->blocks = memory;
    NL_TRY(nl_alloc_zero(context, "the parameter table",
                         (FIXED_PARAMS + BLOCK_PARAMS * (size_t)config->depth) * sizeof(nl_param),
                         &memory));
    dit->params = memory;
    add(dit, &dit->patch_weight, NL_INIT_XAVIER, false, SHAPE(d, config->in_channels, p, p),
        "x_embedder.proj.weight");
    add(dit, &dit->patch_bias, NL_INIT_ZERO, false, SHAPE(d), "x_embedder.proj.bias");
    add_linear(dit, &dit->time_weight[0], &dit->time_bias[0], NL_INIT_NORMAL_002, d, TIME_FEATURES,
               "t_embedder.mlp.0");
    add_linear(dit, &dit->time_weight[1], &dit->time_bias[1], NL_INIT_NORMAL_002, d, d,
               "t_embedder.mlp.2");
    add(dit, &dit->label_table, NL_INIT_NORMAL_002, false,
        SHAPE((int64_t)config->num_classes + 1, d), "y_embedder.embedding_table.weight");
    for (int i = 0; i < config->depth; i++)
        add_block(dit, i);
    add_linear(dit, &dit->final_adaln_weight, &dit->final_adaln_bias, NL_INIT_ZERO, 2 * d, d,
               "final_layer.adaLN_modulation.1");
    add_linear(dit, &dit->head_weight, &dit->head_bias, NL_INIT_ZERO,
               p * p * nl_config_head_channels(config), d, "final_layer.linear");
cleanup:
    return status;
}

/* ---- Places in the storage. Run twice: with no memory behind it, for the size, and in earnest. */

bool nl_param_is_adaln(const nl_param *param)
{
    return strstr(param->name, "adaLN_modulation") != NULL;
}

static void place(nl_tensor *tensor, char *base, int64_t *used)
{
    *used = (*used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tensor->data = base ? base + *used : NULL;
    *used += nl_tensor_bytes(tensor);
}

/* All modulations one under the other, so that one product yields those of every block. */
static void place_adaln(nl_dit *dit, char *base, int64_t *used)
{
    int64_t d = dit->config.hidden_size, rows = (6 * (int64_t)dit->config.depth + 2) * d;
    dit->adaln_weight = nl_tensor_of(NULL, matrix_dtype(dit), 2, (int64_t[]){rows, d});
    dit->adaln_bias = nl_tensor_of(NULL, bias_dtype(dit), 1, (int64_t[]){rows});
    place(&dit->adaln_weight, base, used);
    place(&dit->adaln_bias, base, used);
    if (!base)
        return;
    for (int i = 0; i < dit->config.depth; i++) {
        nl_block_params *block = &dit->blocks[i];
        block->adaln_weight = nl_tensor_rows(&dit->adaln_weight, 6 * d * i, 6 * d);
        block->adaln_bias = nl_tensor_rows(&dit->adaln_bias, 6 * d * i, 6 * d);
    }
    dit->final_adaln_weight = nl_tensor_rows(&dit->adaln_weight, rows - 2 * d, 2 * d);
    dit->final_adaln_bias = nl_tensor_rows(&dit->adaln_bias, rows - 2 * d, 2 * d);
}

static int64_t place_all(nl_dit *dit, char *base)
{
    int64_t used = 0;
    for (int i = 0; i < dit->param_count; i++)
        if (!nl_param_is_adaln(&dit->params[i]))
            place(dit->params[i].tensor, base, &used);
    place_adaln(dit, base, &used);
    if (dit->flat)
        return used;
    dit->position = nl_tensor_of(
        NULL, NL_F32, 2, (int64_t[]){nl_config_tokens(&dit->config), dit->config.hidden_size});
    place(&dit->position, base, &used);
    return used;
}

nl_status nl_params_place(nl_dit *dit)
{
    dit->storage_bytes = place_all(dit, NULL);
    nl_status status = dit->device->ops->alloc(dit->device, "the model's parameters",
                                               dit->storage_bytes, &dit->storage);
    if (status == NL_OK)
        place_all(dit, dit->storage);
    return status;
}
