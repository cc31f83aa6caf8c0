/* SPDX-License-Identifier: MIT */
/*
 * Backward operations of the reference against central differences of its forward operations, in two step sizes
 * (Richardson), so that what is left is the rounding of float results. The loss is the sum of outputs times fixed
 * random weights; the other back ends are compared with the reference by test_operations.
 */
#include "op_cases.h"

static nl_context *context;
static nl_device *device;
static uint64_t seed;

/* Uniform in (-1, 1). */
static float draw(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((double)(int64_t)(z ^ (z >> 31)) / 9223372036854775808.0);
}

/* Tensors of one check, on the host, where the reference works. */
typedef struct check {
    int count;
    void *memory[64];
} check;

static nl_tensor make(check *c, float low, float scale, int ndim, const int64_t *shape)
{
    nl_tensor tensor = nl_tensor_of(NULL, NL_F32, ndim, shape);
    float *values = malloc((size_t)nl_tensor_bytes(&tensor));
    assert_true(values && c->count < NL_COUNT(c->memory));
    c->memory[c->count++] = tensor.data = values;
    for (int64_t i = 0; i < nl_tensor_count(&tensor); i++) {
        float x = draw();
        values[i] = x < 0 ? scale * x - low : scale * x + low; /* no closer to 0 than `low` */
    }
    return tensor;
}

#define RANDOM(...)                                                                                \
    make(&c, 0.1f, 1, NL_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
#define ZEROS(...) make(&c, 0, 0, NL_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})

static void forget(check *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->memory[i]);
}

/* Runs the forward operation anew: sum of out times weights. */
typedef struct loss {
    nl_status (*forward)(const void *args);
    const void *args;
    nl_tensor out, weights;
    const nl_tensor
        *before; /* what the operation changes in place, and its values beforehand; or NULL */
    const float *initial;
} loss;

static double evaluate(const loss *l)
{
    double sum = 0;
    if (l->before)
        memcpy(l->before->data, l->initial, (size_t)nl_tensor_bytes(l->before));
    assert_ok(context, l->forward(l->args));
    for (int64_t i = 0; i < nl_tensor_count(&l->out); i++)
        sum += (double)((const float *)l->out.data)[i] * ((const float *)l->weights.data)[i];
    return sum;
}

static double central(const loss *l, float *x, float step)
{
    float at = *x, up = at + step, down = at - step;
    *x = up;
    double above = evaluate(l);
    *x = down;
    double below = evaluate(l);
    *x = at;
    return (above - below) / ((double)up - down);
}

/* gradient [as x] against differences by every element of x. */
static void compare(const char *what, const loss *l, nl_tensor x, nl_tensor gradient)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < nl_tensor_count(&x); i++) {
        float *element = (float *)x.data + i, found = ((const float *)gradient.data)[i];
        double wanted = (4 * central(l, element, 0.01f) - central(l, element, 0.02f)) / 3;
        difference += (found - wanted) * (found - wanted);
        norm += wanted * wanted;
    }
    double error = sqrt(difference / norm);
    if (!(error <= 1e-3))
        fail_msg("%s: relative error %.3g of %lld elements", what, error,
                 (long long)nl_tensor_count(&x));
}

#define FORWARD(operation)                                                                         \
    static nl_status forward_##operation(const void *args)                                         \
    {                                                                                              \
        return nl_op_##operation(device, args);                                                    \
    }
FORWARD(linear)
FORWARD(activate)
FORWARD(layernorm_modulate)
FORWARD(layernorm_gate)
FORWARD(nala_attention)
FORWARD(softmax_attention)
FORWARD(mediator_attention)
FORWARD(gated_linear_attention)
FORWARD(head_norm_gate)
FORWARD(swiglu)
FORWARD(qk_norm)
FORWARD(rope)
FORWARD(dropout)
FORWARD(depthwise_conv)
FORWARD(patch_embed)
FORWARD(unpatchify)
FORWARD(add_label)
FORWARD(regression_loss)
FORWARD(variational_loss)

