/* SPDX-License-Identifier: MIT */
/* Devices, the arena, measuring, and the front doors of the operations. */
#include <sched.h>

#include "nl_test.h"

static nl_context *context;
static nl_device *device;

static int set_up(void **state)
{
    (void)state;
    context = test_context("reference");
    device = context->device;
    return nl_arena_reserve(device, 1 << 20);
}

static int tear_down(void **state)
{
    (void)state;
    nl_context_destroy(context);
    return 0;
}

#define assert_message(text) assert_non_null(strstr(nl_last_error(context), text))

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *dtype;
        int threads;
        nl_status status;
        const char *text; /* the device's name, or part of the message */
    } cases[] = {
        {"reference", NULL, 0, NL_OK, "reference"},
        {"cpu", "auto", 1, NL_OK, "cpu"},
        {"cpu", "f32", 2, NL_OK, "cpu"},
        {"gpu", NULL, 0, NL_ERROR_USAGE, "auto, cpu, reference, cuda or cuda:N, found \"gpu\""},
        {"CPU", NULL, 0, NL_ERROR_USAGE, "found \"CPU\""},
        {"", NULL, 0, NL_ERROR_USAGE, "found \"\""},
        {"cuda:", NULL, 0, NL_ERROR_USAGE, "cuda:N"},
        {"cuda:x", NULL, 0, NL_ERROR_USAGE, "cuda:N"},
        {"cuda:-1", NULL, 0, NL_ERROR_USAGE, "cuda:N"},
        {"cuda:99999999999", NULL, 0, NL_ERROR_USAGE, "cuda:N"},
        {"cpu", "f16", 0, NL_ERROR_USAGE, "auto, f32, bf16 or fp8, found \"f16\""},
        {"cpu", "F8_E4M3", 0, NL_ERROR_USAGE, "auto, f32, bf16 or fp8, found"},
        {"cpu", NULL, -1, NL_ERROR_USAGE, "threads"},
        {"cpu", NULL, 100000, NL_ERROR_USAGE, "found 100000"},
        {"cuda:999", NULL, 0, NL_ERROR_DEVICE, "cuda"},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        nl_device *created;
        nl_status status =
            nl_device_create(context, cases[i].name, cases[i].dtype, cases[i].threads, &created);
        if (status != cases[i].status)
            fail_msg("%s: %s: %s", cases[i].name, nl_status_name(status), nl_last_error(context));
        if (status == NL_OK) {
            assert_string_equal(created->name, cases[i].text);
            assert_true(created->threads >= 1);
            assert_int_equal(created->dtype, NL_F32);
        } else {
            assert_null(created);
            assert_message(cases[i].text);
        }
        nl_device_destroy(created);
    }
    nl_device_destroy(NULL);
    assert_int_equal(context->memory_used, sizeof(nl_device) + (1 << 20) + 256);
}

static void test_threads(void **state)
{
    (void)state;
    nl_device *created;
    cpu_set_t before, one;
    char *variable = getenv("OMP_NUM_THREADS"), *saved = variable ? strdup(variable) : NULL;
    setenv("OMP_NUM_THREADS", "3,2", 1);
    assert_ok(context, nl_device_create(context, "reference", NULL, 0, &created));
    assert_int_equal(created->threads, 3);
    nl_device_destroy(created);
    assert_ok(context, nl_device_create(context, "reference", NULL, 5, &created));
    assert_int_equal(created->threads, 5);
    nl_device_destroy(created);

    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    nl_status status = nl_device_create(context, "reference", NULL, 0, &created);
    sched_setaffinity(0, sizeof(before), &before);
    assert_ok(context, status);
    assert_int_equal(created->threads, 1);
    nl_device_destroy(created);
    assert_ok(context, nl_device_create(context, "reference", NULL, 0, &created));
    assert_int_equal(created->threads, CPU_COUNT(&before));
    nl_device_destroy(created);
    if (saved)
        setenv("OMP_NUM_THREADS", saved, 1);
    free(saved);
}

static void keep_message(void *user, nl_log_level level, const char *message)
{
    if (level == NL_LOG_ERROR)
        snprintf(user, 256, "%s", message);
}

