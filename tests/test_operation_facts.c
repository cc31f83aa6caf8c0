/* SPDX-License-Identifier: MIT */
/* What operations must give by theory, by hand or by published numbers: no oracle is asked. On every
 * device of NL_TEST_DEVICE. */
#include "nl_random.h"
#include "op_cases.h"

static nl_context *context;
static nl_device *devices[OP_MAX_DEVICES];
static int device_count;

static const double pi = 3.14159265358979323846;

#define assert_near(actual, expected, tolerance)                                                   \
    do {                                                                                           \
        double near_a = (actual), near_b = (expected);                                             \
        if (!(fabs(near_a - near_b) <= (tolerance)))                                               \
            fail_msg("%s is %.9g, not %s = %.9g", #actual, near_a, #expected, near_b);             \
    } while (0)

/* Tensors of given numbers, the same for every image. */
#define GIVEN(run, given, ...)       OP_TENSOR(run, .values = given, .shape = {__VA_ARGS__})
#define RESULT(run, given_name, ...) OP_TENSOR(run, .output = given_name, .shape = {__VA_ARGS__})

/* ---- Attention */

static nl_status nala(op_run *run, const float *qkv, int64_t height, int64_t width, int64_t d,
                      nl_feature_map map, bool rope)
{
    int64_t tokens = height * width;
    nl_nala_attention_args args = {.batch = 1,
                                   .tokens = tokens,
                                   .heads = 1,
                                   .head_size = d,
                                   .feature_map = map,
                                   .lambda = 3,
                                   .tau = 0.5f,
                                   .norm_scale = 1,
                                   .rope = rope,
                                   .grid_height = height,
                                   .grid_width = width};
    args.qkvg = GIVEN(run, qkv, tokens, 3 * d);
    args.out = RESULT(run, "out", tokens, d);
    return nl_op_nala_attention(run->device, &args);
}

/* One token: o = v s / (s + 1e-6), s = sum |dir(q)|^p |k|^3 cos(angle(q) - angle(k)). */
static void test_nala_one_token(nl_device *device)
{
    const float qkv[6] = {0.3f, -0.4f, 0.05f, 0.12f, 2, -1}; /* norms 0.5 and 0.13 */
    double p = 3 * (0.5 + tanh(0.5)), similarity = 0;
    for (int i = 0; i < 2; i++) {
        double a = qkv[i] / (0.5 + 1e-6), b = qkv[2 + i] / (0.13 + 1e-6);
        similarity +=
            pow(fabs(a), p) * pow(fabs(qkv[2 + i]), 3) * cos(pi / 4 * (tanh(a) - tanh(b)));
    }
    op_run run = op_begin(device);
    op_end(&run, nala(&run, qkv, 1, 1, 2, NL_FEATURES_COSINE, false));
    for (int i = 0; i < 2; i++)
        assert_near(op_value(&run, "out")[i], qkv[4 + i] * similarity / (similarity + 1e-6), 1e-6);
    op_run_free(&run);
}

/* A zero query gives zero, and so do zero keys; elu1 has features of ones there: the mean of v. */
static void test_nala_zeros(nl_device *device)
{
    for (nl_feature_map map = NL_FEATURES_COSINE; map <= NL_FEATURES_COSINE_CONSTANT; map++) {
        const float qkv[2 * 12] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
                                   0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 5, 6};
        op_run run = op_begin(device);
        op_end(&run, nala(&run, qkv, 1, 2, 4, map, false));
        for (int i = 0; i < 8; i++)
            assert_near(op_value(&run, "out")[i], map == NL_FEATURES_ELU1 ? i % 4 + 2 : 0, 2e-6);
        op_run_free(&run);
    }
}

/* All keys alike: o is the mean of v whatever the query, but for the 1e-6. */
static void test_nala_equal_keys(nl_device *device)
{
    for (nl_feature_map map = NL_FEATURES_COSINE; map <= NL_FEATURES_COSINE_CONSTANT; map++) {
        float qkv[3 * 12];
        for (int i = 0; i < 36; i++)
            qkv[i] = i % 12 / 4 == 0   ? (float)(1 + i % 5)
                     : i % 12 / 4 == 1 ? (float)(5 + i % 4)
                                       : (float)(i / 12 * 6 - 5);
        op_run run = op_begin(device);
        op_end(&run, nala(&run, qkv, 3, 1, 4, map, false));
        for (int i = 0; i < 12; i++)
            assert_near(op_value(&run, "out")[i], 1, 1e-5); /* (-5 + 1 + 7) / 3 */
        op_run_free(&run);
    }
}

