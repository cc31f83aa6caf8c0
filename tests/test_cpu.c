/* SPDX-License-Identifier: MIT */
/* The CPU back end against what it stands on: its elementary functions against libm, its normal
 * numbers against the scalar ones, its matrix products in bf16, its bookkeeping of shapes and
 * levels. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frozen.h"
#include "nl_arranged.h"
#include "nl_random.h"
#include "nl_test.h"
#include "nl_thread.h"
#include "vector_math.h"

/* Largest error of f in units of the last place of the exact value, over [low, high]. */
static double worst_ulp(float (*f)(float), double (*exact)(double), double low, double high)
{
    double worst = 0;
    for (int i = 0; i <= 200000; i++) {
        float x = (float)(low + (high - low) * i / 200000);
        double wanted = exact(x),
               unit = nextafterf(fabsf((float)wanted), INFINITY) - fabsf((float)wanted);
        worst = fmax(worst, fabs(f(x) - wanted) / unit);
    }
    return worst;
}

static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double exact_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double exact_cos_angle(double x)
{
    return cos(acos(-1) / 4 * tanh(x));
}

static double exact_sin_angle(double x)
{
    return sin(acos(-1) / 4 * tanh(x));
}

static void test_accuracy(void **unused)
{
    (void)unused;
    assert_true(worst_ulp(nlv_exp2, exp2, -125, 126) < 2);
    assert_true(worst_ulp(nlv_exp, exp, -87, 88) < 2);
    assert_true(worst_ulp(nlv_log, log, 1e-30, 4) < 2);
    assert_true(worst_ulp(nlv_log, log, 0.9, 1.1) < 2);
    assert_true(worst_ulp(nlv_log2, log2, 1e-3, 1e30) < 3);
    assert_true(worst_ulp(nlv_tanh, tanh, -9, 9) < 3);
    assert_true(worst_ulp(nlv_sigmoid, exact_sigmoid, -80, 40) < 4);
    assert_true(worst_ulp(nlv_gelu_tanh, exact_gelu, -3, 20) < 16); /* u = -6: 6 ulp of exp */
    assert_true(worst_ulp(nlv_cos_angle, exact_cos_angle, -1, 1) < 3);
    assert_true(worst_ulp(nlv_sin_angle, exact_sin_angle, -1, 1) < 4);
}

static void test_sincos(void **unused)
{
    (void)unused;
    for (int i = -80000; i <= 80000; i++) {
        float x = (float)i * 1e-4f, s, c;
        nlv_sincos(x, &s, &c);
        assert_true(fabs(s - sin(x)) < 1.2e-7);
        assert_true(fabs(c - cos(x)) < 1.2e-7);
    }
}

static void test_special_values(void **unused)
{
    (void)unused;
    assert_true(isnan(nlv_exp(NAN)) && isnan(nlv_exp2(NAN)) && isnan(nlv_tanh(NAN)));
    assert_true(isnan(nlv_silu(NAN)) && isnan(nlv_gelu_tanh(NAN)) && isnan(nlv_pow(NAN, 3)));
    const float large[] = {3e38f, -3e38f, 1e4f, -1e4f, 0, 1e-38f, -1e-38f};
    for (int i = 0; i < NL_COUNT(large); i++) {
        float x = large[i];
        assert_true(isfinite(nlv_exp(x)) && isfinite(nlv_exp2(x)) && isfinite(nlv_tanh(x)));
        assert_true(isfinite(nlv_silu(x)) && isfinite(nlv_gelu_tanh(x)));
        assert_true(isfinite(nlv_pow(fabsf(x), 3)));
    }
    assert_true(nlv_pow(0, 0.5f) == 0 && nlv_pow(0, 4.5f) == 0 && nlv_pow(1, 4.5f) == 1);
    assert_true(fabsf(nlv_pow(0.5f, 3) - 0.125f) < 1e-7f);
    assert_true(nlv_tanh(1e-20f) == 1e-20f && nlv_tanh(30) == 1 && nlv_tanh(-30) == -1);
    assert_true(nlv_log(1) == 0);
}

