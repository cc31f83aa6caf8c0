/* SPDX-License-Identifier: MIT */
/* Weights of the FID network. */
#include "inception.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const nl_preprocessing nl_preprocessings[] = {
    {"openai", NL_RESIZE_LEGACY, 1 / 128.0f, -1,
     "bilinear as TensorFlow 1 (no half-pixel shift, no antialiasing), (x - 128) / 128"},
    {"pytorch-fid", NL_RESIZE_BILINEAR, 1 / 127.5f, -1,
     "bilinear with half-pixel centres, no antialiasing, x / 127.5 - 1"},
    {"clean-fid", NL_RESIZE_BICUBIC, 1 / 128.0f, -1, "antialiased bicubic as PIL, (x - 128) / 128"},
    {"torch-fidelity", NL_RESIZE_LEGACY, 1 / 128.0f, -1,
     "bilinear as TensorFlow 1 (no half-pixel shift, no antialiasing), (x - 128) / 128"},
    {0},
};

const char *const nl_precision_names[NL_PRECISIONS + 1] = {"fp32", "tf32", "fp16", NULL};

/* ---- Loading */

static const nl_entry *find(const nl_checkpoint *checkpoint, const char *name, const char *suffix)
{
    char text[NL_INCEPTION_NAME + 32];
    snprintf(text, sizeof(text), "%s.%s", name, suffix);
    return nl_checkpoint_find(checkpoint, text);
}

/* An entry with the expected shape; NULL and a problem otherwise. */
static const nl_entry *expect(const nl_checkpoint *checkpoint, const char *name, const char *suffix,
                              int ndim, const int64_t *shape, nl_problems *missing,
                              nl_problems *wrong)
{
    const nl_entry *entry = find(checkpoint, name, suffix);
    char found[64], expected[64];
    if (!entry) {
        nl_problem(missing, "%s.%s", name, suffix);
        return NULL;
    }
    if (entry->ndim == ndim && !memcmp(entry->shape, shape, (size_t)ndim * sizeof(*shape)))
        return entry;
    nl_problem(wrong, "%s is %s, expected %s", entry->name,
               nl_shape_text(entry->ndim, entry->shape, found, sizeof(found)),
               nl_shape_text(ndim, shape, expected, sizeof(expected)));
    return NULL;
}

static const char *const norm_suffixes[] = {"bn.weight", "bn.bias", "bn.running_mean",
                                            "bn.running_var"};

typedef struct loading {
    nl_inception *net;
    const nl_checkpoint *checkpoint;
    bool torch;
    nl_problems early, late, wrong; /* missing up to mixed_7, missing after it, of another shape */
    bool complete[NL_INCEPTION_CONVOLUTIONS];
} loading;

static void check_convolution(loading *l, int i)
{
    nl_convolution *c = &l->net->convolutions[i];
    nl_problems *missing = i < l->net->after_mixed_7 ? &l->early : &l->late;
    bool there = true;
    if (!l->torch) {
        there &= !!expect(l->checkpoint, c->name, "weight", 4, c->shape, missing, &l->wrong);
        there &= !!expect(l->checkpoint, c->name, "bias", 1, c->shape, missing, &l->wrong);
    } else {
        there &= !!expect(l->checkpoint, c->torch, "conv.weight", 4, c->shape, missing, &l->wrong);
        for (int k = 0; k < NL_COUNT(norm_suffixes); k++)
            there &= !!expect(l->checkpoint, c->torch, norm_suffixes[k], 1, c->shape, missing,
                              &l->wrong);
    }
    l->complete[i] = there;
}

/* Convolution and batch norm become one: w g / sqrt(v + eps), b - m g / sqrt(v + eps). */
static nl_status fold(const loading *l, const nl_convolution *c, float *weight, float *bias)
{
    enum { GAMMA, BETA, MEAN, VARIANCE };
    nl_context *context = l->net->device->context;
    int64_t outputs = c->shape[0], size = c->shape[1] * c->shape[2] * c->shape[3];
    nl_status status;
    float *norm = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "batch norms", 4 * outputs, &norm));
    for (int k = 0; k < 4; k++)
        NL_TRY(nl_entry_read(l->checkpoint, find(l->checkpoint, c->torch, norm_suffixes[k]),
                             norm + k * outputs));
    NL_TRY(nl_entry_read(l->checkpoint, find(l->checkpoint, c->torch, "conv.weight"), weight));
    for (int64_t o = 0; o < outputs; o++) {
        double variance = (double)norm[VARIANCE * outputs + o] + 1e-3;
        if (!(variance > 0))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: %s.bn.running_var is negative",
                           l->checkpoint->path, c->torch));
        double factor = norm[GAMMA * outputs + o] / sqrt(variance);
        for (int64_t i = 0; i < size; i++)
            weight[o * size + i] = (float)(factor * weight[o * size + i]);
        bias[o] = (float)(norm[BETA * outputs + o] - factor * norm[MEAN * outputs + o]);
    }
cleanup:
    nl_free(context, norm);
    return status;
}