/* relu features q, k > 0 of d = 4: pair 0 turns by the rows between key and query, pair 1 by the columns
 * (one frequency, 1). v picks one key j: o_t = q_t R(t)^T R(j) k_j / (sum of q_t k). */
static void test_nala_rope(nl_device *device)
{
    enum { HEIGHT = 2, WIDTH = 3, TOKENS = HEIGHT * WIDTH };
    const float q[4] = {1, 2, 3, 4}, k[4] = {2, 1, 1, 3};
    for (int key = 0; key < TOKENS; key++) {
        float qkv[TOKENS * 12] = {0};
        for (int t = 0; t < TOKENS; t++) {
            memcpy(qkv + t * 12, q, sizeof(q));
            memcpy(qkv + t * 12 + 4, k, sizeof(k));
        }
        qkv[key * 12 + 8] = 1;
        op_run run = op_begin(device);
        op_end(&run, nala(&run, qkv, HEIGHT, WIDTH, 4, NL_FEATURES_RELU, true));
        for (int t = 0; t < TOKENS; t++) {
            double rows = key / WIDTH - t / WIDTH, columns = key % WIDTH - t % WIDTH;
            double similarity = (q[0] * k[0] + q[1] * k[1]) * cos(rows) +
                                (q[1] * k[0] - q[0] * k[1]) * sin(rows) +
                                (q[2] * k[2] + q[3] * k[3]) * cos(columns) +
                                (q[3] * k[2] - q[2] * k[3]) * sin(columns);
            assert_near(op_value(&run, "out")[t * 4], similarity / TOKENS / 19, 1e-6);
            assert_near(op_value(&run, "out")[t * 4 + 1], 0, 0);
        }
        op_run_free(&run);
    }
}

/* Key 0 scores s, key 1 scores 0: weights are logistic; one query of zeros: the mean. */
static void test_softmax(nl_device *device)
{
    const float qkv[2 * 6] = {2, 0, 3, 1, 4, 8, 0, 0, 0, 5, -2, 6};
    op_run run = op_begin(device);
    nl_softmax_attention_args args = {
        .batch = 1, .tokens = 2, .heads = 1, .head_size = 2, .scale = 0.5f};
    args.qkv = GIVEN(&run, qkv, 2, 6);
    args.out = RESULT(&run, "out", 2, 2);
    args.lse = RESULT(&run, "lse", 1, 2);
    op_end(&run, nl_op_softmax_attention(device, &args));
    const double *out = op_value(&run, "out"), *lse = op_value(&run, "lse");
    double weight = 1 / (1 + exp(-3)); /* s = 0.5 * 2 * 3 */
    assert_near(out[0], 4 * weight - 2 * (1 - weight), 1e-6);
    assert_near(out[1], 8 * weight + 6 * (1 - weight), 2e-6);
    assert_near(out[2], 1, 1e-6);
    assert_near(out[3], 7, 1e-6);
    assert_near(lse[0], log(exp(3) + 1), 1e-6);
    assert_near(lse[1], log(2), 1e-6);
    op_run_free(&run);
}

/* ---- Tokens and conditions */

/* A weight of ones and zeros that puts pixel (u, v) of channel c at column (u p + v) C + c, so that
 * unpatchify undoes it. */