/* Every level that this processor has. */
static void test_normal(void **unused)
{
    (void)unused;
    const char *levels[] = {"base", "v3", "v4"};
    enum { SIZE = 5003, IMAGES = 2 };
    const int64_t images[IMAGES] = {7, (int64_t)1 << 40};
    static float y[IMAGES * SIZE];
    nl_context *context = test_context("cpu");
    nl_normal_args args = {.y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){IMAGES, SIZE}),
                           .seed = 0x123456789abcdef,
                           .stream = NL_STREAM_STEP + 3,
                           .images = images};
    for (int level = 0; level < NL_COUNT(levels); level++) {
        const nl_ops *ops = nl_cpu_level(levels[level]);
        if (!ops)
            continue;
        memset(y, 0, sizeof(y));
        assert_ok(context, ops->normal(context->device, &args));
        for (int64_t i = 0; i < IMAGES * SIZE; i++) {
            float normals[4];
            nl_philox_normal4(args.seed, (uint64_t)images[i / SIZE], args.stream,
                              (uint64_t)(i % SIZE), normals);
            float wanted = normals[i % SIZE % 4];
            assert_true(fabsf(y[i] - wanted) <= 4 * 1.2e-7f * fmaxf(1, fabsf(wanted)));
        }
    }
    nl_context_destroy(context);
}

/* Numbers next to one another, far from 0: their mean lies between two floats. At every level. */
static void test_mean_between_floats(void **unused)
{
    (void)unused;
    const char *levels[] = {"base", "v3", "v4"}, *names[] = {"modulated", "gated", "grouped"};
    const double root = sqrt(3), expected[4] = {-1 / root, -1 / root, -1 / root, root};
    float x[4] = {4096, 4096, 4096, 4096 + 0x1p-11f}, zeros[4] = {0}, ones[4] = {1, 1, 1, 1};
    float y[3][4];
    nl_context *context = test_context("cpu");
    nl_tensor row = nl_tensor_of(x, NL_F32, 2, (int64_t[]){1, 4});
    nl_tensor zero = nl_tensor_of(zeros, NL_F32, 1, (int64_t[]){4});
    nl_tensor one = nl_tensor_of(ones, NL_F32, 1, (int64_t[]){4});
    nl_layernorm_modulate_args modulate = {.x = row, .rows_per_image = 1, .eps = 1e-20f};
    modulate.shift = modulate.scale = nl_tensor_of(zeros, NL_F32, 2, (int64_t[]){1, 4});
    modulate.y = nl_tensor_of(y[0], NL_F32, 2, (int64_t[]){1, 4});
    nl_layernorm_gate_args gate = {.x = row, .weight = one, .bias = zero, .eps = 1e-20f};
    gate.y = nl_tensor_of(y[1], NL_F32, 2, (int64_t[]){1, 4});
    nl_groupnorm_args group = {.weight = one, .bias = zero, .groups = 1, .eps = 1e-20f};
    group.x = nl_tensor_of(x, NL_F32, 4, (int64_t[]){1, 1, 1, 4});
    group.y = nl_tensor_of(y[2], NL_F32, 4, (int64_t[]){1, 1, 1, 4});
    for (int level = 0; level < NL_COUNT(levels); level++) {
        const nl_ops *ops = nl_cpu_level(levels[level]);
        if (!ops)
            continue;
        memset(y, 0, sizeof(y));
        assert_ok(context, ops->layernorm_modulate(context->device, &modulate));
        assert_ok(context, ops->layernorm_gate(context->device, &gate));
        assert_ok(context, ops->groupnorm(context->device, &group));
        for (int i = 0; i < 12; i++)
            if (!(fabs(y[i / 4][i % 4] - expected[i % 4]) < 1e-6))
                fail_msg("%s, %s: element %d is %.9g, not %.9g", levels[level], names[i / 4], i % 4,
                         y[i / 4][i % 4], expected[i % 4]);
    }
    nl_context_destroy(context);
}