static void test_context_without_device(void **state)
{
    (void)state;
    char message[256] = "";
    nl_context_options options = {.device = "abacus", .log = keep_message, .user = message};
    nl_context *none = context;
    assert_int_equal(nl_context_create(&options, &none), NL_ERROR_USAGE);
    assert_null(none);
    assert_non_null(strstr(message, "abacus"));
    assert_string_equal(nl_last_error(none), "");
    nl_context_destroy(none);
    assert_int_equal(nl_context_create(NULL, &none), NL_OK);
    assert_non_null(none->device);
    nl_context_destroy(none);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    nl_status status = NL_ERROR_INTERNAL;
    int64_t before = context->memory_used;
    for (int n = 1; status != NL_OK; n++) {
        nl_device *created;
        assert_in_range(n, 1, 20);
        context->fail_allocation = context->allocations + n;
        status = nl_device_create(context, "reference", NULL, 1, &created);
        if (status == NL_OK)
            status = nl_arena_reserve(created, 1000);
        nl_device_destroy(created);
        assert_int_equal(context->memory_used, before);
        if (status != NL_OK)
            assert_int_equal(status, NL_ERROR_MEMORY);
        else
            assert_in_range(n, 3, 20);
    }
    context->fail_allocation = 0;
}

static void test_host_memory(void **state)
{
    (void)state;
    void *memory;
    float numbers[4] = {1, 2, 3, 4}, back[4];
    int64_t before = context->memory_used;
    assert_ok(context, device->ops->alloc(device, "numbers", sizeof(numbers), &memory));
    assert_int_equal(context->memory_used, before + (int64_t)sizeof(numbers));
    assert_ok(context, device->ops->upload(device, memory, numbers, sizeof(numbers)));
    assert_ok(context,
              device->ops->copy(device, (float *)memory + 1, memory, 12)); /* overlapping */
    assert_ok(context, device->ops->download(device, back, memory, sizeof(back)));
    assert_ok(context, device->ops->sync(device));
    const float expected[4] = {1, 1, 2, 3};
    assert_memory_equal(back, expected, sizeof(back));
    device->ops->free(device, memory, sizeof(numbers));
    assert_int_equal(context->memory_used, before);
    assert_int_equal(device->ops->alloc(device, "less than none", -1, &memory), NL_ERROR_MEMORY);
    assert_ok(context, device->ops->copy(device, NULL, NULL, 0));
}

static void test_arena(void **state)
{
    (void)state;
    nl_tensor a, b, c;
    assert_ok(context, nl_arena_tensor(device, NL_F32, 2, (int64_t[]){3, 5}, &a));
    assert_int_equal((uintptr_t)a.data % 256, 0);
    assert_int_equal(nl_tensor_count(&a), 15);
    int64_t mark = nl_arena_mark(device);
    assert_ok(context, nl_arena_tensor(device, NL_BF16, 1, (int64_t[]){1000}, &b));
    assert_int_equal((uint8_t *)b.data - (uint8_t *)a.data, 256);
    assert_int_equal(device->arena_used, 256 + 2048);
    nl_arena_release(device, mark);
    assert_ok(context, nl_arena_tensor(device, NL_U8, 1, (int64_t[]){1}, &c));
    assert_ptr_equal(c.data, b.data);
    assert_int_equal(device->arena_peak, 256 + 2048);
    assert_int_equal(nl_arena_reserve(device, 1 << 21), NL_ERROR_INTERNAL);
    nl_arena_release(device, 0);

    /* All of it, and not a byte more. */
    assert_ok(context, nl_arena_tensor(device, NL_U8, 1, (int64_t[]){1 << 20}, &a));
    memset(a.data, 1, 1 << 20);
    assert_int_equal(nl_arena_tensor(device, NL_U8, 1, (int64_t[]){1}, &b), NL_ERROR_INTERNAL);
    assert_message("need 1048832 bytes, have 1048576");
    nl_arena_release(device, 0);
    const int64_t huge[] = {(int64_t)1 << 40, (int64_t)1 << 40};
    assert_int_equal(nl_arena_tensor(device, NL_F32, 2, huge, &b), NL_ERROR_INTERNAL);
    assert_int_equal(nl_arena_tensor(device, NL_F32, 1, (int64_t[]){-1}, &b), NL_ERROR_INTERNAL);
    assert_int_equal(nl_arena_tensor(device, NL_F32, 1, (int64_t[]){INT64_MAX / 4}, &b),
                     NL_ERROR_INTERNAL);

    uint8_t *before = device->arena;
    assert_ok(context, nl_arena_reserve(device, 1000)); /* large enough already */
    assert_ptr_equal(device->arena, before);
    assert_ok(context, nl_arena_reserve(device, 1 << 21));
    assert_int_equal(device->arena_size, 1 << 21);
    context->options.max_memory = 1 << 22;
    assert_int_equal(nl_arena_reserve(device, 1 << 23), NL_ERROR_MEMORY);
    assert_message("activations");
    assert_int_equal(device->arena_size, 0);
    assert_ok(context, nl_arena_reserve(device, 1 << 21)); /* usable again */
}

