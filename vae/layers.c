/* SPDX-License-Identifier: MIT */
/* The layers of both autoencoders: their parameters and how they run. */
#include "layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

nl_status nl_vae_add_layer(nl_context *context, nl_vae_network *network, nl_layer_kind kind,
                           int64_t in, int64_t out, int kernel, nl_vae_layer **layer,
                           const char *name, ...)
{
    if (network->count == network->capacity) {
        int capacity = network->capacity ? 2 * network->capacity : 32;
        nl_vae_layer *grown;
        NL_CHECK(NL_NEW_ARRAY(context, "the autoencoder's layers", capacity, &grown));
        if (network->count)
            memcpy(grown, network->layers, (size_t)network->count * sizeof(nl_vae_layer));
        nl_free(context, network->layers);
        network->layers = grown;
        network->capacity = capacity;
    }
    nl_vae_layer *added = &network->layers[network->count++];
    *added = (nl_vae_layer){.kind = kind,
                            .in = in,
                            .out = out,
                            .kernel = kernel,
                            .stride = 1,
                            .pad_before = kernel / 2,
                            .pad_after = kernel / 2,
                            .bias = true};
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(added->name, sizeof(added->name), name, arguments);
    va_end(arguments);
    if (layer)
        *layer = added;
    return NL_OK;
}

/* Shape letters: O and I channels out of and into the layer, k its kernel, 3 and 1 a kernel of that
 * size. A row whose condition does not hold is not in the file. */
typedef enum row_condition { ALWAYS, WITH_BIAS, WHEN_CHANNELS_CHANGE } row_condition;

static const struct parameter_row {
    nl_layer_kind kind;
    const char *suffix;
    int index, part, parts;
    const char *shape;
    row_condition condition;
} parameter_rows[] = {
    {NL_LAYER_CONV, "weight", 0, 0, 1, "OIkk", ALWAYS},
    {NL_LAYER_CONV, "bias", 1, 0, 1, "O", WITH_BIAS},
    {NL_LAYER_NORM, "weight", 0, 0, 1, "O", ALWAYS},
    {NL_LAYER_NORM, "bias", 1, 0, 1, "O", ALWAYS},
    {NL_LAYER_BLOCK, "conv.0.weight", 0, 0, 1, "OI33", ALWAYS},
    {NL_LAYER_BLOCK, "conv.0.bias", 1, 0, 1, "O", ALWAYS},
    {NL_LAYER_BLOCK, "conv.2.weight", 2, 0, 1, "OO33", ALWAYS},
    {NL_LAYER_BLOCK, "conv.2.bias", 3, 0, 1, "O", ALWAYS},
    {NL_LAYER_BLOCK, "conv.4.weight", 4, 0, 1, "OO33", ALWAYS},
    {NL_LAYER_BLOCK, "conv.4.bias", 5, 0, 1, "O", ALWAYS},
    {NL_LAYER_RESNET, "norm1.weight", 0, 0, 1, "I", ALWAYS},
    {NL_LAYER_RESNET, "norm1.bias", 1, 0, 1, "I", ALWAYS},
    {NL_LAYER_RESNET, "conv1.weight", 2, 0, 1, "OI33", ALWAYS},
    {NL_LAYER_RESNET, "conv1.bias", 3, 0, 1, "O", ALWAYS},
    {NL_LAYER_RESNET, "norm2.weight", 4, 0, 1, "O", ALWAYS},
    {NL_LAYER_RESNET, "norm2.bias", 5, 0, 1, "O", ALWAYS},
    {NL_LAYER_RESNET, "conv2.weight", 6, 0, 1, "OO33", ALWAYS},
    {NL_LAYER_RESNET, "conv2.bias", 7, 0, 1, "O", ALWAYS},
    {NL_LAYER_RESNET, "conv_shortcut.weight", 8, 0, 1, "OI11", WHEN_CHANNELS_CHANGE},
    {NL_LAYER_RESNET, "conv_shortcut.bias", 9, 0, 1, "O", WHEN_CHANNELS_CHANGE},
    {NL_LAYER_ATTENTION, "group_norm.weight", 0, 0, 1, "I", ALWAYS},
    {NL_LAYER_ATTENTION, "group_norm.bias", 1, 0, 1, "I", ALWAYS},
    {NL_LAYER_ATTENTION, "to_q.weight", 2, 0, 3, "OI11", ALWAYS},
    {NL_LAYER_ATTENTION, "to_q.bias", 3, 0, 3, "O", ALWAYS},
    {NL_LAYER_ATTENTION, "to_k.weight", 2, 1, 3, "OI11", ALWAYS},
    {NL_LAYER_ATTENTION, "to_k.bias", 3, 1, 3, "O", ALWAYS},
    {NL_LAYER_ATTENTION, "to_v.weight", 2, 2, 3, "OI11", ALWAYS},
    {NL_LAYER_ATTENTION, "to_v.bias", 3, 2, 3, "O", ALWAYS},
    {NL_LAYER_ATTENTION, "to_out.0.weight", 4, 0, 1, "OI11", ALWAYS},
    {NL_LAYER_ATTENTION, "to_out.0.bias", 5, 0, 1, "O", ALWAYS},
};