/* More shapes than primitives are kept, twice: none is taken for another. */
static void test_many_shapes(void **unused)
{
    (void)unused;
    enum { SHAPES = 150 };
    static float x[SHAPES * SHAPES], weight[SHAPES * 3], y[SHAPES * 3];
    nl_context *context = test_context("cpu");
    for (int i = 0; i < SHAPES * SHAPES; i++)
        x[i] = 1;
    for (int i = 0; i < SHAPES * 3; i++)
        weight[i] = (float)(i % 3 + 1);
    for (int repeat = 0; repeat < 2; repeat++)
        for (int64_t k = 9; k < SHAPES; k++) {
            double sums[3] = {0};
            for (int64_t i = 0; i < 3 * k; i++)
                sums[i / k] += weight[i];
            assert_ok(context, NL_OP(context->device, linear,
                                     .x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){k, k}),
                                     .weight = nl_tensor_of(weight, NL_F32, 2, (int64_t[]){3, k}),
                                     .y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){k, 3})));
            for (int64_t i = 0; i < 3 * k; i++)
                assert_true(fabs(y[i] - sums[i % 3]) < 1e-3);
        }
    nl_context_destroy(context);
}

static float rounded(float x)
{
    return nl_bf16_to_float(nl_float_to_bf16(x));
}

/* bf16 weights on a bf16 device: only the rounding of x, where the processor multiplies bf16, tells
 * the product from an exact one. */
static void test_bf16_linear(void **unused)
{
    (void)unused;
    enum { M = 40, K = 128, N = 48 };
    static float x[M * K], y[M * N];
    static uint16_t weight[K * N];
    nl_context *context = NULL;
    nl_context_options options = {.device = "cpu", .dtype = "bf16"};
    assert_int_equal(nl_context_create(&options, &context), NL_OK);
    for (int i = 0; i < M * K; i++)
        x[i] = nl_philox_uniform(1, 0, 0, (uint64_t)i) - 0.5f;
    for (int i = 0; i < N * K; i++)
        weight[i] = nl_float_to_bf16(nl_philox_uniform(1, 1, 0, (uint64_t)i) - 0.5f);
    assert_ok(context,
              NL_OP(context->device, linear, .x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){M, K}),
                    .weight = nl_tensor_of(weight, NL_BF16, 2, (int64_t[]){N, K}),
                    .y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){M, N})));
    double error = 0, norm = 0;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double exact = 0;
            for (int k = 0; k < K; k++) {
                float from = x[m * K + k];
                exact += (double)(nl_dnnl_has_bf16() ? rounded(from) : from) *
                         nl_bf16_to_float(weight[n * K + k]);
            }
            error += pow(y[m * N + n] - exact, 2);
            norm += exact * exact;
        }
    assert_true(sqrt(error / norm) < 1e-6);
    nl_context_destroy(context);
}

/* Long sums in BF16 come out the same, whatever the rows and threads beside; oneDNN 3.1 (Ubuntu 24.04) promises less where
 * threads get unequal rows. */
static void test_order_of_sums(void **unused)
{
    (void)unused;
    enum { M = 512, K = 1600, N = 384, HELD = 16 };
    static const int rows[] = {64, 128, 256, 512}, threads[] = {1, 2, 4, 16};
    float *x = malloc(sizeof(float) * M * K), *y = malloc(sizeof(float) * M * N), first[HELD * N];
    uint16_t *weight = malloc(sizeof(uint16_t) * N * K);
    for (int i = 0; i < M * K; i++)
        x[i] = nl_philox_uniform(1, 0, 0, (uint64_t)i) - 0.5f;
    for (int i = 0; i < N * K; i++)
        weight[i] = nl_float_to_bf16(nl_philox_uniform(1, 1, 0, (uint64_t)i) - 0.5f);
    for (int t = 0; t < NL_COUNT(threads); t++) {
        nl_context *context = NULL;
        nl_context_options options = {.device = "cpu", .dtype = "bf16", .threads = threads[t]};
        assert_int_equal(nl_context_create(&options, &context), NL_OK);
        for (int m = 0; m < NL_COUNT(rows); m++) {
            nl_linear_args args = {
                .x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){rows[m], K}),
                .weight = nl_tensor_of(weight, NL_BF16, 2, (int64_t[]){N, K}),
                .y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){rows[m], N}),
            };
            assert_ok(context, nl_op_linear(context->device, &args));
            if (t == 0 && m == 0)
                memcpy(first, y, sizeof(first));
            assert_memory_equal(first, y, sizeof(first));
        }
        nl_context_destroy(context);
    }
    free(x);
    free(y);
    free(weight);
}

