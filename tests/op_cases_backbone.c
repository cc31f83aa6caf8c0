/* SPDX-License-Identifier: MIT */
/* Cases of the backbone's operations. */
#include "op_cases.h"

static const struct linear_case {
    const char *text;
    int64_t batch, rows, k, n; /* rows of one image */
    nl_epilogue epilogue;
    bool no_bias, pre;
    int64_t gap;
    nl_dtype weight;
    bool f8, gpu; /* of y; op_left_out */
} linear_cases[] = {
    /* A lone number has no relative accuracy where product and bias cancel. */
    CASE(.batch = 1, .rows = 1, .k = 1, .n = 1, .no_bias = true),
    CASE(.batch = 1, .rows = 1, .k = 64, .n = 192),
    CASE(.batch = 3, .rows = 1, .k = 72, .n = 432, .epilogue = NL_EPILOGUE_SILU),
    CASE(.batch = 1, .rows = 67, .k = 384, .n = 96, .no_bias = true),
    CASE(.batch = 1, .rows = 67, .k = 33, .n = 31, .gap = 5),
    CASE(.batch = 3, .rows = 16, .k = 64, .n = 256, .epilogue = NL_EPILOGUE_GELU_TANH),
    CASE(.batch = 2, .rows = 64, .k = 256, .n = 64),
    CASE(.batch = 3, .rows = 49, .k = 72, .n = 72, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8),
    CASE(.batch = 2, .rows = 9, .k = 40, .n = 56, .epilogue = NL_EPILOGUE_SILU, .no_bias = true),
    CASE(.batch = 1, .rows = 3, .k = 1536, .n = 384),
    CASE(.batch = 3, .rows = 16, .k = 64, .n = 256, .epilogue = NL_EPILOGUE_GELU_TANH, .pre = true),
    CASE(.batch = 3, .rows = 1, .k = 64, .n = 72, .epilogue = NL_EPILOGUE_SILU, .pre = true),
    CASE(.batch = 2, .rows = 9, .k = 40, .n = 56, .pre = true, .gap = 8),
    CASE(.batch = 2, .rows = 25, .k = 384, .n = 384, .weight = NL_BF16),
    CASE(.batch = 3, .rows = 1, .k = 256, .n = 72, .epilogue = NL_EPILOGUE_SILU, .weight = NL_BF16),
    /* Too large for product/small.cu. */
    CASE(.gpu = true, .batch = 2, .rows = 515, .k = 640, .n = 520,
         .epilogue = NL_EPILOGUE_GELU_TANH, .weight = NL_BF16),
    /* Many rows: the last tile of 64 is not full, nor the last step of 64 in k. */
    CASE(.batch = 2, .rows = 2061, .k = 72, .n = 192, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8,
         .weight = NL_BF16),
    CASE(.gpu = true, .batch = 3, .rows = 1400, .k = 128, .n = 384, .no_bias = true,
         .weight = NL_BF16),
    CASE(.batch = 2, .rows = 2061, .k = 72, .n = 192, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8,
         .pre = true, .weight = NL_BF16),
    CASE(.batch = 1, .rows = 1, .k = 1, .n = 1, .weight = NL_F8),
    CASE(.batch = 3, .rows = 1, .k = 64, .n = 48, .weight = NL_F8),
    CASE(.batch = 1, .rows = 67, .k = 33, .n = 31, .gap = 5, .weight = NL_F8),
    CASE(.batch = 2, .rows = 9, .k = 40, .n = 56, .epilogue = NL_EPILOGUE_SILU, .no_bias = true,
         .weight = NL_F8),
    CASE(.batch = 3, .rows = 49, .k = 80, .n = 144, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 16,
         .weight = NL_F8),
    CASE(.batch = 2, .rows = 64, .k = 256, .n = 64, .no_bias = true, .weight = NL_F8),
    CASE(.batch = 2, .rows = 16, .k = 64, .n = 256, .epilogue = NL_EPILOGUE_GELU_TANH, .pre = true,
         .weight = NL_F8),
    CASE(.gpu = true, .batch = 1, .rows = 128, .k = 4608, .n = 1152, .weight = NL_F8),
    CASE(.gpu = true, .batch = 2, .rows = 2061, .k = 384, .n = 192, .gap = 16, .weight = NL_F8),
    CASE(.batch = 3, .rows = 1400, .k = 80, .n = 384, .epilogue = NL_EPILOGUE_GELU_TANH,
         .weight = NL_F8),
    CASE(.batch = 2, .rows = 7, .k = 33, .n = 31, .weight = NL_F8, .f8 = true),
    CASE(.batch = 2, .rows = 64, .k = 256, .n = 192, .epilogue = NL_EPILOGUE_GELU_TANH,
         .weight = NL_F8, .f8 = true),
    CASE(.batch = 2, .rows = 2061, .k = 80, .n = 192, .epilogue = NL_EPILOGUE_GELU_TANH,
         .weight = NL_F8, .f8 = true),
    CASE(.gpu = true, .batch = 1, .rows = 4096, .k = 384, .n = 384,
         .epilogue = NL_EPILOGUE_GELU_TANH, .no_bias = true, .weight = NL_F8, .f8 = true),
    CASE(.batch = 2, .rows = 64, .k = 128, .n = 64, .epilogue = NL_EPILOGUE_GELU_TANH, .f8 = true),
};

