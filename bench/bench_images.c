/* SPDX-License-Identifier: MIT */
/*
 * Pictures a second of the networks around the model, on any device, random weights:
 *
 *   nl_bench_images [--device cuda] [--dtype bf16] [--batch N] [--size 256] [--precision fp16] [--json] vae|inception...
 *
 * vae: latents to pictures through the Stable Diffusion autoencoder. inception: pictures of bytes to the features of the
 * FID network, resizing included; --precision fp32 (the default), tf32 or fp16. Medians of wall time, the device awaited.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inception.h"
#include "nl_vae.h"

enum { WARM_UP = 3, REPEATS = 15, MOST_TENSORS = 640, LARGEST = 8 << 20, NAME = 96 };

/* A checkpoint in memory whose tensors all begin with the same random numbers. */
typedef struct made {
    nl_checkpoint checkpoint;
    nl_entry entries[MOST_TENSORS];
    char names[MOST_TENSORS][NAME + 16];
    float *values; /* small, so that no layer's output grows without bound */
    float *ones;
} made;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nl_entry *)a)->name, ((const nl_entry *)b)->name);
}

static void add(made *m, const char *name, const char *suffix, int ndim, const int64_t *shape,
                bool ones)
{
    nl_entry *entry = &m->entries[m->checkpoint.count];
    char *text = m->names[m->checkpoint.count++];
    snprintf(text, NAME + 16, "%s.%s", name, suffix);
    *entry =
        (nl_entry){.name = text, .dtype = NL_F32, .ndim = ndim, .data = ones ? m->ones : m->values};
    memcpy(entry->shape, shape, (size_t)ndim * sizeof(*shape));
}

static nl_status begin(nl_context *context, made **out)
{
    nl_status status = NL_NEW(context, "a checkpoint", out);
    if (status != NL_OK)
        return status;
    made *m = *out;
    m->checkpoint = (nl_checkpoint){.context = context, .path = "random", .entries = m->entries};
    NL_TRY(NL_NEW_ARRAY(context, "weights", 2 * LARGEST, &m->values));
    m->ones = m->values + LARGEST;
    uint64_t z = 1;
    for (int64_t i = 0; i < LARGEST; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        m->values[i] = ((float)(z >> 40) / 8388608 - 1) / 32;
        m->ones[i] = 1;
    }
cleanup:
    return status;
}

static void end(nl_context *context, made *m)
{
    if (m)
        nl_free(context, m->values);
    nl_free(context, m);
}

static void add_both(made *m, const char *name, int64_t out, int64_t in, int kernel)
{
    add(m, name, "weight", 4, (int64_t[]){out, in, kernel, kernel}, false);
    add(m, name, "bias", 1, (int64_t[]){out}, false);
}

static void add_norm(made *m, const char *name, int64_t channels)
{
    add(m, name, "weight", 1, (int64_t[]){channels}, true);
    add(m, name, "bias", 1, (int64_t[]){channels}, false);
}

static void add_resnet(made *m, const char *name, int64_t in, int64_t out)
{
    char text[NAME];
#define PART(part) (snprintf(text, NAME, "%s." part, name), text)
    add_norm(m, PART("norm1"), in);
    add_both(m, PART("conv1"), out, in, 3);
    add_norm(m, PART("norm2"), out);
    add_both(m, PART("conv2"), out, out, 3);
    if (in != out)
        add_both(m, PART("conv_shortcut"), out, in, 1);
#undef PART
}