static void test_patches_round_trip(nl_device *device)
{
    enum { C = 3, H = 4, W = 6, P = 2, D = P * P * C, TOKENS = H / P * (W / P) };
    float weight[D * D] = {0}, zeros[TOKENS * D] = {0}, x[2 * C * H * W], tokens[2 * TOKENS * D];
    for (int i = 0; i < 2 * C * H * W; i++)
        x[i] = (float)i;
    for (int c = 0; c < C; c++)
        for (int place = 0; place < P * P; place++)
            weight[(place * C + c) * D + c * P * P + place] = 1;
    op_run run = op_begin(device);
    nl_patch_embed_args args = {0};
    args.x = GIVEN(&run, x, 2, C, H, W);
    args.weight = GIVEN(&run, weight, D, C, P, P);
    args.bias = GIVEN(&run, zeros, D);
    args.position = GIVEN(&run, zeros, TOKENS, D);
    args.tokens = RESULT(&run, "tokens", 2 * TOKENS, D);
    op_end(&run, nl_op_patch_embed(device, &args));
    for (int i = 0; i < 2 * TOKENS * D; i++)
        tokens[i] = (float)op_value(&run, "tokens")[i];
    op_run_free(&run);
    /* Row-major tokens: token 1 starts P columns to the right, token W / P starts P rows down. */
    assert_near(tokens[D], x[P], 0);
    assert_near(tokens[W / P * D], x[P * W], 0);

    run = op_begin(device);
    nl_unpatchify_args back = {.patch = P, .head_channels = C};
    back.tokens = GIVEN(&run, tokens, 2 * TOKENS, D);
    back.x = RESULT(&run, "x", 2, C, H, W);
    op_end(&run, nl_op_unpatchify(device, &back));
    for (int i = 0; i < 2 * C * H * W; i++)
        assert_near(op_value(&run, "x")[i], x[i], 0);
    op_run_free(&run);
}

/* docs/public-code.md A3: the public code's numbers. */
static void test_time_features(nl_device *device)
{
    static const int at[6] = {0, 1, 127, 128, 129, 255};
    static const float t[5] = {0, 1, 500, 999, 0.5f};
    static const double expected[5][6] = {
        {1, 1, 1, 0, 0, 0},
        {.5403023, .5973753, 1.0000000, .8414710, .8019618, .0001075},
        {-.8838493, .9459426, .9985569, -.4677718, .3243341, .0537045},
        {.9996499, .9637825, .9942432, -.0264608, -.2666896, .1071472},
        {.8775826, .8936933, 1.0000000, .4794255, .4486784, .0000537},
    };
    op_run run = op_begin(device);
    nl_time_features_args args = {0};
    args.t = GIVEN(&run, t, 5);
    args.features = RESULT(&run, "features", 5, 256);
    op_end(&run, nl_op_time_features(device, &args));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 6; j++) /* an ulp of the frequency moves 999 f by 6e-5 */
            assert_near(op_value(&run, "features")[i * 256 + at[j]], expected[i][j],
                        t[i] > 1 ? 7e-5 : 2e-7);
    op_run_free(&run);
}

static void test_add_label(nl_device *device)
{
    const float time[2] = {1, -1}, table[6] = {0, 0, 2, 1, -1, 1}, labels[2] = {1, 2};
    const double c[4] = {3, 0, 0, 0};
    op_run run = op_begin(device);
    nl_add_label_args args = {0};
    args.time = GIVEN(&run, time, 1, 2);
    args.table = GIVEN(&run, table, 3, 2);
    args.labels = OP_TENSOR(&run, .dtype = NL_I32, .values = labels, .shape = {2});
    args.c = RESULT(&run, "c", 2, 2);
    args.y = RESULT(&run, "y", 2, 2);
    op_end(&run, nl_op_add_label(device, &args));
    for (int i = 0; i < 4; i++) {
        assert_near(op_value(&run, "c")[i], c[i], 0);
        assert_near(op_value(&run, "y")[i], c[i] / (1 + exp(-c[i])), 1e-6);
    }
    op_run_free(&run);
}

/* ---- Layers */

static void test_linear(nl_device *device)
{
    const float x[4] = {1, 2, 3, 4}, weight[6] = {1, 0, 0, 1, 1, -1}, bias[3] = {10, 20, 30};
    const double plain[6] = {11, 22, 29, 13, 24, 29};
    for (nl_epilogue epilogue = NL_EPILOGUE_NONE; epilogue <= NL_EPILOGUE_SILU; epilogue++) {
        op_run run = op_begin(device);
        nl_linear_args args = {.epilogue = epilogue};
        args.x = GIVEN(&run, x, 2, 2);
        args.weight = GIVEN(&run, weight, 3, 2);
        args.bias = GIVEN(&run, bias, 3);
        args.y = RESULT(&run, "y", 2, 3);
        op_end(&run, nl_op_linear(device, &args));
        for (int i = 0; i < 6; i++)
            assert_near(op_value(&run, "y")[i], plain[i], 3e-4); /* GELU and SiLU saturated */
        op_run_free(&run);
    }
}

