/* SPDX-License-Identifier: MIT */
/* The CPU back end against what it stands on: its elementary functions against libm, its normal
 * numbers against the scalar ones, its matrix products in bf16, its bookkeeping of shapes and
 * levels. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nl_cpu.h"
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
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_many_shapes),
        cmocka_unit_test(test_bf16_linear),
        cmocka_unit_test(test_order_of_sums),
        cmocka_unit_test(test_threads_linear),
        cmocka_unit_test(test_few_addresses),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_mean_between_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
