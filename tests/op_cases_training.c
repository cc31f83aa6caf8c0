/* SPDX-License-Identifier: MIT */
/* Cases of the operations of training. */
#include "op_cases.h"

static const struct linear_backward_data_case {
    const char *text;
    int64_t batch, rows, k, n, gap;
    nl_epilogue epilogue;
    nl_dtype weight;
    bool x, in_place, bias, gpu; /* op_left_out */
} linear_backward_data_cases[] = {
    CASE(.batch = 1, .rows = 1, .k = 1, .n = 1),
    CASE(.batch = 1, .rows = 1, .k = 64, .n = 192),
    CASE(.batch = 3, .rows = 1, .k = 72, .n = 432, .epilogue = NL_EPILOGUE_SILU),
    CASE(.batch = 1, .rows = 67, .k = 33, .n = 31, .gap = 5),
    CASE(.batch = 3, .rows = 16, .k = 256, .n = 64, .epilogue = NL_EPILOGUE_GELU_TANH),
    CASE(.batch = 3, .rows = 49, .k = 72, .n = 72, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8),
    CASE(.batch = 2, .rows = 300, .k = 128, .n = 96),
    CASE(.batch = 2, .rows = 25, .k = 384, .n = 384, .weight = NL_BF16),
    CASE(.batch = 3, .rows = 1, .k = 72, .n = 40, .epilogue = NL_EPILOGUE_SILU, .x = true),
    CASE(.batch = 2, .rows = 70, .k = 200, .n = 64, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8,
         .x = true, .bias = true),
    CASE(.batch = 2, .rows = 33, .k = 96, .n = 56, .bias = true),
    CASE(.batch = 2, .rows = 33, .k = 35, .n = 50, .x = true, .in_place = true, .bias = true),
    /* Many rows: the last tile of 64 is not full, nor the last step of 64 in n. */
    CASE(.batch = 2, .rows = 2061, .k = 192, .n = 72, .epilogue = NL_EPILOGUE_GELU_TANH, .gap = 8,
         .weight = NL_BF16, .x = true, .in_place = true, .bias = true),
    CASE(.gpu = true, .batch = 3, .rows = 1400, .k = 384, .n = 64,
         .epilogue = NL_EPILOGUE_GELU_TANH, .weight = NL_BF16, .x = true, .bias = true),
    CASE(.gpu = true, .batch = 2, .rows = 2050, .k = 192, .n = 128, .weight = NL_BF16),
    CASE(.batch = 2, .rows = 2050, .k = 192, .n = 64, .epilogue = NL_EPILOGUE_GELU_TANH,
         .weight = NL_BF16),
};

static nl_status run_linear_backward_data(op_run *run, const void *op_case)
{
    const struct linear_backward_data_case *c = op_case;
    int64_t m = c->batch * c->rows;
    if (op_left_out(run, c->gpu))
        return NL_OK;
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    nl_linear_backward_data_args args = {.epilogue = c->epilogue};
    args.dy = OP_TENSOR(run, .activation = true, .shape = {m, c->n}, .gap = c->gap);
    args.weight = OP_TENSOR(run, .shape = {c->n, c->k}, .shared = true, .dtype = c->weight,
                            .scale = 1 / sqrt((double)c->n));
    if (c->epilogue || c->x)
        args.pre = OP_TENSOR(run, .activation = true, .shape = {m, c->k}, .scale = 2,
                             .output = c->in_place ? "x" : NULL, .in_place = c->in_place);
    args.dx = OP_TENSOR(run, .activation = true, .shape = {m, c->k}, .gap = c->gap, .output = "dx");
    if (c->x)
        args.x = c->in_place
                     ? args.pre
                     : OP_TENSOR(run, .activation = true, .shape = {m, c->k}, .output = "x");
    if (c->bias)
        args.dbias =
            OP_TENSOR(run, .shape = {c->k}, .shared = true, .output = "dbias", .in_place = true);
    return nl_op_linear_backward_data(run->device, &args);
}

static const struct linear_backward_weight_case {
    const char *text;
    int64_t rows, k, n, gap;
    bool no_bias;
} linear_backward_weight_cases[] = {
    CASE(.rows = 1, .k = 1, .n = 1),
    CASE(.rows = 1, .k = 64, .n = 192, .no_bias = true),
    CASE(.rows = 3, .k = 72, .n = 432),
    CASE(.rows = 67, .k = 33, .n = 31, .gap = 5),
    CASE(.rows = 147, .k = 72, .n = 72, .gap = 8),
    CASE(.rows = 700, .k = 384, .n = 200),
    CASE(.rows = 256, .k = 64, .n = 16),
    CASE(.rows = 33, .k = 600, .n = 300, .no_bias = true),
};

static nl_status run_linear_backward_weight(op_run *run, const void *op_case)
{
    const struct linear_backward_weight_case *c = op_case;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    nl_linear_backward_weight_args args = {0};
    args.dy = OP_TENSOR(run, .activation = true, .shape = {c->rows, c->n}, .gap = c->gap);
    args.x = OP_TENSOR(run, .activation = true, .shape = {c->rows, c->k}, .gap = c->gap);
    args.dweight =
        OP_TENSOR(run, .shape = {c->n, c->k}, .gap = c->gap, .output = "dweight", .in_place = true);
    if (!c->no_bias)
        args.dbias = OP_TENSOR(run, .shape = {c->n}, .output = "dbias", .in_place = true);
    return nl_op_linear_backward_weight(run->device, &args);
}

static const struct activate_backward_case {
    const char *text;
    int64_t batch, count;
    nl_activation activation;
    bool in_place;
} activate_backward_cases[] = {
    CASE(.batch = 1, .count = 1, .activation = NL_ACT_NONE),
    CASE(.batch = 3, .count = 333, .activation = NL_ACT_RELU),
    CASE(.batch = 2, .count = 9000, .activation = NL_ACT_SILU),
    CASE(.batch = 2, .count = 700, .activation = NL_ACT_SOFT_CLAMP),
    CASE(.batch = 2, .count = 7777, .activation = NL_ACT_GELU_TANH),
    CASE(.batch = 3, .count = 64, .activation = NL_ACT_GELU_TANH, .in_place = true),
};

static nl_status run_activate_backward(op_run *run, const void *op_case)
{
    const struct activate_backward_case *c = op_case;
    run->batch = c->batch;
    nl_activate_backward_args args = {.activation = c->activation};
    args.x = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->count}, .scale = 3);
    args.dx = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->count}, .output = "dx",
                        .in_place = c->in_place);
    args.dy =
        c->in_place ? args.dx : OP_TENSOR(run, .activation = true, .shape = {c->batch, c->count});
    return nl_op_activate_backward(run->device, &args);
}