/* The same in fp32, of every row: for any number of threads, and for any rows beside where a product is cut into tiles here. */
static void test_order_of_sums_f32(void **unused)
{
    (void)unused;
    enum { M = 513, K = 300, N = 200 };
    static const int rows[] = {M, 9, 77, 96, 101, 102, 325, 512}, threads[] = {1, 2, 3, 5};
    static float x[M * K], weight[N * K], y[M * N], whole[M * N];
    for (int i = 0; i < M * K; i++)
        x[i] = nl_philox_uniform(1, 0, 0, (uint64_t)i) - 0.5f;
    for (int i = 0; i < N * K; i++)
        weight[i] = nl_philox_uniform(1, 1, 0, (uint64_t)i) - 0.5f;
    for (int m = 0; m < NL_COUNT(rows); m++)
        for (int t = 0; t < NL_COUNT(threads); t++) {
            nl_context *context = NULL;
            nl_context_options options = {.device = "cpu", .dtype = "f32", .threads = threads[t]};
            assert_int_equal(nl_context_create(&options, &context), NL_OK);
            assert_ok(context, NL_OP(context->device, linear,
                                     .x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){rows[m], K}),
                                     .weight = nl_tensor_of(weight, NL_F32, 2, (int64_t[]){N, K}),
                                     .y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){rows[m], N})));
            const nl_cpu_state *state = context->device->state;
            if (t == 0 && (m == 0 || nl_dnnl_has_blocks(state->dnnl)))
                memcpy(whole, y, sizeof(float) * (size_t)rows[m] * N);
            assert_memory_equal(whole, y, sizeof(float) * (size_t)rows[m] * N);
            nl_context_destroy(context);
        }
}

/* One thread, two of which each has rows of its own, and three that share every product. In fp32 the bits are the same; in bf16
 * oneDNN may sum in another order. */
static void test_threads_linear(void **unused)
{
    (void)unused;
    enum { M = 512, K = 64, N = 80, GAP = 16 };
    static float x[M * K], bias[N], y[3][M * (N + GAP)], pre[3][M * N], exact[N * K];
    static uint16_t half[N * K];
    for (int i = 0; i < M * K; i++)
        x[i] = nl_philox_uniform(1, 0, 0, (uint64_t)i) - 0.5f;
    for (int i = 0; i < N * K; i++) {
        half[i] = nl_float_to_bf16(nl_philox_uniform(1, 1, 0, (uint64_t)i) - 0.5f);
        exact[i] = nl_bf16_to_float(half[i]);
    }
    for (int i = 0; i < N; i++)
        bias[i] = (float)i / N;
    for (int kind = 0; kind < 2; kind++) {
        const float most = kind ? 1e-5f : 0;
        for (int team = 0; team < 3; team++) {
            nl_context *context = NULL;
            nl_context_options options = {
                .device = "cpu", .dtype = kind ? "bf16" : "f32", .threads = team + 1};
            assert_int_equal(nl_context_create(&options, &context), NL_OK);
            nl_linear_args args = {
                .x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){M, K}),
                .weight = nl_tensor_of(kind ? (void *)half : exact, kind ? NL_BF16 : NL_F32, 2,
                                       (int64_t[]){N, K}),
                .bias = nl_tensor_of(bias, NL_F32, 1, (int64_t[]){N}),
                .y = nl_tensor_of(y[team], NL_F32, 2, (int64_t[]){M, N}),
                .pre = nl_tensor_of(pre[team], NL_F32, 2, (int64_t[]){M, N}),
                .epilogue = NL_EPILOGUE_GELU_TANH,
            };
            args.y.row_stride = N + GAP;
            memset(y[team], 0, sizeof(y[team]));
            assert_ok(context, nl_op_linear(context->device, &args));
            nl_context_destroy(context);
            for (int i = 0; i < M * N; i++)
                assert_true(fabsf(pre[team][i] - pre[0][i]) <= most);
            for (int i = 0; i < M * (N + GAP); i++)
                assert_true(fabsf(y[team][i] - y[0][i]) <= most);
        }
        assert_true(y[0][0] != 0 && y[0][N] == 0 && y[0][(M - 1) * (N + GAP)] != 0);
    }
}

