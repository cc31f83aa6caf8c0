/* SPDX-License-Identifier: MIT */
/* NaLa attention against the golden files: output, key features, and query features up to the factor
 * that the denominator takes away. */
#include "op_cases.h"

enum { TOKENS = 64, HEADS = 2 };

static nl_context *context;
static nl_device *devices[OP_MAX_DEVICES];
static int device_count;

typedef struct golden {
    int64_t d;
    float *q, *k, *v, *out, *features_q, *features_k; /* [1, HEADS, TOKENS, d or 2d] */
    float *grad_out, *grad[3];                        /* of q, k, v */
} golden;

static void read_golden(const char *name, golden *g)
{
    nl_checkpoint *file = test_golden(context, name);
    nl_tensor shape;
    g->q = test_read(file, "q", &shape);
    assert_int_equal(shape.ndim, 4);
    assert_int_equal(shape.shape[1], HEADS);
    assert_int_equal(shape.shape[2], TOKENS);
    g->d = shape.shape[3];
    g->k = test_read(file, "k", NULL);
    g->v = test_read(file, "v", NULL);
    g->out = test_read(file, "out", NULL);
    g->features_q = test_read(file, "features_q", NULL);
    g->features_k = test_read(file, "features_k", NULL);
    g->grad_out = test_read(file, "grad_out", NULL);
    g->grad[0] = test_read(file, "grad_q", NULL);
    g->grad[1] = test_read(file, "grad_k", NULL);
    g->grad[2] = test_read(file, "grad_v", NULL);
    nl_checkpoint_close(file);
}

static void free_golden(golden *g)
{
    float *all[] = {g->q,          g->k,        g->v,       g->out,     g->features_q,
                    g->features_k, g->grad_out, g->grad[0], g->grad[1], g->grad[2]};
    for (int i = 0; i < NL_COUNT(all); i++)
        free(all[i]);
}

static nl_nala_attention_args attention(int64_t batch, int64_t tokens, int64_t heads, int64_t d)
{
    return (nl_nala_attention_args){.batch = batch,
                                    .tokens = tokens,
                                    .heads = heads,
                                    .head_size = d,
                                    .lambda = 3,
                                    .tau = 0.5f,
                                    .norm_scale = 1};
}

/* [HEADS, TOKENS, d] into columns `part` of qkv [TOKENS, 3, HEADS, d] */
static void interleave(const float *from, int64_t part, int64_t d, float *qkv)
{
    for (int64_t head = 0; head < HEADS; head++)
        for (int64_t token = 0; token < TOKENS; token++)
            memcpy(qkv + ((token * 3 + part) * HEADS + head) * d,
                   from + (head * TOKENS + token) * d, (size_t)d * sizeof(float));
}

static void check_output(nl_device *device, const golden *g)
{
    int64_t size = HEADS * g->d;
    op_run run = op_begin(device);
    float *qkv = op_normal(&run, TOKENS * 3 * size), *out = op_normal(&run, TOKENS * size);
    interleave(g->q, 0, g->d, qkv);
    interleave(g->k, 1, g->d, qkv);
    interleave(g->v, 2, g->d, qkv);
    nl_nala_attention_args args = attention(1, TOKENS, HEADS, g->d);
    args.qkvg = OP_TENSOR(&run, .shape = {TOKENS, 3 * size}, .values = qkv);
    args.out = OP_TENSOR(&run, .shape = {TOKENS, size}, .output = "out");
    op_end(&run, nl_op_nala_attention(device, &args));
    for (int64_t head = 0; head < HEADS; head++)
        for (int64_t token = 0; token < TOKENS; token++)
            for (int64_t i = 0; i < g->d; i++)
                out[(head * TOKENS + token) * g->d + i] =
                    (float)op_value(&run, "out")[token * size + head * g->d + i];
    print_message("%s, d = %lld: out %.2g\n", device->name, (long long)g->d,
                  test_relative_error(out, g->out, TOKENS * size));
    assert_close(out, g->out, TOKENS * size, 1e-5);
    op_run_free(&run);
}

static void check_gradients(nl_device *device, const golden *g)
{
    int64_t size = HEADS * g->d, count = TOKENS * size;
    double errors[3];
    op_run run = op_begin(device);
    float *qkv = op_normal(&run, 3 * count), *dout = op_normal(&run, 3 * count);
    float *found = op_normal(&run, count);
    interleave(g->q, 0, g->d, qkv);
    interleave(g->k, 1, g->d, qkv);
    interleave(g->v, 2, g->d, qkv);
    for (int64_t i = 0; i < count; i++) { /* head by head to token by token */
        int64_t head = i / (TOKENS * g->d), token = i / g->d % TOKENS;
        dout[token * size + head * g->d + i % g->d] = g->grad_out[i];
    }
    nl_nala_attention_args args = attention(1, TOKENS, HEADS, g->d);
    args.qkvg = OP_TENSOR(&run, .shape = {TOKENS, 3 * size}, .values = qkv);
    args.out = OP_TENSOR(&run, .shape = {TOKENS, size}, .output = "out");
    args.state = OP_TENSOR(&run, .shape = {HEADS, 2 * g->d, g->d}, .output = "state");
    args.total = OP_TENSOR(&run, .shape = {HEADS, 2 * g->d}, .output = "total");
    nl_tensor gradient = OP_TENSOR(&run, .shape = {TOKENS, size}, .values = dout);
    nl_tensor dqkv = OP_TENSOR(&run, .shape = {TOKENS, 3 * size}, .output = "dqkv");
    nl_status status = nl_op_nala_attention(device, &args);
    if (status == NL_OK)
        status = NL_OP(device, nala_attention_backward, .qkvg = args.qkvg, .out = args.out,
                       .dout = gradient, .state = args.state, .total = args.total, .dqkv = dqkv,
                       .batch = 1, .tokens = TOKENS, .heads = HEADS, .head_size = g->d,
                       .lambda = args.lambda, .tau = args.tau, .norm_scale = 1);
    op_end(&run, status);
    for (int64_t part = 0; part < 3; part++) {
        for (int64_t i = 0; i < count; i++) {
            int64_t head = i / (TOKENS * g->d), token = i / g->d % TOKENS;
            found[i] = (float)op_value(
                &run, "dqkv")[((token * 3 + part) * HEADS + head) * g->d + i % g->d];
        }
        errors[part] = test_relative_error(found, g->grad[part], count);
        assert_close(found, g->grad[part], count, 1e-5);
    }
    print_message("%s, d = %lld: dq %.2g, dk %.2g, dv %.2g\n", device->name, (long long)g->d,
                  errors[0], errors[1], errors[2]);
    op_run_free(&run);
}