/* Something with the shape of a model: nested marks, a number that goes to the host. */
static nl_status small_run(nl_device *on, int64_t rows, int32_t *found)
{
    nl_status status = NL_OK;
    nl_tensor x, y, z, bad;
    int64_t mark = nl_arena_mark(on);
    float weight[8 * 4] = {1};
    nl_tensor w = nl_tensor_of(weight, NL_F32, 2, (int64_t[]){8, 4});
    NL_TRY(nl_arena_tensor(on, NL_F32, 2, (int64_t[]){rows, 4}, &x));
    NL_TRY(NL_OP(on, normal, .y = x, .seed = 1, .images = (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7}));
    NL_TRY(nl_arena_tensor(on, NL_F32, 2, (int64_t[]){rows, 8}, &y));
    NL_TRY(NL_OP(on, linear, .x = x, .weight = w, .y = y));
    int64_t inner = nl_arena_mark(on);
    NL_TRY(nl_arena_tensor(on, NL_F32, 2, (int64_t[]){rows, 8}, &z));
    NL_TRY(NL_OP(on, activate, .x = y, .y = z, .activation = NL_ACT_SILU));
    nl_arena_release(on, inner);
    NL_TRY(nl_arena_tensor(on, NL_I32, 1, (int64_t[]){1}, &bad));
    NL_TRY(on->ops->upload(on, bad.data, &(int32_t){0}, sizeof(int32_t)));
    NL_TRY(NL_OP(on, finite, .x = y, .found = bad, .mark = 1));
    NL_TRY(nl_download_start(on, 0, found, bad.data, sizeof(*found)));
    NL_TRY(nl_download_wait(on, 0));
cleanup:
    nl_arena_release(on, mark);
    return status;
}

static void test_measuring(void **state)
{
    (void)state;
    nl_device measuring;
    nl_device_measuring(device, &measuring);
    int32_t found = 1;
    int64_t before = context->allocations;
    assert_ok(context, nl_arena_reserve(&measuring, INT64_MAX / 2));
    assert_ok(context, small_run(&measuring, 7, &found));
    assert_int_equal(found, 0);
    assert_int_equal(context->allocations, before);
    assert_int_equal(measuring.arena_used, 0);
    assert_string_equal(measuring.name, device->name);

    nl_device *exact;
    assert_ok(context, nl_device_create(context, "reference", NULL, 1, &exact));
    assert_ok(context, nl_arena_reserve(exact, measuring.arena_peak));
    assert_ok(context, small_run(exact, 7, &found));
    assert_int_equal(found, 0);
    assert_int_equal(exact->arena_peak, measuring.arena_peak);
    assert_int_equal(exact->arena_peak, exact->arena_size);
    nl_device_destroy(exact);

    float back[3] = {1, 2, 3};
    assert_ok(context, measuring.ops->download(&measuring, back, (void *)4096, sizeof(back)));
    assert_true(back[0] == 0 && back[2] == 0);
    double rms[2] = {5, 5};
    nl_tensor x;
    assert_ok(context, nl_arena_tensor(&measuring, NL_F32, 2, (int64_t[]){2, 3}, &x));
    assert_ok(context, NL_OP(&measuring, scaled_norm, .x = x, .a = x, .rms = rms));
    assert_true(rms[0] == 0 && rms[1] == 0);
    /* Arguments are checked all the same. */
    assert_int_equal(NL_OP(&measuring, upsample2x, .x = x, .y = x), NL_ERROR_INTERNAL);
}

/* What nl_replay promises on every device: the same numbers, each time from what lies at the addresses then. */
typedef struct nl_doubling {
    nl_device *on;
    nl_tensor x, y;
    double factor;
} nl_doubling;

static nl_status doubled(void *user)
{
    const nl_doubling *d = user;
    return NL_OP(d->on, combine, .terms = 1, .x = {d->x}, .coefficients = &d->factor, .y = d->y);
}