static nl_context *cpu_context(const char *dtype, int threads)
{
    nl_context *context = NULL;
    nl_context_options options = {.device = "cpu", .dtype = dtype, .threads = threads};
    assert_int_equal(nl_context_create(&options, &context), NL_OK);
    return context;
}

/* A weight [rows, columns] of the device's own, in (-0.5, 0.5). */
static nl_tensor random_weight(nl_context *context, int64_t rows, int64_t columns, uint64_t seed)
{
    nl_device *device = context->device;
    nl_tensor weight = nl_tensor_of(NULL, device->dtype, 2, (int64_t[]){rows, columns});
    int64_t bytes = nl_tensor_bytes(&weight);
    float *values = malloc(sizeof(float) * (size_t)(rows * columns));
    void *packed = malloc((size_t)bytes);
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = nl_philox_uniform(seed, 1, 0, (uint64_t)i) - 0.5f;
    nl_convert_from_float(values, rows * columns, weight.dtype, packed);
    assert_ok(context, device->ops->alloc(device, "a weight", bytes, &weight.data));
    assert_ok(context, device->ops->upload(device, weight.data, packed, bytes));
    free(values);
    free(packed);
    return weight;
}

static void freeze(nl_context *context, const nl_tensor *weight)
{
    assert_ok(context, nl_freeze(context->device, (const nl_tensor *const[]){weight}, 1));
}

static void free_weight(nl_context *context, const nl_tensor *weight)
{
    context->device->ops->free(context->device, weight->data, nl_tensor_bytes(weight));
}

/* Whether oneDNN reads such a weight in another order here, so that there is a copy once it is frozen. */
static bool is_arranged(nl_context *context, int64_t rows, int64_t columns)
{
    const nl_cpu_state *state = context->device->state;
    return nl_cpu_multiplies_bf16(context->device) &&
           nl_dnnl_arranged_bytes(state->dnnl, rows, NL_MIN(columns, NL_DNNL_K)) > 0;
}

enum { FROZEN_ROWS = 512 };

/* y [rows, N] = x W^T of random x, of which each row is the same whatever `rows`; GAP: rows of x and y are apart. */
static void multiply(nl_context *context, const nl_tensor *weight, int rows, int gap, float *y)
{
    int64_t n = weight->shape[0], k = weight->shape[1];
    float *x = malloc(sizeof(float) * (size_t)(rows * (k + gap)));
    for (int row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i++)
            x[row * (k + gap) + i] = nl_philox_uniform(1, (uint64_t)row, 0, (uint64_t)i) - 0.5f;
    nl_linear_args args = {.x = nl_tensor_of(x, NL_F32, 2, (int64_t[]){rows, k}),
                           .weight = *weight,
                           .y = nl_tensor_of(y, NL_F32, 2, (int64_t[]){rows, n})};
    args.x.row_stride = k + gap;
    args.y.row_stride = n + gap;
    assert_ok(context, nl_op_linear(context->device, &args));
    free(x);
}

/* A product by a frozen weight has the bits of one by the same weight, for any rows and threads, and does read the copy: that
 * the weight is overwritten behind the device's back does not show. */