static int64_t letter_size(const nl_vae_layer *layer, char letter)
{
    switch (letter) {
    case 'O':
        return layer->out;
    case 'I':
        return layer->in;
    case 'k':
        return layer->kernel;
    default:
        return letter - '0';
    }
}

int nl_vae_parameters(const nl_vae_layer *layer, nl_vae_parameter rows[NL_VAE_LAYER_ROWS])
{
    int count = 0;
    for (int i = 0; i < NL_COUNT(parameter_rows); i++) {
        const struct parameter_row *row = &parameter_rows[i];
        if (row->kind != layer->kind || (row->condition == WITH_BIAS && !layer->bias) ||
            (row->condition == WHEN_CHANNELS_CHANGE && layer->in == layer->out))
            continue;
        nl_vae_parameter *parameter = &rows[count++];
        *parameter = (nl_vae_parameter){.ndim = (int)strlen(row->shape),
                                        .index = row->index,
                                        .part = row->part,
                                        .parts = row->parts,
                                        .matrix = row->shape[1] != 0};
        snprintf(parameter->name, sizeof(parameter->name), "%s.%s", layer->name, row->suffix);
        for (int axis = 0; axis < 4; axis++)
            parameter->shape[axis] =
                axis < parameter->ndim ? letter_size(layer, row->shape[axis]) : 1;
    }
    return count;
}

/* Attention is over tokens: where feature maps are of another type they become tokens and are made of tokens. */
static bool tokens_apart(const nl_device *device)
{
    return device->feature_maps != device->activation;
}

/* The picture after the layer. */
static void layer_size(const nl_vae_layer *layer, int64_t *height, int64_t *width)
{
    int padding = layer->pad_before + layer->pad_after, factor = layer->doubled ? 2 : 1;
    if (layer->kind == NL_LAYER_CONV) {
        *height = (factor * *height + padding - layer->kernel) / layer->stride + 1;
        *width = (factor * *width + padding - layer->kernel) / layer->stride + 1;
    }
}

int64_t nl_vae_slot_bytes(const nl_vae_network *network, const nl_device *device, int64_t height,
                          int64_t width)
{
    int64_t largest = 0, size = nl_dtype_size(device->feature_maps);
    for (int i = 0; i < network->count; i++) {
        const nl_vae_layer *layer = &network->layers[i];
        int64_t before = height * width * NL_MAX(layer->in, layer->out) * (layer->doubled ? 4 : 1);
        layer_size(layer, &height, &width);
        int64_t after = height * width * layer->out * size;
        if (layer->kind == NL_LAYER_ATTENTION)
            after = height * width * layer->out * nl_dtype_size(device->activation) *
                    (tokens_apart(device) ? 4 : 3);
        largest = NL_MAX(largest, NL_MAX(before * size, after));
    }
    return largest;
}

static nl_tensor slot_tensor(const nl_vae_run *run, int slot, int64_t channels)
{
    return nl_tensor_of(run->slots[slot], run->device->feature_maps, 4,
                        (int64_t[]){run->batch, run->height, run->width, channels});
}

nl_tensor nl_vae_run_tensor(const nl_vae_run *run, int ahead, int64_t channels)
{
    return slot_tensor(run, (run->current + ahead) % 3, channels);
}

void nl_vae_leave_sums(nl_vae_network *network)
{
    for (int i = 0; i + 1 < network->count; i++) {
        nl_vae_layer *layer = &network->layers[i];
        nl_layer_kind next = network->layers[i + 1].kind;
        bool open = (layer->kind == NL_LAYER_CONV && layer->bias) ||
                    layer->kind == NL_LAYER_RESNET || layer->kind == NL_LAYER_ATTENTION;
        layer->leaves_sum =
            open && layer->activation == NL_ACT_NONE &&
            (next == NL_LAYER_RESNET || next == NL_LAYER_ATTENTION || next == NL_LAYER_NORM);
    }
}

/* Moves x to the slot `ahead` steps on. */
static void advance(nl_vae_run *run, int ahead, int64_t channels)
{
    run->current = (run->current + ahead) % 3;
    run->channels = channels;
}