static const struct layernorm_modulate_backward_case {
    const char *text;
    int64_t batch, rows, d, gap;
    bool branch, y, bias;
    nl_norm norm;
} layernorm_modulate_backward_cases[] = {
    CASE(.batch = 1, .rows = 1, .d = 64, .norm = NL_NORM_RMS),
    CASE(.batch = 3, .rows = 16, .d = 72, .branch = true, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 149, .d = 384, .gap = 5 * 384, .branch = true, .y = true, .bias = true,
         .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true, .y = true, .norm = NL_NORM_RMS),
    CASE(.batch = 2, .rows = 70, .d = 1152, .gap = 1152, .y = true, .norm = NL_NORM_RMS),
    CASE(.batch = 1, .rows = 1, .d = 64),
    CASE(.batch = 3, .rows = 1, .d = 72, .branch = true, .y = true),
    CASE(.batch = 1, .rows = 67, .d = 384, .y = true),
    CASE(.batch = 3, .rows = 16, .d = 72, .branch = true),
    CASE(.batch = 2, .rows = 49, .d = 384, .gap = 5 * 384, .branch = true, .y = true),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true, .y = true),
    CASE(.batch = 2, .rows = 300, .d = 40, .gap = 200, .branch = true, .y = true),
    CASE(.batch = 2, .rows = 64, .d = 1152, .gap = 1152, .branch = true, .y = true),
    CASE(.batch = 1, .rows = 3, .d = 72, .branch = true, .bias = true),
    CASE(.batch = 3, .rows = 70, .d = 384, .branch = true, .y = true, .bias = true),
    CASE(.batch = 2, .rows = 3, .d = 33, .gap = 5, .branch = true, .bias = true),
    CASE(.batch = 2, .rows = 150, .d = 1152, .branch = true, .y = true, .bias = true),
};

/* Rows with a mean far from 0 and with a small variance. */
static float *uneven_rows(op_run *run, int64_t rows, int64_t d)
{
    float *x = op_normal(run, rows * d);
    for (int64_t i = 0; i < d && rows > 2; i++) {
        x[i] += 30;
        x[d + i] *= 1e-2f;
    }
    return x;
}

static nl_status run_layernorm_modulate_backward(op_run *run, const void *op_case)
{
    const struct layernorm_modulate_backward_case *c = op_case;
    int64_t m = c->batch * c->rows, d = c->d;
    run->batch = c->batch;
    float *x = uneven_rows(run, m, d);
    nl_layernorm_modulate_backward_args args = {
        .norm = c->norm, .rows_per_image = c->rows, .eps = 1e-6f};
    if (c->norm == NL_NORM_RMS) {
        args.weight = OP_TENSOR(run, .shape = {d}, .shared = true);
        args.dweight =
            OP_TENSOR(run, .shape = {d}, .shared = true, .output = "dweight", .in_place = true);
    }
#define OF_IMAGE(...)                                                                              \
    OP_TENSOR(run, .activation = true, .shape = {c->batch, d}, .gap = c->gap, __VA_ARGS__)
#define OF_ROWS(...) OP_TENSOR(run, .activation = true, .shape = {m, d}, __VA_ARGS__)
    args.x = OF_ROWS(.values = x);
    args.scale = OF_IMAGE(.scale = 0.5);
    args.dy = OF_ROWS(.scale = 1);
    args.dx = OF_ROWS(.output = "dx", .in_place = true);
    if (c->branch) {
        args.branch = OF_ROWS(.scale = 1);
        args.gate = OF_IMAGE(.scale = 1);
        args.dbranch = OF_ROWS(.output = "dbranch");
        args.dgate = OF_IMAGE(.output = "dgate");
        if (c->bias)
            args.dbias =
                OP_TENSOR(run, .shape = {d}, .shared = true, .output = "dbias", .in_place = true);
    }
    args.dshift = OF_IMAGE(.output = "dshift");
    args.dscale = OF_IMAGE(.output = "dscale");
    if (c->y) {
        args.shift = OF_IMAGE(.scale = 1);
        args.y = OF_ROWS(.output = "y");
    }
#undef OF_IMAGE
#undef OF_ROWS
    return nl_op_layernorm_modulate_backward(run->device, &args);
}

static const struct layernorm_gate_backward_case {
    const char *text;
    int64_t rows, d, gap;
    bool no_gate, in_place, y, sums;
} layernorm_gate_backward_cases[] = {
    CASE(.rows = 1, .d = 64),
    CASE(.rows = 3, .d = 72, .gap = 3 * 72, .in_place = true, .y = true),
    CASE(.rows = 167, .d = 384, .gap = 3 * 384, .y = true),
    CASE(.rows = 67, .d = 33, .gap = 5, .in_place = true, .y = true),
    CASE(.rows = 5, .d = 384, .no_gate = true),
    CASE(.rows = 200, .d = 40, .no_gate = true, .in_place = true, .y = true),
    CASE(.rows = 700, .d = 384, .gap = 3 * 384, .in_place = true, .y = true, .sums = true),
    CASE(.rows = 70, .d = 33, .gap = 5, .sums = true),
};

static nl_status run_layernorm_gate_backward(op_run *run, const void *op_case)
{
    const struct layernorm_gate_backward_case *c = op_case;
    int64_t m = c->rows, d = c->d;
    run->batch = c->rows;
    float *x = uneven_rows(run, m, d);
    nl_layernorm_gate_backward_args args = {.eps = 1e-5f};
#define OF_ROWS(...) OP_TENSOR(run, .activation = true, .shape = {m, d}, __VA_ARGS__)
#define GRADIENT(name)                                                                             \
    OP_TENSOR(run, .shape = {d}, .shared = true, .output = name, .in_place = true)
    args.dx = OF_ROWS(.output = "dx", .in_place = c->in_place);
    args.dy = c->in_place ? args.dx : OF_ROWS(.scale = 1);
    if (c->y)
        args.y = OF_ROWS(.output = "y", .in_place = c->in_place, .values = c->in_place ? x : NULL);
    args.x = c->y && c->in_place ? args.y : OF_ROWS(.values = x);
    args.weight = OP_TENSOR(run, .shape = {d}, .shared = true);
    args.bias = OP_TENSOR(run, .shape = {d}, .shared = true);
    if (!c->no_gate) {
        args.g = OF_ROWS(.gap = c->gap, .scale = 3);
        args.dg = OF_ROWS(.gap = c->gap, .output = "dg");
        if (c->sums)
            args.dg_sums = GRADIENT("dg_sums");
    }
    args.dweight = GRADIENT("dweight");
    args.dbias = GRADIENT("dbias");
#undef OF_ROWS
#undef GRADIENT
    return nl_op_layernorm_gate_backward(run->device, &args);
}