static void test_frozen_products(void **unused)
{
    (void)unused;
    static const int shapes[][2] = {{384, 1600}, {1536, 384}, {100, 75}, {72, 24}};
    static const int rows[] = {3, 64, 100, 256, FROZEN_ROWS}, threads[] = {1, 2, 3, 16};
    size_t most = sizeof(float) * FROZEN_ROWS * (1536 + 8);
    float *y = malloc(most), *frozen = malloc(most);
    for (int kind = 0; kind < 2; kind++)
        for (int t = 0; t < NL_COUNT(threads); t++) {
            nl_context *context = cpu_context(kind ? "bf16" : "f32", threads[t]);
            for (int s = 0; s < NL_COUNT(shapes); s++) {
                nl_tensor weight = random_weight(context, shapes[s][0], shapes[s][1], 1);
                nl_tensor held = random_weight(context, shapes[s][0], shapes[s][1], 1);
                freeze(context, &held);
                bool arranged = nl_cpu_arranged(context->device, &held).data != NULL;
                assert_int_equal(arranged, is_arranged(context, shapes[s][0], shapes[s][1]));
                for (int gap = 0; gap <= 8; gap += 8)
                    for (int m = 0; m < NL_COUNT(rows); m++) {
                        memset(y, 0, most);
                        memset(frozen, 0, most);
                        multiply(context, &weight, rows[m], gap, y);
                        multiply(context, &held, rows[m], gap, frozen);
                        assert_memory_equal(y, frozen, most);
                    }
                memset(y, 0, most);
                memset(held.data, 0, (size_t)nl_tensor_bytes(&held));
                multiply(context, &held, FROZEN_ROWS, 0, y);
                multiply(context, &weight, FROZEN_ROWS, 0, frozen);
                if (arranged)
                    assert_memory_equal(y, frozen,
                                        sizeof(float) * FROZEN_ROWS * (size_t)shapes[s][0]);
                free_weight(context, &held);
                free_weight(context, &weight);
            }
            nl_context_destroy(context);
        }
    free(y);
    free(frozen);
}

/* Memory that was given back, which is forgotten first (test_frozen_memory), may hold another weight next. */
static void test_frozen_memory_again(void **unused)
{
    (void)unused;
    enum { N = 128, K = 64 };
    static float y[2][FROZEN_ROWS * N];
    nl_context *context = cpu_context("bf16", 2);
    nl_tensor first = random_weight(context, N, K, 1), second = random_weight(context, N, K, 2);
    int64_t bytes = nl_tensor_bytes(&first);
    multiply(context, &second, FROZEN_ROWS, 0, y[0]);
    for (int i = 0; i < 2; i++) {
        freeze(context, &first);
        if (i == 0)
            nl_cpu_thaw(context->device, first.data, bytes);
        memcpy(first.data, second.data, (size_t)bytes);
        multiply(context, &first, FROZEN_ROWS, 0, y[1]);
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
    }
    free_weight(context, &first);
    free_weight(context, &second);
    nl_context_destroy(context);
}