static nl_status run_linear(op_run *run, const void *op_case)
{
    const struct linear_case *c = op_case;
    int64_t m = c->batch * c->rows;
    if (op_left_out(run, c->gpu))
        return NL_OK;
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    if (c->weight == NL_BF16)
        run->tolerance = 1e-2;
    if (c->weight == NL_F8 && !strcmp(run->device->ops->name, "cuda"))
        run->tolerance = run->batch_tolerance = OP_F8_PRODUCT;
    nl_linear_args args = {.epilogue = c->epilogue};
    args.x = OP_TENSOR(run, .activation = true, .shape = {m, c->k}, .gap = c->gap,
                       .dtype = c->weight == NL_F8 ? NL_F8 : NL_F32);
    args.weight = OP_TENSOR(run, .shape = {c->n, c->k}, .shared = true, .dtype = c->weight,
                            .scale = 1 / sqrt((double)c->k));
    if (!c->no_bias)
        args.bias = OP_TENSOR(run, .activation = true, .shape = {c->n}, .shared = true);
    args.y = OP_TENSOR(run, .activation = true, .shape = {m, c->n}, .gap = c->gap, .output = "y",
                       .dtype = c->f8 ? NL_F8 : NL_F32);
    if (c->f8) {
        args.room = OP_TENSOR(run, .activation = true, .shape = {m, c->n}, .room = true);
        args.weight_norm = 20; /* of some 4 */
        args.bias_norm = 6;
        run->tolerance = run->batch_tolerance = 2 * OP_F8_RESULT;
    }
    if (c->pre)
        args.pre = OP_TENSOR(run, .activation = true, .shape = {m, c->n}, .output = "pre");
    return nl_op_linear(run->device, &args);
}

static const struct quantize_case {
    const char *text;
    int64_t rows, k, gap;
    nl_epilogue activation;
} quantize_cases[] = {
    CASE(.rows = 1, .k = 1),
    CASE(.rows = 67, .k = 33, .gap = 5),
    CASE(.rows = 5, .k = 64, .activation = NL_EPILOGUE_SILU),
    CASE(.rows = 67, .k = 384, .gap = 8),
    CASE(.rows = 67, .k = 1152),
    CASE(.rows = 7, .k = 1536, .activation = NL_EPILOGUE_GELU_TANH),
    CASE(.rows = 3, .k = 3072, .gap = 3072),
    CASE(.rows = 9, .k = 4608, .activation = NL_EPILOGUE_GELU_TANH),
    CASE(.rows = 3, .k = 4612, .activation = NL_EPILOGUE_GELU_TANH),
    CASE(.rows = 2, .k = 8192, .activation = NL_EPILOGUE_SILU),
};

static nl_status run_quantize(op_run *run, const void *op_case)
{
    const struct quantize_case *c = op_case;
    run->batch = c->rows;
    run->tolerance = OP_F8_RESULT;
    float *x = op_normal(run, c->rows * c->k);
    for (int64_t i = 0; i < c->k && c->rows > 2; i++) {
        x[i] *= 1e-3f;
        x[c->k + i] *= 1e3f;
        x[(c->rows - 1) * c->k + i] = 0;
    }
    nl_quantize_args args = {.activation = c->activation};
    args.x =
        OP_TENSOR(run, .activation = true, .shape = {c->rows, c->k}, .gap = c->gap, .values = x);
    args.y = OP_TENSOR(run, .dtype = NL_F8, .shape = {c->rows, c->k}, .output = "y");
    return nl_op_quantize(run->device, &args);
}

static const struct layernorm_modulate_case {
    const char *text;
    int64_t batch, rows, d, gap;
    bool branch, sum, f8;
    nl_norm norm;
} layernorm_modulate_cases[] = {
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true, .f8 = true),
    CASE(.batch = 3, .rows = 16, .d = 72, .f8 = true, .norm = NL_NORM_RMS),
    CASE(.batch = 3, .rows = 67, .d = 384, .gap = 5 * 384, .branch = true, .f8 = true),
    CASE(.batch = 2, .rows = 9, .d = 768, .branch = true, .f8 = true),
    CASE(.batch = 2, .rows = 9, .d = 1024, .f8 = true),
    CASE(.batch = 2, .rows = 64, .d = 1152, .branch = true, .sum = true, .f8 = true),
    CASE(.batch = 1, .rows = 5, .d = 1536, .branch = true, .f8 = true),
    CASE(.batch = 1, .rows = 1, .d = 1, .norm = NL_NORM_RMS),
    CASE(.batch = 3, .rows = 16, .d = 72, .branch = true, .sum = true, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 49, .d = 384, .gap = 5 * 384, .branch = true, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true, .norm = NL_NORM_RMS),
    CASE(.batch = 1, .rows = 67, .d = 768, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 64, .d = 1152, .gap = 1152, .branch = true, .norm = NL_NORM_RMS),
    CASE(.batch = 1, .rows = 1, .d = 1),
    CASE(.batch = 1, .rows = 1, .d = 64),
    CASE(.batch = 3, .rows = 1, .d = 72),
    CASE(.batch = 1, .rows = 67, .d = 384),
    CASE(.batch = 3, .rows = 16, .d = 72),
    CASE(.batch = 2, .rows = 49, .d = 384, .gap = 5 * 384),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5),
    CASE(.batch = 1, .rows = 1, .d = 64, .branch = true),
    CASE(.batch = 3, .rows = 16, .d = 72, .branch = true),
    CASE(.batch = 2, .rows = 49, .d = 384, .gap = 5 * 384, .branch = true),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true),
    CASE(.batch = 2, .rows = 64, .d = 1152, .gap = 1152, .branch = true),
    CASE(.batch = 3, .rows = 16, .d = 72, .branch = true, .sum = true),
    CASE(.batch = 2, .rows = 49, .d = 384, .gap = 5 * 384, .branch = true, .sum = true),
};