/* GELU's tanh form and SiLU at 1, -1 and 2. */
static void test_epilogues(nl_device *device)
{
    static const double gelu[3] = {.841191990608, -.158808009392, 1.954597694088};
    const float x[3] = {1, -1, 2}, one[1] = {1};
    for (int silu = 0; silu < 2; silu++) {
        op_run run = op_begin(device);
        nl_linear_args args = {.epilogue = silu ? NL_EPILOGUE_SILU : NL_EPILOGUE_GELU_TANH};
        args.x = GIVEN(&run, x, 3, 1);
        args.weight = GIVEN(&run, one, 1, 1);
        args.y = RESULT(&run, "y", 3, 1);
        op_end(&run, nl_op_linear(device, &args));
        for (int i = 0; i < 3; i++)
            assert_near(op_value(&run, "y")[i], silu ? x[i] / (1 + exp(-x[i])) : gelu[i], 1e-6);
        op_run_free(&run);
    }
}

/* Rows of +-a have mean 0 and variance a^2. */
static void test_layernorms(nl_device *device)
{
    const float x[4] = {3, -3, 3, -3}, shift[4] = {1, 2, 3, 4}, scale[4] = {0, 1, -1, 0.5f};
    double normal = 3 / sqrt(9 + 0.5);
    op_run run = op_begin(device);
    nl_layernorm_modulate_args args = {.rows_per_image = 1, .eps = 0.5f};
    args.x = GIVEN(&run, x, 1, 4);
    args.shift = GIVEN(&run, shift, 1, 4);
    args.scale = GIVEN(&run, scale, 1, 4);
    args.y = RESULT(&run, "modulated", 1, 4);
    nl_status status = nl_op_layernorm_modulate(device, &args);
    assert_int_equal(status, NL_OK);
    nl_layernorm_gate_args gated = {.eps = 0.5f, .x = args.x};
    gated.weight = GIVEN(&run, scale, 4);
    gated.bias = GIVEN(&run, shift, 4);
    gated.g = GIVEN(&run, x, 1, 4);
    gated.y = RESULT(&run, "gated", 1, 4);
    op_end(&run, nl_op_layernorm_gate(device, &gated));
    for (int i = 0; i < 4; i++) {
        double value = i % 2 ? -normal : normal;
        assert_near(op_value(&run, "modulated")[i], value * (1 + scale[i]) + shift[i], 1e-6);
        assert_near(op_value(&run, "gated")[i],
                    (value * scale[i] + shift[i]) * x[i] / (1 + exp(-x[i])), 2e-6);
    }
    op_run_free(&run);
}

/* Each group of two channels holds m + a and m - a over two pixels. */
static void test_groupnorm(nl_device *device)
{
    const float x[8] = {11, 9, -1, 3, 9, 11, 3, -1}, weight[4] = {1, 2, 1, 1},
                bias[4] = {0, 0, 5, 0};
    const double expected[8] = {1, -2, 4, 1, -1, 2, 6, -1};
    op_run run = op_begin(device);
    nl_groupnorm_args args = {.groups = 2, .eps = 1e-12f};
    args.x = GIVEN(&run, x, 1, 1, 2, 4);
    args.weight = GIVEN(&run, weight, 4);
    args.bias = GIVEN(&run, bias, 4);
    args.y = RESULT(&run, "y", 1, 1, 2, 4);
    op_end(&run, nl_op_groupnorm(device, &args));
    for (int i = 0; i < 8; i++)
        assert_near(op_value(&run, "y")[i], expected[i], 1e-5);
    op_run_free(&run);
}

/* A picture of one dot at (2, 1) through a kernel of distinct numbers: the kernel turned round. */
static void test_convolutions(nl_device *device)
{
    enum { H = 5, W = 4, K = 3 };
    float x[H * W] = {0}, weight[K * K], bias[1] = {0};
    x[2 * W + 1] = 1;
    for (int i = 0; i < K * K; i++)
        weight[i] = (float)(i + 1);
    op_run run = op_begin(device);
    nl_conv2d_args args = {
        .stride = 1, .pad_top = 1, .pad_left = 1, .pad_bottom = 1, .pad_right = 1};
    args.x = GIVEN(&run, x, 1, H, W, 1);
    args.weight = GIVEN(&run, weight, 1, 1, K, K);
    args.y = RESULT(&run, "conv2d", 1, H, W, 1);
    assert_int_equal(nl_op_conv2d(device, &args), NL_OK);
    nl_depthwise_conv_args depthwise = {.batch = 1, .grid_height = H, .grid_width = W};
    depthwise.x = GIVEN(&run, x, H * W, 1);
    depthwise.weight = args.weight;
    depthwise.bias = GIVEN(&run, bias, 1);
    depthwise.out =
        OP_TENSOR(&run, .output = "depthwise", .in_place = true, .values = x, .shape = {H * W, 1});
    op_end(&run, nl_op_depthwise_conv(device, &depthwise));
    for (int row = 0; row < H; row++)
        for (int column = 0; column < W; column++) {
            int u = 2 - row + 1, v = 1 - column + 1; /* kernel element that meets the dot */
            double expected = u >= 0 && u < K && v >= 0 && v < K ? u * K + v + 1 : 0;
            assert_near(op_value(&run, "conv2d")[row * W + column], expected, 1e-6);
            assert_near(op_value(&run, "depthwise")[row * W + column],
                        expected + x[row * W + column], 1e-6); /* added to what was there */
        }
    op_run_free(&run);
}