nl_status nl_vae_affine(nl_device *device, const nl_tensor *x, double scale, double shift,
                        const nl_tensor *y)
{
    int64_t columns = x->shape[x->ndim - 1], rows = nl_tensor_count(x) / columns;
    return NL_OP(device, layout, .x = nl_tensor_reshape(x, 4, (int64_t[]){1, 1, rows, columns}),
                 .y = nl_tensor_reshape(y, 4, (int64_t[]){1, rows, columns, 1}), .to_nhwc = true,
                 .scale = (float)scale, .shift = (float)shift);
}

/* A 3 x 3 or 1 x 1 convolution that keeps the size. */
static nl_status same_conv(nl_device *device, const nl_tensor *x, const nl_tensor *weight,
                           const nl_tensor *bias, const nl_tensor *residual,
                           nl_activation activation, const nl_tensor *y)
{
    int pad = (int)weight->shape[2] / 2;
    return NL_OP(device, conv2d, .x = *x, .weight = *weight, .bias = *bias,
                 .residual = residual ? *residual : (nl_tensor){0}, .y = *y, .stride = 1,
                 .pad_top = pad, .pad_left = pad, .pad_bottom = pad, .pad_right = pad,
                 .activation = activation);
}

/* y = norm(x). What the layer before left open is added on the way, and x becomes the sum. y may lie in the branch's
 * slot. */
static nl_status norm(nl_vae_run *run, const nl_vae_layer *layer, bool silu, const nl_tensor *y)
{
    int64_t channels = layer->in;
    const nl_tensor *parameters = layer->parameters;
    nl_tensor x = nl_vae_run_tensor(run, 0, channels), branch = {0}, addend = run->addend;
    bool open = run->branch >= 0 || addend.data;
    if (run->branch >= 0)
        branch = slot_tensor(run, run->branch, channels);
    run->branch = -1;
    run->addend = (nl_tensor){0};
    return NL_OP(run->device, groupnorm, .x = x, .branch = branch, .addend = addend,
                 .sum = open ? x : (nl_tensor){0}, .weight = parameters[0], .bias = parameters[1],
                 .y = *y, .groups = layer->groups, .eps = 1e-6f, .silu = silu);
}

static nl_status run_conv(nl_vae_run *run, const nl_vae_layer *layer)
{
    nl_tensor x = nl_vae_run_tensor(run, 0, layer->in), doubled = {0};
    if (layer->doubled)
        doubled = nl_tensor_of(run->slots[(run->current + 2) % 3], x.dtype, 4,
                               (int64_t[]){run->batch, 2 * run->height, 2 * run->width, layer->in});
    layer_size(layer, &run->height, &run->width);
    nl_tensor y = nl_vae_run_tensor(run, 1, layer->out);
    advance(run, 1, layer->out);
    nl_tensor bias = layer->parameters[1];
    if (layer->leaves_sum) {
        run->addend = bias;
        bias = (nl_tensor){0};
    }
    return NL_OP(run->device, conv2d, .x = x, .doubled = doubled, .weight = layer->parameters[0],
                 .bias = bias, .y = y, .stride = layer->stride, .pad_top = layer->pad_before,
                 .pad_left = layer->pad_before, .pad_bottom = layer->pad_after,
                 .pad_right = layer->pad_after, .activation = layer->activation);
}

static nl_status run_block(nl_vae_run *run, const nl_vae_layer *layer)
{
    const nl_tensor *p = layer->parameters;
    nl_tensor x = nl_vae_run_tensor(run, 0, layer->in);
    nl_tensor a = nl_vae_run_tensor(run, 1, layer->out);
    nl_tensor b = nl_vae_run_tensor(run, 2, layer->out);
    NL_CHECK(same_conv(run->device, &x, &p[0], &p[1], NULL, NL_ACT_RELU, &a));
    NL_CHECK(same_conv(run->device, &a, &p[2], &p[3], NULL, NL_ACT_RELU, &b));
    NL_CHECK(same_conv(run->device, &b, &p[4], &p[5], &x, NL_ACT_RELU, &a));
    advance(run, 1, layer->out);
    return NL_OK;
}

/* y = x + branch + bias in slot `to`, or left open: then x is in the current slot. */
static nl_status end_sum(nl_vae_run *run, const nl_vae_layer *layer, const nl_tensor *from,
                         const nl_tensor *weight, const nl_tensor *bias, int to)
{
    nl_tensor x = nl_vae_run_tensor(run, 0, layer->out);
    nl_tensor y = nl_vae_run_tensor(run, to, layer->out), none = {0};
    bool open = layer->leaves_sum;
    run->channels = layer->out;
    if (open) {
        run->branch = (run->current + to) % 3;
        run->addend = *bias;
    }
    nl_status status = same_conv(run->device, from, weight, open ? &none : bias, open ? NULL : &x,
                                 NL_ACT_NONE, &y);
    if (!open)
        advance(run, to, layer->out);
    return status;
}