static nl_status run_layernorm_modulate(op_run *run, const void *op_case)
{
    const struct layernorm_modulate_case *c = op_case;
    int64_t m = c->batch * c->rows;
    run->batch = c->batch;
    float *x = op_normal(run, m * c->d);
    for (int64_t i = 0; i < c->d && m > 2; i++) {
        x[i] += 30;                /* a mean far from 0 */
        x[c->d + i] *= 1e-3f;      /* a variance as small as eps */
        x[(m - 1) * c->d + i] = 0; /* none */
    }
    nl_layernorm_modulate_args args = {.norm = c->norm, .rows_per_image = c->rows, .eps = 1e-6f};
    if (c->norm == NL_NORM_RMS)
        args.weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.x =
        OP_TENSOR(run, .activation = true, .shape = {m, c->d}, .values = x,
                  .output = c->branch && !c->sum ? "x" : NULL, .in_place = c->branch && !c->sum);
    if (c->sum)
        args.sum = OP_TENSOR(run, .activation = true, .shape = {m, c->d}, .output = "sum");
    if (c->branch) {
        args.branch = OP_TENSOR(run, .activation = true, .shape = {m, c->d});
        args.gate = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .gap = c->gap);
    }
    args.shift = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .gap = c->gap);
    args.scale = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .gap = c->gap);
    args.y = OP_TENSOR(run, .activation = true, .shape = {m, c->d}, .output = "y",
                       .dtype = c->f8 ? NL_F8 : NL_F32);
    if (c->f8)
        run->tolerance = OP_F8_RESULT;
    return nl_op_layernorm_modulate(run->device, &args);
}

static const struct layernorm_gate_case {
    const char *text;
    int64_t rows, d, gap;
    bool no_gate, in_place;
} layernorm_gate_cases[] = {
    CASE(.rows = 1, .d = 64),
    CASE(.rows = 3, .d = 72, .gap = 3 * 72, .in_place = true),
    CASE(.rows = 67, .d = 384, .gap = 3 * 384),
    CASE(.rows = 67, .d = 33, .gap = 5, .in_place = true),
    CASE(.rows = 5, .d = 384, .no_gate = true),
    CASE(.rows = 2, .d = 1152, .no_gate = true, .in_place = true),
};

static nl_status run_layernorm_gate(op_run *run, const void *op_case)
{
    const struct layernorm_gate_case *c = op_case;
    run->batch = c->rows;
    float *x = op_normal(run, c->rows * c->d);
    for (int64_t i = 0; i < c->d; i++)
        x[i] *= 3e-3f; /* a variance as small as eps */
    nl_layernorm_gate_args args = {.eps = 1e-5f};
    args.y = OP_TENSOR(run, .activation = true, .shape = {c->rows, c->d}, .output = "y",
                       .in_place = c->in_place, .values = c->in_place ? x : NULL);
    args.x = c->in_place
                 ? args.y
                 : OP_TENSOR(run, .activation = true, .shape = {c->rows, c->d}, .values = x);
    args.weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.bias = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    if (!c->no_gate)
        args.g =
            OP_TENSOR(run, .activation = true, .shape = {c->rows, c->d}, .gap = c->gap, .scale = 3);
    return nl_op_layernorm_gate(run->device, &args);
}