static void test_linear(void **state)
{
    (void)state;
    for (nl_epilogue epilogue = NL_EPILOGUE_NONE; epilogue <= NL_EPILOGUE_SILU; epilogue++) {
        check c = {0};
        nl_tensor pre = RANDOM(3, 5), x = ZEROS(3, 5), dx = ZEROS(3, 5);
        nl_linear_args args = {.x = x, .weight = RANDOM(4, 5), .bias = RANDOM(4), .y = ZEROS(3, 4)};
        nl_activate_args make_x = {.x = pre,
                                   .y = x,
                                   .activation = epilogue == NL_EPILOGUE_NONE   ? NL_ACT_NONE
                                                 : epilogue == NL_EPILOGUE_SILU ? NL_ACT_SILU
                                                                                : NL_ACT_GELU_TANH};
        nl_tensor dweight = ZEROS(4, 5), dbias = ZEROS(4), weights = RANDOM(3, 4);
        loss l = {forward_linear, &args, args.y, weights, NULL, NULL};
        assert_ok(context, nl_op_activate(device, &make_x));
        assert_ok(context, NL_OP(device, linear_backward_weight, .dy = weights, .x = x,
                                 .dweight = dweight, .dbias = dbias));
        compare("linear weight", &l, args.weight, dweight);
        compare("linear bias", &l, args.bias, dbias);
        assert_ok(context, NL_OP(device, linear_backward_data, .dy = weights, .weight = args.weight,
                                 .dx = dx));
        compare("linear x", &l, x, dx);
        /* and through what made x */
        assert_ok(context, NL_OP(device, linear_backward_data, .dy = weights, .weight = args.weight,
                                 .pre = pre, .epilogue = epilogue, .dx = dx));
        loss of_pre = {forward_activate, &make_x, x, ZEROS(3, 5), NULL, NULL};
        assert_ok(context, NL_OP(device, linear_backward_data, .dy = weights, .weight = args.weight,
                                 .dx = of_pre.weights));
        compare("linear pre", &of_pre, pre, dx);
        forget(&c);
    }
}

static void test_activations(void **state)
{
    (void)state;
    for (nl_activation a = NL_ACT_NONE; a <= NL_ACT_GELU_TANH; a++) {
        check c = {0};
        nl_activate_args args = {.x = RANDOM(40), .y = ZEROS(40), .activation = a};
        loss l = {forward_activate, &args, args.y, RANDOM(40), NULL, NULL};
        nl_tensor dx = ZEROS(40);
        assert_ok(context, NL_OP(device, activate_backward, .x = args.x, .dy = l.weights, .dx = dx,
                                 .activation = a));
        compare("activate", &l, args.x, dx);
        forget(&c);
    }
}

static void check_layernorm_modulate(nl_norm norm)
{
    check c = {0};
    nl_tensor x = RANDOM(6, 8), stream = ZEROS(6, 8), y = ZEROS(6, 8);
    nl_layernorm_modulate_args args = {.x = x,
                                       .branch = RANDOM(6, 8),
                                       .gate = RANDOM(2, 8),
                                       .shift = RANDOM(2, 8),
                                       .scale = RANDOM(2, 8),
                                       .y = y,
                                       .sum = stream,
                                       .norm = norm,
                                       .weight = RANDOM(8),
                                       .rows_per_image = 3,
                                       .eps = 1e-6f};
    loss l = {forward_layernorm_modulate, &args, y, RANDOM(6, 8), NULL, NULL};
    nl_layernorm_modulate_backward_args back = {.x = stream,
                                                .scale = args.scale,
                                                .shift = args.shift,
                                                .dy = l.weights,
                                                .dx = ZEROS(6, 8),
                                                .branch = args.branch,
                                                .gate = args.gate,
                                                .dbranch = ZEROS(6, 8),
                                                .dshift = ZEROS(2, 8),
                                                .dscale = ZEROS(2, 8),
                                                .dgate = ZEROS(2, 8),
                                                .y = ZEROS(6, 8),
                                                .norm = norm,
                                                .weight = args.weight,
                                                .dweight = ZEROS(8),
                                                .rows_per_image = 3,
                                                .eps = 1e-6f};
    evaluate(&l);
    assert_ok(context, nl_op_layernorm_modulate_backward(device, &back));
    assert_close((float *)back.y.data, (float *)y.data, 48, 1e-6);
    compare("layernorm_modulate x", &l, x, back.dx);
    compare("layernorm_modulate branch", &l, args.branch, back.dbranch);
    compare("layernorm_modulate gate", &l, args.gate, back.dgate);
    compare("layernorm_modulate shift", &l, args.shift, back.dshift);
    compare("layernorm_modulate scale", &l, args.scale, back.dscale);
    if (norm == NL_NORM_RMS)
        compare("layernorm_modulate weight", &l, args.weight, back.dweight);
    /* what comes with dx is added */
    float first = *(float *)back.dx.data;
    assert_ok(context, nl_op_layernorm_modulate_backward(device, &back));
    assert_true(fabsf(*(float *)back.dx.data - 2 * first) <= 1e-5f * fabsf(first));
    forget(&c);
}