static void replayed(nl_doubling *d)
{
    for (int i = 0; i < 5; i++) {
        float x[3] = {(float)i, 1, -2}, y[3];
        assert_ok(context,
                  (i % 2 ? nl_upload_beside : d->on->ops->upload)(d->on, d->x.data, x, sizeof(x)));
        assert_ok(context, nl_replay(d->on, d, sizeof(*d), doubled, d));
        assert_ok(context,
                  nl_download_start(d->on, i % NL_DOWNLOAD_SLOTS, y, d->y.data, sizeof(y)));
        assert_ok(context, nl_download_wait(d->on, i % NL_DOWNLOAD_SLOTS));
        for (int k = 0; k < 3; k++)
            assert_true(y[k] == (float)d->factor * x[k]);
    }
}

static void test_replay(void **state)
{
    (void)state;
    nl_doubling d;
    memset(&d, 0, sizeof(d));
    assert_ok(context, nl_device_create(context, test_device(), NULL, 1, &d.on));
    assert_ok(context, nl_arena_reserve(d.on, 1024));
    assert_ok(context, nl_arena_tensor(d.on, NL_F32, 1, (int64_t[]){3}, &d.x));
    assert_ok(context, nl_arena_tensor(d.on, NL_F32, 1, (int64_t[]){3}, &d.y));
    for (d.factor = 2; d.factor < 30; d.factor++) /* more keys than records are kept */
        replayed(&d);
    d.factor = 2;
    replayed(&d);
    nl_arena_release(d.on, 0);
    assert_ok(context, nl_arena_reserve(d.on, 4096)); /* the arena moves */
    assert_ok(context, nl_arena_tensor(d.on, NL_F32, 1, (int64_t[]){3}, &d.x));
    assert_ok(context, nl_arena_tensor(d.on, NL_F32, 1, (int64_t[]){3}, &d.y));
    replayed(&d);
    float byte;
    assert_int_equal(nl_download_start(d.on, NL_DOWNLOAD_SLOTS, &byte, d.x.data, 1),
                     NL_ERROR_INTERNAL);
    nl_arena_release(d.on, 0);
    nl_device_destroy(d.on);
}

static void test_missing_operation(void **state)
{
    (void)state;
    nl_ops without = *device->ops;
    without.finite = NULL;
    without.name = "half-built";
    nl_device other = *device;
    other.ops = &without;
    float number = 1;
    nl_tensor x = nl_tensor_of(&number, NL_F32, 1, (int64_t[]){1});
    nl_tensor found = nl_tensor_of(&(int32_t){0}, NL_I32, 1, (int64_t[]){1});
    assert_int_equal(NL_OP(&other, finite, .x = x, .found = found, .mark = 1), NL_ERROR_DEVICE);
    assert_non_null(strstr(nl_last_error(context), "operation finite is not on this device: the "
                                                   "back end half-built lacks it"));
}

/* A table's entries: what is said to lack needs no function. */
#define LACKS_finite NL_LACKING
static void test_entries(void **state)
{
    (void)state;
    const nl_ops ops = {.zero = NL_ENTRY(LACKS_zero, device->ops->zero),
                        .finite = NL_ENTRY(LACKS_finite, nl_there_is_no_such_function)};
    assert_true(ops.zero == device->ops->zero);
    assert_null(ops.finite);
}

static nl_tensor taken(nl_dtype dtype, int ndim, const int64_t *shape)
{
    nl_tensor tensor;
    assert_ok(context, nl_arena_tensor(device, dtype, ndim, shape, &tensor));
    memset(tensor.data, 0, (size_t)nl_tensor_bytes(&tensor));
    return tensor;
}

#define TAKEN(...) taken(NL_F32, NL_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})

#define assert_refused(call, text)                                                                 \
    do {                                                                                           \
        assert_int_equal(call, NL_ERROR_INTERNAL);                                                 \
        if (!strstr(nl_last_error(context), text))                                                 \
            fail_msg("\"%s\" is not in \"%s\"", text, nl_last_error(context));                     \
    } while (0)