static const struct nala_attention_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, d, parts, gap; /* parts: 3 for q k v, 4 with g */
    nl_feature_map map;
    bool rope, save, learnt;       /* lambda and tau of each head */
    float lambda, tau, norm_scale; /* 0: 3, 0.5 and 1 */
} nala_attention_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .heads = 1, .d = 8, .parts = 3),
    CASE(.batch = 2, .grid_height = 1, .grid_width = 1, .heads = 2, .d = 64, .parts = 4,
         .save = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 24, .parts = 4, .gap = 5),
    CASE(.batch = 3, .grid_height = 8, .grid_width = 8, .heads = 2, .d = 72, .parts = 3,
         .save = true),
    CASE(.batch = 2, .grid_height = 16, .grid_width = 16, .heads = 6, .d = 64, .parts = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 2, .d = 64, .parts = 4,
         .norm_scale = 0.125f, .save = true),
    CASE(.batch = 1, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 72, .parts = 4,
         .norm_scale = 0.125f),
    CASE(.batch = 1, .grid_height = 5, .grid_width = 9, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_SPLIT, .norm_scale = 0.25f),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 128, .parts = 4),
    CASE(.batch = 1, .grid_height = 4, .grid_width = 64, .heads = 1, .d = 128, .parts = 4),
    CASE(.batch = 1, .grid_height = 7, .grid_width = 7, .heads = 1, .d = 9, .parts = 3, .gap = 1),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 3, .heads = 2, .d = 16, .parts = 3,
         .lambda = 2, .tau = 0.75f),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .lambda = 2.5f, .tau = 1),
    CASE(.batch = 2, .grid_height = 4, .grid_width = 16, .heads = 2, .d = 72, .parts = 4,
         .rope = true, .save = true),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 5, .heads = 2, .d = 4, .parts = 3,
         .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_SPLIT, .save = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 13, .heads = 1, .d = 72, .parts = 4,
         .map = NL_FEATURES_SPLIT, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_RELU, .save = true),
    CASE(.batch = 1, .grid_height = 16, .grid_width = 4, .heads = 2, .d = 72, .parts = 3,
         .map = NL_FEATURES_RELU, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_ELU1, .save = true),
    CASE(.batch = 1, .grid_height = 2, .grid_width = 8, .heads = 2, .d = 32, .parts = 4,
         .map = NL_FEATURES_ELU1, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_POWER, .save = true),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 8, .heads = 2, .d = 72, .parts = 4,
         .map = NL_FEATURES_POWER, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_COSINE_CONSTANT, .save = true),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 2, .heads = 2, .d = 24, .parts = 4,
         .map = NL_FEATURES_COSINE_CONSTANT, .rope = true),
    CASE(.batch = 2, .grid_height = 33, .grid_width = 34, .heads = 1, .d = 40, .parts = 3,
         .save = true),
    CASE(.batch = 1, .grid_height = 33, .grid_width = 34, .heads = 2, .d = 64, .parts = 4,
         .rope = true),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 2, .d = 64, .parts = 4,
         .rope = true, .save = true),
    CASE(.batch = 1, .grid_height = 40, .grid_width = 27, .heads = 1, .d = 72, .parts = 4,
         .map = NL_FEATURES_ELU1, .save = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 13, .heads = 2, .d = 128, .parts = 4,
         .map = NL_FEATURES_SPLIT, .rope = true, .save = true),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 8, .heads = 2, .d = 13, .parts = 3, .gap = 2,
         .map = NL_FEATURES_ELU1, .save = true),
    CASE(.batch = 2, .grid_height = 16, .grid_width = 16, .heads = 6, .d = 64, .parts = 4,
         .learnt = true, .save = true),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 9, .heads = 3, .d = 72, .parts = 4,
         .learnt = true, .norm_scale = 0.125f),
    CASE(.batch = 2, .grid_height = 33, .grid_width = 34, .heads = 2, .d = 40, .parts = 3,
         .learnt = true, .save = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 8, .heads = 2, .d = 24, .parts = 3,
         .learnt = true, .rope = true, .save = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 64, .parts = 4,
         .learnt = true, .map = NL_FEATURES_SPLIT),
    CASE(.batch = 2, .grid_height = 1, .grid_width = 1, .heads = 2, .d = 72, .parts = 3,
         .save = true),
    CASE(.batch = 2, .grid_height = 16, .grid_width = 16, .heads = 4, .d = 72, .parts = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 3, .d = 72, .parts = 4, .gap = 8,
         .norm_scale = 0.125f, .save = true),
    CASE(.batch = 1, .grid_height = 19, .grid_width = 17, .heads = 2, .d = 72, .parts = 3,
         .save = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 13, .heads = 1, .d = 72, .parts = 4,
         .rope = true, .save = true),
    CASE(.batch = 2, .grid_height = 33, .grid_width = 34, .heads = 2, .d = 72, .parts = 4,
         .save = true),
    CASE(.batch = 1, .grid_height = 40, .grid_width = 27, .heads = 2, .d = 72, .parts = 3,
         .rope = true, .save = true),
    CASE(.batch = 2, .grid_height = 1, .grid_width = 1, .heads = 1, .d = 80, .parts = 4,
         .save = true),
    CASE(.batch = 3, .grid_height = 8, .grid_width = 8, .heads = 2, .d = 80, .parts = 3,
         .save = true),
    CASE(.batch = 1, .grid_height = 16, .grid_width = 16, .heads = 2, .d = 80, .parts = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 2, .d = 80, .parts = 4, .gap = 8,
         .norm_scale = 0.125f, .save = true),
    CASE(.batch = 1, .grid_height = 19, .grid_width = 17, .heads = 3, .d = 80, .parts = 3,
         .save = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 13, .heads = 2, .d = 80, .parts = 4,
         .rope = true, .save = true),
    CASE(.batch = 2, .grid_height = 33, .grid_width = 34, .heads = 1, .d = 80, .parts = 4,
         .save = true),
    CASE(.batch = 1, .grid_height = 47, .grid_width = 45, .heads = 1, .d = 80, .parts = 3,
         .rope = true, .save = true),
    CASE(.batch = 1, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 80, .parts = 4,
         .lambda = 2.5f, .tau = 1),
};

static void scale_head(float *qkvg, int64_t token, int64_t width, int64_t column, int64_t d,
                       float by)
{
    for (int64_t i = 0; i < d; i++)
        qkvg[token * width + column + i] *= by;
}

/* Draws that bf16 can tell from wrong ones. The gradients of queries and keys are differences, u . v - u . o: where one key
 * has nearly all the weight, and a single token has, v and o differ by the rounding of o alone, and that counts
 * |phi_q| |phi_k| / (phi_q . phi_k) times. So a few tokens have no elements near 0, which keeps the quotient small, and a
 * long key is not longer than 3: rounding then stays below 0.9 % in 10,000 draws. Plain numbers in one token of d = 8 were
 * off by 7 %, a key of 8 with d = 9 by 1.01 %.
 * With rope there is no long key: the numerator sums turned features, the denominator phi_q . z those before, so that
 * rounding turned ones to bf16 costs |phi_q| |z| / (phi_q . z) roundings. With a key of 8 a query whose large elements are
 * its small ones has next to nothing in the denominator: the worst of 2,000 draws was off by 8 % with d = 8 and 1.1 % with
 * d = 72. Without it d = 24 stays below 0.8 % and d = 72 below 0.45 %; d = 8 does not (1.1 %). */
float *op_nala_rows(op_run *run, int64_t rows, int64_t width, int64_t tokens, int64_t size,
                    int64_t d, bool rope)
{
    float *qkvg = op_normal(run, rows * width);
    if (tokens > 4) {
        scale_head(qkvg, 0, width, 0, d, 0);            /* a zero query */
        scale_head(qkvg, 1, width, 0, d, 50);           /* a long query */
        scale_head(qkvg, 2, width, 2 * size - d, d, 0); /* a zero key */
        if (!rope)
            scale_head(qkvg, rows - 1, width, 2 * size - d, d, 3); /* a long key */
        return qkvg;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < 2 * size; i++)
            qkvg[row * width + i] += copysignf(3, qkvg[row * width + i]);
    return qkvg;
}

/* Logarithms of lambda, 2 to 4, or of tau, 0.4 to 1, of each head. */
nl_tensor op_log_exponents(op_run *run, int64_t heads, bool tau)
{
    float *values = op_normal(run, heads);
    for (int64_t i = 0; i < heads; i++)
        values[i] = logf((tau ? 0.7f : 3) + (tau ? 0.3f : 1) * tanhf(values[i]));
    return OP_TENSOR(run, .shape = {heads}, .shared = true, .values = values);
}