static void test_layernorm_modulate(void **state)
{
    (void)state;
    for (nl_norm norm = NL_NORM_LAYER; norm <= NL_NORM_RMS; norm++)
        check_layernorm_modulate(norm);
}

static void test_swiglu(void **state)
{
    (void)state;
    check c = {0};
    nl_swiglu_args args = {.x = RANDOM(4, 10), .y = ZEROS(4, 5)};
    loss l = {forward_swiglu, &args, args.y, RANDOM(4, 5), NULL, NULL};
    nl_tensor dx = ZEROS(4, 10), y = ZEROS(4, 5);
    evaluate(&l);
    assert_ok(context,
              NL_OP(device, swiglu_backward, .x = args.x, .dy = l.weights, .dx = dx, .y = y));
    assert_close((float *)y.data, (float *)args.y.data, 20, 1e-6);
    compare("swiglu x", &l, args.x, dx);
    forget(&c);
}

static void test_qk_norm(void **state)
{
    (void)state;
    for (nl_norm norm = NL_NORM_LAYER; norm <= NL_NORM_RMS; norm++) {
        check c = {0};
        nl_tensor initial = RANDOM(3, 12), x = ZEROS(3, 12); /* two heads of 3 in q, two in k */
        nl_qk_norm_args args = {.x = x,
                                .raw = ZEROS(3, 12),
                                .q_weight = RANDOM(3),
                                .k_weight = RANDOM(3),
                                .q_bias = RANDOM(3),
                                .k_bias = RANDOM(3),
                                .norm = norm,
                                .eps = 1e-2f};
        loss l = {forward_qk_norm, &args, x, RANDOM(3, 12), &x, initial.data};
        nl_tensor dx = ZEROS(3, 12), dq = ZEROS(3), dk = ZEROS(3), bq = ZEROS(3), bk = ZEROS(3);
        evaluate(&l);
        assert_memory_equal(args.raw.data, initial.data, 36 * sizeof(float));
        memcpy(dx.data, l.weights.data, 36 * sizeof(float));
        assert_ok(context,
                  NL_OP(device, qk_norm_backward, .raw = args.raw, .q_weight = args.q_weight,
                        .k_weight = args.k_weight, .dx = dx, .dq_weight = dq, .dk_weight = dk,
                        .dq_bias = bq, .dk_bias = bk, .norm = norm, .eps = 1e-2f));
        compare("qk_norm x", &l, initial, dx);
        compare("qk_norm q_weight", &l, args.q_weight, dq);
        compare("qk_norm k_weight", &l, args.k_weight, dk);
        compare("qk_norm q_bias", &l, args.q_bias, bq);
        compare("qk_norm k_bias", &l, args.k_bias, bk);
        forget(&c);
    }
}

/* Its own gradient, the other way round. */
static void test_rope(void **state)
{
    (void)state;
    check c = {0};
    nl_tensor initial = RANDOM(6, 12), x = ZEROS(6, 12);
    nl_rope_args args = {.x = x, .table = RANDOM(3, 4)}, back = args;
    loss l = {forward_rope, &args, x, RANDOM(6, 12), &x, initial.data};
    back.x = ZEROS(6, 12);
    back.back = true;
    memcpy(back.x.data, l.weights.data, 72 * sizeof(float));
    assert_ok(context, nl_op_rope(device, &back));
    compare("rope x", &l, initial, back.x);
    forget(&c);
}