/* 2 x 2 windows of stride 2 over 3 x 3 with padding 1: the padding counts for nothing. */
static void test_pool(nl_device *device)
{
    const float x[9] = {-1, -2, -3, -4, -5, -6, -7, -8, -9};
    static const double expected[2][4] = {{-1, -2, -4, -5}, {-1, -2.5, -5.5, -7}};
    for (nl_pool kind = NL_POOL_MAX; kind <= NL_POOL_AVERAGE; kind++) {
        op_run run = op_begin(device);
        nl_pool_args args = {.kind = kind, .kernel = 2, .stride = 2, .pad = 1};
        args.x = GIVEN(&run, x, 1, 3, 3, 1);
        args.y = RESULT(&run, "y", 1, 2, 2, 1);
        op_end(&run, nl_op_pool(device, &args));
        for (int i = 0; i < 4; i++)
            assert_near(op_value(&run, "y")[i], expected[kind == NL_POOL_AVERAGE][i], 1e-6);
        op_run_free(&run);
    }
}

/* ---- Pictures and sampling */

/* Truncation, not rounding; clamping; and one answer for what is no number. */
static void test_to_uint8(nl_device *device)
{
    const float x[9] = {-1, 0, 1, 0.99f, -0.99f, NAN, INFINITY, -INFINITY, 2.5e38f};
    static const int dit[9] = {0, 128, 255, 254, 1, 0, 255, 0, 255};
    static const int adm[9] = {0, 127, 255, 253, 1, 0, 255, 0, 255};
    for (int i = 0; i < 2; i++) {
        op_run run = op_begin(device);
        nl_to_uint8_args args = {.scale = 127.5f, .shift = i ? 127.5f : 128};
        args.x = GIVEN(&run, x, 9);
        args.y = OP_TENSOR(&run, .output = "y", .dtype = NL_U8, .shape = {9});
        op_end(&run, nl_op_to_uint8(device, &args));
        for (int j = 0; j < 9; j++)
            assert_near(op_value(&run, "y")[j], i ? adm[j] : dit[j], 0);
        op_run_free(&run);
    }
}

/* u + 3 (c - u) in the first channel, c in the second. */
static void test_guide(nl_device *device)
{
    const float prediction[8] = {1, 2, 3, 4, 10, 20, 30, 40};
    const double expected[4] = {-17, 2, -51, 4};
    op_run run = op_begin(device);
    nl_guide_args args = {.scale = 3, .channels = 1};
    args.prediction = GIVEN(&run, prediction, 4, 2, 1, 1);
    args.y = RESULT(&run, "y", 2, 2, 1, 1);
    op_end(&run, nl_op_guide(device, &args));
    for (int i = 0; i < 4; i++)
        assert_near(op_value(&run, "y")[i], expected[i], 1e-5);
    op_run_free(&run);
}

/* A step back from x = sqrt(A) x_0 + sqrt(1 - A) eps with the true eps finds x_0: DDIM then lands on
 * sqrt(A') x_0 + sqrt(1 - A') eps, DDPM on the posterior's mean plus sigma times the noise. */