static const struct nala_attention_backward_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, d, parts, gap; /* parts: 3 for q k v, 4 with g */
    nl_feature_map map;
    bool rope, sums, learnt;       /* lambda and tau of each head */
    float lambda, tau, norm_scale; /* 0: 3, 0.5 and 1 */
} nala_attention_backward_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .heads = 1, .d = 8, .parts = 3),
    CASE(.batch = 2, .grid_height = 1, .grid_width = 2, .heads = 2, .d = 64, .parts = 4),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 24, .parts = 4, .gap = 5),
    CASE(.batch = 3, .grid_height = 8, .grid_width = 8, .heads = 2, .d = 72, .parts = 3),
    CASE(.batch = 2, .grid_height = 16, .grid_width = 16, .heads = 3, .d = 64, .parts = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 2, .d = 64, .parts = 4,
         .norm_scale = 0.125f),
    CASE(.batch = 1, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 72, .parts = 4,
         .norm_scale = 0.125f, .sums = true),
    CASE(.batch = 1, .grid_height = 5, .grid_width = 9, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_SPLIT, .norm_scale = 0.25f),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 128, .parts = 4),
    CASE(.batch = 1, .grid_height = 5, .grid_width = 120, .heads = 1, .d = 32, .parts = 4),
    CASE(.batch = 1, .grid_height = 33, .grid_width = 33, .heads = 1, .d = 64, .parts = 3),
    CASE(.batch = 1, .grid_height = 7, .grid_width = 7, .heads = 1, .d = 9, .parts = 3, .gap = 1),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 3, .heads = 2, .d = 16, .parts = 3,
         .lambda = 2, .tau = 0.75f),
    CASE(.batch = 2, .grid_height = 4, .grid_width = 16, .heads = 2, .d = 72, .parts = 4,
         .rope = true),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 5, .heads = 2, .d = 4, .parts = 3,
         .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_SPLIT),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 13, .heads = 1, .d = 72, .parts = 4,
         .map = NL_FEATURES_SPLIT, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_RELU),
    CASE(.batch = 1, .grid_height = 16, .grid_width = 4, .heads = 2, .d = 72, .parts = 3,
         .map = NL_FEATURES_RELU, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_ELU1),
    CASE(.batch = 1, .grid_height = 2, .grid_width = 8, .heads = 2, .d = 32, .parts = 4,
         .map = NL_FEATURES_ELU1, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_POWER),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 8, .heads = 2, .d = 72, .parts = 4,
         .map = NL_FEATURES_POWER, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 2, .d = 64, .parts = 4,
         .map = NL_FEATURES_COSINE_CONSTANT),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 2, .heads = 2, .d = 24, .parts = 4,
         .map = NL_FEATURES_COSINE_CONSTANT, .rope = true),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 2, .d = 64, .parts = 4,
         .sums = true),
    CASE(.batch = 2, .grid_height = 10, .grid_width = 17, .heads = 2, .d = 72, .parts = 4,
         .sums = true),
    CASE(.batch = 1, .grid_height = 30, .grid_width = 30, .heads = 1, .d = 32, .parts = 3,
         .sums = true),
    CASE(.batch = 2, .grid_height = 3, .grid_width = 5, .heads = 2, .d = 24, .parts = 3,
         .sums = true),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 2, .d = 64, .parts = 4,
         .rope = true, .sums = true),
    CASE(.batch = 1, .grid_height = 13, .grid_width = 43, .heads = 1, .d = 64, .parts = 3,
         .rope = true, .sums = true),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 9, .heads = 2, .d = 48, .parts = 3,
         .rope = true, .sums = true),
    CASE(.batch = 2, .grid_height = 33, .grid_width = 5, .heads = 2, .d = 20, .parts = 4,
         .map = NL_FEATURES_SPLIT, .rope = true, .sums = true, .lambda = 2.5f, .tau = 1),
    CASE(.batch = 1, .grid_height = 5, .grid_width = 13, .heads = 2, .d = 128, .parts = 4,
         .map = NL_FEATURES_SPLIT),
    CASE(.batch = 2, .grid_height = 10, .grid_width = 10, .heads = 1, .d = 128, .parts = 3,
         .rope = true),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 8, .heads = 2, .d = 13, .parts = 3, .gap = 2,
         .map = NL_FEATURES_ELU1),
    CASE(.batch = 1, .grid_height = 11, .grid_width = 6, .heads = 1, .d = 67, .parts = 3, .gap = 3,
         .map = NL_FEATURES_POWER),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 6, .d = 64, .parts = 4,
         .learnt = true, .sums = true),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 11, .heads = 3, .d = 72, .parts = 4,
         .learnt = true, .norm_scale = 0.125f),
    CASE(.batch = 2, .grid_height = 30, .grid_width = 31, .heads = 2, .d = 32, .parts = 3,
         .learnt = true, .sums = true),
    CASE(.batch = 2, .grid_height = 5, .grid_width = 8, .heads = 2, .d = 24, .parts = 3,
         .learnt = true, .rope = true),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .heads = 3, .d = 64, .parts = 4,
         .learnt = true, .map = NL_FEATURES_SPLIT, .sums = true),
    CASE(.batch = 1, .grid_height = 9, .grid_width = 8, .heads = 2, .d = 128, .parts = 3,
         .learnt = true),
};

/* out, state and total are the operation's own on the same device, so that its roundings are in them. */
static nl_status run_nala_attention_backward(op_run *run, const void *op_case)
{
    const struct nala_attention_backward_case *c = op_case;
    int64_t tokens = c->grid_height * c->grid_width, size = c->heads * c->d;
    int64_t width = c->parts * size, rows = c->batch * tokens, pairs = c->batch * c->heads;
    int64_t features = nl_feature_width(c->map, c->d);
    run->batch = c->batch;
    run->batch_tolerance = 4 * OP_MATRIX_PRODUCT;
    float *qkvg = op_nala_rows(run, rows, width, tokens, size, c->d, c->rope);
    nl_nala_attention_args forward = {
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
    forward.qkvg =
        OP_TENSOR(run, .activation = true, .shape = {rows, width}, .gap = c->gap, .values = qkvg);
    forward.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    if (c->learnt) {
        forward.log_lambda = op_log_exponents(run, c->heads, false);
        forward.log_tau = op_log_exponents(run, c->heads, true);
    }
    forward.state = OP_TENSOR(run, .shape = {pairs, features, c->d}, .output = "state");
    forward.total = OP_TENSOR(run, .shape = {pairs, features}, .output = "total");
    nl_status status = nl_op_nala_attention(run->device, &forward);
    if (status != NL_OK)
        return status;
    nl_nala_attention_backward_args args = {
        .qkvg = forward.qkvg,
        .out = forward.out,
        .state = forward.state,
        .total = forward.total,
        .batch = forward.batch,
        .tokens = tokens,
        .heads = c->heads,
        .head_size = c->d,
        .feature_map = c->map,
        .lambda = forward.lambda,
        .tau = forward.tau,
        .log_lambda = forward.log_lambda,
        .log_tau = forward.log_tau,
        .norm_scale = forward.norm_scale,
        .rope = c->rope,
        .grid_height = c->grid_height,
        .grid_width = c->grid_width,
    };
    args.dout = OP_TENSOR(run, .activation = true, .shape = {rows, size});
    args.dqkv = OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap + size,
                          .output = "dqkv");
    if (c->sums)
        args.sums =
            OP_TENSOR(run, .shape = {3 * size}, .shared = true, .output = "sums", .in_place = true);
    if (c->learnt) {
        /* Sums over all tokens of differences, which nearly cancel: rounding features to bf16 costs 0.5 to 7 % of them (an
         * emulation of the kernels, 15 draws). */
        double tolerance = run->rounded ? 0.15 : 4e-5;
#define GRADIENT(name)                                                                             \
    OP_TENSOR(run, .shape = {c->heads}, .shared = true, .output = name, .in_place = true,          \
              .tolerance = tolerance)
        args.dlog_lambda = GRADIENT("dlog_lambda");
        args.dlog_tau = GRADIENT("dlog_tau");
#undef GRADIENT
    }
    return nl_op_nala_attention_backward(run->device, &args);
}

static const struct mediator_attention_backward_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, d, side, gap;
} mediator_attention_backward_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 2, .heads = 1, .d = 8, .side = 1),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 5, .heads = 3, .d = 24, .side = 3, .gap = 5),
    CASE(.batch = 3, .grid_height = 16, .grid_width = 16, .heads = 2, .d = 64, .side = 4),
    CASE(.batch = 2, .grid_height = 9, .grid_width = 12, .heads = 2, .d = 72, .side = 8, .gap = 8),
    CASE(.batch = 1, .grid_height = 8, .grid_width = 9, .heads = 1, .d = 128, .side = 8),
    CASE(.batch = 2, .grid_height = 3, .grid_width = 11, .heads = 2, .d = 13, .side = 2),
};