/* The decoder of Stable Diffusion's AutoencoderKL. */
static void list_decoder(made *m)
{
    static const int64_t channels[] = {512, 512, 256, 128};
    static const char *const parts[] = {"to_q", "to_k", "to_v", "to_out.0"};
    char name[NAME];
    int64_t in = 512;
    add_both(m, "post_quant_conv", 4, 4, 1);
    add_both(m, "decoder.conv_in", in, 4, 3);
    add_resnet(m, "decoder.mid_block.resnets.0", in, in);
    add_norm(m, "decoder.mid_block.attentions.0.group_norm", in);
    for (int i = 0; i < 4; i++) {
        snprintf(name, NAME, "decoder.mid_block.attentions.0.%s", parts[i]);
        add_both(m, name, in, in, 1);
    }
    add_resnet(m, "decoder.mid_block.resnets.1", in, in);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 3; j++, in = channels[i]) {
            snprintf(name, NAME, "decoder.up_blocks.%d.resnets.%d", i, j);
            add_resnet(m, name, in, channels[i]);
        }
        snprintf(name, NAME, "decoder.up_blocks.%d.upsamplers.0.conv", i);
        if (i < 3)
            add_both(m, name, in, in, 3);
    }
    add_norm(m, "decoder.conv_norm_out", in);
    add_both(m, "decoder.conv_out", 3, in, 3);
}

static nl_status list_inception(nl_device *device, made *m)
{
    nl_inception *net;
    nl_status status = NL_NEW(device->context, "Inception", &net);
    if (status != NL_OK)
        return status;
    net->device = device;
    status = nl_inception_list(net);
    for (int i = 0; status == NL_OK && i < net->count; i++) {
        const nl_convolution *c = &net->convolutions[i];
        add(m, c->name, "weight", 4, c->shape, false);
        add(m, c->name, "bias", 1, c->shape, false);
    }
    add(m, "softmax", "weight", 2, (int64_t[]){1008, 2048}, false);
    nl_free(device->context, net);
    return status;
}

typedef struct bench {
    nl_device *device;
    nl_vae *vae; /* one of the two */
    nl_inception *net;
    int64_t batch, size;
    bool json;
    nl_precision precision; /* of inception */
} bench;

static nl_status load(bench *b, bool vae)
{
    nl_context *context = b->device->context;
    made *m = NULL;
    nl_status status;
    NL_TRY(begin(context, &m));
    if (vae)
        list_decoder(m);
    else
        NL_TRY(list_inception(b->device, m));
    qsort(m->entries, (size_t)m->checkpoint.count, sizeof(nl_entry), by_name);
    if (vae)
        NL_TRY(nl_vae_load(b->device, &m->checkpoint, NULL, 0.18215, 0, &b->vae));
    else
        NL_TRY(nl_inception_load(b->device, &m->checkpoint, &b->net));
    if (b->net)
        NL_TRY(nl_inception_set_precision(b->net, b->precision));
    NL_TRY(b->device->ops->sync(b->device));
cleanup:
    end(context, m);
    return status;
}