/* No copy of a weight that has changed: who would write there is refused. */
static void test_frozen_writes(void **unused)
{
    (void)unused;
    enum { N = 128, K = 64, BYTES = N * K * 4 };
    static float zeros[N * K], y[2][N * K];
    nl_context *context = cpu_context("f32", 2);
    nl_device *device = context->device;
    nl_tensor all = random_weight(context, 2 * N, K, 1);
    nl_tensor weight = nl_tensor_rows(&all, N, N), beside = nl_tensor_rows(&all, 0, N);
    nl_tensor one = nl_tensor_of((float *)weight.data + N * K - 1, NL_F32, 1, (int64_t[]){1});
    freeze(context, &weight);
    assert_int_equal(device->ops->upload(device, weight.data, zeros, 4), NL_ERROR_INTERNAL);
    assert_int_equal(device->ops->copy(device, one.data, zeros, 4), NL_ERROR_INTERNAL);
    assert_int_equal(NL_OP(device, zero, .x = one), NL_ERROR_INTERNAL);
    assert_non_null(strstr(nl_last_error(context), "frozen"));
    assert_int_equal(NL_OP(device, linear, .x = beside, .weight = beside, .y = all),
                     NL_ERROR_INTERNAL);
    nl_tensor numbers = nl_tensor_of(zeros, NL_F32, 1, (int64_t[]){8});
    nl_tensor count = nl_tensor_of(y[1], NL_I32, 1, (int64_t[]){2});
    nl_segment segment = {.count = 8, .dtype = NL_F32, .weights = one.data};
    assert_int_equal(NL_OP(device, adamw, .gradient = numbers,
                           .master = nl_tensor_of(y[0], NL_F32, 1, (int64_t[]){8}),
                           .first = nl_tensor_of(y[0] + 8, NL_F32, 1, (int64_t[]){8}),
                           .second = nl_tensor_of(y[0] + 16, NL_F32, 1, (int64_t[]){8}),
                           .hyper = nl_tensor_of(zeros, NL_F32, 1, (int64_t[]){NL_HYPER_COLUMNS}),
                           .norm = nl_tensor_of(zeros, NL_F32, 1, (int64_t[]){1}), .counter = count,
                           .segment_count = 1, .segments = &segment,
                           .segment_table = nl_tensor_of(&segment, NL_U8, 1,
                                                         (int64_t[]){(int64_t)sizeof(segment)})),
                     NL_ERROR_INTERNAL);
    assert_non_null(strstr(nl_last_error(context), "frozen"));
    assert_ok(context, device->ops->upload(device, all.data, zeros, BYTES));
    assert_ok(context, NL_OP(device, zero, .x = nl_tensor_reshape(&beside, 1, (int64_t[]){N * K})));
    free_weight(context, &all);
    nl_context_destroy(context);
}

/* Copies are counted, are not made under a limit, give way to what is needed, and are no reason to fail. */
static void test_frozen_memory(void **unused)
{
    (void)unused;
    enum { N = 256, K = 64, BYTES = N * K * 2 };
    for (int kind = 0; kind < 4;
         kind++) { /* as it is; a limit; no memory for copies; none for the record */
        nl_context *context = cpu_context("bf16", 1);
        nl_device *device = context->device;
        nl_tensor weight = random_weight(context, N, K, 1);
        bool arranged = is_arranged(context, N, K);
        int64_t used = context->memory_used;
        context->options.max_memory = kind == 1 ? (int64_t)1 << 40 : 0;
        context->fail_allocation = kind > 1 ? context->allocations + 4 - kind : 0;
        assert_int_equal(nl_freeze(device, (const nl_tensor *const[]){&weight}, 1),
                         kind == 3 ? NL_ERROR_MEMORY : NL_OK);
        bool copied = nl_cpu_arranged(device, &weight).data != NULL;
        assert_int_equal(copied, arranged && kind == 0);
        assert_int_equal(nl_frozen(device, weight.data, 1), kind != 3);
        assert_true((context->memory_used >= used + BYTES) == copied);
        if (copied) {
            void *more;
            context->fail_allocation = context->allocations + 1;
            assert_ok(context, device->ops->alloc(device, "more", 64, &more));
            assert_null(nl_cpu_arranged(device, &weight).data);
            assert_true(nl_frozen(device, weight.data, 1));
            device->ops->free(device, more, 64);
        }
        free_weight(context, &weight);
        assert_false(nl_frozen(device, weight.data, 1));
        assert_true(context->memory_used <= used - BYTES);
        nl_context_destroy(context);
    }
}

static void test_levels(void **unused)
{
    (void)unused;
    assert_non_null(nl_cpu_level(NULL));
    assert_non_null(nl_cpu_level("base"));
    assert_null(nl_cpu_level("v5"));
    setenv("NL_CPU_LEVEL", "v5", 1);
    nl_context *context = NULL;
    assert_int_equal(nl_context_create(&(nl_context_options){.device = "cpu"}, &context),
                     NL_ERROR_USAGE);
    unsetenv("NL_CPU_LEVEL");
}

typedef struct work {
    nl_context *context;
    void *x, *y; /* of 1 MiB */
    nl_status status;
} work;