static nl_status run_nala_attention(op_run *run, const void *op_case)
{
    const struct nala_attention_case *c = op_case;
    int64_t tokens = c->grid_height * c->grid_width, size = c->heads * c->d,
            width = c->parts * size;
    int64_t features = nl_feature_width(c->map, c->d), rows = c->batch * tokens;
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    float *qkvg = op_nala_rows(run, rows, width, tokens, size, c->d, c->rope);
    nl_nala_attention_args args = {
        .batch = op_images(run),
        .tokens = tokens,
        .heads = c->heads,
        .head_size = c->d,
        .feature_map = c->map,
        .lambda = c->lambda > 0 ? c->lambda : 3,
        .tau = c->tau > 0 ? c->tau : 0.5f,
        .norm_scale = c->norm_scale > 0 ? c->norm_scale : 1,
        .rope = c->rope,
        .grid_height = c->grid_height,
        .grid_width = c->grid_width,
    };
    args.qkvg =
        OP_TENSOR(run, .activation = true, .shape = {rows, width}, .gap = c->gap, .values = qkvg);
    args.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    if (c->learnt) {
        args.log_lambda = op_log_exponents(run, c->heads, false);
        args.log_tau = op_log_exponents(run, c->heads, true);
    }
    if (c->save) {
        args.state =
            OP_TENSOR(run, .shape = {c->batch * c->heads, features, c->d}, .output = "state");
        args.total = OP_TENSOR(run, .shape = {c->batch * c->heads, features}, .output = "total");
    }
    return nl_op_nala_attention(run->device, &args);
}

static const struct softmax_attention_case {
    const char *text;
    int64_t batch, tokens, heads, d, gap;
    bool lse;
} softmax_attention_cases[] = {
    CASE(.batch = 1, .tokens = 1, .heads = 1, .d = 8),
    CASE(.batch = 3, .tokens = 1, .heads = 2, .d = 64, .lse = true),
    CASE(.batch = 2, .tokens = 49, .heads = 3, .d = 24, .gap = 5, .lse = true),
    CASE(.batch = 2, .tokens = 70, .heads = 3, .d = 128, .lse = true),
    CASE(.batch = 2, .tokens = 70, .heads = 2, .d = 192, .lse = true),
    CASE(.batch = 3, .tokens = 64, .heads = 2, .d = 72),
    CASE(.batch = 2, .tokens = 256, .heads = 2, .d = 64, .lse = true),
    CASE(.batch = 1, .tokens = 67, .heads = 1, .d = 9),
    CASE(.batch = 1, .tokens = 33, .heads = 2, .d = 128, .gap = 256),
    CASE(.batch = 2, .tokens = 70, .heads = 1, .d = 512),
    CASE(.batch = 2, .tokens = 131, .heads = 2, .d = 72, .gap = 8, .lse = true),
    CASE(.batch = 1, .tokens = 300, .heads = 2, .d = 64, .lse = true),
    CASE(.batch = 1, .tokens = 65, .heads = 3, .d = 56),
    CASE(.batch = 2, .tokens = 257, .heads = 1, .d = 80, .gap = 16, .lse = true),
    CASE(.batch = 1, .tokens = 1000, .heads = 1, .d = 72, .lse = true),
    CASE(.batch = 150, .tokens = 70, .heads = 1, .d = 64),
};

static nl_status run_softmax_attention(op_run *run, const void *op_case)
{
    const struct softmax_attention_case *c = op_case;
    int64_t size = c->heads * c->d, rows = c->batch * c->tokens;
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    float *qkv = op_normal(run, rows * 3 * size);
    scale_head(qkv, rows - 1, 3 * size, 0, c->d,
               50); /* exp overflows unless the maximum is taken off */
    nl_softmax_attention_args args = {
        .batch = op_images(run),
        .tokens = c->tokens,
        .heads = c->heads,
        .head_size = c->d,
        .scale = (float)(1 / sqrt((double)c->d)),
    };
    args.qkv =
        OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap, .values = qkv);
    args.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    if (c->lse)
        args.lse = OP_TENSOR(run, .shape = {c->batch * c->heads, c->tokens}, .output = "lse");
    return nl_op_softmax_attention(run->device, &args);
}

static const struct mediator_attention_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, d, side, gap;
} mediator_attention_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .heads = 1, .d = 8, .side = 1),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 5, .heads = 3, .d = 24, .side = 3, .gap = 5),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 2, .d = 64, .side = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 12, .heads = 2, .d = 72, .side = 8, .gap = 8),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 9, .heads = 1, .d = 128, .side = 8),
    CASE(.batch = 2, .grid_height = 3, .grid_width = 11, .heads = 2, .d = 13, .side = 2),
};

static nl_status run_mediator_attention(op_run *run, const void *op_case)
{
    const struct mediator_attention_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width, size = c->heads * c->d;
    int64_t pairs = c->batch * c->heads, count = c->side * c->side;
    run->batch = c->batch;
    nl_mediator_attention_args args = {
        .sizes = {op_images(run), c->heads, c->d, c->grid_height, c->grid_width, c->side},
        .scale = (float)(1 / sqrt((double)c->d)),
    };
    args.qkv =
        OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap, .scale = 2);
    args.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    args.mediators = OP_TENSOR(run, .shape = {pairs, count, c->d}, .output = "mediators");
    args.values = OP_TENSOR(run, .shape = {pairs, count, c->d}, .output = "values");
    args.lse = OP_TENSOR(run, .shape = {pairs, count}, .output = "lse");
    return nl_op_mediator_attention(run->device, &args);
}