/* Its own gradient: the same mask and factor. */
static void test_dropout(void **state)
{
    (void)state;
    check c = {0};
    nl_tensor initial = RANDOM(4, 15), x = ZEROS(4, 15);
    int64_t samples[] = {5, 9};
    nl_dropout_args args = {.x = x,
                            .samples = nl_tensor_of(samples, NL_I64, 1, (int64_t[]){2}),
                            .rows_per_image = 2,
                            .seed = 3,
                            .stream = 11,
                            .first = 8,
                            .probability = 0.4f};
    loss l = {forward_dropout, &args, x, RANDOM(4, 15), &x, initial.data};
    nl_dropout_args back = args;
    back.x = ZEROS(4, 15);
    memcpy(back.x.data, l.weights.data, 60 * sizeof(float));
    assert_ok(context, nl_op_dropout(device, &back));
    compare("dropout x", &l, initial, back.x);
    forget(&c);
}

static void test_layernorm_gate(void **state)
{
    (void)state;
    for (int gate = 0; gate < 2; gate++) {
        check c = {0};
        nl_layernorm_gate_args args = {.x = RANDOM(4, 8),
                                       .weight = RANDOM(8),
                                       .bias = RANDOM(8),
                                       .y = ZEROS(4, 8),
                                       .eps = 1e-5f};
        loss l = {forward_layernorm_gate, &args, args.y, RANDOM(4, 8), NULL, NULL};
        nl_layernorm_gate_backward_args back = {.x = args.x,
                                                .weight = args.weight,
                                                .bias = args.bias,
                                                .dy = l.weights,
                                                .dx = ZEROS(4, 8),
                                                .dweight = ZEROS(8),
                                                .dbias = ZEROS(8),
                                                .y = ZEROS(4, 8),
                                                .eps = 1e-5f};
        if (gate) {
            args.g = back.g = RANDOM(4, 8);
            back.dg = ZEROS(4, 8);
        }
        evaluate(&l);
        assert_ok(context, nl_op_layernorm_gate_backward(device, &back));
        assert_close((float *)back.y.data, (float *)args.y.data, 32, 1e-6);
        compare("layernorm_gate x", &l, args.x, back.dx);
        compare("layernorm_gate weight", &l, args.weight, back.dweight);
        compare("layernorm_gate bias", &l, args.bias, back.dbias);
        if (gate)
            compare("layernorm_gate g", &l, args.g, back.dg);
        forget(&c);
    }
}