/* The forward pass is the operation's own on the same device. */
static nl_status run_mediator_attention_backward(op_run *run, const void *op_case)
{
    const struct mediator_attention_backward_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width, size = c->heads * c->d;
    int64_t pairs = c->batch * c->heads, count = c->side * c->side;
    run->batch = c->batch;
    run->tolerance = 4e-5;
    nl_mediator_attention_args forward = {
        .sizes = {op_images(run), c->heads, c->d, c->grid_height, c->grid_width, c->side},
        .scale = (float)(1 / sqrt((double)c->d)),
    };
    forward.qkv =
        OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap, .scale = 2);
    forward.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    forward.mediators = OP_TENSOR(run, .shape = {pairs, count, c->d}, .output = "mediators");
    forward.values = OP_TENSOR(run, .shape = {pairs, count, c->d}, .output = "values");
    forward.lse = OP_TENSOR(run, .shape = {pairs, count}, .output = "lse");
    nl_status status = nl_op_mediator_attention(run->device, &forward);
    if (status != NL_OK)
        return status;
    nl_mediator_attention_backward_args args = {.qkv = forward.qkv,
                                                .mediators = forward.mediators,
                                                .values = forward.values,
                                                .lse = forward.lse,
                                                .sizes = forward.sizes,
                                                .scale = forward.scale};
    args.dout = OP_TENSOR(run, .activation = true, .shape = {rows, size});
    args.dqkv = OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap,
                          .output = "dqkv");
    return nl_op_mediator_attention_backward(run->device, &args);
}

static const struct gated_linear_attention_backward_case {
    const char *text;
    int64_t batch, grid_height, grid_width, heads, e, d, gap;
    bool transposed, reversed;
} gated_linear_attention_backward_cases[] = {
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
    CASE(.batch = 1, .grid_height = 32, .grid_width = 32, .heads = 1, .e = 32, .d = 64,
         .transposed = true, .reversed = true),
};

static nl_status run_gated_linear_attention_backward(op_run *run, const void *op_case)
{
    const struct gated_linear_attention_backward_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width;
    int64_t keys = c->heads * c->e, size = c->heads * c->d;
    run->batch = c->batch;
    run->tolerance = 4e-5; /* the gradient of a gate is a difference of long sums */
    float *gates = op_gates(run, rows * keys);
    nl_gated_linear_attention_backward_args args = {
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
    args.dout = OP_TENSOR(run, .activation = true, .shape = {rows, size});
    args.dqkv = OP_TENSOR(run, .activation = true, .shape = {rows, 2 * keys + size}, .gap = c->gap,
                          .output = "dqkv");
    args.dgate = OP_TENSOR(run, .activation = true, .shape = {rows, keys}, .output = "dgate");
    return nl_op_gated_linear_attention_backward(run->device, &args);
}

static const struct head_norm_gate_backward_case {
    const char *text;
    int64_t rows, heads, d, gap;
    bool in_place, y;
} head_norm_gate_backward_cases[] = {
    CASE(.rows = 1, .heads = 1, .d = 8),
    CASE(.rows = 167, .heads = 6, .d = 64, .gap = 16 + 768, .in_place = true, .y = true),
    CASE(.rows = 49, .heads = 2, .d = 72, .gap = 8, .y = true),
    CASE(.rows = 5, .heads = 3, .d = 33, .gap = 5, .in_place = true),
    CASE(.rows = 700, .heads = 2, .d = 128, .in_place = true, .y = true),
};

static nl_status run_head_norm_gate_backward(op_run *run, const void *op_case)
{
    const struct head_norm_gate_backward_case *c = op_case;
    int64_t m = c->rows, size = c->heads * c->d;
    run->batch = c->rows;
    float *x = op_normal(run, m * size);
    for (int64_t i = 0; i < c->d && m > 1; i++)
        x[i] *= 1e-2f;
    nl_head_norm_gate_backward_args args = {.eps = 1e-6f};
#define OF_ROWS(...) OP_TENSOR(run, .activation = true, .shape = {m, size}, __VA_ARGS__)
    args.dx = OF_ROWS(.output = "dx", .in_place = c->in_place);
    args.dy = c->in_place ? args.dx : OF_ROWS(.scale = 1);
    args.x = OF_ROWS(.values = x);
    args.weight = OP_TENSOR(run, .shape = {c->d}, .shared = true);
    args.g = OF_ROWS(.gap = c->gap, .scale = 3);
    args.dg = OF_ROWS(.gap = c->gap, .output = "dg");
    if (c->y)
        args.y = OF_ROWS(.output = "y");
    args.dweight =
        OP_TENSOR(run, .shape = {c->d}, .shared = true, .output = "dweight", .in_place = true);
#undef OF_ROWS
    return nl_op_head_norm_gate_backward(run->device, &args);
}

static const struct softmax_attention_backward_case {
    const char *text;
    int64_t batch, tokens, heads, d, gap;
    bool gpu; /* op_left_out */
    /* Scores of about -100, exponents to 1e-5; the sum of their exponentials is no number of fp32. */
    bool low;
} softmax_attention_backward_cases[] = {
    CASE(.batch = 1, .tokens = 1, .heads = 1, .d = 8),
    CASE(.batch = 3, .tokens = 2, .heads = 2, .d = 64),
    CASE(.batch = 2, .tokens = 49, .heads = 3, .d = 24, .gap = 5),
    CASE(.batch = 2, .tokens = 64, .heads = 2, .d = 72),
    CASE(.batch = 2, .tokens = 49, .heads = 3, .d = 128),
    CASE(.batch = 2, .tokens = 49, .heads = 2, .d = 192),
    CASE(.batch = 1, .tokens = 256, .heads = 2, .d = 64),
    CASE(.batch = 1, .tokens = 67, .heads = 1, .d = 9),
    CASE(.batch = 1, .tokens = 200, .heads = 1, .d = 128, .gap = 128),
    CASE(.batch = 1, .tokens = 65, .heads = 3, .d = 56),
    CASE(.batch = 2, .tokens = 129, .heads = 2, .d = 64, .gap = 16),
    CASE(.batch = 2, .tokens = 257, .heads = 1, .d = 80, .gap = 8),
    CASE(.batch = 1, .tokens = 513, .heads = 1, .d = 72),
    CASE(.gpu = true, .batch = 1, .tokens = 1024, .heads = 2, .d = 64),
    CASE(.batch = 150, .tokens = 70, .heads = 1, .d = 64),
    CASE(.batch = 2, .tokens = 49, .heads = 2, .d = 32, .low = true),
    CASE(.batch = 1, .tokens = 70, .heads = 2, .d = 64, .low = true),
    CASE(.batch = 1, .tokens = 97, .heads = 1, .d = 128, .low = true),
};

static nl_status run_softmax_attention_backward(op_run *run, const void *op_case)
{
    const struct softmax_attention_backward_case *c = op_case;
    int64_t size = c->heads * c->d, rows = c->batch * c->tokens;
    if (op_left_out(run, c->gpu))
        return NL_OK;
    run->batch = c->batch;
    run->batch_tolerance = 4 * OP_MATRIX_PRODUCT;
    nl_softmax_attention_args forward = {.batch = op_images(run),
                                         .tokens = c->tokens,
                                         .heads = c->heads,
                                         .head_size = c->d,
                                         .scale = (float)(1 / sqrt((double)c->d))};
    float *qkv = op_normal(run, rows * 3 * size), apart = sqrtf(100 / sqrtf((float)c->d));
    for (int64_t i = 0; c->low && i < rows * 3 * size; i++)
        qkv[i] += i / size % 3 == 0 ? apart : i / size % 3 == 1 ? -apart : 0;
    forward.qkv =
        OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap, .values = qkv);
    forward.out = OP_TENSOR(run, .activation = true, .shape = {rows, size}, .output = "out");
    forward.lse = OP_TENSOR(run, .shape = {c->batch * c->heads, c->tokens}, .output = "lse");
    nl_status status = nl_op_softmax_attention(run->device, &forward);
    if (status != NL_OK)
        return status;
    nl_softmax_attention_backward_args args = {.qkv = forward.qkv,
                                               .out = forward.out,
                                               .lse = forward.lse,
                                               .batch = forward.batch,
                                               .tokens = c->tokens,
                                               .heads = c->heads,
                                               .head_size = c->d,
                                               .scale = forward.scale};
    args.dout = OP_TENSOR(run, .activation = true, .shape = {rows, size});
    args.dqkv = OP_TENSOR(run, .activation = true, .shape = {rows, 3 * size}, .gap = c->gap,
                          .output = "dqkv", .tolerance = c->low ? 5e-5 : 0);
    return nl_op_softmax_attention_backward(run->device, &args);
}