static void test_checks_of_linear(void **state)
{
    (void)state;
    nl_tensor x = TAKEN(6, 4), weight = TAKEN(8, 4), bias = TAKEN(8), y = TAKEN(6, 8);
    nl_tensor wide = TAKEN(6, 20), none = {0};
    nl_linear_args good = {.x = x, .weight = weight, .bias = bias, .y = y};
    assert_ok(context, nl_op_linear(device, &good));
    nl_linear_args bad = good;
    bad.x = none;
    assert_refused(nl_op_linear(device, &bad), "operation linear: x is missing");
    bad = good, bad.weight = TAKEN(8, 5);
    assert_refused(nl_op_linear(device, &bad),
                   "weight is F32 [8, 5], expected F32 or BF16 [any, 4]");
    bad = good, bad.bias = TAKEN(7);
    assert_refused(nl_op_linear(device, &bad), "bias is F32 [7], expected F32 [8]");
    bad = good, bad.y.dtype = NL_F16;
    assert_refused(nl_op_linear(device, &bad), "y is F16 [6, 8], expected F32 [6, 8]");
    bad = good, bad.x.dtype = NL_BF16; /* only on the GPU */
    assert_refused(nl_op_linear(device, &bad), "x is BF16");
    bad = good, bad.weight.dtype = NL_BF16;
    assert_ok(context, nl_op_linear(device, &bad));
    bad = good, bad.x.ndim = 9;
    assert_refused(nl_op_linear(device, &bad), "x is no tensor");
    bad = good, bad.x.shape[0] = -6;
    assert_refused(nl_op_linear(device, &bad), "x is F32 [-6, 4]");
    bad = good, bad.epilogue = (nl_epilogue)9;
    assert_refused(nl_op_linear(device, &bad), "no epilogue 9");

    /* Strides: of rows only, and not below the row. */
    bad = good, bad.x = nl_tensor_columns(&wide, 3, 4);
    assert_ok(context, nl_op_linear(device, &bad));
    bad.x.row_stride = 3;
    assert_refused(nl_op_linear(device, &bad), "x has rows of 4 elements 3 apart");
    nl_tensor both = TAKEN(8, 9);
    bad = good, bad.weight = nl_tensor_columns(&both, 0, 4);
    assert_refused(nl_op_linear(device, &bad), "expected them contiguous");

    /* Overlap: columns of one matrix may lie side by side, not over one another. */
    bad = good, bad.x = nl_tensor_columns(&wide, 0, 4), bad.y = nl_tensor_columns(&wide, 4, 8);
    assert_ok(context, nl_op_linear(device, &bad));
    bad.x = nl_tensor_columns(&wide, 12, 4);
    assert_ok(context, nl_op_linear(device, &bad));
    bad.x = nl_tensor_columns(&wide, 11, 4);
    assert_refused(nl_op_linear(device, &bad), "y overlaps x");
    bad.x = nl_tensor_columns(&wide, 2, 4);
    assert_refused(nl_op_linear(device, &bad), "y overlaps x");
    bad = good, bad.y = nl_tensor_of(x.data, NL_F32, 2, (int64_t[]){6, 8});
    assert_refused(nl_op_linear(device, &bad), "y overlaps x");
}

