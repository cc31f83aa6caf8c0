/* SPDX-License-Identifier: MIT */
/*
 * Every operation on any device, at the sizes of an S/2 model, of its training and of its autoencoder:
 *
 *   nl_bench_operations [--device cuda] [--dtype bf16] [--threads N] [--batch N] [--only TEXT] [--seconds N] [SECTION]...
 *
 * SECTION is backbone, autoencoder, sampling, training (these by default) or attention, which measures NaLa and softmax
 * attention alone, forward, forward and backward, at sizes BATCHxHEADSxTOKENSxSIZE that may follow. Lines of figures
 * (measure.h): milliseconds of a call, and behind them what it computes and what its tensors hold in a second. Products are
 * compared with OpenBLAS on a CPU that has libopenblas.so.0.
 */
#include <getopt.h>
#include <math.h>

#include "blas.h"
#include "measure.h"
#include "nl_e4m3.h"
#include "nl_random.h"

enum { D = 384, HEADS = 6, DEPTH = 12, SIDE = 16, T = SIDE * SIDE, CHANNELS = 4, SIZE = D / HEADS };
enum { MAX_TENSORS = 32, NUMBERS = 1 << 18 };

typedef struct bench {
    nl_context *context;
    nl_device *device;
    int64_t batch;
    const char *only;
    nl_sgemm sgemm;
    nl_tensor tensors[MAX_TENSORS]; /* of the operation at hand */
    int tensor_count;
    double forward_ms[2]; /* sums over the operations of a forward pass of NaLaSiT-S/2, SiT-S/2 */
} bench;

static void must(const bench *b, nl_status status)
{
    if (status == NL_OK)
        return;
    fprintf(stderr, "nl_bench_operations: %s\n", nl_last_error(b->context));
    exit((int)status);
}

/* Normal numbers, the same again and again, in F8 times 64; integers are 0. */
static void fill(const bench *b, const nl_tensor *tensor)
{
    static float normals[NUMBERS];
    static uint16_t halves[NUMBERS];
    static uint8_t eighths[NUMBERS];
    static const uint8_t zeros[NUMBERS];
    const void *from = tensor->dtype == NL_F32    ? (const void *)normals
                       : tensor->dtype == NL_BF16 ? (const void *)halves
                       : tensor->dtype == NL_F8   ? (const void *)eighths
                                                  : (const void *)zeros;
    int64_t bytes = nl_tensor_bytes(tensor), most = NUMBERS * nl_dtype_size(tensor->dtype);
    if (from == zeros)
        most = NUMBERS;
    if (normals[0] == 0) {
        for (int i = 0; i < NUMBERS; i += 4)
            nl_philox_normal4(1, 0, 0, (uint64_t)i, normals + i);
        nl_convert_from_float(normals, NUMBERS, NL_BF16, halves);
        for (int i = 0; i < NUMBERS; i++)
            eighths[i] = nl_float_to_e4m3(64 * normals[i]);
    }
    for (int64_t at = 0; at < bytes; at += most)
        must(b, b->device->ops->upload(b->device, (char *)tensor->data + at, from,
                                       NL_MIN(most, bytes - at)));
    must(b, b->device->ops->sync(b->device));
}

static nl_tensor tensor(bench *b, nl_dtype dtype, int ndim, const int64_t *shape)
{
    nl_tensor made = nl_tensor_of(NULL, dtype, ndim, shape);
    if (b->tensor_count == MAX_TENSORS)
        exit(NL_ERROR_INTERNAL);
    must(b, b->device->ops->alloc(b->device, "bench", nl_tensor_bytes(&made), &made.data));
    fill(b, &made);
    b->tensors[b->tensor_count++] = made;
    if (dtype == NL_F8) {
        const nl_tensor scale = tensor(b, NL_F32, 1, shape);
        made.scale = scale.data;
    }
    return made;
}

#define TENSOR(dtype, ...)                                                                         \
    tensor(b, dtype, NL_COUNT(((int64_t[]){__VA_ARGS__})), (const int64_t[]){__VA_ARGS__})
#define F32(...)        TENSOR(NL_F32, __VA_ARGS__)
#define ACTIVATION(...) TENSOR(b->device->activation, __VA_ARGS__)
#define MAP(...)        TENSOR(b->device->feature_maps, __VA_ARGS__)
#define WEIGHT(...)     TENSOR(b->device->dtype, __VA_ARGS__)

static int64_t free_tensors(bench *b)
{
    int64_t bytes = 0;
    while (b->tensor_count > 0) {
        const nl_tensor *last = &b->tensors[--b->tensor_count];
        b->device->ops->free(b->device, last->data, nl_tensor_bytes(last));
        bytes += nl_tensor_bytes(last);
    }
    return bytes;
}

/* ---- A measurement */

/* Calls in a forward pass of NaLaSiT-S/2 and of SiT-S/2. */
typedef struct row {
    const char *shape;
    double flops;
    int calls[2];
} row;

typedef struct call {
    const bench *b;
    const void *args;
} call;