static const struct swiglu_backward_case {
    const char *text;
    int64_t batch, rows, k;
    bool y, in_place;
} swiglu_backward_cases[] = {
    CASE(.batch = 1, .rows = 1, .k = 1),
    CASE(.batch = 3, .rows = 16, .k = 170, .y = true),
    CASE(.batch = 2, .rows = 49, .k = 1024, .y = true, .in_place = true),
    CASE(.batch = 2, .rows = 3, .k = 33, .y = true, .in_place = true),
    CASE(.batch = 1, .rows = 70, .k = 3072),
};

static nl_status run_swiglu_backward(op_run *run, const void *op_case)
{
    const struct swiglu_backward_case *c = op_case;
    int64_t m = c->batch * c->rows;
    run->batch = c->batch;
    nl_swiglu_backward_args args = {0};
#define OF_ROWS(...) OP_TENSOR(run, .activation = true, .shape = {m, c->k}, __VA_ARGS__)
    args.x = OP_TENSOR(run, .activation = true, .shape = {m, 2 * c->k}, .scale = 3);
    args.dy = OF_ROWS(.output = c->in_place ? "y" : NULL, .in_place = c->in_place);
    args.dx = OP_TENSOR(run, .activation = true, .shape = {m, 2 * c->k}, .output = "dx");
    if (c->y)
        args.y = c->in_place ? args.dy : OF_ROWS(.output = "y");
#undef OF_ROWS
    return nl_op_swiglu_backward(run->device, &args);
}

static const struct qk_norm_backward_case {
    const char *text;
    int64_t rows, heads, d, gap;
    nl_norm norm;
} qk_norm_backward_cases[] = {
    CASE(.rows = 1, .heads = 1, .d = 8, .norm = NL_NORM_RMS),
    CASE(.rows = 48, .heads = 2, .d = 72, .gap = 2 * 144, .norm = NL_NORM_RMS),
    CASE(.rows = 133, .heads = 6, .d = 64, .gap = 2 * 384, .norm = NL_NORM_RMS),
    CASE(.rows = 10, .heads = 3, .d = 33, .gap = 5, .norm = NL_NORM_RMS),
    CASE(.rows = 40, .heads = 2, .d = 192, .norm = NL_NORM_RMS),
    CASE(.rows = 133, .heads = 2, .d = 72, .gap = 2 * 144, .norm = NL_NORM_LAYER),
    CASE(.rows = 10, .heads = 3, .d = 33, .gap = 5, .norm = NL_NORM_LAYER),
};

static nl_status run_qk_norm_backward(op_run *run, const void *op_case)
{
    const struct qk_norm_backward_case *c = op_case;
    int64_t columns = 2 * c->heads * c->d;
    nl_qk_norm_backward_args args = {.norm = c->norm,
                                     .eps = c->norm == NL_NORM_RMS ? 1e-6f : 1e-5f};
    float *raw = op_normal(run, c->rows * columns);
    for (int64_t i = 0; i < c->d && c->rows > 1; i++)
        raw[i] *= 1e-3f; /* a mean square as small as eps */
    args.raw = OP_TENSOR(run, .activation = true, .shape = {c->rows, columns}, .values = raw);
    args.q_weight = OP_TENSOR(run, .shape = {c->d});
    args.k_weight = OP_TENSOR(run, .shape = {c->d});
    args.dx = OP_TENSOR(run, .activation = true, .shape = {c->rows, columns}, .gap = c->gap,
                        .output = "dx", .in_place = true);
    args.dq_weight = OP_TENSOR(run, .shape = {c->d}, .output = "dq_weight", .in_place = true);
    args.dk_weight = OP_TENSOR(run, .shape = {c->d}, .output = "dk_weight", .in_place = true);
    if (c->norm == NL_NORM_LAYER) {
        args.dq_bias = OP_TENSOR(run, .shape = {c->d}, .output = "dq_bias", .in_place = true);
        args.dk_bias = OP_TENSOR(run, .shape = {c->d}, .output = "dk_bias", .in_place = true);
    }
    return nl_op_qk_norm_backward(run->device, &args);
}

static const struct dropout_case {
    const char *text;
    int64_t batch, rows, n;
    float probability;
    uint64_t first;
} dropout_cases[] = {
    CASE(.batch = 1, .rows = 1, .n = 1, .probability = 0),
    CASE(.batch = 3, .rows = 16, .n = 170, .probability = 0.1f),
    CASE(.batch = 2, .rows = 3, .n = 33, .probability = 0.5f, .first = 4 * 99),
    CASE(.batch = 2, .rows = 49, .n = 1024, .probability = 0.0013f, .first = 1ull << 33),
};

static nl_status run_dropout(op_run *run, const void *op_case)
{
    const struct dropout_case *c = op_case;
    static const float samples[] = {7, 0, 123456792};
    run->batch = c->batch;
    nl_dropout_args args = {.rows_per_image = c->rows,
                            .seed = 0x123456789abcdef0,
                            .stream = 11,
                            .first = c->first,
                            .probability = c->probability};
    args.x = OP_TENSOR(run, .activation = true, .shape = {c->batch * c->rows, c->n}, .output = "x",
                       .in_place = true);
    args.samples = OP_TENSOR(run, .shape = {c->batch}, .dtype = NL_I64, .values = samples);
    return nl_op_dropout(run->device, &args);
}