static void test_checks_of_backbone(void **state)
{
    (void)state;
    nl_tensor x = TAKEN(6, 8), y = TAKEN(6, 8), two = TAKEN(2, 8), one = TAKEN(8);
    nl_layernorm_modulate_args good = {
        .x = x, .shift = two, .scale = two, .y = y, .rows_per_image = 3, .eps = 1e-6f};
    assert_ok(context, nl_op_layernorm_modulate(device, &good));
    nl_layernorm_modulate_args bad = good;
    bad.eps = 0;
    assert_refused(nl_op_layernorm_modulate(device, &bad), "eps is 0");
    bad = good, bad.y = x;
    assert_refused(nl_op_layernorm_modulate(device, &bad), "y overlaps x");
    bad = good, bad.rows_per_image = 0;
    assert_refused(nl_op_layernorm_modulate(device, &bad), "images of 0 rows");
    bad.rows_per_image = 4;
    assert_refused(nl_op_layernorm_modulate(device, &bad),
                   "6 rows are not a whole number of images of 4");
    bad.rows_per_image = 2;
    assert_refused(nl_op_layernorm_modulate(device, &bad),
                   "shift is F32 [2, 8], expected F32 [3, 8]");
    bad = good, bad.gate = two;
    assert_refused(nl_op_layernorm_modulate(device, &bad), "a gate or a sum without a branch");
    bad = good, bad.branch = TAKEN(6, 8);
    assert_refused(nl_op_layernorm_modulate(device, &bad), "gate is missing");
    bad.gate = two;
    assert_ok(context, nl_op_layernorm_modulate(device, &bad));

    nl_layernorm_gate_args in_place = {.x = x, .weight = one, .bias = one, .y = x, .eps = 1e-5f};
    assert_ok(context, nl_op_layernorm_gate(device, &in_place));
    in_place.x.data = (float *)x.data + 1; /* in place, one element off */
    assert_refused(nl_op_layernorm_gate(device, &in_place), "y overlaps x");

    nl_tensor qkv = TAKEN(6, 24), out = TAKEN(6, 8);
    nl_nala_attention_args nala = {.qkvg = qkv,
                                   .out = out,
                                   .batch = 2,
                                   .tokens = 3,
                                   .heads = 2,
                                   .head_size = 4,
                                   .lambda = 3,
                                   .tau = 0.5f,
                                   .norm_scale = 1};
    assert_ok(context, nl_op_nala_attention(device, &nala));
    nala.state = TAKEN(4, 4, 4);
    assert_refused(nl_op_nala_attention(device, &nala),
                   "state is F32 [4, 4, 4], expected F32 [4, 8, 4]");
    nala.state = (nl_tensor){0}, nala.rope = true;
    assert_refused(nl_op_nala_attention(device, &nala), "rope: a grid of 0 x 0");
    nala.grid_height = 1, nala.grid_width = 3;
    assert_ok(context, nl_op_nala_attention(device, &nala));
    nala.heads = 4, nala.head_size = 2;
    assert_refused(nl_op_nala_attention(device, &nala), "head size 2");
    nala.rope = false, nala.tokens = 0;
    assert_refused(nl_op_nala_attention(device, &nala), "0 tokens");
    nala.tokens = 3, nala.heads = 3, nala.head_size = 4;
    assert_refused(nl_op_nala_attention(device, &nala),
                   "qkvg is F32 [6, 24], expected F32 [6, 36]");
    nala.heads = 2, nala.feature_map = (nl_feature_map)77;
    assert_refused(nl_op_nala_attention(device, &nala), "no feature map 77");
    nala.feature_map = NL_FEATURES_RELU, nala.tau = NAN;
    assert_refused(nl_op_nala_attention(device, &nala), "tau");
    nala.tau = 0.5f, nala.log_lambda = TAKEN(2);
    assert_refused(nl_op_nala_attention(device, &nala), "one of log_lambda and log_tau");
    nala.log_tau = TAKEN(3);
    assert_refused(nl_op_nala_attention(device, &nala), "log_tau is F32 [3], expected F32 [2]");
    nala.log_tau = TAKEN(2);
    assert_refused(nl_op_nala_attention(device, &nala), "map relu has no exponents that grow");
    nala.log_lambda = nala.log_tau = (nl_tensor){0}, nala.norm_scale = 0;
    assert_refused(nl_op_nala_attention(device, &nala), "norm_scale is not above 0");
    assert_refused(NL_OP(device, softmax_attention, .qkv = qkv, .out = qkv, .batch = 2, .tokens = 3,
                         .heads = 2, .head_size = 4, .scale = 0.5f),
                   "out is F32 [6, 24]");
    assert_refused(NL_OP(device, softmax_attention, .qkv = qkv, .out = out, .batch = INT64_MAX,
                         .tokens = INT64_MAX, .heads = 2, .head_size = 4, .scale = 0.5f),
                   "no attention of");
    assert_refused(NL_OP(device, softmax_attention, .qkv = qkv, .out = out, .batch = 2, .tokens = 3,
                         .heads = 2, .head_size = 4, .scale = -0.5f),
                   "scale is not above 0");

    assert_refused(NL_OP(device, depthwise_conv, .x = x, .weight = TAKEN(8, 1, 2, 2), .bias = one,
                         .out = y, .batch = 1, .grid_height = 2, .grid_width = 3),
                   "kernel 2 is not odd");
    assert_refused(NL_OP(device, depthwise_conv, .x = x, .weight = TAKEN(8, 1, 3, 3), .bias = one,
                         .out = y, .batch = 1, .grid_height = 2, .grid_width = 2),
                   "x is F32 [6, 8], expected F32 [4, any]");

    nl_tensor image = TAKEN(1, 3, 4, 6);
    assert_refused(NL_OP(device, patch_embed, .x = image, .weight = TAKEN(8, 3, 4, 4), .bias = one,
                         .position = TAKEN(6, 8), .tokens = y),
                   "patches of 4 do not divide 4 x 6");
    assert_ok(context, NL_OP(device, patch_embed, .x = image, .weight = TAKEN(8, 3, 2, 2),
                             .bias = one, .position = TAKEN(6, 8), .tokens = y));
    assert_refused(
        NL_OP(device, unpatchify, .tokens = y, .x = image, .patch = 2, .head_channels = 2),
        "head_channels is 2, expected the 3 channels");
    assert_refused(
        NL_OP(device, unpatchify, .tokens = y, .x = image, .patch = 2, .head_channels = 6),
        "tokens is F32 [6, 8], expected F32 [6, 24]");
    assert_refused(NL_OP(device, time_features, .t = TAKEN(2), .features = TAKEN(2, 7)),
                   "width 7 is odd");
    nl_tensor labels = taken(NL_I32, 1, (int64_t[]){2});
    assert_refused(NL_OP(device, add_label, .time = TAKEN(3, 8), .table = TAKEN(5, 8),
                         .labels = labels, .y = TAKEN(2, 8)),
                   "time is F32 [3, 8], expected F32 [2, any]");
    assert_ok(context, NL_OP(device, add_label, .time = TAKEN(1, 8), .table = TAKEN(5, 8),
                             .labels = labels, .y = TAKEN(2, 8)));
    assert_refused(NL_OP(device, add_label, .time = TAKEN(2, 8), .table = TAKEN(5, 8),
                         .labels = TAKEN(2), .y = TAKEN(2, 8)),
                   "labels is F32 [2], expected I32 [any]");
    assert_refused(NL_OP(device, add_label, .time = TAKEN(2, 8), .table = TAKEN(5, 8),
                         .labels = labels, .crop = TAKEN(2, 4), .crop_weight = TAKEN(8, 3),
                         .y = TAKEN(2, 8)),
                   "crop_weight is F32 [8, 3], expected F32 [8, 4]");
}