static void check_nala(nl_feature_map map, bool rope, float norm_scale, bool learnt)
{
    enum { TOKENS = 6, HEADS = 2, D = 4, SIZE = HEADS * D };
    int64_t features = nl_feature_width(map, D);
    char what[64];
    check c = {0};
    nl_nala_attention_args args = {.qkvg = RANDOM(TOKENS, 4 * SIZE),
                                   .out = ZEROS(TOKENS, SIZE),
                                   .state = ZEROS(HEADS, features, D),
                                   .total = ZEROS(HEADS, features),
                                   .batch = 1,
                                   .tokens = TOKENS,
                                   .heads = HEADS,
                                   .head_size = D,
                                   .feature_map = map,
                                   .lambda = 3,
                                   .tau = 0.5f,
                                   .norm_scale = norm_scale,
                                   .rope = rope,
                                   .grid_height = 2,
                                   .grid_width = 3};
    loss l = {forward_nala_attention, &args, args.out, RANDOM(TOKENS, SIZE), NULL, NULL};
    nl_nala_attention_backward_args back = {.qkvg = args.qkvg,
                                            .out = args.out,
                                            .dout = l.weights,
                                            .state = args.state,
                                            .total = args.total,
                                            .dqkv = ZEROS(TOKENS, 4 * SIZE),
                                            .batch = 1,
                                            .tokens = TOKENS,
                                            .heads = HEADS,
                                            .head_size = D,
                                            .feature_map = map,
                                            .lambda = 3,
                                            .tau = 0.5f,
                                            .norm_scale = norm_scale,
                                            .rope = rope,
                                            .grid_height = 2,
                                            .grid_width = 3};
    /* relu features keep away from a denominator of 0 by a positive first element */
    for (int64_t i = 0; i < TOKENS * 4 * HEADS; i++)
        ((float *)args.qkvg.data)[i * D] = 0.5f + 0.1f * (float)(i % 5);
    if (learnt) { /* around lambda 3 and tau 0.5; gradients are added to what is there */
        args.log_lambda = back.log_lambda = ZEROS(HEADS);
        args.log_tau = back.log_tau = ZEROS(HEADS);
        back.dlog_lambda = ZEROS(HEADS), back.dlog_tau = ZEROS(HEADS);
        for (int64_t i = 0; i < HEADS; i++) {
            ((float *)args.log_lambda.data)[i] = i ? 0.8f : 1.2f;
            ((float *)args.log_tau.data)[i] = i ? -0.4f : -1;
        }
    }
    evaluate(&l);
    assert_ok(context, nl_op_nala_attention_backward(device, &back));
    snprintf(what, sizeof(what), "nala_attention, map %d%s", (int)map, rope ? ", rope" : "");
    compare(what, &l, args.qkvg, back.dqkv);
    if (learnt) {
        compare("nala_attention, log_lambda", &l, args.log_lambda, back.dlog_lambda);
        compare("nala_attention, log_tau", &l, args.log_tau, back.dlog_tau);
    }
    forget(&c);
}

static void test_nala_attention(void **state)
{
    (void)state;
    for (int map = 0; map < NL_FEATURE_MAP_COUNT; map++) {
        check_nala(map, false, 1, false);
        check_nala(map, true, 1, false);
        check_nala(map, false, 0.25f, false);
        if (nl_feature_map_norm_aware(map)) {
            check_nala(map, false, 0.25f, true);
            check_nala(map, true, 1, true);
        }
    }
}

static void test_softmax_attention(void **state)
{
    (void)state;
    check c = {0};
    nl_softmax_attention_args args = {.qkv = RANDOM(5, 24),
                                      .out = ZEROS(5, 8),
                                      .lse = ZEROS(2, 5),
                                      .batch = 1,
                                      .tokens = 5,
                                      .heads = 2,
                                      .head_size = 4,
                                      .scale = 0.5f};
    loss l = {forward_softmax_attention, &args, args.out, RANDOM(5, 8), NULL, NULL};
    nl_tensor dqkv = ZEROS(5, 24);
    evaluate(&l);
    assert_ok(context, NL_OP(device, softmax_attention_backward, .qkv = args.qkv, .out = args.out,
                             .dout = l.weights, .lse = args.lse, .dqkv = dqkv, .batch = 1,
                             .tokens = 5, .heads = 2, .head_size = 4, .scale = 0.5f));
    compare("softmax_attention", &l, args.qkv, dqkv);
    forget(&c);
}

static void test_mediator_attention(void **state)
{
    (void)state;
    check c = {0};
    const nl_mediators sizes = {2, 2, 4, 3, 4, 2}; /* cells that share rows */
    nl_mediator_attention_args args = {.qkv = RANDOM(24, 24),
                                       .out = ZEROS(24, 8),
                                       .mediators = ZEROS(4, 4, 4),
                                       .values = ZEROS(4, 4, 4),
                                       .lse = ZEROS(4, 4),
                                       .sizes = sizes,
                                       .scale = 0.5f};
    loss l = {forward_mediator_attention, &args, args.out, RANDOM(24, 8), NULL, NULL};
    nl_tensor dqkv = ZEROS(24, 24);
    evaluate(&l);
    assert_ok(context, NL_OP(device, mediator_attention_backward, .qkv = args.qkv,
                             .mediators = args.mediators, .values = args.values, .lse = args.lse,
                             .dout = l.weights, .dqkv = dqkv, .sizes = sizes, .scale = 0.5f));
    compare("mediator_attention", &l, args.qkv, dqkv);
    forget(&c);
}