static const struct depthwise_conv_backward_case {
    const char *text;
    int64_t batch, grid_height, grid_width, d, kernel, gap;
} depthwise_conv_backward_cases[] = {
    CASE(.batch = 1, .grid_height = 1, .grid_width = 1, .d = 64, .kernel = 5),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 7, .d = 72, .kernel = 5, .gap = 3 * 72),
    CASE(.batch = 2, .grid_height = 4, .grid_width = 16, .d = 384, .kernel = 5),
    CASE(.batch = 1, .grid_height = 37, .grid_width = 18, .d = 72, .kernel = 5, .gap = 8),
    CASE(.batch = 2, .grid_height = 21, .grid_width = 33, .d = 24, .kernel = 3, .gap = 8),
    /* Several tiles either way, an odd number of them in all, the last ones not full; rows of no whole vectors. */
    CASE(.batch = 1, .grid_height = 40, .grid_width = 35, .d = 136, .kernel = 5, .gap = 16),
    CASE(.batch = 3, .grid_height = 55, .grid_width = 17, .d = 72, .kernel = 3, .gap = 8),
    CASE(.batch = 2, .grid_height = 6, .grid_width = 19, .d = 24, .kernel = 5, .gap = 4),
    CASE(.batch = 3, .grid_height = 5, .grid_width = 3, .d = 33, .kernel = 3, .gap = 5),
    CASE(.batch = 2, .grid_height = 7, .grid_width = 9, .d = 256, .kernel = 3),
    CASE(.batch = 1, .grid_height = 3, .grid_width = 5, .d = 8, .kernel = 1),
    CASE(.batch = 1, .grid_height = 2, .grid_width = 9, .d = 16, .kernel = 7),
};

static nl_status run_depthwise_conv_backward(op_run *run, const void *op_case)
{
    const struct depthwise_conv_backward_case *c = op_case;
    int64_t rows = c->batch * c->grid_height * c->grid_width, d = c->d, kernel = c->kernel;
    run->batch = c->batch;
    nl_depthwise_conv_backward_args args = {
        .batch = op_images(run), .grid_height = c->grid_height, .grid_width = c->grid_width};
    args.x = OP_TENSOR(run, .activation = true, .shape = {rows, d}, .gap = c->gap);
    args.weight = OP_TENSOR(run, .shape = {d, 1, kernel, kernel}, .shared = true);
    args.dout = OP_TENSOR(run, .activation = true, .shape = {rows, d});
    args.dx = OP_TENSOR(run, .activation = true, .shape = {rows, d}, .gap = c->gap, .output = "dx",
                        .in_place = true);
    args.dweight = OP_TENSOR(run, .shape = {d, 1, kernel, kernel}, .shared = true,
                             .output = "dweight", .in_place = true);
    args.dbias = OP_TENSOR(run, .shape = {d}, .shared = true, .output = "dbias", .in_place = true);
    return nl_op_depthwise_conv_backward(run->device, &args);
}

static const struct patch_embed_backward_case {
    const char *text;
    int64_t batch, channels, height, width, patch, d;
    bool dx;
} patch_embed_backward_cases[] = {
    CASE(.batch = 1, .channels = 1, .height = 1, .width = 1, .patch = 1, .d = 8),
    CASE(.batch = 3, .channels = 4, .height = 8, .width = 8, .patch = 2, .d = 72, .dx = true),
    CASE(.batch = 2, .channels = 4, .height = 14, .width = 6, .patch = 2, .d = 64),
    CASE(.batch = 2, .channels = 3, .height = 5, .width = 7, .patch = 1, .d = 33, .dx = true),
    CASE(.batch = 2, .channels = 4, .height = 8, .width = 32, .patch = 4, .d = 384),
    CASE(.batch = 1, .channels = 16, .height = 32, .width = 16, .patch = 8, .d = 64, .dx = true),
};

static nl_status run_patch_embed_backward(op_run *run, const void *op_case)
{
    const struct patch_embed_backward_case *c = op_case;
    int64_t tokens = c->height / c->patch * (c->width / c->patch);
    run->batch = c->batch;
    run->batch_tolerance = OP_MATRIX_PRODUCT;
    nl_patch_embed_backward_args args = {0};
    args.x = OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width});
    if (c->dx) {
        args.weight =
            OP_TENSOR(run, .shape = {c->d, c->channels, c->patch, c->patch}, .shared = true);
        args.dx =
            OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width}, .output = "dx");
    }
    args.dtokens = OP_TENSOR(run, .activation = true, .shape = {c->batch * tokens, c->d});
    args.dweight = OP_TENSOR(run, .shape = {c->d, c->channels, c->patch, c->patch}, .shared = true,
                             .output = "dweight", .in_place = true);
    args.dbias =
        OP_TENSOR(run, .shape = {c->d}, .shared = true, .output = "dbias", .in_place = true);
    return nl_op_patch_embed_backward(run->device, &args);
}

static const struct unpatchify_backward_case {
    const char *text;
    int64_t batch, channels, head_channels, height, width, patch;
} unpatchify_backward_cases[] = {
    CASE(.batch = 1, .channels = 1, .head_channels = 1, .height = 1, .width = 1, .patch = 1),
    CASE(.batch = 3, .channels = 8, .head_channels = 8, .height = 8, .width = 8, .patch = 2),
    CASE(.batch = 2, .channels = 4, .head_channels = 8, .height = 14, .width = 6, .patch = 2),
    CASE(.batch = 2, .channels = 3, .head_channels = 6, .height = 5, .width = 7, .patch = 1),
    CASE(.batch = 1, .channels = 4, .head_channels = 8, .height = 32, .width = 16, .patch = 8),
};

static nl_status run_unpatchify_backward(op_run *run, const void *op_case)
{
    const struct unpatchify_backward_case *c = op_case;
    int64_t tokens = c->height / c->patch * (c->width / c->patch);
    run->batch = c->batch;
    run->tolerance = 0;
    nl_unpatchify_backward_args args = {.patch = c->patch, .head_channels = c->head_channels};
    args.dx = OP_TENSOR(run, .shape = {c->batch, c->channels, c->height, c->width});
    args.dtokens = OP_TENSOR(run, .activation = true, .output = "dtokens",
                             .shape = {c->batch * tokens, c->patch * c->patch * c->head_channels});
    return nl_op_unpatchify_backward(run->device, &args);
}

static const struct add_label_backward_case {
    const char *text;
    int64_t batch, d, classes, crop;
} add_label_backward_cases[] = {
    CASE(.batch = 1, .d = 64, .classes = 0),
    CASE(.batch = 3, .d = 72, .classes = 10),
    CASE(.batch = 67, .d = 384, .classes = 20),
    CASE(.batch = 5, .d = 33, .classes = 3),
    CASE(.batch = 67, .d = 72, .classes = 20, .crop = 4),
    CASE(.batch = 3, .d = 33, .classes = 3, .crop = 7),
};

static nl_status run_add_label_backward(op_run *run, const void *op_case)
{
    const struct add_label_backward_case *c = op_case;
    run->batch = c->batch;
    float *labels = op_normal(run, c->batch);
    for (int64_t i = 0; i < c->batch; i++)
        labels[i] = i ? (float)op_integer(run, c->classes + 1) : (float)c->classes;
    nl_add_label_backward_args args = {0};
    args.c = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .scale = 2);
    args.labels = OP_TENSOR(run, .shape = {c->batch}, .dtype = NL_I32, .values = labels);
    args.dy = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d});
    args.dtime = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->d}, .output = "dtime");
    args.dtable = OP_TENSOR(run, .shape = {c->classes + 1, c->d}, .shared = true,
                            .output = "dtable", .in_place = true);
    if (c->crop) {
        args.crop = OP_TENSOR(run, .shape = {c->batch, c->crop});
        args.dcrop_weight = OP_TENSOR(run, .shape = {c->d, c->crop}, .shared = true,
                                      .output = "dcrop_weight", .in_place = true);
    }
    return nl_op_add_label_backward(run->device, &args);
}