static void test_checks_of_pictures(void **state)
{
    (void)state;
    nl_tensor x = TAKEN(1, 5, 7, 4), weight = TAKEN(6, 4, 3, 3);
    nl_conv2d_args conv = {.x = x,
                           .weight = weight,
                           .y = TAKEN(1, 5, 7, 6),
                           .stride = 1,
                           .pad_top = 1,
                           .pad_left = 1,
                           .pad_bottom = 1,
                           .pad_right = 1};
    assert_ok(context, nl_op_conv2d(device, &conv));
    conv.stride = 2;
    assert_refused(nl_op_conv2d(device, &conv), "expected F32 [1, 3, 4, 6]");
    conv.stride = 0;
    assert_refused(nl_op_conv2d(device, &conv), "no stride 0");
    conv.stride = 1, conv.activation = NL_ACT_SOFT_CLAMP;
    assert_refused(nl_op_conv2d(device, &conv), "no activation");
    conv.activation = NL_ACT_NONE, conv.residual = conv.y;
    assert_refused(nl_op_conv2d(device, &conv), "y overlaps residual");

    nl_tensor four = TAKEN(4);
    assert_refused(NL_OP(device, groupnorm, .x = x, .weight = four, .bias = four, .y = x,
                         .groups = 3, .eps = 1e-6f),
                   "3 groups do not divide 4 channels");
    assert_ok(context, NL_OP(device, groupnorm, .x = x, .weight = four, .bias = four, .y = x,
                             .groups = 2, .eps = 1e-6f));
    assert_refused(NL_OP(device, upsample2x, .x = x, .y = TAKEN(1, 10, 13, 4)),
                   "expected F32 [1, 10, 14, 4]");
    assert_refused(NL_OP(device, pool, .x = x, .y = x, .kernel = 2, .stride = 2, .pad = 2),
                   "no pooling of kernel 2");
    assert_refused(NL_OP(device, pool, .x = x, .y = TAKEN(1, 3, 3, 4), .kernel = 3, .stride = 2),
                   "expected F32 [1, 2, 3, 4]");
    assert_refused(NL_OP(device, activate, .x = x, .y = four), "y is F32 [4]");
    assert_refused(NL_OP(device, layout, .x = x, .y = TAKEN(1, 5, 7, 4), .scale = 1),
                   "expected F32 [1, 4, 5, 7]");
    assert_ok(context, NL_OP(device, layout, .x = x, .y = TAKEN(1, 4, 5, 7), .scale = 1));
    assert_ok(context, NL_OP(device, layout, .x = x, .y = TAKEN(1, 7, 4, 5), .to_nhwc = true));
    assert_refused(NL_OP(device, to_uint8, .x = x, .y = TAKEN(1, 5, 7, 4)), "expected U8");
}