static nl_status read_convolution(const loading *l, nl_convolution *c, float *buffer)
{
    nl_device *device = l->net->device;
    int64_t size = nl_tensor_count(&c->weight);
    float *bias = buffer + size;
    if (l->torch) {
        NL_CHECK(fold(l, c, buffer, bias));
    } else {
        NL_CHECK(nl_entry_read(l->checkpoint, find(l->checkpoint, c->name, "weight"), buffer));
        NL_CHECK(nl_entry_read(l->checkpoint, find(l->checkpoint, c->name, "bias"), bias));
    }
    NL_CHECK(device->ops->upload(device, c->weight.data, buffer, nl_tensor_bytes(&c->weight)));
    return device->ops->upload(device, c->bias.data, bias, nl_tensor_bytes(&c->bias));
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Gives every tensor of the list its place; with base NULL only the sizes are found. */
static int64_t place_weights(loading *l, const nl_entry *classifier, char *base, int64_t *largest)
{
    int64_t offset = 0;
    *largest = classifier ? nl_entry_count(classifier) : 0;
    for (int i = 0; i < l->net->count; i++) {
        nl_convolution *c = &l->net->convolutions[i];
        if (!l->complete[i])
            continue;
        c->weight = nl_tensor_of(base ? base + offset : NULL, NL_F32, 4, c->shape);
        offset += aligned(nl_tensor_bytes(&c->weight));
        c->bias = nl_tensor_of(base ? base + offset : NULL, NL_F32, 1, c->shape);
        offset += aligned(nl_tensor_bytes(&c->bias));
        *largest = NL_MAX(*largest, nl_tensor_count(&c->weight) + c->shape[0]);
    }
    if (classifier) {
        l->net->classifier =
            nl_tensor_of(base ? base + offset : NULL, NL_F32, 2, classifier->shape);
        offset += aligned(nl_tensor_bytes(&l->net->classifier));
    }
    return offset;
}

static nl_status upload_weights(loading *l, const nl_entry *classifier)
{
    nl_inception *net = l->net;
    nl_device *device = net->device;
    float *buffer = NULL;
    int64_t largest;
    nl_status status;
    int64_t bytes = place_weights(l, classifier, NULL, &largest);
    NL_TRY(device->ops->alloc(device, "the weights of Inception", bytes, &net->weights));
    net->weight_bytes = bytes;
    place_weights(l, classifier, net->weights, &largest);
    NL_TRY(NL_NEW_ARRAY(device->context, "a tensor of Inception", largest, &buffer));
    for (int i = 0; i < net->count; i++)
        if (l->complete[i])
            NL_TRY(read_convolution(l, &net->convolutions[i], buffer));
    if (classifier) {
        NL_TRY(nl_entry_read(l->checkpoint, classifier, buffer));
        NL_TRY(device->ops->upload(device, net->classifier.data, buffer,
                                   nl_tensor_bytes(&net->classifier)));
    }
cleanup:
    nl_free(device->context, buffer);
    return status;
}

/* What the file has and lacks. *classifier: NULL when there is none. */
static nl_status take_stock(loading *l, const nl_entry **classifier)
{
    nl_inception *net = l->net;
    const int64_t shape[] = {nl_feature_size(NL_FEATURE_LOGITS),
                             nl_feature_size(NL_FEATURE_POOL_3)};
    l->torch = nl_checkpoint_find(l->checkpoint, "Conv2d_1a_3x3.conv.weight");
    for (int i = 0; i < net->count; i++)
        check_convolution(l, i);
    *classifier =
        expect(l->checkpoint, l->torch ? "fc" : "softmax", "weight", 2, shape, &l->late, &l->wrong);
    if (l->wrong.count || l->early.count)
        return nl_fail(net->device->context, NL_ERROR_INPUT,
                       "%s: not the weights of the FID network (inception-2015-12-05):%s%s%s",
                       l->checkpoint->path, l->wrong.text, l->early.count ? "\n  missing:" : "",
                       l->early.text);
    net->has_pool_3 = true;
    for (int i = net->after_mixed_7; i < net->count; i++)
        net->has_pool_3 &= l->complete[i];
    net->missing = l->late;
    return NL_OK;
}

nl_status nl_inception_load(nl_device *device, const nl_checkpoint *checkpoint, nl_inception **out)
{
    nl_status status;
    nl_inception *net = NULL;
    loading *l = NULL;
    const nl_entry *classifier;
    *out = NULL;
    NL_TRY(NL_NEW(device->context, "Inception", &net));
    net->device = device;
    NL_TRY(NL_NEW(device->context, "Inception", &l));
    l->net = net;
    l->checkpoint = checkpoint;
    NL_TRY(nl_inception_list(net));
    NL_TRY(take_stock(l, &classifier));
    NL_TRY(upload_weights(l, classifier));
    *out = net;
    net = NULL;
cleanup:
    nl_free(device->context, l);
    nl_inception_destroy(net);
    return status;
}

void nl_inception_destroy(nl_inception *net)
{
    if (!net)
        return;
    if (net->weights)
        net->device->ops->free(net->device, net->weights, net->weight_bytes);
    nl_free(net->device->context, net);
}

/* A device without a queue is a CPU. */
nl_status nl_inception_set_precision(nl_inception *net, nl_precision precision)
{
    if (precision != NL_PRECISION_FP32 && !nl_device_queues(net->device))
        return nl_fail(net->device->context, NL_ERROR_USAGE,
                       "precision %s is for GPUs: %s computes in fp32",
                       nl_precision_names[precision], net->device->name);
    net->precision = precision;
    return NL_OK;
}

nl_precision nl_inception_precision(const nl_inception *net)
{
    return net->precision;
}

nl_context *nl_inception_context(const nl_inception *net)
{
    return net->device->context;
}

const char *nl_inception_missing(const nl_inception *net)
{
    return net->missing.text;
}