/* A product and a convolution. */
static void *compute(void *user)
{
    enum { M = 96, K = 160, N = 80, SIDE = 16 };
    work *w = user;
    w->status =
        NL_OP(w->context->device, linear, .x = nl_tensor_of(w->x, NL_F32, 2, (int64_t[]){M, K}),
              .weight = nl_tensor_of(w->x, NL_F32, 2, (int64_t[]){N, K}),
              .y = nl_tensor_of(w->y, NL_F32, 2, (int64_t[]){M, N}));
    if (w->status == NL_OK)
        w->status =
            NL_OP(w->context->device, conv2d,
                  .x = nl_tensor_of(w->x, NL_F32, 4, (int64_t[]){1, SIDE, SIDE, 32}),
                  .weight = nl_tensor_of(w->x, NL_F32, 4, (int64_t[]){32, 32, 3, 3}),
                  .y = nl_tensor_of(w->y, NL_F32, 4, (int64_t[]){1, SIDE, SIDE, 32}), .stride = 1,
                  .pad_top = 1, .pad_left = 1, .pad_bottom = 1, .pad_right = 1);
    return NULL;
}

/* In a process of its own, with `room` bytes of addresses left: by one thread; with `beside` by sixteen, in another thread
 * than the one that made the device. Ends the process with the status, or 100 when something else fails. */
static void compute_in(int64_t room, bool beside)
{
    nl_context_options options = {.device = "cpu", .threads = 1};
    work w;
    pthread_t thread;
    struct rlimit limit;
    alarm(30); /* or it waits for a lock that it holds */
    if (nl_context_create(&options, &w.context) != NL_OK || !(w.x = calloc(1 << 20, 1)) ||
        !(w.y = calloc(1 << 20, 1)) || getrlimit(RLIMIT_AS, &limit) != 0)
        _exit(100);
    if (beside)
        w.context->device->threads = 16;
    limit.rlim_cur = (rlim_t)1 << 40;
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        _exit(100);
    limit.rlim_cur -= (rlim_t)(nl_addresses_left() - room);
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        _exit(100);
    if (beside && nl_start_thread(&thread, compute, &w) == 0)
        pthread_join(thread, NULL);
    else if (beside)
        w.status = NL_ERROR_MEMORY;
    else
        compute(&w);
    _exit((int)w.status);
}

/* Step by step: a result, or no memory and why; oneDNN itself crashes where it can map nothing, and OpenMP ends the process
 * where it cannot start a thread. */
static void test_few_addresses(void **unused)
{
    (void)unused;
    test_need_address_limits();
    enum { STEPS = 128 };
    int good = 0, refused = 0;
    for (int step = 0; step <= 2 * STEPS; step++) {
        bool beside = step % 2;
        int64_t room = (int64_t)(step / 2 + beside) << 19; /* OpenMP's records take some KiB */
        int state;
        pid_t pid = fork();
        if (pid == 0)
            compute_in(room, beside);
        assert_int_equal(waitpid(pid, &state, 0), pid);
        if (!WIFEXITED(state) ||
            (WEXITSTATUS(state) != NL_OK && WEXITSTATUS(state) != NL_ERROR_MEMORY))
            fail_msg("%lld KiB of addresses%s: %s %d", (long long)room >> 10,
                     beside ? ", a thread of its own" : "", WIFEXITED(state) ? "status" : "signal",
                     WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
        good += WEXITSTATUS(state) == NL_OK;
        refused += WEXITSTATUS(state) == NL_ERROR_MEMORY;
    }
    assert_true(good > 0 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),       cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_normal),
        cmocka_unit_test(test_many_shapes),    cmocka_unit_test(test_bf16_linear),
        cmocka_unit_test(test_order_of_sums),  cmocka_unit_test(test_order_of_sums_f32),
        cmocka_unit_test(test_threads_linear), cmocka_unit_test(test_frozen_products),
        cmocka_unit_test(test_frozen_writes),  cmocka_unit_test(test_frozen_memory_again),
        cmocka_unit_test(test_frozen_memory),  cmocka_unit_test(test_few_addresses),
        cmocka_unit_test(test_levels),         cmocka_unit_test(test_mean_between_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
