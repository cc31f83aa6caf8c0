/* SPDX-License-Identifier: MIT */
/*
 * nl_bench: time of every operation at the sizes of an S/2 model and of its autoencoder, of the
 * forward pass, and of the forward pass's matrix products alone, by oneDNN and by OpenBLAS.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blas.h"
#include "nl_cpu.h"
#include "nl_dit.h"

enum {
    D = 384,
    HEADS = 6,
    DEPTH = 12,
    SIDE = 16,
    T = SIDE * SIDE,
    CHANNELS = 4,
    MAX_TENSORS = 512
};

typedef struct bench {
    nl_context *context;
    nl_device *device;
    int64_t batch;
    double seconds; /* spent on each measurement */
    const char *only;
    bool json, first;
    double nala_ms, softmax_ms; /* sums over the operations of a forward pass */
    void *memory[MAX_TENSORS];
    int memory_count;
} bench;

static void check(bench *b, nl_status status)
{
    if (status == NL_OK)
        return;
    fprintf(stderr, "nl_bench: %s\n", nl_last_error(b->context));
    exit((int)status);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Small numbers that no operation turns into infinity. */
static nl_tensor tensor(bench *b, nl_dtype dtype, int ndim, const int64_t *shape)
{
    nl_tensor made = nl_tensor_of(NULL, dtype, ndim, shape);
    if (b->memory_count == MAX_TENSORS)
        exit(NL_ERROR_INTERNAL);
    check(b, NL_NEW_SIZED(b->context, "bench", nl_tensor_bytes(&made), 1, &made.data));
    b->memory[b->memory_count++] = made.data;
    for (int64_t i = 0; i < nl_tensor_count(&made); i++) {
        float value = (float)((uint32_t)(i * 2654435761u) >> 8) * 0x1p-24f - 0.5f;
        if (dtype == NL_F32)
            ((float *)made.data)[i] = value;
        else if (dtype == NL_BF16)
            ((uint16_t *)made.data)[i] = nl_float_to_bf16(value);
        else
            memset((char *)made.data + i * nl_dtype_size(dtype), 0, (size_t)nl_dtype_size(dtype));
    }
    return made;
}

#define F32(...)                                                                                   \
    tensor(b, NL_F32, NL_COUNT(((int64_t[]){__VA_ARGS__})), (const int64_t[]){__VA_ARGS__})
#define WEIGHT(...)                                                                                \
    tensor(b, b->device->dtype, NL_COUNT(((int64_t[]){__VA_ARGS__})),                              \
           (const int64_t[]){__VA_ARGS__})

static void forget_tensors(bench *b)
{
    while (b->memory_count > 0)
        nl_free(b->context, b->memory[--b->memory_count]);
}

/* Best time of a call in seconds, of as many as fit into b->seconds. */
static double best_time(bench *b, nl_status (*call)(bench *, const void *), const void *args)
{
    double best = 1e30, start = now();
    check(b, call(b, args));
    for (int i = 0; i < 5 || now() - start < b->seconds; i++) {
        double before = now();
        check(b, call(b, args));
        double time = now() - before;
        best = time < best ? time : best;
    }
    return best;
}

/* calls: in a forward pass of NaLaSiT-S/2 and of SiT-S/2. bytes: what must be read and written
 * once. */
typedef struct row {
    const char *name, *shape;
    int nala_calls, softmax_calls;
    double flops, bytes;
} row;

static void report(bench *b, const row *r, double time)
{
    b->nala_ms += r->nala_calls * time * 1e3;
    b->softmax_ms += r->softmax_calls * time * 1e3;
    if (b->json) {
        printf("%s\n    {\"operation\": \"%s\", \"shape\": \"%s\", \"ms\": %.5f, \"gflops\": %.2f, "
               "\"gbytes_per_s\": %.2f, \"calls_nala\": %d, \"calls_softmax\": %d}",
               b->first ? "" : ",", r->name, r->shape, time * 1e3, r->flops / time * 1e-9,
               r->bytes / time * 1e-9, r->nala_calls, r->softmax_calls);
        b->first = false;
        return;
    }
    printf("%-20s %-34s %9.3f %9.1f %9.1f %5d %5d\n", r->name, r->shape, time * 1e3,
           r->flops / time * 1e-9, r->bytes / time * 1e-9, r->nala_calls, r->softmax_calls);
}

#define NL_OPERATION(operation)                                                                    \
    static __attribute__((unused)) nl_status call_##operation(bench *b, const void *args)          \
    {                                                                                              \
        return nl_op_##operation(b->device, args);                                                 \
    }
NL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

/* MEASURE(operation, (row){...}, .argument = ...): frees the tensors. */
#define MEASURE(operation, about, ...)                                                             \
    do {                                                                                           \
        row measured = about;                                                                      \
        measured.name = #operation;                                                                \
        if (!b->only || strstr(#operation, b->only))                                               \
            report(b, &measured,                                                                   \
                   best_time(b, call_##operation, &(nl_##operation##_args){__VA_ARGS__}));         \
        forget_tensors(b);                                                                         \
    } while (0)
#define ROW(...) ((row){__VA_ARGS__})

/* ---- The backbone */

typedef struct product {
    const char *shape;
    int64_t rows_per_image, n, k; /* rows_per_image 1: one row for each image */
    nl_epilogue epilogue;
    int nala_calls, softmax_calls;
} product;

static const product products[] = {
    {"qkvg 1536 x 384", T, 4 * D, D, NL_EPILOGUE_NONE, DEPTH, 0},
    {"qkv 1152 x 384", T, 3 * D, D, NL_EPILOGUE_NONE, 0, DEPTH},
    {"proj 384 x 384", T, D, D, NL_EPILOGUE_NONE, DEPTH, DEPTH},
    {"fc1 1536 x 384, gelu", T, 4 * D, D, NL_EPILOGUE_GELU_TANH, DEPTH, DEPTH},
    {"fc2 384 x 1536", T, D, 4 * D, NL_EPILOGUE_NONE, DEPTH, DEPTH},
    {"adaLN 28416 x 384", 1, (6 * DEPTH + 2) * D, D, NL_EPILOGUE_NONE, 1, 1},
    {"time 384 x 256, silu", 1, D, 256, NL_EPILOGUE_SILU, 1, 1},
    {"time 384 x 384", 1, D, D, NL_EPILOGUE_NONE, 1, 1},
    {"head 32 x 384", T, 2 * 2 * 2 * CHANNELS, D, NL_EPILOGUE_NONE, 1, 1},
};

static double product_flops(const bench *b, const product *p)
{
    return 2.0 * (double)(b->batch * p->rows_per_image * p->n * p->k);
}

static void bench_linear(bench *b)
{
    for (int i = 0; i < NL_COUNT(products); i++) {
        const product *p = &products[i];
        int64_t m = b->batch * p->rows_per_image;
        nl_tensor x = F32(m, p->k), weight = WEIGHT(p->n, p->k), y = F32(m, p->n);
        double bytes =
            (double)(nl_tensor_bytes(&x) + nl_tensor_bytes(&weight) + nl_tensor_bytes(&y));
        MEASURE(linear,
                ROW(.shape = p->shape, .nala_calls = p->nala_calls,
                    .softmax_calls = p->softmax_calls, .flops = product_flops(b, p),
                    .bytes = bytes),
                .x = x, .weight = weight, .bias = F32(p->n), .y = y, .epilogue = p->epilogue);
    }
}

static void bench_attention(bench *b)
{
    int64_t m = b->batch * T;
    double elements = (double)(m * D);
    MEASURE(nala_attention,
            ROW(.shape = "6 heads of 64", .nala_calls = DEPTH, .flops = 4 * elements * 2 * 64,
                .bytes = 16 * elements),
            .qkvg = F32(m, 4 * D), .out = F32(m, D), .batch = b->batch, .tokens = T, .heads = HEADS,
            .head_size = D / HEADS, .lambda = 3, .tau = 0.5f);
    MEASURE(nala_attention,
            ROW(.shape = "the same, split, rope", .flops = 4 * elements * 2 * 64,
                .bytes = 16 * elements),
            .qkvg = F32(m, 4 * D), .out = F32(m, D), .batch = b->batch, .tokens = T, .heads = HEADS,
            .head_size = D / HEADS, .lambda = 3, .tau = 0.5f, .feature_map = NL_FEATURES_SPLIT,
            .rope = true, .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(nala_attention,
            ROW(.shape = "1 x 65536 tokens, 6 heads of 64", .flops = 4.0 * 65536 * D * 2 * 64,
                .bytes = 16.0 * 65536 * D),
            .qkvg = F32(65536, 4 * D), .out = F32(65536, D), .batch = 1, .tokens = 65536,
            .heads = HEADS, .head_size = D / HEADS, .lambda = 3, .tau = 0.5f);
    MEASURE(softmax_attention,
            ROW(.shape = "6 heads of 64", .softmax_calls = DEPTH, .flops = 4 * elements * T,
                .bytes = 16 * elements),
            .qkv = F32(m, 3 * D), .out = F32(m, D), .batch = b->batch, .tokens = T, .heads = HEADS,
            .head_size = D / HEADS, .scale = 0.125f);
    MEASURE(softmax_attention,
            ROW(.shape = "1 x 1024 tokens, 1 head of 512", .flops = 4.0 * 1024 * 1024 * 512,
                .bytes = 16.0 * 1024 * 512),
            .qkv = F32(1024, 3 * 512), .out = F32(1024, 512), .batch = 1, .tokens = 1024,
            .heads = 1, .head_size = 512, .scale = 0.0441941738f);
}

static void bench_backbone(bench *b)
{
    int64_t m = b->batch * T;
    double bytes = 4.0 * (double)(m * D);
    bench_linear(b);
    bench_attention(b);
    MEASURE(layernorm_modulate,
            ROW(.shape = "384", .nala_calls = 1, .softmax_calls = 1, .bytes = 2 * bytes),
            .x = F32(m, D), .shift = F32(b->batch, D), .scale = F32(b->batch, D), .y = F32(m, D),
            .rows_per_image = T, .eps = 1e-6f);
    MEASURE(layernorm_modulate,
            ROW(.shape = "384, adds a branch", .nala_calls = 2 * DEPTH, .softmax_calls = 2 * DEPTH,
                .bytes = 4 * bytes),
            .x = F32(m, D), .branch = F32(m, D), .gate = F32(b->batch, D),
            .shift = F32(b->batch, D), .scale = F32(b->batch, D), .y = F32(m, D),
            .rows_per_image = T, .eps = 1e-6f);
    MEASURE(layernorm_gate, ROW(.shape = "384", .nala_calls = DEPTH, .bytes = 3 * bytes),
            .x = F32(m, D), .weight = F32(D), .bias = F32(D), .g = F32(m, D), .y = F32(m, D),
            .eps = 1e-5f);
    MEASURE(depthwise_conv,
            ROW(.shape = "5 x 5 (lepe)", .flops = bytes / 4 * 50, .bytes = 3 * bytes),
            .x = F32(m, D), .weight = F32(D, 1, 5, 5), .bias = F32(D), .out = F32(m, D),
            .batch = b->batch, .grid_height = SIDE, .grid_width = SIDE);
    MEASURE(patch_embed,
            ROW(.shape = "384 x 16", .nala_calls = 1, .softmax_calls = 1, .flops = bytes / 4 * 32,
                .bytes = 2 * bytes),
            .x = F32(b->batch, CHANNELS, 2 * SIDE, 2 * SIDE), .weight = F32(D, CHANNELS, 2, 2),
            .bias = F32(D), .position = F32(T, D), .tokens = F32(m, D));
    MEASURE(
        unpatchify,
        ROW(.shape = "32", .nala_calls = 1, .softmax_calls = 1, .bytes = 4.0 * (double)(m * 64)),
        .tokens = F32(m, 32), .x = F32(b->batch, 2 * CHANNELS, 2 * SIDE, 2 * SIDE), .patch = 2,
        .head_channels = 2 * CHANNELS);
    MEASURE(time_features, ROW(.shape = "256", .nala_calls = 1, .softmax_calls = 1),
            .t = F32(b->batch), .features = F32(b->batch, 256));
    MEASURE(add_label, ROW(.shape = "384", .nala_calls = 1, .softmax_calls = 1),
            .time = F32(b->batch, D), .table = WEIGHT(1001, D),
            .labels = tensor(b, NL_I32, 1, (const int64_t[]){b->batch}), .y = F32(b->batch, D));
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
        double pixels = (double)(side * side);
        MEASURE(conv2d,
                ROW(.shape = cases[i].shape,
                    .flops = 2 * pixels * (double)(in * out * kernel * kernel),
                    .bytes = 4 * pixels * (double)(in + 2 * out)),
                .x = F32(1, side, side, in), .weight = F32(out, in, kernel, kernel),
                .bias = F32(out), .residual = F32(1, side, side, out), .y = F32(1, side, side, out),
                .stride = 1, .pad_top = pad, .pad_left = pad, .pad_bottom = pad, .pad_right = pad,
                .activation = NL_ACT_RELU);
    }
}

static void bench_autoencoder(bench *b)
{
    double bytes = 4.0 * 256 * 256 * 128;
    bench_conv2d(b);
    MEASURE(groupnorm, ROW(.shape = "128, 256 x 256, silu", .bytes = 3 * bytes),
            .x = F32(1, 256, 256, 128), .weight = F32(128), .bias = F32(128),
            .y = F32(1, 256, 256, 128), .groups = 32, .eps = 1e-6f, .silu = true);
    MEASURE(upsample2x, ROW(.shape = "64, 128 x 128", .bytes = 5 * 4.0 * 128 * 128 * 64),
            .x = F32(1, 128, 128, 64), .y = F32(1, 256, 256, 64));
    MEASURE(pool,
            ROW(.shape = "64, 147 x 147, max 3 / 2", .bytes = 4.0 * 64 * (147 * 147 + 73 * 73)),
            .x = F32(1, 147, 147, 64), .y = F32(1, 73, 73, 64), .kernel = 3, .stride = 2);
    MEASURE(activate, ROW(.shape = "silu, 256 x 256 x 128", .bytes = 2 * bytes),
            .x = F32(256, 256, 128), .y = F32(256, 256, 128), .activation = NL_ACT_SILU);
    MEASURE(layout, ROW(.shape = "3, 256 x 256 to NHWC", .bytes = 8.0 * 3 * 256 * 256),
            .x = F32(1, 3, 256, 256), .y = F32(1, 256, 256, 3), .to_nhwc = true, .scale = 1);
    MEASURE(to_uint8, ROW(.shape = "256 x 256 x 3", .bytes = 5.0 * 3 * 256 * 256),
            .x = F32(256, 256, 3), .y = tensor(b, NL_U8, 3, (const int64_t[]){256, 256, 3}),
            .scale = 127.5f, .shift = 128);
}

/* ---- Sampling */

static void bench_sampling(bench *b)
{
    int64_t side = 2 * SIDE, images[64] = {0};
    double bytes = 4.0 * (double)(b->batch * CHANNELS * side * side), rms[64];
    const double coefficients[] = {1, 0.5, 0.25};
    MEASURE(guide, ROW(.shape = "4 x 32 x 32", .bytes = 3 * bytes),
            .prediction = F32(2 * b->batch, CHANNELS, side, side),
            .y = F32(b->batch, CHANNELS, side, side), .scale = 3, .channels = CHANNELS);
    MEASURE(combine, ROW(.shape = "3 terms, 4 x 32 x 32", .bytes = 4 * bytes), .terms = 3,
            .x = {F32(b->batch, CHANNELS, side, side), F32(b->batch, CHANNELS, side, side),
                  F32(b->batch, CHANNELS, side, side)},
            .coefficients = coefficients, .y = F32(b->batch, CHANNELS, side, side));
    MEASURE(diffusion_step, ROW(.shape = "4 x 32 x 32", .bytes = 5 * bytes),
            .x = F32(b->batch, CHANNELS, side, side),
            .prediction = F32(b->batch, 2 * CHANNELS, side, side),
            .noise = F32(b->batch, CHANNELS, side, side), .y = F32(b->batch, CHANNELS, side, side),
            .learned_range = true, .x_0_from_x = 1, .x_0_from_eps = 1, .noise_scale = 1);
    MEASURE(scaled_norm, ROW(.shape = "4 x 32 x 32", .bytes = 3 * bytes),
            .x = F32(b->batch, CHANNELS, side, side), .a = F32(b->batch, CHANNELS, side, side),
            .b = F32(b->batch, CHANNELS, side, side), .atol = 1e-6, .rtol = 1e-3, .rms = rms);
    MEASURE(normal, ROW(.shape = "4 x 32 x 32", .bytes = bytes),
            .y = F32(b->batch, CHANNELS, side, side), .images = images);
    MEASURE(finite, ROW(.shape = "4 x 32 x 32", .bytes = bytes),
            .x = F32(b->batch, CHANNELS, side, side),
            .found = tensor(b, NL_I32, 1, (const int64_t[]){1}), .mark = 1);
}

/* ---- Products alone, and the whole */

typedef struct product_call {
    nl_dnnl_product dnnl;
    nl_sgemm sgemm;
} product_call;

static nl_status call_dnnl(bench *b, const void *args)
{
    const product_call *call = args;
    return nl_dnnl_matmul(((nl_cpu_state *)b->device->state)->dnnl, &call->dnnl);
}

static nl_status call_blas(bench *b, const void *args)
{
    const product_call *call = args;
    const nl_dnnl_product *p = &call->dnnl;
    enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
    (void)b;
    call->sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, (int)p->m, (int)p->n, (int)p->k, 1, p->x,
                (int)p->k, p->weight, (int)p->k, 0, p->y, (int)p->n);
    return NL_OK;
}

/* Seconds that the products of a forward pass take alone, in fp32, weights as they are stored. */
static double time_products(bench *b, nl_sgemm sgemm, bool nala, double *flops)
{
    double total = 0;
    *flops = 0;
    for (int i = 0; i < NL_COUNT(products); i++) {
        const product *p = &products[i];
        int calls = nala ? p->nala_calls : p->softmax_calls;
        if (calls == 0)
            continue;
        int64_t m = b->batch * p->rows_per_image;
        product_call call = {
            .sgemm = sgemm,
            .dnnl = {.m = m, .n = p->n, .k = p->k, .x_stride = p->k, .y_stride = p->n}};
        call.dnnl.x = F32(m, p->k).data;
        call.dnnl.weight = F32(p->n, p->k).data;
        call.dnnl.y = F32(m, p->n).data;
        total += calls * best_time(b, sgemm ? call_blas : call_dnnl, &call);
        *flops += calls * product_flops(b, p);
        forget_tensors(b);
    }
    return total;
}

typedef struct forward_call {
    nl_dit *dit;
    nl_tensor x, t, labels, prediction;
} forward_call;

static nl_status call_forward(bench *b, const void *args)
{
    const forward_call *call = args;
    return nl_dit_forward(call->dit, b->device, &call->x, &call->t, &call->labels,
                          &call->prediction);
}

static double time_forward(bench *b, const char *name)
{
    forward_call call = {0};
    nl_config config;
    nl_device measuring;
    nl_config_init(&config);
    check(b, nl_config_from_name(b->context, name, &config));
    config.learn_sigma = true;
    check(b, nl_dit_create(b->device, &config, &call.dit));
    check(b, nl_dit_initialize(call.dit, 1));
    call.x = F32(b->batch, CHANNELS, 2 * SIDE, 2 * SIDE);
    call.prediction = F32(b->batch, 2 * CHANNELS, 2 * SIDE, 2 * SIDE);
    call.labels = tensor(b, NL_I32, 1, (const int64_t[]){b->batch});
    call.t = F32(1);
    *(float *)call.t.data = 0.5f;
    nl_device_measuring(b->device, &measuring);
    check(b,
          nl_dit_forward(call.dit, &measuring, &call.x, &call.t, &call.labels, &call.prediction));
    check(b, nl_arena_reserve(b->device, measuring.arena_peak));
    double time = best_time(b, call_forward, &call);
    nl_dit_destroy(call.dit);
    nl_config_free(b->context, &config);
    forget_tensors(b);
    return time;
}

static void bench_model(bench *b, nl_sgemm sgemm, const char *core, bool nala)
{
    const char *name = nala ? "NaLaSiT-S/2" : "SiT-S/2";
    double flops, forward = time_forward(b, name);
    double dnnl = time_products(b, NULL, nala, &flops);
    double blas = sgemm ? time_products(b, sgemm, nala, &flops) : 0;
    double alone = sgemm && blas < dnnl ? blas : dnnl;
    double sum = nala ? b->nala_ms : b->softmax_ms;
    if (b->json) {
        printf("%s\n    {\"model\": \"%s\", \"forward_ms\": %.3f, \"sum_of_operations_ms\": %.3f, "
               "\"product_gflop\": %.3f, \"onednn_products_ms\": %.3f, \"openblas_products_ms\": "
               "%.3f, "
               "\"share_of_best_products\": %.4f}",
               nala ? "" : ",", name, forward * 1e3, sum, flops * 1e-9, dnnl * 1e3, blas * 1e3,
               alone / forward);
        return;
    }
    printf("\n%s, %" PRId64
           " images: forward %.2f ms (%.1f GFLOP/s of its products); its operations "
           "sum to %.2f ms\n",
           name, b->batch, forward * 1e3, flops / forward * 1e-9, sum);
    printf("products alone (%.2f GFLOP): oneDNN %.2f ms, %.1f GFLOP/s", flops * 1e-9, dnnl * 1e3,
           flops / dnnl * 1e-9);
    if (sgemm)
        printf("; OpenBLAS (%s) %.2f ms, %.1f GFLOP/s", core, blas * 1e3, flops / blas * 1e-9);
    printf("\nforward at %.1f %% of the better\n", 100 * alone / forward);
}

static const char usage[] =
    "usage: nl_bench [--batch N] [--threads N] [--dtype f32|bf16] [--only OPERATION]\n"
    "                [--seconds S] [--json]\n"
    "Times are the best of the repeats that fit into S seconds (0.3). calls: in a forward pass of\n"
    "NaLaSiT-S/2 and of SiT-S/2. OpenBLAS is compared when libopenblas.so.0 is there.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"batch", required_argument, NULL, 'b'},   {"threads", required_argument, NULL, 't'},
        {"dtype", required_argument, NULL, 'd'},   {"only", required_argument, NULL, 'o'},
        {"seconds", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {0}};
    bench state = {.batch = 2, .seconds = 0.3, .first = true}, *b = &state;
    nl_context_options context = {.device = "cpu", .dtype = "f32"};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'b':
            b->batch = atoi(optarg);
            break;
        case 't':
            context.threads = atoi(optarg);
            break;
        case 'd':
            context.dtype = optarg;
            break;
        case 'o':
            b->only = optarg;
            break;
        case 's':
            b->seconds = atof(optarg);
            break;
        case 'j':
            b->json = true;
            break;
        default:
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : NL_ERROR_USAGE;
        }
    if (b->batch < 1 || b->batch > 64 || optind < argc) {
        fputs(usage, stderr);
        return NL_ERROR_USAGE;
    }
    nl_status status = nl_context_create(&context, &b->context);
    if (status != NL_OK) {
        fprintf(stderr, "nl_bench: no device: %s\n", nl_status_name(status));
        return (int)status;
    }
    b->device = b->context->device;
    if (b->json)
        printf("{\n  \"batch\": %" PRId64
               ", \"threads\": %d, \"dtype\": \"%s\",\n  \"operations\": [",
               b->batch, b->device->threads, nl_dtype_name(b->device->dtype));
    else
        printf("%" PRId64 " images of %d tokens, %d threads, %s\n%-20s %-34s %9s %9s %9s %s\n",
               b->batch, T, b->device->threads, nl_dtype_name(b->device->dtype), "operation",
               "shape", "ms", "GFLOP/s", "GB/s", "calls");
    bench_backbone(b);
    bench_autoencoder(b);
    bench_sampling(b);
    if (b->json)
        printf("\n  ],\n  \"models\": [");
    if (!b->only) {
        const char *core;
        nl_sgemm sgemm = nl_blas_load(b->device->threads, &core);
        bench_model(b, sgemm, core, true);
        bench_model(b, sgemm, core, false);
    }
    if (b->json)
        printf("\n  ]\n}\n");
    nl_context_destroy(b->context);
    return 0;
}
