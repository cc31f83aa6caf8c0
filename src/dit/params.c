/* SPDX-License-Identifier: MIT */
/* The parameter table: every parameter's name, shape and initial value, and its place in the one allocation. */
#include "network.h"

#include <stdio.h>
#include <string.h>

enum {
    TIME_FEATURES = 256,
    FIXED_PARAMS = 18,                                 /* outside the blocks */
    BLOCK_PARAMS = 6 + NL_BRANCHES * NL_BRANCH_PARAMS, /* at most, in one block */
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
static void add(nl_param_list *list, nl_tensor *tensor, nl_init init, bool matrix,
                const int64_t *shape, const char *name, const char *suffix)
{
    nl_dit *dit = list->dit;
    nl_param *param = &dit->params[dit->param_count++];
    snprintf(param->name, sizeof(param->name), "%s%s%s", list->prefix, name, suffix);
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

static void add_product(nl_param_list *list, nl_tensor *weight, nl_tensor *bias, nl_init init,
                        int64_t rows, int64_t columns, const char *name)
{
    add(list, weight, init, true, SHAPE(rows, columns), name, ".weight");
    add(list, bias, NL_INIT_ZERO, false, SHAPE(rows), name, ".bias");
    bias->dtype = bias_dtype(list->dit); /* an epilogue adds it in the type of its output */
}

/* What --dtype fp8 leaves as it is with bf16, of a block's products: all of the first and the last block, and those whose names
 * begin so. Of what comes out of attention the rounding shows in pictures, and time is hardly saved (bench/results/fp8.md). */
static const char *const not_in_fp8[] = {"attn.out_proj", "attn.proj",
                                         "attn.gk_proj" /* of 16 numbers */, NULL};

static bool is_in_fp8(const nl_param_list *list, int64_t rows, int64_t columns, const char *name)
{
    const nl_dit *dit = list->dit;
    bool in = dit->device->fp8 && !dit->flat && list->block > 0 &&
              list->block < dit->config.depth - 1 && rows % 16 == 0 && columns % 16 == 0;
    for (int i = 0; in && not_in_fp8[i]; i++)
        in = strncmp(name, not_in_fp8[i], strlen(not_in_fp8[i])) != 0;
    return in;
}

void nl_add_linear(nl_param_list *list, nl_tensor *tensors, nl_init init, int64_t rows,
                   int64_t columns, const char *name)
{
    add_product(list, &tensors[0], &tensors[1], init, rows, columns, name);
    if (is_in_fp8(list, rows, columns, name))
        tensors[0].dtype = NL_F8;
}

void nl_add_depthwise(nl_param_list *list, nl_tensor *tensors, nl_init init, int64_t channels,
                      int64_t side, const char *name)
{
    add(list, &tensors[0], init, false, SHAPE(channels, 1, side, side), name, ".weight");
    add(list, &tensors[1], init, false, SHAPE(channels), name, ".bias");
}

void nl_add_parts(nl_param_list *list, nl_tensor *tensor, const int64_t *parts, int64_t columns,
                  const char *name)
{
    nl_param *param = &list->dit->params[list->dit->param_count];
    int64_t rows = 0;
    for (int i = 0; parts[i]; i++)
        rows += param->parts[i] = parts[i];
    add(list, tensor, NL_INIT_XAVIER_SMALL, true, SHAPE(rows, columns), name, "");
    if (is_in_fp8(list, rows, columns, name))
        tensor->dtype = NL_F8;
}

void nl_add_vector(nl_param_list *list, nl_tensor *tensor, nl_init init, int64_t size,
                   const char *name)
{
    add(list, tensor, init, false, SHAPE(size), name, "");
}

void nl_add_value(nl_param_list *list, nl_tensor *tensor, double value, int64_t size,
                  const char *name)
{
    list->dit->params[list->dit->param_count].value = (float)value;
    nl_add_vector(list, tensor, NL_INIT_VALUE, size, name);
}

static void add_block(nl_param_list *list, int index)
{
    nl_dit *dit = list->dit;
    nl_block_params *block = &dit->blocks[index];
    int64_t d = dit->config.hidden_size;
    snprintf(list->prefix, sizeof(list->prefix), "blocks.%d.", index);
    list->block = index;
    block->first = dit->param_count;
    for (int kind = 0; kind < NL_BRANCHES; kind++) {
        char name[32];
        snprintf(name, sizeof(name), "norm%d", kind + 1);
        if (dit->config.norm == NL_NORM_RMS)
            add(list, &block->norms[kind], NL_INIT_ONE, false, SHAPE(d), name, ".weight");
        int first = dit->param_count;
        nl_branch_of(&dit->config, kind)->params(list, block->branches[kind]);
        for (int i = first; i < dit->param_count; i++)
            dit->params[i].row_norm =
                &block->row_norms[kind][dit->params[i].tensor - block->branches[kind]];
    }
    if (dit->config.dw_conv)
        nl_add_depthwise(list, block->dw_conv, NL_INIT_IDENTITY, d, 3, "dw_conv");
    add_product(list, &block->adaln_weight, &block->adaln_bias, NL_INIT_ZERO,
                NL_BRANCHES * NL_PIECES * d, d, "adaLN_modulation.1");
    list->prefix[0] = 0;
}

static void add_head(nl_param_list *list, nl_head_params *head, const char *prefix)
{
    const nl_config *config = &list->dit->config;
    int64_t d = config->hidden_size, p = config->patch_size;
    snprintf(list->prefix, sizeof(list->prefix), "%s", prefix);
    add_product(list, &head->adaln_weight, &head->adaln_bias, NL_INIT_ZERO, 2 * d, d,
                "adaLN_modulation.1");
    add_product(list, &head->weight, &head->bias, NL_INIT_ZERO,
                p * p * nl_config_head_channels(config), d, "linear");
    if (config->norm == NL_NORM_RMS)
        add(list, &head->norm, NL_INIT_ONE, false, SHAPE(d), "norm_final", ".weight");
    list->prefix[0] = 0;
}

nl_status nl_params_list(nl_dit *dit)
{
    nl_status status;
    nl_context *context = dit->device->context;
    const nl_config *config = &dit->config;
    int64_t d = config->hidden_size, p = config->patch_size;
    nl_param_list list = {.dit = dit};
    NL_TRY(NL_NEW_ZEROS(context, "blocks", config->depth, &dit->blocks));
    NL_TRY(NL_NEW_ZEROS(context, "the parameter table",
                        FIXED_PARAMS + BLOCK_PARAMS * (int64_t)config->depth, &dit->params));
    add(&list, &dit->patch_weight, NL_INIT_XAVIER, false, SHAPE(d, config->in_channels, p, p),
        "x_embedder.proj", ".weight");
    add(&list, &dit->patch_bias, NL_INIT_ZERO, false, SHAPE(d), "x_embedder.proj", ".bias");
    add_product(&list, &dit->time_weight[0], &dit->time_bias[0], NL_INIT_NORMAL_002, d,
                TIME_FEATURES, "t_embedder.mlp.0");
    add_product(&list, &dit->time_weight[1], &dit->time_bias[1], NL_INIT_NORMAL_002, d, d,
                "t_embedder.mlp.2");
    add(&list, &dit->label_table, NL_INIT_NORMAL_002, false, SHAPE(nl_config_label_rows(config), d),
        "y_embedder.embedding_table", ".weight");
    if (config->crop_conditioning)
        add(&list, &dit->crop_weight, NL_INIT_ZERO, false, SHAPE(d, NL_CROP_NUMBERS),
            "crop_embedder", ".weight");
    if (config
            ->middle_head) /* before the blocks: gradients are complete in the order of the table, backwards */
        add_head(&list, &dit->middle, "middle_layer.");
    for (int i = 0; i < config->depth; i++)
        add_block(&list, i);
    add_head(&list, &dit->head, "final_layer.");
cleanup:
    return status;
}

/* ---- Places in the storage. Run twice: with no memory behind it, for the size, and in earnest. */

bool nl_param_is_adaln(const nl_param *param)
{
    return strstr(param->name, "adaLN_modulation") != NULL;
}

static char *take(char *base, int64_t bytes, int64_t *used)
{
    int64_t first = (*used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *used = first + bytes;
    return base ? base + first : NULL;
}

static void place(nl_tensor *tensor, char *base, int64_t *used)
{
    tensor->data = take(base, nl_tensor_bytes(tensor), used);
    if (tensor->dtype == NL_F8)
        tensor->scale =
            (float *)(void *)take(base, tensor->shape[0] * (int64_t)sizeof(*tensor->scale), used);
}

/* All modulations one under the other, so that one product yields those of every block. */
static void place_adaln(nl_dit *dit, char *base, int64_t *used)
{
    int64_t d = dit->config.hidden_size, block_rows = NL_BRANCHES * NL_PIECES * d;
    int64_t first = block_rows * dit->config.depth;
    int64_t rows = first + (dit->config.middle_head ? 4 : 2) * d;
    dit->adaln_weight = nl_tensor_of(NULL, matrix_dtype(dit), 2, (int64_t[]){rows, d});
    dit->adaln_bias = nl_tensor_of(NULL, bias_dtype(dit), 1, (int64_t[]){rows});
    place(&dit->adaln_weight, base, used);
    place(&dit->adaln_bias, base, used);
    if (!base)
        return;
    for (int i = 0; i < dit->config.depth; i++) {
        nl_block_params *block = &dit->blocks[i];
        block->adaln_weight = nl_tensor_rows(&dit->adaln_weight, block_rows * i, block_rows);
        block->adaln_bias = nl_tensor_rows(&dit->adaln_bias, block_rows * i, block_rows);
    }
    nl_head_params *heads[] = {&dit->head, &dit->middle};
    for (int i = 0; first + 2 * d * i < rows; i++) {
        heads[i]->adaln_weight = nl_tensor_rows(&dit->adaln_weight, first + 2 * d * i, 2 * d);
        heads[i]->adaln_bias = nl_tensor_rows(&dit->adaln_bias, first + 2 * d * i, 2 * d);
    }
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
    if (dit->config.rope && dit->config.attention == NL_ATTENTION_SOFTMAX) {
        dit->rope = nl_tensor_of(NULL, NL_F32, 2,
                                 (int64_t[]){nl_config_tokens(&dit->config),
                                             dit->config.hidden_size / dit->config.num_heads});
        place(&dit->rope, base, &used);
    }
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