static void test_checks_of_sampling(void **state)
{
    (void)state;
    nl_tensor x = TAKEN(2, 4, 3, 3), y = TAKEN(2, 4, 3, 3), half = TAKEN(1, 4, 3, 3);
    assert_refused(NL_OP(device, guide, .prediction = x, .y = y, .scale = 2, .channels = 3),
                   "prediction is F32 [2, 4, 3, 3], expected F32 [4, 4, 3, 3]");
    assert_refused(NL_OP(device, guide, .prediction = x, .y = half, .scale = 2, .channels = 5),
                   "channels is 5, expected 0 to 4");
    double coefficients[4] = {1, 2, 3, 4};
    assert_refused(NL_OP(device, combine, .terms = 0, .coefficients = coefficients, .y = y),
                   "terms is 0");
    assert_refused(NL_OP(device, combine, .terms = 10, .coefficients = coefficients, .y = y),
                   "terms is 10");
    assert_refused(NL_OP(device, combine, .terms = 1, .x = {x}, .y = y),
                   "coefficients are missing");
    assert_refused(
        NL_OP(device, combine, .terms = 2, .x = {x}, .coefficients = coefficients, .y = y),
        "x is missing");
    assert_ok(context, NL_OP(device, combine, .terms = 2, .x = {x, y}, .y = y,
                             .coefficients = coefficients));
    assert_refused(
        NL_OP(device, diffusion_step, .x = x, .prediction = y, .y = x, .learned_range = true),
        "prediction is F32 [2, 4, 3, 3], expected F32 [2, 8, 3, 3]");
    assert_ok(context, NL_OP(device, diffusion_step, .x = x, .prediction = y, .y = x));
    assert_refused(NL_OP(device, diffusion_step, .x = x, .prediction = y, .noise = x, .y = x),
                   "y overlaps noise");
    assert_refused(NL_OP(device, scaled_norm, .x = x, .a = y), "rms is missing");
    assert_refused(NL_OP(device, normal, .y = x), "images are missing");
    assert_refused(NL_OP(device, finite, .x = x), "found is missing");
    nl_tensor rows = nl_tensor_of(x.data, NL_F32, 2, (int64_t[]){1, 2});
    nl_tensor shift = nl_tensor_of(y.data, NL_F32, 1, (int64_t[]){2});
    assert_refused(NL_OP(device, scatter_matrix, .x = rows, .shift = shift,
                         .scatter = nl_tensor_of(x.data, NL_F32, 2, (int64_t[]){2, 2}),
                         .sums = shift),
                   "scatter is F32 [2, 2], expected F64 [2, 2]");
}

static void test_feature_width(void **state)
{
    (void)state;
    assert_int_equal(nl_feature_width(NL_FEATURES_COSINE, 64), 128);
    assert_int_equal(nl_feature_width(NL_FEATURES_SPLIT, 72), 144);
    assert_int_equal(nl_feature_width(NL_FEATURES_COSINE_CONSTANT, 64), 128);
    assert_int_equal(nl_feature_width(NL_FEATURES_RELU, 64), 64);
    assert_int_equal(nl_feature_width(NL_FEATURES_ELU1, 64), 64);
    assert_int_equal(nl_feature_width(NL_FEATURES_POWER, 64), 64);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_names),
        TEST(test_threads),
        TEST(test_context_without_device),
        TEST(test_every_allocation_fails),
        TEST(test_host_memory),
        TEST(test_arena),
        TEST(test_measuring),
        TEST(test_replay),
        TEST(test_missing_operation),
        TEST(test_entries),
        TEST(test_checks_of_linear),
        TEST(test_checks_of_backbone),
        TEST(test_checks_of_pictures),
        TEST(test_checks_of_sampling),
        TEST(test_feature_width),
    };
    nl_context_destroy(
        test_context(test_device())); /* ends the program where there is no such device */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