static const struct latents_case {
    const char *text;
    int64_t batch, channels, side;
    bool moments;
    nl_dtype dtype;
} latents_cases[] = {
    CASE(.batch = 1, .channels = 1, .side = 1),
    CASE(.batch = 3, .channels = 4, .side = 8, .moments = true),
    CASE(.batch = 2, .channels = 4, .side = 9, .moments = true, .dtype = NL_BF16),
    CASE(.batch = 2, .channels = 4, .side = 9, .moments = true, .dtype = NL_F16),
    CASE(.batch = 2, .channels = 3, .side = 7, .dtype = NL_F16),
    CASE(.batch = 2, .channels = 3, .side = 7, .dtype = NL_U8),
};

static nl_status run_latents(op_run *run, const void *op_case)
{
    const struct latents_case *c = op_case;
    int64_t channels = c->moments ? 2 * c->channels : c->channels;
    bool bytes = c->dtype == NL_U8;
    run->batch = c->batch;
    nl_latents_args args = {.scale = bytes ? 2 / 255.0f : 0.18215f, .shift = bytes ? -1 : 0.1f};
    float *values = op_normal(run, c->batch * channels * c->side * c->side);
    for (int64_t i = 0; bytes && i < c->batch * channels * c->side * c->side; i++)
        values[i] = (float)op_integer(run, 256);
    args.x = OP_TENSOR(run, .shape = {c->batch, channels, c->side, c->side}, .dtype = c->dtype,
                       .values = values);
    if (c->moments)
        args.noise = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.y = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side}, .output = "y");
    return nl_op_latents(run->device, &args);
}

static const struct diffuse_case {
    const char *text;
    int64_t batch, channels, side;
} diffuse_cases[] = {
    CASE(.batch = 1, .channels = 1, .side = 1),
    CASE(.batch = 3, .channels = 4, .side = 8),
    CASE(.batch = 2, .channels = 3, .side = 33),
};

static nl_status run_diffuse(op_run *run, const void *op_case)
{
    const struct diffuse_case *c = op_case;
    run->batch = c->batch;
    nl_diffuse_args args = {0};
    args.data = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.noise = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.coefficients = OP_TENSOR(run, .shape = {c->batch, NL_LOSS_COLUMNS});
    args.y = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side}, .output = "y");
    return nl_op_diffuse(run->device, &args);
}

static const struct regression_loss_case {
    const char *text;
    int64_t batch, channels, predicted, side;
    bool no_gradient;
    float adaptive;
} regression_loss_cases[] = {
    CASE(.batch = 1, .channels = 1, .predicted = 1, .side = 1),
    CASE(.batch = 3, .channels = 4, .predicted = 8, .side = 8),
    CASE(.batch = 2, .channels = 3, .predicted = 3, .side = 33),
    CASE(.batch = 2, .channels = 4, .predicted = 8, .side = 5, .no_gradient = true),
    CASE(.batch = 2, .channels = 4, .predicted = 8, .side = 5, .adaptive = 0.1f),
    CASE(.batch = 2, .channels = 3, .predicted = 3, .side = 33, .adaptive = 1e-3f),
    CASE(.batch = 2, .channels = 3, .predicted = 3, .side = 7, .adaptive = 1, .no_gradient = true),
};

static nl_status run_regression_loss(op_run *run, const void *op_case)
{
    const struct regression_loss_case *c = op_case;
    run->batch = c->batch;
    nl_regression_loss_args args = {.gradient_scale = 1 / 7.0f, .adaptive = c->adaptive};
    args.prediction = OP_TENSOR(run, .shape = {c->batch, c->predicted, c->side, c->side});
    args.data = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.noise = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.coefficients = OP_TENSOR(run, .shape = {c->batch, NL_LOSS_COLUMNS});
    args.loss = OP_TENSOR(run, .shape = {c->batch}, .output = "loss");
    if (!c->no_gradient)
        args.dprediction = OP_TENSOR(run, .shape = {c->batch, c->predicted, c->side, c->side},
                                     .output = "dprediction");
    return nl_op_regression_loss(run->device, &args);
}

static const struct matching_loss_case {
    const char *text;
    int64_t batch, channels, side;
    bool no_gradient;
} matching_loss_cases[] = {
    CASE(.batch = 1, .channels = 1, .side = 1),
    CASE(.batch = 3, .channels = 4, .side = 8),
    CASE(.batch = 2, .channels = 3, .side = 33),
    CASE(.batch = 2, .channels = 4, .side = 5, .no_gradient = true),
};

static nl_status run_matching_loss(op_run *run, const void *op_case)
{
    const struct matching_loss_case *c = op_case;
    run->batch = c->batch;
    nl_matching_loss_args args = {.gradient_scale = 1 / 7.0f};
    args.data = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.noise = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.teacher = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.fake = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side});
    args.coefficients = OP_TENSOR(run, .shape = {c->batch, NL_LOSS_COLUMNS});
    args.loss = OP_TENSOR(run, .shape = {c->batch}, .output = "loss");
    if (!c->no_gradient)
        args.doutput =
            OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side}, .output = "doutput");
    return nl_op_matching_loss(run->device, &args);
}

static const struct variational_loss_case {
    const char *text;
    int64_t batch, channels, side;
    bool predicts_x_start, first, no_gradient;
} variational_loss_cases[] = {
    CASE(.batch = 1, .channels = 1, .side = 2),
    CASE(.batch = 3, .channels = 4, .side = 8),
    CASE(.batch = 3, .channels = 4, .side = 8, .first = true),
    CASE(.batch = 2, .channels = 3, .side = 9, .predicts_x_start = true),
    CASE(.batch = 2, .channels = 3, .side = 9, .predicts_x_start = true, .first = true),
    CASE(.batch = 2, .channels = 4, .side = 5, .no_gradient = true),
};

/* Numbers of t = 499 and of t = 0 of the linear schedule, roughly. */
static nl_status run_variational_loss(op_run *run, const void *op_case)
{
    static const float usual[NL_VB_COLUMNS] = {3.567f, 3.424f,  0.00292f, 0.9938f,
                                               -4.6f,  -4.601f, 0,        1};
    static const float first[NL_VB_COLUMNS] = {1.00005f, 0.01f, 1, 0, -9.2103f, -9.8167f, 1, 0.7f};
    const struct variational_loss_case *c = op_case;
    int64_t size = c->channels * c->side * c->side;
    run->batch = c->batch;
    float *coefficients = op_normal(run, c->batch * NL_VB_COLUMNS);
    float *prediction = op_normal(run, 2 * c->batch * size);
    float *data = op_normal(run, c->batch * size), *x = op_normal(run, c->batch * size);
    for (int64_t image = 0; image < c->batch; image++) {
        memcpy(coefficients + image * NL_VB_COLUMNS, c->first ? first : usual, sizeof(usual));
        for (int64_t i = 0; c->first && i < size; i++) {
            float *eps = &prediction[image * 2 * size + i], *clean = &data[image * size + i];
            /* near what the noise is; edges on both sides and the middle */
            *clean = i % 5 == 0 ? -1 : i % 5 == 1 ? 1 : 0.5f * *clean;
            x[image * size + i] = *clean + 0.01f * x[image * size + i];
            if (c->predicts_x_start)
                *eps = *clean + 0.005f * *eps;
        }
    }
    nl_variational_loss_args args = {.predicts_x_start = c->predicts_x_start,
                                     .gradient_scale = 1 / 7.0f};
    args.prediction = OP_TENSOR(run, .shape = {c->batch, 2 * c->channels, c->side, c->side},
                                .values = prediction);
    args.x = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side}, .values = x);
    args.data = OP_TENSOR(run, .shape = {c->batch, c->channels, c->side, c->side}, .values = data);
    args.coefficients = OP_TENSOR(run, .shape = {c->batch, NL_VB_COLUMNS}, .values = coefficients);
    args.loss = OP_TENSOR(run, .shape = {c->batch}, .output = "loss", .in_place = true);
    if (!c->no_gradient)
        args.dprediction = OP_TENSOR(run, .shape = {c->batch, 2 * c->channels, c->side, c->side},
                                     .output = "dprediction", .in_place = true);
    return nl_op_variational_loss(run->device, &args);
}

