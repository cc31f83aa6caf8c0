/* SPDX-License-Identifier: MIT */
/*
 * Attention alone, on any device, normal q, k, v:
 *
 *   nl_bench_attention [--device cuda] [--dtype bf16] [BATCHxHEADSxTOKENSxSIZE]...
 *
 * NaLa and softmax attention as the backbone calls them, on rows q k v of one product. Lines of figures (measure.h):
 * forward milliseconds, forward and backward milliseconds, and the memory that the forward pass touches.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "nl_random.h"

typedef struct attention {
    nl_device *device;
    bool nala;
    int64_t batch, heads, tokens, size;
    /* state and total: what NaLa keeps for the backward pass; total alone: log-sum-exp of softmax */
    nl_tensor qkv, out, state, total, dout, dqkv;
} attention;

static nl_status forward(const attention *a, bool keep)
{
    static const nl_tensor none;
    if (a->nala)
        return NL_OP(a->device, nala_attention, .qkvg = a->qkv, .out = a->out,
                     .state = keep ? a->state : none, .total = keep ? a->total : none,
                     .batch = a->batch, .tokens = a->tokens, .heads = a->heads,
                     .head_size = a->size, .feature_map = NL_FEATURES_COSINE, .lambda = 3,
                     .tau = 0.5f);
    return NL_OP(a->device, softmax_attention, .qkv = a->qkv, .out = a->out,
                 .lse = keep ? a->total : none, .batch = a->batch, .tokens = a->tokens,
                 .heads = a->heads, .head_size = a->size, .scale = 1 / sqrtf((float)a->size));
}

static nl_status run_forward(void *user)
{
    return forward(user, false);
}

static nl_status run_both(void *user)
{
    const attention *a = user;
    nl_status status = forward(a, true);
    if (status != NL_OK)
        return status;
    if (a->nala)
        return NL_OP(a->device, nala_attention_backward, .qkvg = a->qkv, .out = a->out,
                     .dout = a->dout, .state = a->state, .total = a->total, .dqkv = a->dqkv,
                     .batch = a->batch, .tokens = a->tokens, .heads = a->heads,
                     .head_size = a->size, .feature_map = NL_FEATURES_COSINE, .lambda = 3,
                     .tau = 0.5f);
    return NL_OP(a->device, softmax_attention_backward, .qkv = a->qkv, .out = a->out,
                 .dout = a->dout, .lse = a->total, .dqkv = a->dqkv, .batch = a->batch,
                 .tokens = a->tokens, .heads = a->heads, .head_size = a->size,
                 .scale = 1 / sqrtf((float)a->size));
}

/* Normal numbers, the same 2^18 again and again. */
static nl_status fill(const attention *a, nl_tensor *tensor)
{
    enum { COUNT = 1 << 18 };
    static float normals[COUNT];
    static uint16_t halves[COUNT];
    nl_status status = NL_OK;
    const void *from = tensor->dtype == NL_F32 ? (const void *)normals : halves;
    int64_t bytes = nl_tensor_bytes(tensor), most = COUNT * nl_dtype_size(tensor->dtype);
    for (int i = 0; i < COUNT; i += 4)
        nl_philox_normal4(1, 0, 0, (uint64_t)i, normals + i);
    nl_convert_from_float(normals, COUNT, NL_BF16, halves);
    for (int64_t at = 0; at < bytes; at += most)
        NL_TRY(a->device->ops->upload(a->device, (char *)tensor->data + at, from,
                                      NL_MIN(most, bytes - at)));
    NL_TRY(a->device->ops->sync(a->device));
cleanup:
    return status;
}

/* Everything that a pass touches, from the arena of `device`. */
static nl_status take(attention *a, nl_device *device, bool both)
{
    nl_status status;
    nl_dtype type = device->activation;
    int64_t width = a->heads * a->size, heads = a->batch * a->heads, rows = a->batch * a->tokens;
    int64_t features = nl_feature_width(NL_FEATURES_COSINE, a->size);
    NL_TRY(nl_arena_tensor(device, type, 2, (int64_t[]){rows, 3 * width}, &a->qkv));
    NL_TRY(nl_arena_tensor(device, type, 2, (int64_t[]){rows, width}, &a->out));
    if (!both)
        return NL_OK;
    NL_TRY(nl_arena_tensor(device, type, 2, (int64_t[]){rows, width}, &a->dout));
    NL_TRY(nl_arena_tensor(device, type, 2, (int64_t[]){rows, 3 * width}, &a->dqkv));
    if (a->nala)
        NL_TRY(
            nl_arena_tensor(device, NL_F32, 3, (int64_t[]){heads, features, a->size}, &a->state));
    NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){heads, a->nala ? features : a->tokens},
                           &a->total));
cleanup:
    return status;
}

/* In a context of its own, so that what it allocates is what this pass needs. */
static nl_status run(const nl_context_options *options, attention a, bool both)
{
    nl_context *context = NULL;
    nl_device measuring;
    nl_status status = nl_context_create(options, &context);
    char name[96];
    double ms;
    if (status != NL_OK) {
        fprintf(stderr, "no device\n");
        return status;
    }
    a.device = context->device;
    int64_t before = context->memory_used;
    nl_device_measuring(a.device, &measuring);
    NL_TRY(take(&a, &measuring, both));
    NL_TRY(nl_arena_reserve(a.device, measuring.arena_peak));
    NL_TRY(take(&a, a.device, both));
    NL_TRY(fill(&a, &a.qkv));
    if (both)
        NL_TRY(fill(&a, &a.dout));
    NL_TRY(measure(a.device, 8, both ? run_both : run_forward, &a, &ms));
    int length =
        snprintf(name, sizeof(name), "attention %s %lld x %lld x %lld %s",
                 a.nala ? "NaLa" : "softmax", (long long)(a.batch * a.heads), (long long)a.tokens,
                 (long long)a.size, both ? "forward+backward" : "forward");
    measure_note(name, ms, "ms");
    snprintf(name + length, sizeof(name) - (size_t)length, " memory");
    measure_note(name, (double)(context->memory_used - before) / 1048576, "MiB");
cleanup:
    if (status != NL_OK)
        fprintf(stderr, "%s\n", nl_last_error(context));
    nl_arena_release(a.device, 0);
    nl_context_destroy(context);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const standard[] = {"256x6x256x64", "64x6x1024x64", "16x6x4096x64",
                                           "4x6x16384x64", "1x6x65536x64"};
    nl_context_options options = {0};
    int first = measure_options(argc, argv, &options), failures = 0;
    if (!first)
        return 2;
    int count = first < argc ? argc - first : NL_COUNT(standard);
    for (int i = 0; i < count; i++) {
        int batch, heads, tokens, size;
        if (sscanf(first < argc ? argv[first + i] : standard[i], "%dx%dx%dx%d", &batch, &heads,
                   &tokens, &size) != 4)
            return 2;
        for (int kind = 0; kind < 4; kind++) {
            attention a = {.nala = kind % 2 == 0,
                           .batch = batch,
                           .heads = heads,
                           .tokens = tokens,
                           .size = size};
            failures += run(&options, a, kind >= 2) != NL_OK;
        }
    }
    return failures != 0;
}