static void test_diffusion_step(nl_device *device)
{
    const double a = 0.36, previous = 0.64, beta = 1 - a / previous;
    const double x_0 = 0.5, eps = -1.25, noise = 2;
    const double log_posterior = log(beta * (1 - previous) / (1 - a));
    const float x[1] = {(float)(sqrt(a) * x_0 + sqrt(1 - a) * eps)}, drawn[1] = {(float)noise};
    const float prediction[2] = {(float)eps, 0.5f}; /* f = 3 / 4 */
    for (int ddim = 0; ddim < 2; ddim++) {
        op_run run = op_begin(device);
        nl_diffusion_step_args args = {.learned_range = !ddim,
                                       .ddim = ddim,
                                       .x_0_from_x = (float)sqrt(1 / a),
                                       .x_0_from_eps = (float)sqrt(1 / a - 1),
                                       .mean_from_x_0 = (float)(beta * sqrt(previous) / (1 - a)),
                                       .mean_from_x =
                                           (float)((1 - previous) * sqrt(a / previous) / (1 - a)),
                                       .log_beta = (float)log(beta),
                                       .log_posterior = (float)log_posterior,
                                       .noise_scale = 1,
                                       .ddim_x_0 = (float)sqrt(previous),
                                       .ddim_eps = (float)sqrt(1 - previous)};
        args.x = GIVEN(&run, x, 1, 1, 1, 1);
        args.prediction = GIVEN(&run, prediction, 1, 2, 1, 1);
        args.noise = GIVEN(&run, drawn, 1, 1, 1, 1);
        args.y = RESULT(&run, "y", 1, 1, 1, 1);
        op_end(&run, nl_op_diffusion_step(device, &args));
        double mean = args.mean_from_x_0 * x_0 + args.mean_from_x * x[0];
        double sigma = exp(0.5 * (0.75 * log(beta) + 0.25 * log_posterior));
        assert_near(op_value(&run, "y")[0],
                    ddim ? sqrt(previous) * x_0 + sqrt(1 - previous) * eps : mean + sigma * noise,
                    2e-6);
        op_run_free(&run);
    }
}

/* x_0 comes out as 3, is clamped to 1, and DDIM's eps is that which goes with the clamped x_0. */
static void test_diffusion_step_clips(nl_device *device)
{
    const float x[1] = {2}, prediction[1] = {1};
    op_run run = op_begin(device);
    nl_diffusion_step_args args = {.ddim = true,
                                   .clip = true,
                                   .x_0_from_x = 2,
                                   .x_0_from_eps = 1,
                                   .ddim_x_0 = 10,
                                   .ddim_eps = 1};
    args.x = GIVEN(&run, x, 1, 1, 1, 1);
    args.prediction = GIVEN(&run, prediction, 1, 1, 1, 1);
    args.y = RESULT(&run, "y", 1, 1, 1, 1);
    op_end(&run, nl_op_diffusion_step(device, &args));
    assert_near(op_value(&run, "y")[0], 10 * 1 + (2 * 2 - 1) / 1, 1e-5);
    op_run_free(&run);
}

static void test_combine_and_norm(nl_device *device)
{
    const float a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
    const double coefficients[4] = {1, 2, 0.5, 0.25}, expected[4] = {6, 12, 13.5, 18};
    double rms[2];
    op_run run = op_begin(device);
    nl_combine_args args = {.terms = 2, .per_image = true, .coefficients = coefficients};
    args.x[0] = GIVEN(&run, a, 2, 2);
    args.x[1] = GIVEN(&run, b, 2, 2);
    args.y = RESULT(&run, "y", 2, 2);
    assert_int_equal(nl_op_combine(device, &args), NL_OK);
    nl_scaled_norm_args norm = {
        .x = args.x[1], .a = args.x[0], .b = args.x[1], .atol = 1, .rtol = 0.1};
    norm.rms = rms;
    op_end(&run, nl_op_scaled_norm(device, &norm));
    for (int i = 0; i < 4; i++)
        assert_near(op_value(&run, "y")[i], expected[i], 1e-5);
    assert_near(rms[0], sqrt((25 + pow(20.0 / 3, 2)) / 2), 1e-9);
    assert_near(rms[1], sqrt((pow(30.0 / 4, 2) + 64) / 2), 1e-9);
    op_run_free(&run);
}

/* Elements 0 to 6 of image 5 are the first words of its first two blocks, whatever is drawn with it. */
static void test_normal(nl_device *device)
{
    const int64_t images[2] = {3, 5};
    op_run run = op_begin(device);
    nl_normal_args args = {.seed = 42, .stream = 16, .images = images};
    args.y = RESULT(&run, "y", 2, 7);
    op_end(&run, nl_op_normal(device, &args));
    for (uint64_t e = 0; e < 7; e++) {
        float normals[4];
        nl_philox_normal4(42, 5, 16, e, normals);
        assert_near(op_value(&run, "y")[7 + e], normals[e % 4], 1e-6);
    }
    op_run_free(&run);
}