#define NL_OPERATION(operation)                                                                    \
    static __attribute__((unused)) nl_status call_##operation(void *user)                          \
    {                                                                                              \
        const call *c = user;                                                                      \
        return nl_op_##operation(c->b->device, c->args);                                           \
    }
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

static void run(bench *b, const char *name, row about, nl_status (*operation)(void *),
                const void *args)
{
    call c = {b, args};
    char label[96];
    double ms = 0;
    snprintf(label, sizeof(label), "%s %s", name, about.shape);
    if (!b->only || strstr(label, b->only))
        must(b, measure(b->device, 8, operation, &c, &ms));
    int64_t bytes = free_tensors(b);
    if (ms == 0)
        return;
    printf("%-60s\t%12.6g\tms\t", label, ms);
    if (about.flops > 0)
        printf("%.1f GFLOP/s, ", about.flops / ms * 1e-6);
    printf("%.1f GB/s\n", (double)bytes / ms * 1e-6);
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        b->forward_ms[i] += about.calls[i] * ms;
}

/* MEASURE(operation, ROW(...), .argument = ...): frees the tensors. */
#define ROW(...) ((row){__VA_ARGS__})
#define MEASURE(operation, about, ...)                                                             \
    run(b, #operation, about, call_##operation, &(nl_##operation##_args){__VA_ARGS__})

/* ---- The backbone */

static const struct product {
    const char *shape;
    int64_t rows_per_image, n, k; /* rows_per_image 1: one row for each image */
    nl_epilogue epilogue;
    int calls[2];
} products[] = {
    {"qkvg 1536 x 384", T, 4 * D, D, NL_EPILOGUE_NONE, {DEPTH, 0}},
    {"qkv 1152 x 384", T, 3 * D, D, NL_EPILOGUE_NONE, {0, DEPTH}},
    {"proj 384 x 384", T, D, D, NL_EPILOGUE_NONE, {DEPTH, DEPTH}},
    {"fc1 1536 x 384, gelu", T, 4 * D, D, NL_EPILOGUE_GELU_TANH, {DEPTH, DEPTH}},
    {"fc2 384 x 1536", T, D, 4 * D, NL_EPILOGUE_NONE, {DEPTH, DEPTH}},
    {"adaLN 28416 x 384", 1, (6 * DEPTH + 2) * D, D, NL_EPILOGUE_NONE, {1, 1}},
    {"time 384 x 256, silu", 1, D, 256, NL_EPILOGUE_SILU, {1, 1}},
    {"time 384 x 384", 1, D, D, NL_EPILOGUE_NONE, {1, 1}},
    {"head 32 x 384", T, 2 * 2 * 2 * CHANNELS, D, NL_EPILOGUE_NONE, {1, 1}},
};

typedef struct blas_call {
    nl_sgemm sgemm;
    int m, n, k;
    const float *x, *weight;
    float *y;
} blas_call;

static nl_status call_blas(void *user)
{
    const blas_call *c = ((const call *)user)->args;
    enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
    c->sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, c->m, c->n, c->k, 1, c->x, c->k, c->weight, c->k,
             0, c->y, c->n);
    return NL_OK;
}

static void bench_products(bench *b)
{
    for (int i = 0; i < NL_COUNT(products); i++) {
        const struct product *p = &products[i];
        int64_t m = b->batch * p->rows_per_image;
        double flops = 2.0 * (double)(m * p->n * p->k);
        MEASURE(linear, ROW(.shape = p->shape, .flops = flops, .calls = {p->calls[0], p->calls[1]}),
                .x = ACTIVATION(m, p->k), .weight = WEIGHT(p->n, p->k), .bias = ACTIVATION(p->n),
                .y = ACTIVATION(m, p->n), .epilogue = p->epilogue);
        if (!b->sgemm)
            continue;
        blas_call c = {b->sgemm, (int)m, (int)p->n, (int)p->k, NULL, NULL, NULL};
        c.x = F32(m, p->k).data, c.weight = F32(p->n, p->k).data, c.y = F32(m, p->n).data;
        run(b, "linear by OpenBLAS", ROW(.shape = p->shape, .flops = flops), call_blas, &c);
    }
}