static void test_gated_linear_attention(void **state)
{
    (void)state;
    for (int order = 0; order < 4; order++) {
        check c = {0};
        const nl_scan scan = {2, 3, order & 1, order & 2};
        nl_gated_linear_attention_args args = {.qkv = RANDOM(12, 20),
                                               .gate = RANDOM(12, 6),
                                               .out = ZEROS(12, 8),
                                               .batch = 2,
                                               .heads = 2,
                                               .key_size = 3,
                                               .head_size = 4,
                                               .scan = scan,
                                               .scale = 0.5f,
                                               .normalizer = 2};
        loss l = {forward_gated_linear_attention, &args, args.out, RANDOM(12, 8), NULL, NULL};
        nl_tensor dqkv = ZEROS(12, 20), dgate = ZEROS(12, 6);
        assert_ok(context, NL_OP(device, gated_linear_attention_backward, .qkv = args.qkv,
                                 .gate = args.gate, .dout = l.weights, .dqkv = dqkv, .dgate = dgate,
                                 .batch = 2, .heads = 2, .key_size = 3, .head_size = 4,
                                 .scan = scan, .scale = 0.5f, .normalizer = 2));
        compare("gated_linear_attention qkv", &l, args.qkv, dqkv);
        compare("gated_linear_attention gate", &l, args.gate, dgate);
        forget(&c);
    }
}

static void test_head_norm_gate(void **state)
{
    (void)state;
    check c = {0};
    nl_head_norm_gate_args args = {
        .x = RANDOM(3, 8), .weight = RANDOM(4), .g = RANDOM(3, 8), .y = ZEROS(3, 8), .eps = 1e-6f};
    loss l = {forward_head_norm_gate, &args, args.y, RANDOM(3, 8), NULL, NULL};
    nl_tensor dx = ZEROS(3, 8), dg = ZEROS(3, 8), dweight = ZEROS(4);
    assert_ok(context, NL_OP(device, head_norm_gate_backward, .x = args.x, .weight = args.weight,
                             .g = args.g, .dy = l.weights, .dx = dx, .dg = dg, .dweight = dweight,
                             .eps = 1e-6f));
    compare("head_norm_gate x", &l, args.x, dx);
    compare("head_norm_gate weight", &l, args.weight, dweight);
    compare("head_norm_gate g", &l, args.g, dg);
    forget(&c);
}

static void test_depthwise_conv(void **state)
{
    (void)state;
    check c = {0};
    nl_depthwise_conv_args args = {.x = RANDOM(24, 3),
                                   .weight = RANDOM(3, 1, 3, 3),
                                   .bias = RANDOM(3),
                                   .out = ZEROS(24, 3),
                                   .batch = 2,
                                   .grid_height = 3,
                                   .grid_width = 4};
    const float nothing[72] = {0};
    loss l = {forward_depthwise_conv, &args, args.out, RANDOM(24, 3), &args.out, nothing};
    nl_tensor dx = ZEROS(24, 3), dweight = ZEROS(3, 1, 3, 3), dbias = ZEROS(3);
    assert_ok(context, NL_OP(device, depthwise_conv_backward, .x = args.x, .weight = args.weight,
                             .dout = l.weights, .dx = dx, .dweight = dweight, .dbias = dbias,
                             .batch = 2, .grid_height = 3, .grid_width = 4));
    compare("depthwise_conv x", &l, args.x, dx);
    compare("depthwise_conv weight", &l, args.weight, dweight);
    compare("depthwise_conv bias", &l, args.bias, dbias);
    forget(&c);
}