/* The bias of the first convolution is added by the norm that follows. */
static nl_status run_resnet(nl_vae_run *run, const nl_vae_layer *layer)
{
    const nl_tensor *p = layer->parameters, none = {0};
    /* a branch may lie in either of the other slots, and the norm's output there */
    int first = run->branch < 0 || run->branch == (run->current + 1) % 3 ? 1 : 2;
    int second = 3 - first;
    nl_tensor normed = nl_vae_run_tensor(run, first, layer->in);
    nl_tensor h = nl_vae_run_tensor(run, second, layer->out);
    NL_CHECK(norm(run, layer, true, &normed));
    NL_CHECK(same_conv(run->device, &normed, &p[2], &none, NULL, NL_ACT_NONE, &h));
    NL_CHECK(NL_OP(run->device, groupnorm, .x = h, .addend = p[3], .weight = p[4], .bias = p[5],
                   .y = h, .groups = layer->groups, .eps = 1e-6f, .silu = true));
    if (layer->in != layer->out) { /* the shortcut takes the place of normed, and x is free */
        nl_tensor x = nl_vae_run_tensor(run, 0, layer->in);
        nl_tensor shortcut = nl_vae_run_tensor(run, first, layer->out);
        NL_CHECK(same_conv(run->device, &x, &p[8], &p[9], NULL, NL_ACT_NONE, &shortcut));
        advance(run, first, layer->out);
        first = 3 - first; /* where x was, seen from the shortcut */
    }
    return end_sum(run, layer, &h, &p[6], &p[7], first);
}

static nl_status run_attention(nl_vae_run *run, const nl_vae_layer *layer)
{
    const nl_tensor *p = layer->parameters;
    int64_t channels = layer->in, tokens = run->height * run->width, rows = run->batch * tokens;
    int first = run->branch < 0 || run->branch == (run->current + 1) % 3 ? 1 : 2;
    nl_device *device = run->device;
    nl_tensor a = nl_vae_run_tensor(run, first, channels), a_rows, qkv, weight;
    char *other = run->slots[(run->current + 3 - first) % 3];
    bool apart = tokens_apart(device);
    a_rows =
        nl_tensor_of(apart ? other : a.data, device->activation, 2, (int64_t[]){rows, channels});
    qkv = nl_tensor_of(apart ? other + nl_tensor_bytes(&a_rows) : other, device->activation, 2,
                       (int64_t[]){rows, 3 * channels});
    weight = nl_tensor_reshape(&p[2], 2, (int64_t[]){3 * channels, channels});
    NL_CHECK(norm(run, layer, false, &a));
    if (apart)
        NL_CHECK(nl_vae_affine(device, &a, 1, 0, &a_rows));
    NL_CHECK(NL_OP(device, linear, .x = a_rows, .weight = weight, .bias = p[3], .y = qkv));
    NL_CHECK(NL_OP(device, softmax_attention, .qkv = qkv, .out = a_rows, .batch = run->batch,
                   .tokens = tokens, .heads = 1, .head_size = channels,
                   .scale = (float)(1 / sqrt((double)channels))));
    if (apart)
        NL_CHECK(nl_vae_affine(device, &a_rows, 1, 0, &a));
    return end_sum(run, layer, &a, &p[4], &p[5], 3 - first);
}

static nl_status run_norm(nl_vae_run *run, const nl_vae_layer *layer)
{
    int to = run->branch == (run->current + 2) % 3 ? 2 : 1;
    nl_tensor y = nl_vae_run_tensor(run, to, layer->out);
    nl_status status = norm(run, layer, true, &y);
    advance(run, to, layer->out);
    return status;
}

nl_status nl_vae_run_layer(nl_vae_run *run, const nl_vae_layer *layer)
{
    nl_tensor x = nl_vae_run_tensor(run, 0, layer->in);
    switch (layer->kind) {
    case NL_LAYER_CONV:
        return run_conv(run, layer);
    case NL_LAYER_ACTIVATE:
        return NL_OP(run->device, activate, .x = x, .y = x, .activation = layer->activation);
    case NL_LAYER_NORM:
        return run_norm(run, layer);
    case NL_LAYER_BLOCK:
        return run_block(run, layer);
    case NL_LAYER_RESNET:
        return run_resnet(run, layer);
    case NL_LAYER_ATTENTION:
        return run_attention(run, layer);
    default:
        return nl_fail(run->device->context, NL_ERROR_INTERNAL, "autoencoder layer of kind %d",
                       (int)layer->kind);
    }
}