static const struct gated_linear_attention_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, e, d, gap;
    bool transposed, reversed;
} gated_linear_attention_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .heads = 1, .e = 4, .d = 8),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 5, .heads = 3, .e = 12, .d = 24, .gap = 5),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 2, .e = 32, .d = 64,
         .gap = 16 + 128, .reversed = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 9, .heads = 2, .e = 32, .d = 64,
         .transposed = true),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 4, .heads = 2, .e = 36, .d = 72,
         .transposed = true, .reversed = true),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 11, .heads = 2, .e = 64, .d = 128),
    CASE(.batch = 1, .grid_height = 2, .grid_width = 9, .heads = 1, .e = 7, .d = 13, .gap = 1,
         .reversed = true),
    CASE(.batch = 2, .grid_height = 32, .grid_width = 32, .heads = 1, .e = 32, .d = 64,
         .transposed = true, .reversed = true),
};

/* Logits of gates: some of them forget all at once or nothing. */
float *op_gates(op_run *run, int64_t count)
{
    float *gates = op_normal(run, count);
    for (int64_t i = 0; i < count; i++)
        gates[i] = gates[i] * 3 + (i % 37 == 5 ? -60.0f : i % 41 == 7 ? 50.0f : 0.0f);
    return gates;
}

static nl_status run_gated_linear_attention(op_run *run, const void *op_case)
{
    const struct gated_linear_attention_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width;
    int64_t keys = c->heads * c->e, size = c->heads * c->d;
    run->batch = c->batch;
    float *gates = op_gates(run, rows * keys);
    nl_gated_linear_attention_args args = {
        .batch = op_images(run),
        .heads = c->heads,
        .key_size = c->e,
        .head_size = c->d,
        .scan = {c->grid_height, c->grid_width, c->transposed, c->reversed},
        .scale = (float)(1 / sqrt((double)c->e)),
        .normalizer = 16,
    };
    args.qkv = OP_TENSOR(run, .activation = true, .shape = {rows, 2 * keys + size}, .gap = c->gap);
    args.gate = OP_TENSOR(run, .activation = true, .shape = {rows, keys}, .values = gates);
    args.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    return nl_op_gated_linear_attention(run->device, &args);
}

static const struct head_norm_gate_case {
    const char *text;
    int64_t batch, rows, heads, d, gap;
    bool in_place;
} head_norm_gate_cases[] = {
    CASE(.batch = 1, .rows = 1, .heads = 1, .d = 8),
    CASE(.batch = 3, .rows = 16, .heads = 6, .d = 64, .gap = 16 + 768),
    CASE(.batch = 2, .rows = 49, .heads = 2, .d = 72, .gap = 8, .in_place = true),
    CASE(.batch = 2, .rows = 5, .heads = 3, .d = 33, .gap = 5),
    CASE(.batch = 1, .rows = 33, .heads = 2, .d = 128),
};

static nl_status run_head_norm_gate(op_run *run, const void *op_case)
{
    const struct head_norm_gate_case *c = op_case;
    int64_t m = c->batch * c->rows, size = c->heads * c->d;
    run->batch = c->batch;
    float *x = op_normal(run, m * size);
    for (int64_t i = 0; i < c->d; i++)
        x[i] *= 1e-3f; /* a head so small that eps counts */
    nl_head_norm_gate_args args = {.eps = 1e-6f};
    args.x = OP_TENSOR(run, .activation = true, .shape = {m, size}, .values = x,
                       .output = c->in_place ? "y" : NULL, .in_place = c->in_place);
    args.weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.g = OP_TENSOR(run, .activation = true, .shape = {m, size}, .gap = c->gap, .scale = 3);
    args.y = c->in_place ? args.x
                         : OP_TENSOR(run, .activation = true, .shape = {m, size}, .output = "y");
    return nl_op_head_norm_gate(run->device, &args);
}

static const struct swiglu_case {
    const char *text;
    int64_t batch, rows, k;
} swiglu_cases[] = {
    CASE(.batch = 1, .rows = 1, .k = 1),     CASE(.batch = 3, .rows = 16, .k = 170),
    CASE(.batch = 2, .rows = 49, .k = 1024), CASE(.batch = 2, .rows = 3, .k = 33),
    CASE(.batch = 1, .rows = 70, .k = 3072),
};

static nl_status run_swiglu(op_run *run, const void *op_case)
{
    const struct swiglu_case *c = op_case;
    int64_t m = c->batch * c->rows;
    run->batch = c->batch;
    nl_swiglu_args args = {0};
    args.x = OP_TENSOR(run, .activation = true, .shape = {m, 2 * c->k}, .scale = 3);
    args.y = OP_TENSOR(run, .activation = true, .shape = {m, c->k}, .output = "y");
    return nl_op_swiglu(run->device, &args);
}

static const struct qk_norm_case {
    const char *text;
    int64_t batch, rows, heads, d, gap;
    bool raw;
    nl_norm norm;
} qk_norm_cases[] = {
    CASE(.batch = 1, .rows = 1, .heads = 1, .d = 1, .norm = NL_NORM_RMS),
    CASE(.batch = 3, .rows = 16, .heads = 2, .d = 72, .gap = 2 * 144, .raw = true,
         .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 49, .heads = 6, .d = 64, .gap = 2 * 384, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 5, .heads = 3, .d = 33, .gap = 5, .raw = true, .norm = NL_NORM_RMS),
    CASE(.batch = 1, .rows = 30, .heads = 2, .d = 192, .raw = true, .norm = NL_NORM_RMS),
    CASE(.batch = 3, .rows = 16, .heads = 2, .d = 72, .gap = 2 * 144, .raw = true,
         .norm = NL_NORM_LAYER),
    CASE(.batch = 2, .rows = 7, .heads = 3, .d = 33, .gap = 5, .norm = NL_NORM_LAYER),
};

/* Heads of q and k, one of them so small that eps counts and one that is zero. */
static float *uneven_heads(op_run *run, int64_t rows, int64_t columns, int64_t d)
{
    float *x = op_normal(run, rows * columns);
    for (int64_t i = 0; i < d; i++) {
        x[i] *= 1e-3f;
        x[rows * columns - 1 - i] *= rows > 2 ? 0 : 1;
    }
    return x;
}