static void bench_backbone(bench *b)
{
    int64_t m = b->batch * T;
    double elements = (double)(m * D);
    bench_products(b);
    MEASURE(nala_attention,
            ROW(.shape = "6 heads of 64", .flops = 4 * elements * 2 * SIZE, .calls = {DEPTH, 0}),
            .qkvg = ACTIVATION(m, 4 * D), .out = ACTIVATION(m, D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .lambda = 3, .tau = 0.5f, .norm_scale = 1);
    MEASURE(nala_attention, ROW(.shape = "6 heads of 64, rope", .flops = 4 * elements * 2 * SIZE),
            .qkvg = ACTIVATION(m, 4 * D), .out = ACTIVATION(m, D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .lambda = 3, .tau = 0.5f, .norm_scale = 1,
            .rope = true, .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(nala_attention,
            ROW(.shape = "6 heads of 64, split, rope", .flops = 4 * elements * 2 * SIZE),
            .qkvg = ACTIVATION(m, 4 * D), .out = ACTIVATION(m, D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .lambda = 3, .tau = 0.5f, .norm_scale = 1,
            .feature_map = NL_FEATURES_SPLIT, .rope = true, .grid_height = SIDE,
            .grid_width = SIDE);
    MEASURE(softmax_attention,
            ROW(.shape = "6 heads of 64", .flops = 4 * elements * T, .calls = {0, DEPTH}),
            .qkv = ACTIVATION(m, 3 * D), .out = ACTIVATION(m, D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .scale = 0.125f);
    MEASURE(layernorm_modulate, ROW(.shape = "384", .calls = {1, 1}), .x = ACTIVATION(m, D),
            .shift = ACTIVATION(b->batch, D), .scale = ACTIVATION(b->batch, D),
            .y = ACTIVATION(m, D), .rows_per_image = T, .eps = 1e-6f);
    MEASURE(layernorm_modulate, ROW(.shape = "384, adds a branch", .calls = {2 * DEPTH, 2 * DEPTH}),
            .x = ACTIVATION(m, D), .branch = ACTIVATION(m, D), .gate = ACTIVATION(b->batch, D),
            .shift = ACTIVATION(b->batch, D), .scale = ACTIVATION(b->batch, D),
            .y = ACTIVATION(m, D), .rows_per_image = T, .eps = 1e-6f);
    MEASURE(layernorm_gate, ROW(.shape = "384", .calls = {DEPTH, 0}), .x = ACTIVATION(m, D),
            .weight = F32(D), .bias = F32(D), .g = ACTIVATION(m, D), .y = ACTIVATION(m, D),
            .eps = 1e-5f);
    MEASURE(depthwise_conv, ROW(.shape = "5 x 5 (lepe)", .flops = elements * 50),
            .x = ACTIVATION(m, D), .weight = F32(D, 1, 5, 5), .bias = F32(D),
            .out = ACTIVATION(m, D), .batch = b->batch, .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(patch_embed, ROW(.shape = "384 x 16", .flops = elements * 32, .calls = {1, 1}),
            .x = F32(b->batch, CHANNELS, 2 * SIDE, 2 * SIDE), .weight = F32(D, CHANNELS, 2, 2),
            .bias = F32(D), .position = F32(T, D), .tokens = ACTIVATION(m, D));
    MEASURE(unpatchify, ROW(.shape = "32", .calls = {1, 1}), .tokens = ACTIVATION(m, 32),
            .x = F32(b->batch, 2 * CHANNELS, 2 * SIDE, 2 * SIDE), .patch = 2,
            .head_channels = 2 * CHANNELS);
    MEASURE(time_features, ROW(.shape = "256", .calls = {1, 1}), .t = F32(b->batch),
            .features = ACTIVATION(b->batch, 256));
    MEASURE(add_label, ROW(.shape = "384", .calls = {1, 1}), .time = ACTIVATION(b->batch, D),
            .table = WEIGHT(1001, D), .labels = TENSOR(NL_I32, b->batch),
            .y = ACTIVATION(b->batch, D));
    if (!b->only) {
        measure_note("operations of a forward pass of NaLaSiT-S/2", b->forward_ms[0], "ms");
        measure_note("operations of a forward pass of SiT-S/2", b->forward_ms[1], "ms");
    }
}

/* ---- Blocks in FP8, of XL with 64 images, B with 128 and S with 256 */

#define F8(...) TENSOR(NL_F8, __VA_ARGS__)

static void bench_fp8(bench *b)
{
    static const struct {
        const char *name;
        int64_t rows, d;
    } sizes[] = {{"XL", 64 * T, 1152}, {"B", 128 * T, 768}, {"S", 256 * T, 384}};
    for (int i = 0; b->device->fp8 && i < NL_COUNT(sizes); i++) {
        int64_t m = sizes[i].rows, d = sizes[i].d, images = m / T;
        const struct {
            const char *name;
            int64_t n, k;
        } shapes[] = {{"qkvg", 4 * d, d},
                      {"qkv", 3 * d, d},
                      {"proj", d, d},
                      {"fc1 without GELU", 4 * d, d},
                      {"fc2", d, 4 * d}};
        char shape[64];
        for (int j = 0; j < NL_COUNT(shapes); j++) {
            int64_t n = shapes[j].n, k = shapes[j].k;
            snprintf(shape, sizeof(shape), "%s %s, bf16", sizes[i].name, shapes[j].name);
            MEASURE(linear, ROW(.shape = shape, .flops = 2.0 * (double)(m * n * k)),
                    .x = ACTIVATION(m, k), .weight = WEIGHT(n, k), .bias = ACTIVATION(n),
                    .y = ACTIVATION(m, n));
            snprintf(shape, sizeof(shape), "%s %s, fp8", sizes[i].name, shapes[j].name);
            MEASURE(linear, ROW(.shape = shape, .flops = 2.0 * (double)(m * n * k)), .x = F8(m, k),
                    .weight = F8(n, k), .bias = ACTIVATION(n), .y = ACTIVATION(m, n));
        }
        snprintf(shape, sizeof(shape), "%s fc1, bf16", sizes[i].name);
        MEASURE(linear, ROW(.shape = shape, .flops = 8.0 * (double)(m * d * d)),
                .x = ACTIVATION(m, d), .weight = WEIGHT(4 * d, d), .bias = ACTIVATION(4 * d),
                .y = ACTIVATION(m, 4 * d), .epilogue = NL_EPILOGUE_GELU_TANH);
        snprintf(shape, sizeof(shape), "%s fc1, fp8", sizes[i].name);
        MEASURE(linear, ROW(.shape = shape, .flops = 8.0 * (double)(m * d * d)), .x = F8(m, d),
                .weight = F8(4 * d, d), .bias = ACTIVATION(4 * d), .y = F8(m, 4 * d),
                .room = ACTIVATION(m, 4 * d), .weight_norm = 1, .bias_norm = 1,
                .epilogue = NL_EPILOGUE_GELU_TANH);
        snprintf(shape, sizeof(shape), "%s, %lld", sizes[i].name, (long long)d);
        MEASURE(quantize, ROW(.shape = shape), .x = ACTIVATION(m, d), .y = F8(m, d));
        snprintf(shape, sizeof(shape), "%s, %lld, gelu", sizes[i].name, (long long)(4 * d));
        MEASURE(quantize, ROW(.shape = shape), .x = ACTIVATION(m, 4 * d), .y = F8(m, 4 * d),
                .activation = NL_EPILOGUE_GELU_TANH);
        for (int f8 = 0; f8 < 2; f8++) {
            nl_dtype y = f8 ? NL_F8 : b->device->activation;
            snprintf(shape, sizeof(shape), "%s, %s", sizes[i].name, f8 ? "fp8" : "bf16");
            MEASURE(layernorm_modulate, ROW(.shape = shape), .x = ACTIVATION(m, d),
                    .branch = ACTIVATION(m, d), .gate = ACTIVATION(images, d),
                    .shift = ACTIVATION(images, d), .scale = ACTIVATION(images, d),
                    .y = TENSOR(y, m, d), .rows_per_image = T, .eps = 1e-6f);
        }
    }
}

/* ---- The autoencoder, at the sizes of a 256 x 256 picture */

static void bench_conv2d(bench *b)
{
    static const struct {
        const char *shape;
        int64_t side, in, out;
        int kernel;
    } cases[] = {
        {"64 -> 64, 256 x 256", 256, 64, 64, 3},
        {"64 -> 64, 128 x 128", 128, 64, 64, 3},
        {"64 -> 64, 64 x 64", 64, 64, 64, 3},
        {"64 -> 64, 32 x 32", 32, 64, 64, 3},
        {"64 -> 3, 256 x 256", 256, 64, 3, 3},
        {"512 -> 512, 32 x 32", 32, 512, 512, 3},
        {"512 -> 512, 64 x 64", 64, 512, 512, 3},
        {"256 -> 256, 128 x 128", 128, 256, 256, 3},
        {"128 -> 128, 256 x 256", 256, 128, 128, 3},
        {"512 -> 256 1 x 1, 128 x 128", 128, 512, 256, 1},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        int64_t side = cases[i].side, in = cases[i].in, out = cases[i].out;
        int kernel = cases[i].kernel, pad = kernel / 2;
        MEASURE(conv2d,
                ROW(.shape = cases[i].shape,
                    .flops = 2 * (double)(side * side * in * out * kernel * kernel)),
                .x = MAP(1, side, side, in), .weight = WEIGHT(out, in, kernel, kernel),
                .bias = F32(out), .residual = MAP(1, side, side, out), .y = MAP(1, side, side, out),
                .stride = 1, .pad_top = pad, .pad_left = pad, .pad_bottom = pad, .pad_right = pad,
                .activation = NL_ACT_RELU);
    }
}

static void bench_autoencoder(bench *b)
{
    bench_conv2d(b);
    MEASURE(softmax_attention,
            ROW(.shape = "1 x 1024 tokens, 1 head of 512", .flops = 4.0 * 1024 * 1024 * 512),
            .qkv = ACTIVATION(1024, 3 * 512), .out = ACTIVATION(1024, 512), .batch = 1,
            .tokens = 1024, .heads = 1, .head_size = 512, .scale = 0.0441941738f);
    MEASURE(groupnorm, ROW(.shape = "128, 256 x 256, silu"), .x = MAP(1, 256, 256, 128),
            .weight = F32(128), .bias = F32(128), .y = MAP(1, 256, 256, 128), .groups = 32,
            .eps = 1e-6f, .silu = true);
    MEASURE(upsample2x, ROW(.shape = "64, 128 x 128"), .x = MAP(1, 128, 128, 64),
            .y = MAP(1, 256, 256, 64));
    MEASURE(pool, ROW(.shape = "64, 147 x 147, max 3 / 2"), .x = ACTIVATION(1, 147, 147, 64),
            .y = ACTIVATION(1, 73, 73, 64), .kernel = 3, .stride = 2);
    MEASURE(activate, ROW(.shape = "silu, 256 x 256 x 128"), .x = MAP(256, 256, 128),
            .y = MAP(256, 256, 128), .activation = NL_ACT_SILU);
    MEASURE(layout, ROW(.shape = "3, 256 x 256 to NHWC"), .x = F32(1, 3, 256, 256),
            .y = MAP(1, 256, 256, 3), .to_nhwc = true, .scale = 1);
    MEASURE(to_uint8, ROW(.shape = "256 x 256 x 3"), .x = ACTIVATION(256, 256, 3),
            .y = TENSOR(NL_U8, 256, 256, 3), .scale = 127.5f, .shift = 128);
}

/* ---- Sampling */

#define LATENTS(channels) F32(b->batch, channels, 2 * SIDE, 2 * SIDE)

static void bench_sampling(bench *b)
{
    static const int64_t images[1024];
    static double rms[1024];
    const double coefficients[] = {1, 0.5, 0.25};
    MEASURE(guide, ROW(.shape = "4 x 32 x 32"),
            .prediction = F32(2 * b->batch, CHANNELS, 2 * SIDE, 2 * SIDE), .y = LATENTS(CHANNELS),
            .scale = 3, .channels = CHANNELS);
    MEASURE(combine, ROW(.shape = "3 terms, 4 x 32 x 32"), .terms = 3,
            .x = {LATENTS(CHANNELS), LATENTS(CHANNELS), LATENTS(CHANNELS)},
            .coefficients = coefficients, .y = LATENTS(CHANNELS));
    MEASURE(diffusion_step, ROW(.shape = "4 x 32 x 32"), .x = LATENTS(CHANNELS),
            .prediction = LATENTS(2 * CHANNELS), .noise = LATENTS(CHANNELS), .y = LATENTS(CHANNELS),
            .learned_range = true, .x_0_from_x = 1, .x_0_from_eps = 1, .noise_scale = 1);
    MEASURE(scaled_norm, ROW(.shape = "4 x 32 x 32"), .x = LATENTS(CHANNELS),
            .a = LATENTS(CHANNELS), .b = LATENTS(CHANNELS), .atol = 1e-6, .rtol = 1e-3, .rms = rms);
    MEASURE(normal, ROW(.shape = "4 x 32 x 32"), .y = LATENTS(CHANNELS), .images = images);
    MEASURE(finite, ROW(.shape = "4 x 32 x 32"), .x = LATENTS(CHANNELS), .found = TENSOR(NL_I32, 1),
            .mark = 1);
}

/* ---- Training */

static void bench_backward_products(bench *b)
{
    for (int i = 0; i < NL_COUNT(products); i++) {
        const struct product *p = &products[i];
        int64_t m = b->batch * p->rows_per_image;
        const bool gelu = p->k == 4 * D; /* fc2, whose x came out of GELU */
        double flops = 2.0 * (double)(m * p->n * p->k);
        nl_tensor pre = {0}, dbias = {0};
        if (p->epilogue == NL_EPILOGUE_GELU_TANH)
            MEASURE(
                linear, ROW(.shape = "fc1 1536 x 384, gelu and what comes before", .flops = flops),
                .x = ACTIVATION(m, p->k), .weight = WEIGHT(p->n, p->k), .bias = ACTIVATION(p->n),
                .y = ACTIVATION(m, p->n), .epilogue = p->epilogue, .pre = ACTIVATION(m, p->n));
        if (gelu)
            pre = ACTIVATION(m, p->k), dbias = F32(p->k);
        MEASURE(linear_backward_data, ROW(.shape = p->shape, .flops = flops),
                .dy = ACTIVATION(m, p->n), .weight = WEIGHT(p->n, p->k), .pre = pre, .x = pre,
                .dbias = dbias, .epilogue = gelu ? NL_EPILOGUE_GELU_TANH : NL_EPILOGUE_NONE,
                .dx = ACTIVATION(m, p->k));
        MEASURE(linear_backward_weight, ROW(.shape = p->shape, .flops = flops),
                .dy = ACTIVATION(m, p->n), .x = ACTIVATION(m, p->k), .dweight = F32(p->n, p->k),
                .dbias = F32(p->n));
    }
}

/* `width` columns of a matrix of its own that is four times as wide: as they lie in the product they come out of. */
static nl_tensor columns(bench *b, int64_t rows, int64_t width)
{
    nl_tensor wide = ACTIVATION(rows, 4 * width);
    return nl_tensor_columns(&wide, 3 * width, width);
}

static void bench_backward_backbone(bench *b)
{
    int64_t m = b->batch * T, pairs = b->batch * HEADS;
    double elements = (double)(m * D);
    MEASURE(layernorm_modulate_backward, ROW(.shape = "384"), .x = ACTIVATION(m, D),
            .scale = ACTIVATION(b->batch, D), .shift = ACTIVATION(b->batch, D),
            .dy = ACTIVATION(m, D), .dx = ACTIVATION(m, D), .branch = ACTIVATION(m, D),
            .gate = ACTIVATION(b->batch, D), .dbranch = ACTIVATION(m, D), .dbias = F32(D),
            .dshift = ACTIVATION(b->batch, D), .dscale = ACTIVATION(b->batch, D),
            .dgate = ACTIVATION(b->batch, D), .y = ACTIVATION(m, D), .rows_per_image = T,
            .eps = 1e-6f);
    MEASURE(layernorm_gate_backward, ROW(.shape = "384"), .x = ACTIVATION(m, D), .weight = F32(D),
            .bias = F32(D), .g = columns(b, m, D), .dy = ACTIVATION(m, D), .dx = ACTIVATION(m, D),
            .dg = columns(b, m, D), .dweight = F32(D), .dbias = F32(D), .y = ACTIVATION(m, D),
            .eps = 1e-5f);
    MEASURE(nala_attention_backward, ROW(.shape = "6 heads of 64"), .qkvg = ACTIVATION(m, 4 * D),
            .out = ACTIVATION(m, D), .dout = ACTIVATION(m, D), .state = F32(pairs, 2 * SIZE, SIZE),
            .total = F32(pairs, 2 * SIZE), .dqkv = ACTIVATION(m, 4 * D), .batch = b->batch,
            .tokens = T, .heads = HEADS, .head_size = SIZE, .lambda = 3, .tau = 0.5f,
            .norm_scale = 1);
    MEASURE(nala_attention_backward, ROW(.shape = "6 heads of 64, rope"),
            .qkvg = ACTIVATION(m, 4 * D), .out = ACTIVATION(m, D), .dout = ACTIVATION(m, D),
            .state = F32(pairs, 2 * SIZE, SIZE), .total = F32(pairs, 2 * SIZE),
            .dqkv = ACTIVATION(m, 4 * D), .sums = F32(3 * D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .lambda = 3, .tau = 0.5f, .norm_scale = 1,
            .rope = true, .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(softmax_attention_backward, ROW(.shape = "6 heads of 64", .flops = 10 * elements * T),
            .qkv = ACTIVATION(m, 3 * D), .out = ACTIVATION(m, D), .dout = ACTIVATION(m, D),
            .lse = F32(pairs, T), .dqkv = ACTIVATION(m, 3 * D), .batch = b->batch, .tokens = T,
            .heads = HEADS, .head_size = SIZE, .scale = 0.125f);
    MEASURE(depthwise_conv_backward, ROW(.shape = "5 x 5 (lepe)", .flops = elements * 100),
            .x = ACTIVATION(m, D), .weight = F32(D, 1, 5, 5), .dout = ACTIVATION(m, D),
            .dx = ACTIVATION(m, D), .dweight = F32(D, 1, 5, 5), .dbias = F32(D), .batch = b->batch,
            .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(patch_embed_backward, ROW(.shape = "384 x 16"), .x = LATENTS(CHANNELS),
            .dtokens = ACTIVATION(m, D), .dweight = F32(D, CHANNELS, 2, 2), .dbias = F32(D));
    MEASURE(unpatchify_backward, ROW(.shape = "32"), .dx = LATENTS(2 * CHANNELS),
            .dtokens = ACTIVATION(m, 32), .patch = 2, .head_channels = 2 * CHANNELS);
    MEASURE(add_label_backward, ROW(.shape = "384"), .c = ACTIVATION(b->batch, D),
            .labels = TENSOR(NL_I32, b->batch), .dy = ACTIVATION(b->batch, D),
            .dtime = ACTIVATION(b->batch, D), .dtable = F32(1001, D));
}

/* 2^17 parameters for each image: 33 million, as many as S/2 has, with 256. */
static void bench_optimiser(bench *b)
{
    int64_t count = b->batch << 17;
    const float numbers[NL_HYPER_COLUMNS] = {1e-4f, 0.9f, 0.999f, 1e-8f, 0, 1, 0.9999f};
    nl_segment segments[128];
    MEASURE(zero, ROW(.shape = "of the gradient"), .x = F32(count));
    MEASURE(gradient_norm, ROW(.shape = "of the gradient"), .x = F32(count), .norm = F32(1));
    nl_tensor weights = WEIGHT(count), hyper = F32(NL_HYPER_COLUMNS),
              table = TENSOR(NL_U8, (int64_t)sizeof(segments));
    for (int i = 0; i < NL_COUNT(segments); i++) {
        int64_t each = count / NL_COUNT(segments), first = i * each;
        segments[i] = (nl_segment){first, each, NULL, b->device->dtype, false, 1};
        segments[i].weights = (char *)weights.data + first * nl_dtype_size(weights.dtype);
    }
    must(b, b->device->ops->upload(b->device, hyper.data, numbers, sizeof(numbers)));
    must(b, b->device->ops->upload(b->device, table.data, segments, sizeof(segments)));
    MEASURE(adamw, ROW(.shape = "one average"), .master = F32(count), .first = F32(count),
            .second = F32(count), .gradient = F32(count), .ema_count = 1, .ema = {F32(count)},
            .hyper = hyper, .norm = F32(1), .counter = TENSOR(NL_I32, 2),
            .segment_count = NL_COUNT(segments), .segments = segments, .segment_table = table);
}

static void bench_training(bench *b)
{
    bench_backward_products(b);
    bench_backward_backbone(b);
    MEASURE(latents, ROW(.shape = "moments of 4 x 32 x 32"), .x = LATENTS(2 * CHANNELS),
            .noise = LATENTS(CHANNELS), .y = LATENTS(CHANNELS), .scale = 0.18f);
    MEASURE(diffuse, ROW(.shape = "4 x 32 x 32"), .data = LATENTS(CHANNELS),
            .noise = LATENTS(CHANNELS), .coefficients = F32(b->batch, NL_LOSS_COLUMNS),
            .y = LATENTS(CHANNELS));
    MEASURE(regression_loss, ROW(.shape = "4 x 32 x 32"), .prediction = LATENTS(2 * CHANNELS),
            .data = LATENTS(CHANNELS), .noise = LATENTS(CHANNELS),
            .coefficients = F32(b->batch, NL_LOSS_COLUMNS), .loss = F32(b->batch),
            .dprediction = LATENTS(2 * CHANNELS), .gradient_scale = 1);
    MEASURE(matching_loss, ROW(.shape = "4 x 32 x 32"), .data = LATENTS(CHANNELS),
            .noise = LATENTS(CHANNELS), .teacher = LATENTS(CHANNELS), .fake = LATENTS(CHANNELS),
            .coefficients = F32(b->batch, NL_LOSS_COLUMNS), .loss = F32(b->batch),
            .doutput = LATENTS(CHANNELS), .gradient_scale = 1);
    MEASURE(variational_loss, ROW(.shape = "4 x 32 x 32"), .prediction = LATENTS(2 * CHANNELS),
            .x = LATENTS(CHANNELS), .data = LATENTS(CHANNELS),
            .coefficients = F32(b->batch, NL_VB_COLUMNS), .loss = F32(b->batch),
            .dprediction = LATENTS(2 * CHANNELS), .gradient_scale = 1);
    MEASURE(mean, ROW(.shape = "of the losses"), .x = F32(b->batch), .y = F32(1));
    bench_optimiser(b);
}

/* ---- Attention alone, as the backbone calls it, on rows q k v of one product */

typedef struct attention {
    nl_device *device;
    bool nala;
    int64_t batch, heads, tokens, size;
    /* Without `dout` forward alone. state and total: what NaLa keeps for the backward pass; total alone: log-sum-exp of
     * softmax */
    nl_tensor qkv, out, state, total, dout, dqkv;
} attention;

static nl_status run_attention(void *user)
{
    const attention *a = user;
    const float scale = 1 / sqrtf((float)a->size);
    nl_status status;
    if (a->nala)
        NL_TRY(NL_OP(a->device, nala_attention, .qkvg = a->qkv, .out = a->out, .state = a->state,
                     .total = a->total, .batch = a->batch, .tokens = a->tokens, .heads = a->heads,
                     .head_size = a->size, .lambda = 3, .tau = 0.5f, .norm_scale = 1));
    else
        NL_TRY(NL_OP(a->device, softmax_attention, .qkv = a->qkv, .out = a->out, .lse = a->total,
                     .batch = a->batch, .tokens = a->tokens, .heads = a->heads,
                     .head_size = a->size, .scale = scale));
    if (a->dout.data && a->nala)
        NL_TRY(NL_OP(a->device, nala_attention_backward, .qkvg = a->qkv, .out = a->out,
                     .dout = a->dout, .state = a->state, .total = a->total, .dqkv = a->dqkv,
                     .batch = a->batch, .tokens = a->tokens, .heads = a->heads,
                     .head_size = a->size, .lambda = 3, .tau = 0.5f, .norm_scale = 1));
    else if (a->dout.data)
        NL_TRY(NL_OP(a->device, softmax_attention_backward, .qkv = a->qkv, .out = a->out,
                     .dout = a->dout, .lse = a->total, .dqkv = a->dqkv, .batch = a->batch,
                     .tokens = a->tokens, .heads = a->heads, .head_size = a->size, .scale = scale));
cleanup:
    return status;
}

/* In a context of its own, so that what it allocates is what this pass needs. */
static void bench_attention(const nl_context_options *options, attention a, bool backward)
{
    bench state = {0}, *b = &state;
    int64_t rows = a.batch * a.tokens, pairs = a.batch * a.heads, width = a.heads * a.size;
    char name[96];
    double ms;
    if (nl_context_create(options, &b->context) != NL_OK)
        exit(NL_ERROR_DEVICE);
    b->device = a.device = b->context->device;
    int64_t before = b->context->memory_used;
    a.qkv = ACTIVATION(rows, 3 * width), a.out = ACTIVATION(rows, width);
    if (backward) {
        a.dout = ACTIVATION(rows, width), a.dqkv = ACTIVATION(rows, 3 * width);
        if (a.nala)
            a.state = F32(pairs, 2 * a.size, a.size), a.total = F32(pairs, 2 * a.size);
        else
            a.total = F32(pairs, a.tokens);
    }
    must(b, measure(a.device, 8, run_attention, &a, &ms));
    int length = snprintf(name, sizeof(name), "attention %s %lld x %lld x %lld %s",
                          a.nala ? "NaLa" : "softmax", (long long)pairs, (long long)a.tokens,
                          (long long)a.size, backward ? "forward+backward" : "forward");
    measure_note(name, ms, "ms");
    snprintf(name + length, sizeof(name) - (size_t)length, " memory");
    measure_note(name, (double)(b->context->memory_used - before) / 1048576, "MiB");
    free_tensors(b);
    nl_context_destroy(b->context);
}

/* The sizes given, or the standard ones; returns how many were given, or -1. */
static int bench_attentions(const nl_context_options *options, char **sizes)
{
    static char *const standard[] = {"256x6x256x64", "64x6x1024x64", "16x6x4096x64",
                                     "4x6x16384x64", "1x6x65536x64", NULL};
    int given = 0;
    for (char *const *size = sizes[0] ? sizes : standard; *size; size++) {
        int batch, heads, tokens, head_size;
        if (sscanf(*size, "%dx%dx%dx%d", &batch, &heads, &tokens, &head_size) != 4)
            return -1;
        for (int kind = 0; kind < 4; kind++)
            bench_attention(options,
                            (attention){.nala = kind % 2 == 0,
                                        .batch = batch,
                                        .heads = heads,
                                        .tokens = tokens,
                                        .size = head_size},
                            kind >= 2);
        given += sizes[0] != NULL;
    }
    return given;
}

/* ---- */

static const struct section {
    const char *name;
    void (*run)(bench *);
} sections[] = {{"backbone", bench_backbone},
                {"fp8", bench_fp8},
                {"autoencoder", bench_autoencoder},
                {"sampling", bench_sampling},
                {"training", bench_training}};

static bool named(const struct section *section, char **words)
{
    while (*words && strcmp(*words, section->name))
        words++;
    return *words != NULL;
}

static const char usage[] =
    "usage: nl_bench_operations [--device NAME] [--dtype f32|bf16|fp8] [--threads N] [--batch N]\n"
    "                           [--only TEXT] [--seconds N] "
    "[backbone|fp8|autoencoder|sampling|training]...\n"
    "                           [attention [BATCHxHEADSxTOKENSxSIZE]...]\n"
    "batch: 2 on a CPU, 256 on a GPU. only: what has TEXT in its name. seconds: that each goes on, "
    "at least.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"batch", required_argument, NULL, 'b'},  {"threads", required_argument, NULL, 't'},
        {"device", required_argument, NULL, 'e'}, {"dtype", required_argument, NULL, 'd'},
        {"only", required_argument, NULL, 'o'},   {"seconds", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},         {0}};
    bench state = {0}, *b = &state;
    nl_context_options context = {0};
    for (int c; (c = getopt_long(argc, argv, "+", options, NULL)) != -1;)
        switch (c) {
        case 'b':
            b->batch = atoi(optarg);
            break;
        case 't':
            context.threads = atoi(optarg);
            break;
        case 'e':
            context.device = optarg;
            break;
        case 'd':
            context.dtype = optarg;
            break;
        case 'o':
            b->only = optarg;
            break;
        case 's':
            measure_seconds = atof(optarg);
            break;
        default:
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : NL_ERROR_USAGE;
        }
    if (optind < argc && !strcmp(argv[optind], "attention")) {
        if (bench_attentions(&context, argv + optind + 1) >= 0)
            return 0;
        fputs(usage, stderr);
        return NL_ERROR_USAGE;
    }
    for (int word = optind; word < argc; word++) {
        int section = 0;
        while (section < NL_COUNT(sections) && strcmp(argv[word], sections[section].name))
            section++;
        if (section == NL_COUNT(sections)) {
            fputs(usage, stderr);
            return NL_ERROR_USAGE;
        }
    }
    nl_status status = nl_context_create(&context, &b->context);
    if (status != NL_OK) {
        fprintf(stderr, "nl_bench_operations: no device: %s\n", nl_status_name(status));
        return (int)status;
    }
    b->device = b->context->device;
    const bool cpu = !strcmp(b->device->name, "cpu");
    const char *core = NULL;
    if (cpu)
        b->sgemm = nl_blas_load(b->device->threads, &core);
    if (b->batch == 0)
        b->batch = cpu ? 2 : 256;
    if (b->batch < 1 || b->batch > 1024) {
        fputs(usage, stderr);
        return NL_ERROR_USAGE;
    }
    printf("# %s, %s, %d images of %d tokens%s%s\n", b->device->name,
           nl_device_dtype_name(b->device), (int)b->batch, T, b->sgemm ? ", OpenBLAS for " : "",
           b->sgemm ? core : "");
    for (int i = 0; i < NL_COUNT(sections); i++)
        if (optind == argc || named(&sections[i], argv + optind))
            sections[i].run(b);
    nl_context_destroy(b->context);
    return 0;
}