static void test_patches(void **state)
{
    (void)state;
    check c = {0};
    nl_patch_embed_args args = {.x = RANDOM(2, 3, 4, 6),
                                .weight = RANDOM(5, 3, 2, 2),
                                .bias = RANDOM(5),
                                .position = RANDOM(6, 5),
                                .tokens = ZEROS(12, 5)};
    loss l = {forward_patch_embed, &args, args.tokens, RANDOM(12, 5), NULL, NULL};
    nl_tensor dx = ZEROS(2, 3, 4, 6), dweight = ZEROS(5, 3, 2, 2), dbias = ZEROS(5);
    assert_ok(context, NL_OP(device, patch_embed_backward, .x = args.x, .weight = args.weight,
                             .dtokens = l.weights, .dweight = dweight, .dbias = dbias, .dx = dx));
    compare("patch_embed x", &l, args.x, dx);
    compare("patch_embed weight", &l, args.weight, dweight);
    compare("patch_embed bias", &l, args.bias, dbias);

    nl_unpatchify_args back = {
        .tokens = RANDOM(12, 20), .x = ZEROS(2, 3, 4, 6), .patch = 2, .head_channels = 5};
    loss of_tokens = {forward_unpatchify, &back, back.x, RANDOM(2, 3, 4, 6), NULL, NULL};
    nl_tensor dtokens = RANDOM(12, 20);
    assert_ok(context, NL_OP(device, unpatchify_backward, .dx = of_tokens.weights,
                             .dtokens = dtokens, .patch = 2, .head_channels = 5));
    compare("unpatchify", &of_tokens, back.tokens, dtokens);
    forget(&c);
}

static void test_add_label(void **state)
{
    (void)state;
    check c = {0};
    int32_t labels[] = {2, 0, 2};
    nl_add_label_args args = {.time = RANDOM(3, 4),
                              .table = RANDOM(4, 4),
                              .labels = nl_tensor_of(labels, NL_I32, 1, (int64_t[]){3}),
                              .crop = RANDOM(3, 5),
                              .crop_weight = RANDOM(4, 5),
                              .c = ZEROS(3, 4),
                              .y = ZEROS(3, 4)};
    loss l = {forward_add_label, &args, args.y, RANDOM(3, 4), NULL, NULL};
    nl_tensor dtime = ZEROS(3, 4), dtable = ZEROS(4, 4), dcrop_weight = ZEROS(4, 5);
    evaluate(&l);
    assert_ok(context, NL_OP(device, add_label_backward, .c = args.c, .labels = args.labels,
                             .dy = l.weights, .dtime = dtime, .dtable = dtable, .crop = args.crop,
                             .dcrop_weight = dcrop_weight));
    compare("add_label time", &l, args.time, dtime);
    compare("add_label table", &l, args.table, dtable);
    compare("add_label crop_weight", &l, args.crop_weight, dcrop_weight);
    forget(&c);
}