static nl_status run_qk_norm(op_run *run, const void *op_case)
{
    const struct qk_norm_case *c = op_case;
    int64_t m = c->batch * c->rows, columns = 2 * c->heads * c->d;
    run->batch = c->batch;
    nl_qk_norm_args args = {.norm = c->norm, .eps = c->norm == NL_NORM_RMS ? 1e-6f : 1e-5f};
    args.x =
        OP_TENSOR(run, .activation = true, .shape = {m, columns}, .gap = c->gap,
                  .values = uneven_heads(run, m, columns, c->d), .output = "x", .in_place = true);
    args.q_weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.k_weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    if (c->norm == NL_NORM_LAYER) {
        args.q_bias = OP_TENSOR(run, .shape = {c->d}, .shared = true);
        args.k_bias = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    }
    if (c->raw)
        args.raw = OP_TENSOR(run, .activation = true, .shape = {m, columns}, .output = "raw");
    return nl_op_qk_norm(run->device, &args);
}

static const struct rope_case {
    const char *text;
    int64_t batch, tokens, heads, d, gap;
    bool back;
} rope_cases[] = {
    CASE(.batch = 1, .tokens = 1, .heads = 1, .d = 2),
    CASE(.batch = 3, .tokens = 16, .heads = 4, .d = 72, .gap = 144),
    CASE(.batch = 2, .tokens = 49, .heads = 12, .d = 64, .gap = 384, .back = true),
    CASE(.batch = 2, .tokens = 5, .heads = 3, .d = 10, .gap = 5),
};

static nl_status run_rope(op_run *run, const void *op_case)
{
    const struct rope_case *c = op_case;
    run->batch = c->batch;
    nl_rope_args args = {.back = c->back};
    args.x = OP_TENSOR(run, .activation = true, .shape = {c->batch * c->tokens, c->heads * c->d},
                       .gap = c->gap, .output = "x", .in_place = true);
    args.table = OP_TENSOR(run, .shape = {c->tokens, c->d}, .shared = true);
    return nl_op_rope(run->device, &args);
}

static const struct depthwise_conv_case {
    const char *text;
    int64_t batch, grid_height, grid_width, d, kernel, gap;
    bool addend;
} depthwise_conv_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .d = 64, .kernel = 5),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .d = 72, .kernel = 5, .gap = 3 * 72),
    CASE(.batch = 2, .grid_height = 4, .grid_width = 16, .d = 384, .kernel = 5),
    /* More rows and columns than a block has, the last of each not full; channels of no whole vector. */
    CASE(.batch = 2, .grid_height = 37, .grid_width = 18, .d = 66, .kernel = 5, .gap = 2,
         .addend = true),
    CASE(.batch = 2, .grid_height = 1, .grid_width = 35, .d = 13, .kernel = 5, .gap = 1,
         .addend = true),
    CASE(.batch = 1, .grid_height = 40, .grid_width = 1, .d = 200, .kernel = 5, .gap = 8),
    CASE(.batch = 2, .grid_height = 37, .grid_width = 18, .d = 72, .kernel = 5, .gap = 8,
         .addend = true),
    CASE(.batch = 1, .grid_height = 21, .grid_width = 33, .d = 24, .kernel = 3, .gap = 8),
    CASE(.batch = 2, .grid_height = 40, .grid_width = 35, .d = 136, .kernel = 5, .gap = 16),
    CASE(.batch = 2, .grid_height = 55, .grid_width = 17, .d = 72, .kernel = 3, .gap = 8,
         .addend = true),
    CASE(.batch = 3, .grid_height = 5, .grid_width = 3, .d = 33, .kernel = 3, .gap = 5,
         .addend = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 9, .d = 256, .kernel = 3),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 5, .d = 8, .kernel = 1),
    CASE(.batch = 1, .grid_height = 2, .grid_width = 9, .d = 16, .kernel = 7),
};

static nl_status run_depthwise_conv(op_run *run, const void *op_case)
{
    const struct depthwise_conv_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width;
    run->batch = c->batch;
    nl_depthwise_conv_args args = {
        .batch = op_images(run), .grid_height = c->grid_height, .grid_width = c->grid_width};
    args.x = OP_TENSOR(run, .activation = true, .shape = {rows, c->d}, .gap = c->gap);
    args.weight = OP_TENSOR(run, .shape = {c->d, 1, c->kernel, c->kernel}, .shared = true,
                            .scale = 1.0 / c->kernel);
    args.bias = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    if (c->addend)
        args.addend = OP_TENSOR(run, .activation = true, .shape = {rows, c->d});
    args.out = OP_TENSOR(run, .activation = true, .shape = {rows, c->d}, .output = "out",
                         .in_place = !c->addend);
    return nl_op_depthwise_conv(run->device, &args);
}

static const struct patch_embed_case {
    const char *text;
    int64_t batch, channels, height, width, patch, d;
} patch_embed_cases[] = {
    CASE(.batch = 1, .channels = 1, .height = 1, .width = 1, .patch = 1, .d = 8),
    CASE(.batch = 3, .channels = 4, .height = 8, .width = 8, .patch = 2, .d = 72),
    CASE(.batch = 2, .channels = 4, .height = 14, .width = 6, .patch = 2, .d = 64),
    CASE(.batch = 2, .channels = 3, .height = 5, .width = 7, .patch = 1, .d = 33),
    CASE(.batch = 2, .channels = 4, .height = 8, .width = 32, .patch = 4, .d = 384),
    CASE(.batch = 1, .channels = 16, .height = 32, .width = 16, .patch = 8, .d = 64),
};