/* One batch; on a measuring device only its memory. times: NULL, or where milliseconds go. */
static nl_status run(const bench *b, nl_device *device, double *times)
{
    nl_status status;
    nl_tensor latents, rgb, bytes, features[NL_FEATURES] = {{0}};
    int64_t size = b->size, images[1024] = {0};
    int64_t mark = nl_arena_mark(device);
    if (b->vae) {
        NL_TRY(nl_arena_tensor(device, NL_F32, 4, (int64_t[]){b->batch, 4, size / 8, size / 8},
                               &latents));
        NL_TRY(nl_arena_tensor(device, NL_F32, 4, (int64_t[]){b->batch, size, size, 3}, &rgb));
        for (int64_t i = 0; i < b->batch; i++)
            images[i] = i;
        NL_TRY(NL_OP(device, normal, .y = latents, .images = images));
    } else {
        NL_TRY(nl_arena_tensor(device, NL_U8, 4, (int64_t[]){b->batch, size, size, 3}, &bytes));
        for (int f = 0; f < NL_FEATURES; f++)
            NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){b->batch, nl_feature_size(f)},
                                   &features[f]));
    }
    for (int i = -WARM_UP; i < REPEATS && (times || i == -WARM_UP); i++) {
        if (times)
            NL_TRY(device->ops->sync(device));
        double start = now_ms();
        if (b->vae)
            NL_TRY(nl_vae_decode(b->vae, device, &latents, &rgb));
        else
            NL_TRY(nl_inception_forward(b->net, device, &nl_preprocessings[0], &bytes, features));
        if (times)
            NL_TRY(device->ops->sync(device));
        if (i >= 0)
            times[i] = now_ms() - start;
    }
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status measure(bench b, const char *what)
{
    nl_device measuring;
    double times[REPEATS];
    nl_status status;
    b.vae = NULL;
    b.net = NULL;
    double start = now_ms();
    NL_TRY(load(&b, !strcmp(what, "vae")));
    nl_device_measuring(b.device, &measuring);
    NL_TRY(run(&b, &measuring, NULL));
    NL_TRY(nl_arena_reserve(b.device, measuring.arena_peak));
    double loaded = now_ms();
    NL_TRY(run(&b, b.device, NULL));
    NL_TRY(b.device->ops->sync(b.device));
    double first = now_ms() - loaded;
    NL_TRY(run(&b, b.device, times));
    qsort(times, REPEATS, sizeof(times[0]), by_value);
    double ms = times[REPEATS / 2];
    printf(b.json ? "{\"bench\": \"%s\", \"device\": \"%s\", \"dtype\": \"%s\", \"batch\": %lld, "
                    "\"size\": %lld, \"ms\": %.3f, \"per_second\": %.1f, \"first_ms\": %.1f, "
                    "\"load_ms\": %.1f, \"activations_mib\": %.1f}\n"
                  : "%s  %s %s  batch %lld size %lld  %9.3f ms  %10.1f /s  first %.1f ms  load "
                    "%.1f ms  %8.1f MiB\n",
           what, b.device->name,
           b.vae ? nl_dtype_name(b.device->feature_maps)
                 : nl_precision_names[nl_inception_precision(b.net)],
           (long long)b.batch, (long long)b.size, ms, 1e3 * (double)b.batch / ms, first,
           loaded - start, (double)measuring.arena_peak / 1048576);
    fflush(stdout);
cleanup:
    if (status != NL_OK)
        fprintf(stderr, "%s: %s\n", what, nl_last_error(b.device->context));
    nl_vae_destroy(b.vae);
    nl_inception_destroy(b.net);
    return status;
}

static bool read_precision(const char *name, nl_precision *precision)
{
    int i = 0;
    while (i < NL_PRECISIONS && strcmp(name, nl_precision_names[i]))
        i++;
    *precision = i;
    return i < NL_PRECISIONS;
}

int main(int argc, char **argv)
{
    nl_context_options options = {0};
    bench b = {.batch = 0, .size = 256};
    int at = 1, failures = 0;
    int64_t batch = 0;
    for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
        const char *value = at + 1 < argc ? argv[at + 1] : "";
        if (!strcmp(argv[at], "--json"))
            b.json = true;
        else if (!strcmp(argv[at], "--device"))
            options.device = value, at++;
        else if (!strcmp(argv[at], "--dtype"))
            options.dtype = value, at++;
        else if (!strcmp(argv[at], "--batch"))
            batch = atoll(value), at++;
        else if (!strcmp(argv[at], "--size"))
            b.size = atoll(value), at++;
        else if (!strcmp(argv[at], "--precision") && read_precision(value, &b.precision))
            at++;
        else
            return 2;
    }
    if (batch < 0 || batch > 1024 || b.size < 8 || b.size > 4096 || b.size % 8)
        return 2;
    nl_context *context;
    if (nl_context_create(&options, &context) != NL_OK) {
        fprintf(stderr, "no device\n");
        return NL_ERROR_DEVICE;
    }
    b.device = context->device;
    for (; at < argc; at++) {
        b.batch = batch ? batch : !strcmp(argv[at], "vae") ? 32 : 128;
        failures += measure(b, argv[at]) != NL_OK;
    }
    nl_context_destroy(context);
    return failures != 0;
}