/* The weights of the losses are ones, as is gradient_scale. */
static void test_losses(void **state)
{
    (void)state;
    static const float usual[NL_VB_COLUMNS] = {1.2f, 0.6f, 0.3f, 0.7f, -1.0f, -1.5f, 0, 1};
    static const float first[NL_VB_COLUMNS] = {1.02f, 0.2f, 1, 0, -3.0f, -4.0f, 1, 0.5f};
    check c = {0};
    nl_tensor prediction = RANDOM(2, 4, 3), data = RANDOM(2, 2, 3), noise = RANDOM(2, 2, 3);
    nl_tensor dprediction = RANDOM(2, 4, 3), total = ZEROS(2), ones = ZEROS(2);
    ((float *)ones.data)[0] = ((float *)ones.data)[1] = 1;
    nl_regression_loss_args args = {.prediction = prediction,
                                    .data = data,
                                    .noise = noise,
                                    .coefficients = RANDOM(2, NL_LOSS_COLUMNS),
                                    .loss = total,
                                    .gradient_scale = 1};
    loss l = {forward_regression_loss, &args, total, ones, NULL, NULL};
    args.dprediction = dprediction;
    evaluate(&l);
    args.dprediction.data = NULL;
    compare("regression_loss", &l, prediction, dprediction);

    /* adaptive: what was right so far, divided by sqrt(e + c), and the loss as it was */
    nl_tensor adapted = ZEROS(2, 4, 3);
    args.dprediction = adapted;
    args.adaptive = 0.1f;
    float plain[2];
    memcpy(plain, total.data, sizeof(plain));
    evaluate(&l);
    assert_memory_equal(plain, total.data, sizeof(plain));
    for (int i = 0; i < 24; i++) {
        const float *row = (const float *)args.coefficients.data + i / 12 * NL_LOSS_COLUMNS;
        double wanted = ((float *)dprediction.data)[i] /
                        sqrt(plain[i / 12] / row[NL_LOSS_WEIGHT] + args.adaptive);
        assert_true(fabs(((float *)adapted.data)[i] - wanted) <= 1e-6 * (1 + fabs(wanted)));
    }
    args.dprediction.data = NULL;

    /* matching: doutput is w g / n, the derivative of w mean (g x) by x; nothing where the velocities are one */
    nl_matching_loss_args match = {.data = data,
                                   .noise = noise,
                                   .teacher = RANDOM(2, 2, 3),
                                   .fake = RANDOM(2, 2, 3),
                                   .coefficients = args.coefficients,
                                   .loss = total,
                                   .doutput = ZEROS(2, 2, 3),
                                   .gradient_scale = 0.5f};
    assert_ok(context, nl_op_matching_loss(device, &match));
    for (int image = 0; image < 2; image++) {
        const float *x = (float *)data.data + 6 * image, *e = (float *)noise.data + 6 * image;
        const float *v = (float *)match.teacher.data + 6 * image;
        const float *f = (float *)match.fake.data + 6 * image;
        double error = 0, sum = 0;
        for (int i = 0; i < 6; i++)
            error += fabs((double)x[i] - e[i] - v[i]) / 6;
        for (int i = 0; i < 6; i++) {
            double g = (f[i] - v[i]) / error;
            double w = ((float *)args.coefficients.data)[image * NL_LOSS_COLUMNS + NL_LOSS_WEIGHT];
            double wanted = 0.5 * w * g / 6, found = ((float *)match.doutput.data)[6 * image + i];
            assert_true(fabs(found - wanted) <= 1e-5 * fabs(wanted));
            sum += g * g / 6 / 2;
        }
        assert_true(fabs(((float *)total.data)[image] - sum) <= 1e-5 * sum);
    }
    match.fake = match.teacher;
    assert_ok(context, nl_op_matching_loss(device, &match));
    for (int i = 0; i < 12; i++)
        assert_true(((float *)match.doutput.data)[i] == 0 && ((float *)total.data)[i / 6] == 0);

    nl_variational_loss_args vb = {.prediction = prediction,
                                   .x = noise,
                                   .data = data,
                                   .coefficients = ZEROS(2, NL_VB_COLUMNS),
                                   .loss = total,
                                   .gradient_scale = 1};
    memcpy(vb.coefficients.data, usual, sizeof(usual));
    memcpy((float *)vb.coefficients.data + NL_VB_COLUMNS, first, sizeof(first));
    ((float *)data.data)[6] = 1; /* bins at the edges */
    ((float *)data.data)[7] = -1;
    const float nothing[2] = {0};
    loss of_vb = {forward_variational_loss, &vb, total, ones, &total, nothing};
    vb.dprediction = dprediction;
    evaluate(&of_vb);
    vb.dprediction.data = NULL;
    for (int64_t image = 0; image < 2; image++) /* channels of the variance alone */
        compare(
            "variational_loss", &of_vb,
            nl_tensor_of((float *)prediction.data + image * 12 + 6, NL_F32, 1, (int64_t[]){6}),
            nl_tensor_of((float *)dprediction.data + image * 12 + 6, NL_F32, 1, (int64_t[]){6}));
    forget(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_layernorm_modulate),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_qk_norm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_layernorm_gate),
        cmocka_unit_test(test_nala_attention),
        cmocka_unit_test(test_softmax_attention),
        cmocka_unit_test(test_mediator_attention),
        cmocka_unit_test(test_gated_linear_attention),
        cmocka_unit_test(test_head_norm_gate),
        cmocka_unit_test(test_depthwise_conv),
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_add_label),
        cmocka_unit_test(test_losses),
    };
    if (nl_core_context_create(NULL, &context) != NL_OK ||
        nl_device_create(context, "reference", "f32", 1, &device) != NL_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nl_device_destroy(device);
    nl_core_context_destroy(context);
    return failed;
}