static nl_status run_patch_embed(op_run *run, const void *op_case)
{
    const struct patch_embed_case *c = op_case;
    int64_t tokens = c->height / c->patch * (c->width / c->patch);
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    nl_patch_embed_args args = {0};
    args.x = OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width});
    args.weight = OP_TENSOR(run, .shape = {c->d, c->channels, c->patch, c->patch}, .shared = true,
                            .scale = 1 / sqrt((double)(c->channels * c->patch * c->patch)));
    args.bias = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.position = OP_TENSOR(run, .shape = {tokens, c->d}, .shared = true);
    args.tokens =
        OP_TENSOR(run, .activation = true, .shape = {c->batch * tokens, c->d}, .output = "tokens");
    return nl_op_patch_embed(run->device, &args);
}

static const struct unpatchify_case {
    const char *text;
    int64_t batch, channels, head_channels, height, width, patch;
} unpatchify_cases[] = {
    CASE(.batch = 1, .channels = 1, .head_channels = 1, .height = 1, .width = 1, .patch = 1),
    CASE(.batch = 3, .channels = 8, .head_channels = 8, .height = 8, .width = 8, .patch = 2),
    CASE(.batch = 2, .channels = 4, .head_channels = 8, .height = 14, .width = 6, .patch = 2),
    CASE(.batch = 2, .channels = 3, .head_channels = 6, .height = 5, .width = 7, .patch = 1),
    CASE(.batch = 2, .channels = 4, .head_channels = 4, .height = 8, .width = 32, .patch = 4),
    CASE(.batch = 1, .channels = 4, .head_channels = 8, .height = 32, .width = 16, .patch = 8),
};

static nl_status run_unpatchify(op_run *run, const void *op_case)
{
    const struct unpatchify_case *c = op_case;
    int64_t tokens = c->height / c->patch * (c->width / c->patch);
    run->batch = c->batch;
    run->tolerance = 0;
    nl_unpatchify_args args = {.patch = c->patch, .head_channels = c->head_channels};
    args.tokens = OP_TENSOR(run, .activation = true,
                            .shape = {c->batch * tokens, c->patch * c->patch * c->head_channels});
    args.x = OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width}, .output = "x");
    return nl_op_unpatchify(run->device, &args);
}

static const struct time_features_case {
    const char *text;
    int64_t batch, half;
    float divisor;
} time_features_cases[] = {
    CASE(.batch = 1, .half = 128),
    CASE(.batch = 67, .half = 128),
    CASE(.batch = 3, .half = 5),
    CASE(.batch = 2, .half = 128, .divisor = 127),
};

static nl_status run_time_features(op_run *run, const void *op_case)
{
    const struct time_features_case *c = op_case;
    static const float usual[] = {999, 0, 1, 0.5f, 500, 0.25f};
    run->batch = c->batch;
    float *t = op_normal(run, c->batch);
    for (int64_t i = 0; i < c->batch; i++)
        t[i] = i < NL_COUNT(usual) ? usual[i] : fabsf(t[i]) * (i % 2 ? 1 : 300);
    nl_time_features_args args = {.divisor = c->divisor};
    args.t = OP_TENSOR(run, .shape = {c->batch}, .values = t);
    args.features =
        OP_TENSOR(run, .activation = true, .shape = {c->batch, 2 * c->half}, .output = "features");
    return nl_op_time_features(run->device, &args);
}

static const struct add_label_case {
    const char *text;
    int64_t batch, d, classes;
    bool one_time, c;
    nl_dtype table;
    int64_t crop;
    bool one_crop;
} add_label_cases[] = {
    CASE(.batch = 1, .d = 64, .classes = 0),
    CASE(.batch = 3, .d = 72, .classes = 10, .c = true),
    CASE(.batch = 67, .d = 384, .classes = 1000, .one_time = true),
    CASE(.batch = 5, .d = 33, .classes = 3, .one_time = true, .c = true, .table = NL_BF16),
    CASE(.batch = 67, .d = 72, .classes = 10, .c = true, .crop = 4),
    CASE(.batch = 3, .d = 33, .classes = 10, .one_time = true, .crop = 4, .one_crop = true),
    CASE(.batch = 2, .d = 384, .classes = 10, .table = NL_BF16, .crop = 3, .one_crop = true),
};

static nl_status run_add_label(op_run *run, const void *op_case)
{
    const struct add_label_case *c = op_case;
    run->batch = c->batch;
    float *labels = op_normal(run, c->batch);
    for (int64_t i = 0; i < c->batch; i++)
        labels[i] = i ? (float)op_integer(run, c->classes + 1) : (float)c->classes;
    nl_add_label_args args = {0};
    args.time = OP_TENSOR(run, .activation = true, .shape = {c->one_time ? 1 : c->batch, c->d},
                          .shared = c->one_time);
    args.table = OP_TENSOR(run, .shape = {c->classes + 1, c->d}, .shared = true, .dtype = c->table);
    args.labels = OP_TENSOR(run, .shape = {c->batch}, .dtype = NL_I32, .values = labels);
    args.y = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .output = "y");
    if (c->c)
        args.c = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .output = "c");
    if (c->crop) {
        args.crop =
            OP_TENSOR(run, .shape = {c->one_crop ? 1 : c->batch, c->crop}, .shared = c->one_crop);
        args.crop_weight = OP_TENSOR(run, .shape = {c->d, c->crop}, .shared = true);
    }
    return nl_op_add_label(run->device, &args);
}

const op_family op_backbone_families[] = {
    FAMILY(linear),
    FAMILY(quantize),
    FAMILY(layernorm_modulate),
    FAMILY(nala_attention),
    FAMILY(layernorm_gate),
    FAMILY(softmax_attention),
    FAMILY(mediator_attention),
    FAMILY(gated_linear_attention),
    FAMILY(head_norm_gate),
    FAMILY(swiglu),
    FAMILY(qk_norm),
    FAMILY(rope),
    FAMILY(depthwise_conv),
    FAMILY(patch_embed),
    FAMILY(unpatchify),
    FAMILY(time_features),
    FAMILY(add_label),
    {0},
};