/* With one token to an image, z is phi_k of its key. */
static void check_key_features(nl_device *device, const golden *g)
{
    int64_t rows = HEADS * TOKENS, d = g->d;
    op_run run = op_begin(device);
    float *qkv = op_normal(&run, rows * 3 * d), *features = op_normal(&run, rows * 2 * d);
    for (int64_t row = 0; row < rows; row++)
        memcpy(qkv + (row * 3 + 1) * d, g->k + row * d, (size_t)d * sizeof(float));
    nl_nala_attention_args args = attention(rows, 1, 1, d);
    args.qkvg = OP_TENSOR(&run, .shape = {rows, 3 * d}, .values = qkv);
    args.out = OP_TENSOR(&run, .shape = {rows, d}, .output = "out");
    args.total = OP_TENSOR(&run, .shape = {rows, 2 * d}, .output = "total");
    op_end(&run, nl_op_nala_attention(device, &args));
    for (int64_t i = 0; i < rows * 2 * d; i++)
        features[i] = (float)op_value(&run, "total")[i];
    assert_close(features, g->features_k, rows * 2 * d, 1e-5);
    op_run_free(&run);
}

/* Keys +x e_i and -x e_i for all i have features x^3 (cos e_i; +-sin e_i), the same angle for all. With
 * v = e_i for both the output is the cosine half of phi_q over its sum; with v = +-e_i it is the sine
 * half, times tan(angle), over the same. */
static void check_query_features(nl_device *device, const golden *g, bool sine)
{
    int64_t d = g->d, tokens = 2 * d;
    double tangent = sine ? tan(3.14159265358979323846 / 4 * tanh(1)) : 1;
    for (int64_t row = 0; row < HEADS * TOKENS; row++) {
        const float *phi = g->features_q + row * 2 * d;
        op_run run = op_begin(device);
        float *qkv = op_normal(&run, tokens * 3 * d), *out = op_normal(&run, d);
        float *expected = op_normal(&run, d);
        memset(qkv, 0, (size_t)(tokens * 3 * d) * sizeof(float));
        for (int64_t token = 0; token < tokens; token++) {
            float sign = token < d ? 1 : -1;
            memcpy(qkv + token * 3 * d, g->q + row * d, (size_t)d * sizeof(float));
            qkv[(token * 3 + 1) * d + token % d] =
                512 * sign; /* long: the denominator's 1e-6 is nothing */
            qkv[(token * 3 + 2) * d + token % d] = sine ? sign : 1;
        }
        nl_nala_attention_args args = attention(1, tokens, 1, d);
        args.qkvg = OP_TENSOR(&run, .shape = {tokens, 3 * d}, .values = qkv);
        args.out = OP_TENSOR(&run, .shape = {tokens, d}, .output = "out");
        op_end(&run, nl_op_nala_attention(device, &args));
        double sum = 0;
        for (int64_t i = 0; i < d; i++)
            sum += phi[i];
        for (int64_t i = 0; i < d; i++) {
            out[i] = (float)op_value(&run, "out")[i];
            expected[i] = sum > 0 ? (float)(phi[sine * d + i] * tangent / sum) : 0;
        }
        assert_close(out, expected, d, 1e-5);
        op_run_free(&run);
    }
}

static void check(const char *name)
{
    golden g;
    read_golden(name, &g);
    for (int i = 0; i < device_count; i++) {
        check_output(devices[i], &g);
        check_gradients(devices[i], &g);
        check_key_features(devices[i], &g);
        check_query_features(devices[i], &g, false);
        check_query_features(devices[i], &g, true);
    }
    free_golden(&g);
}

static void test_d64(void **state)
{
    (void)state;
    check("nala_attention_d64.safetensors");
}

static void test_d72(void **state)
{
    (void)state;
    check("nala_attention_d72.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_d64), cmocka_unit_test(test_d72)};
    context = test_context(NULL);
    device_count = op_open_devices(context, 2, devices);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < device_count; i++)
        nl_device_destroy(devices[i]);
    nl_core_context_destroy(context);
    return failed;
}