static const struct flat_case {
    const char *text;
    int64_t count;
    bool infinite;
} zero_cases[] = {CASE(.count = 1), CASE(.count = 70001)},
  mean_cases[] = {CASE(.count = 1), CASE(.count = 1000)},
  gradient_norm_cases[] = {CASE(.count = 1), CASE(.count = 70001), CASE(.count = 200000)};

static nl_status run_zero(op_run *run, const void *op_case)
{
    const struct flat_case *c = op_case;
    run->tolerance = 0;
    nl_zero_args args = {0};
    args.x = OP_TENSOR(run, .shape = {c->count}, .output = "x", .in_place = true);
    return nl_op_zero(run->device, &args);
}

static nl_status run_mean(op_run *run, const void *op_case)
{
    const struct flat_case *c = op_case;
    nl_mean_args args = {0};
    args.x = OP_TENSOR(run, .shape = {c->count}, .shift = 1);
    args.y = OP_TENSOR(run, .shape = {1}, .output = "y");
    return nl_op_mean(run->device, &args);
}

static nl_status run_gradient_norm(op_run *run, const void *op_case)
{
    const struct flat_case *c = op_case;
    nl_gradient_norm_args args = {0};
    args.x = OP_TENSOR(run, .shape = {c->count});
    args.norm = OP_TENSOR(run, .shape = {1}, .output = "norm");
    return nl_op_gradient_norm(run->device, &args);
}

static const struct adamw_case {
    const char *text;
    int64_t counts[4]; /* elements of the segments, each aligned to 64 */
    int averages, steps;
    float decay, clip, norm;
} adamw_cases[] = {
    CASE(.counts = {1}, .norm = 1),
    CASE(.counts = {64, 100, 3}, .averages = 1, .steps = 3, .norm = 2),
    CASE(.counts = {70001, 5, 640, 33}, .averages = 2, .steps = 1000, .decay = 0.1f, .norm = 2),
    CASE(.counts = {100, 200}, .averages = 4, .steps = 7, .clip = 1, .norm = 3),
    CASE(.counts = {100, 200}, .averages = 1, .steps = 7, .clip = 5, .norm = 3),
    CASE(.counts = {100, 200}, .averages = 1, .steps = 7, .norm = INFINITY),
    CASE(.counts = {100, 200}, .averages = 1, .steps = 7, .clip = 1, .norm = NAN),
};

/* The second moment of a running optimiser is no less than a part of what the first says. */
static nl_status run_adamw(op_run *run, const void *op_case)
{
    static const char *const ema[] = {"ema 0", "ema 1", "ema 2", "ema 3"};
    static const char *const weights[] = {"weights 0", "weights 1", "weights 2", "weights 3"};
    const struct adamw_case *c = op_case;
    nl_adamw_args args = {.ema_count = c->averages};
    nl_segment segments[4];
    int64_t count = 0;
    for (int i = 0; i < 4 && c->counts[i]; i++) {
        nl_dtype dtype = i % 2 ? NL_BF16 : NL_F32;
        nl_tensor model = OP_TENSOR(run, .shape = {c->counts[i]}, .dtype = dtype,
                                    .output = weights[i], .in_place = true);
        segments[args.segment_count++] =
            (nl_segment){count, c->counts[i], model.data, dtype, i != 1, i == 2 ? 0.125f : 1};
        count = (count + c->counts[i] + 63) / 64 * 64;
    }
    float hyper[NL_HYPER_COLUMNS] = {1e-2f,   0.9f, 0.999f, 1e-8f, c->decay,
                                     c->clip, 0.9f, 0.5f,   0,     0.99f};
    float *second = op_normal(run, count);
    for (int64_t i = 0; i < count; i++)
        second[i] = second[i] * second[i] + 0.01f;
    args.master = OP_TENSOR(run, .shape = {count}, .output = "master", .in_place = true);
    args.first = OP_TENSOR(run, .shape = {count}, .output = "first", .in_place = true);
    args.second =
        OP_TENSOR(run, .shape = {count}, .output = "second", .in_place = true, .values = second);
    args.gradient = OP_TENSOR(run, .shape = {count});
    for (int i = 0; i < c->averages; i++)
        args.ema[i] = OP_TENSOR(run, .shape = {count}, .output = ema[i], .in_place = true);
    args.hyper = OP_TENSOR(run, .shape = {NL_HYPER_COLUMNS}, .values = hyper);
    args.norm = OP_TENSOR(run, .shape = {1}, .values = &c->norm);
    args.counter = OP_TENSOR(run, .shape = {2}, .dtype = NL_I32, .output = "counter",
                             .in_place = true, .values = (float[]){(float)c->steps, 2});
    /* bytes travel as the numbers they are */
    int64_t bytes = args.segment_count * (int64_t)sizeof(nl_segment);
    float *table = op_normal(run, bytes);
    for (int64_t i = 0; i < bytes; i++)
        table[i] = ((const uint8_t *)segments)[i];
    args.segments = segments;
    args.segment_table = OP_TENSOR(run, .shape = {bytes}, .dtype = NL_U8, .values = table);
    run->tolerance = 1e-5;
    return nl_op_adamw(run->device, &args);
}

const op_family op_training_families[] = {
    FAMILY(linear_backward_data),
    FAMILY(linear_backward_weight),
    FAMILY(activate_backward),
    FAMILY(layernorm_modulate_backward),
    FAMILY(layernorm_gate_backward),
    FAMILY(nala_attention_backward),
    FAMILY(softmax_attention_backward),
    FAMILY(mediator_attention_backward),
    FAMILY(gated_linear_attention_backward),
    FAMILY(head_norm_gate_backward),
    FAMILY(swiglu_backward),
    FAMILY(qk_norm_backward),
    FAMILY(dropout),
    FAMILY(depthwise_conv_backward),
    FAMILY(patch_embed_backward),
    FAMILY(unpatchify_backward),
    FAMILY(add_label_backward),
    FAMILY(latents),
    FAMILY(diffuse),
    FAMILY(regression_loss),
    FAMILY(matching_loss),
    FAMILY(variational_loss),
    FAMILY(zero),
    FAMILY(mean),
    FAMILY(gradient_norm),
    FAMILY(adamw),
    {0},
};