static void test_finite(nl_device *device)
{
    for (int at = -1; at < 130; at += 13) {
        float x[131];
        for (int i = 0; i < 131; i++)
            x[i] = i == at ? NAN : 3.4e38f;
        op_run run = op_begin(device);
        nl_finite_args args = {.mark = 9};
        args.x = GIVEN(&run, x, 131);
        args.found = OP_TENSOR(&run, .shape = {1}, .dtype = NL_I32, .output = "found",
                               .in_place = true, .values = &(float){0});
        op_end(&run, nl_op_finite(device, &args));
        assert_true(op_value(&run, "found")[0] == (at < 0 ? 0 : 9));
        op_run_free(&run);
    }
}

/* Portions and one call: the same bits, of numbers that double rounds. What lies below the diagonal stays. */
static void test_scatter_matrix(nl_device *device)
{
    enum { ROWS = 50, SIZE = 70 };
    static double scatter[2][SIZE * SIZE], sums[2][SIZE];
    for (int portion = ROWS; portion > 0; portion -= ROWS - 7) {
        static float zeros[SIZE * SIZE];
        op_run run = op_begin(device);
        nl_scatter_matrix_args args = {0};
        nl_tensor x = OP_TENSOR(&run, .shape = {ROWS, SIZE});
        nl_status status = NL_OK;
        args.shift = OP_TENSOR(&run, .shape = {SIZE}, .scale = 1e-3);
        args.scatter = OP_TENSOR(&run, .values = zeros, .shape = {SIZE, SIZE}, .dtype = NL_F64,
                                 .output = "scatter", .in_place = true);
        args.sums = OP_TENSOR(&run, .values = zeros, .shape = {SIZE}, .dtype = NL_F64,
                              .output = "sums", .in_place = true);
        for (int64_t row = 0; status == NL_OK && row < ROWS; row += portion) {
            args.x = nl_tensor_rows(&x, row, NL_MIN(portion, ROWS - row));
            status = nl_op_scatter_matrix(device, &args);
        }
        op_end(&run, status);
        memcpy(scatter[portion < ROWS], op_value(&run, "scatter"), sizeof(scatter[0]));
        memcpy(sums[portion < ROWS], op_value(&run, "sums"), sizeof(sums[0]));
        op_run_free(&run);
    }
    assert_memory_equal(scatter[0], scatter[1], sizeof(scatter[0]));
    assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
    assert_true(scatter[0][1] != 0 && scatter[0][SIZE] == 0);
}

#define FACT(name)                                                                                 \
    static void name##_everywhere(void **state)                                                    \
    {                                                                                              \
        (void)state;                                                                               \
        for (int i = 0; i < device_count; i++)                                                     \
            name(devices[i]);                                                                      \
    }
#define FACTS(X)                                                                                   \
    X(test_nala_one_token)                                                                         \
    X(test_nala_zeros)                                                                             \
    X(test_nala_equal_keys)                                                                        \
    X(test_nala_rope)                                                                              \
    X(test_softmax)                                                                                \
    X(test_patches_round_trip)                                                                     \
    X(test_time_features)                                                                          \
    X(test_add_label)                                                                              \
    X(test_linear)                                                                                 \
    X(test_epilogues)                                                                              \
    X(test_layernorms)                                                                             \
    X(test_groupnorm)                                                                              \
    X(test_convolutions)                                                                           \
    X(test_pool)                                                                                   \
    X(test_to_uint8)                                                                               \
    X(test_guide)                                                                                  \
    X(test_diffusion_step)                                                                         \
    X(test_diffusion_step_clips)                                                                   \
    X(test_combine_and_norm)                                                                       \
    X(test_normal)                                                                                 \
    X(test_finite)                                                                                 \
    X(test_scatter_matrix)
FACTS(FACT)

int main(void)
{
#define FACT_TEST(name) {#name, name##_everywhere, NULL, NULL, NULL},
    const struct CMUnitTest tests[] = {FACTS(FACT_TEST)};
    context = test_context(NULL);
    device_count = op_open_devices(context, 2, devices);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < device_count; i++)
        nl_device_destroy(devices[i]);
    nl_core_context_destroy(context);
    return failed;
}
