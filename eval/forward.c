/* SPDX-License-Identifier: MIT */
/* The layers of the FID network, walked to list them and to run them (inception.h). */
#include "inception.h"

#include <stdio.h>
#include <string.h>

enum { SIDE = 299, CLASSES = 1008, SPATIAL_CHANNELS = 7 };

static const struct {
    const char *name;
    int64_t size;
} features_table[NL_FEATURES] = {
    {"pool_3", 2048}, {"spatial", 17 * 17 * SPATIAL_CHANNELS},
    {"mixed_7", 768}, {"pool_192", 192},
    {"pool_64", 64},  {"logits", CLASSES},
};

const char *nl_feature_name(nl_feature feature)
{
    return features_table[feature].name;
}

int64_t nl_feature_size(nl_feature feature)
{
    return features_table[feature].size;
}

bool nl_inception_has(const nl_inception *net, nl_feature feature)
{
    if (feature == NL_FEATURE_POOL_3)
        return net->has_pool_3;
    if (feature == NL_FEATURE_LOGITS)
        return net->has_pool_3 && net->classifier.data;
    return true;
}

typedef struct walk {
    nl_inception *list;      /* to be filled, or NULL when running */
    const nl_inception *net; /* when running */
    nl_device *device;
    nl_dtype type; /* of activations */
    int next;      /* convolution */
    /* Activations take turns in two slots. */
    nl_tensor slots[2];
    int slot;
    nl_tensor x; /* input of the layer or block */
    /* The block at work: its branches fill the channels of `out` one after the other. */
    const char *name, *torch;
    nl_tensor out;
    int64_t filled;
} walk;

typedef struct layer {
    const char *name, *torch; /* within the block */
    int64_t out;
    int height, width, stride; /* of the kernel */
    bool same;                 /* padding that keeps the size */
} layer;

static nl_tensor slot_tensor(const walk *w, int slot, int64_t side, int64_t channels)
{
    return nl_tensor_of(w->slots[slot].data, w->type, 4,
                        (int64_t[]){w->x.shape[0], side, side, channels});
}

/* The tensor that follows x, in the other slot. */
static nl_tensor next_slot(walk *w, int64_t side, int64_t channels)
{
    w->slot = 1 - w->slot;
    if (w->list)
        w->list->slot_size[w->slot] = NL_MAX(w->list->slot_size[w->slot], side * side * channels);
    return slot_tensor(w, w->slot, side, channels);
}

static int64_t side_after(const layer *l, int64_t side)
{
    return l->same ? side : (side - l->height) / l->stride + 1;
}

static void write_down(walk *w, const layer *l, int64_t channels)
{
    nl_convolution *c = &w->list->convolutions[w->next];
    const char *slash = *w->name ? "/" : "", *dot = *w->torch ? "." : "";
    snprintf(c->name, sizeof(c->name), "%s%s%s", w->name, slash, l->name);
    snprintf(c->torch, sizeof(c->torch), "%s%s%s", w->torch, dot, l->torch);
    memcpy(c->shape, (int64_t[]){l->out, channels, l->height, l->width}, sizeof(c->shape));
}

/* y = activation(conv(x)); x [B, H, W, C], y [B, H', W', O] perhaps a part of wider pixels */
static nl_status convolve_with(walk *w, const layer *l, const nl_tensor *x, const nl_tensor *y,
                               nl_activation activation)
{
    if (w->next >= NL_INCEPTION_CONVOLUTIONS)
        return nl_fail(w->device->context, NL_ERROR_INTERNAL, "Inception: too many convolutions");
    int number = w->next;
    if (w->list)
        write_down(w, l, x->shape[3]);
    w->next++;
    if (w->list)
        return NL_OK;
    const nl_convolution *c = &w->net->convolutions[number];
    int rows = l->same ? l->height / 2 : 0, columns = l->same ? l->width / 2 : 0;
    return NL_OP(w->device, conv2d, .x = *x, .weight = c->weight, .bias = c->bias, .y = *y,
                 .stride = l->stride, .pad_top = rows, .pad_bottom = rows, .pad_left = columns,
                 .pad_right = columns, .activation = activation,
                 .tf32 = w->net->precision == NL_PRECISION_TF32);
}

static nl_status convolve(walk *w, const layer *l, const nl_tensor *x, const nl_tensor *y)
{
    return convolve_with(w, l, x, y, NL_ACT_RELU);
}

/* ---- The stem: one layer after the other */

static nl_status stem_layer(walk *w, layer l)
{
    nl_tensor y = next_slot(w, side_after(&l, w->x.shape[1]), l.out);
    nl_status status = convolve(w, &l, &w->x, &y);
    w->x = y;
    return status;
}

static nl_status pool(walk *w, const nl_tensor *x, nl_pool kind, int kernel, int stride, int pad,
                      const nl_tensor *y)
{
    if (w->list)
        return NL_OK;
    return NL_OP(w->device, pool, .x = *x, .y = *y, .kind = kind, .kernel = kernel,
                 .stride = stride, .pad = pad);
}

static nl_status stem_pool(walk *w)
{
    nl_tensor y = next_slot(w, (w->x.shape[1] - 3) / 2 + 1, w->x.shape[3]);
    nl_status status = pool(w, &w->x, NL_POOL_MAX, 3, 2, 0, &y);
    w->x = y;
    return status;
}

/* ---- Blocks */

static void begin_block(walk *w, const char *name, const char *torch, int64_t side,
                        int64_t channels)
{
    w->name = name;
    w->torch = torch;
    w->out = next_slot(w, side, channels);
    w->filled = 0;
}

static void end_block(walk *w)
{
    w->x = w->out;
    w->name = w->torch = "";
}

/* The next `channels` of the block's output. */
static nl_tensor take_channels(walk *w, int64_t channels)
{
    nl_tensor part = w->out;
    part.shape[3] = channels;
    part.row_stride = w->out.row_stride;
    part.data = (char *)w->out.data + w->filled * nl_dtype_size(w->type);
    w->filled += channels;
    return part;
}

static nl_status temporary(const walk *w, int64_t side, int64_t channels, nl_tensor *tensor)
{
    return nl_arena_tensor(w->device, w->type, 4, (int64_t[]){w->x.shape[0], side, side, channels},
                           tensor);
}

/* Runs layers on *x, which becomes their output, in temporary memory. */
static nl_status chain(walk *w, nl_tensor *x, const layer *layers, int count)
{
    for (int i = 0; i < count; i++) {
        nl_tensor y;
        NL_CHECK(temporary(w, side_after(&layers[i], x->shape[1]), layers[i].out, &y));
        NL_CHECK(convolve(w, &layers[i], x, &y));
        *x = y;
    }
    return NL_OK;
}

/* Layers one after the other; the last ends in the block's output. */
static nl_status branch(walk *w, const layer *layers, int count)
{
    nl_status status;
    int64_t mark = nl_arena_mark(w->device);
    nl_tensor x = w->x;
    NL_TRY(chain(w, &x, layers, count - 1));
    nl_tensor y = take_channels(w, layers[count - 1].out);
    NL_TRY(convolve(w, &layers[count - 1], &x, &y));
cleanup:
    nl_arena_release(w->device, mark);
    return status;
}

/* The branch that forks at its end (last block): 1 x 3 and 3 x 1 of the same input. */
static nl_status forked_branch(walk *w, const layer *layers, int count, const layer fork[2])
{
    nl_status status;
    int64_t mark = nl_arena_mark(w->device);
    nl_tensor x = w->x;
    NL_TRY(chain(w, &x, layers, count));
    for (int i = 0; i < 2; i++) {
        nl_tensor y = take_channels(w, fork[i].out);
        NL_TRY(convolve(w, &fork[i], &x, &y));
    }
cleanup:
    nl_arena_release(w->device, mark);
    return status;
}

/* Averages of products are products of averages, which there are fewer of: then ReLU comes last. */
static nl_status average_branch(walk *w, int64_t out)
{
    const layer l = {"tower_2/conv", "branch_pool", out, 1, 1, 1, true};
    nl_status status;
    int64_t mark = nl_arena_mark(w->device);
    nl_tensor products;
    NL_TRY(temporary(w, w->x.shape[1], out, &products));
    NL_TRY(convolve_with(w, &l, &w->x, &products, NL_ACT_NONE));
    nl_tensor y = take_channels(w, out);
    if (!w->list)
        NL_TRY(NL_OP(w->device, pool, .x = products, .y = y, .kind = NL_POOL_AVERAGE, .kernel = 3,
                     .stride = 1, .pad = 1, .relu = true));
cleanup:
    nl_arena_release(w->device, mark);
    return status;
}

static nl_status maximum_branch(walk *w, int64_t out)
{
    const layer l = {"tower_2/conv", "branch_pool", out, 1, 1, 1, true};
    nl_status status;
    int64_t mark = nl_arena_mark(w->device);
    nl_tensor pooled;
    NL_TRY(temporary(w, w->x.shape[1], w->x.shape[3], &pooled));
    NL_TRY(pool(w, &w->x, NL_POOL_MAX, 3, 1, 1, &pooled));
    nl_tensor y = take_channels(w, out);
    NL_TRY(convolve(w, &l, &pooled, &y));
cleanup:
    nl_arena_release(w->device, mark);
    return status;
}

/* The max pool of stride 2 beside the convolutions. */
static nl_status reduce_branch(walk *w)
{
    nl_tensor y = take_channels(w, w->x.shape[3]);
    return pool(w, &w->x, NL_POOL_MAX, 3, 2, 0, &y);
}

#define BRANCH(...)                                                                                \
    branch(w, (const layer[]){__VA_ARGS__}, NL_COUNT(((const layer[]){__VA_ARGS__})))

/* 35 x 35: 1x1 | 5x5 | two 3x3 | pool */
static nl_status block_a(walk *w, const char *name, const char *torch, int64_t pooled)
{
    begin_block(w, name, torch, 35, 64 + 64 + 96 + pooled);
    NL_CHECK(BRANCH({"conv", "branch1x1", 64, 1, 1, 1, true}));
    NL_CHECK(BRANCH({"tower/conv", "branch5x5_1", 48, 1, 1, 1, true},
                    {"tower/conv_1", "branch5x5_2", 64, 5, 5, 1, true}));
    NL_CHECK(BRANCH({"tower_1/conv", "branch3x3dbl_1", 64, 1, 1, 1, true},
                    {"tower_1/conv_1", "branch3x3dbl_2", 96, 3, 3, 1, true},
                    {"tower_1/conv_2", "branch3x3dbl_3", 96, 3, 3, 1, true}));
    NL_CHECK(average_branch(w, pooled));
    end_block(w);
    return NL_OK;
}

/* 35 x 35 to 17 x 17 */
static nl_status block_b(walk *w)
{
    begin_block(w, "mixed_3", "Mixed_6a", 17, 384 + 96 + 288);
    NL_CHECK(BRANCH({"conv", "branch3x3", 384, 3, 3, 2, false}));
    NL_CHECK(BRANCH({"tower/conv", "branch3x3dbl_1", 64, 1, 1, 1, true},
                    {"tower/conv_1", "branch3x3dbl_2", 96, 3, 3, 1, true},
                    {"tower/conv_2", "branch3x3dbl_3", 96, 3, 3, 2, false}));
    NL_CHECK(reduce_branch(w));
    end_block(w);
    return NL_OK;
}

/* The first channels of the 1x1 branch that comes next, once more and by themselves. */
static nl_status take_spatial(walk *w, const nl_tensor *spatial)
{
    if (w->list || !spatial->data)
        return NL_OK;
    const nl_convolution *c = &w->net->convolutions[w->next];
    int64_t batch = w->x.shape[0];
    int64_t mark = nl_arena_mark(w->device);
    nl_tensor y = nl_tensor_reshape(spatial, 4, (int64_t[]){batch, 17, 17, SPATIAL_CHANNELS});
    nl_tensor narrow = y; /* in the type of the activations */
    nl_status status;
    if (w->type != y.dtype)
        NL_TRY(nl_arena_tensor(w->device, w->type, 4, y.shape, &narrow));
    NL_TRY(NL_OP(w->device, conv2d, .x = w->x,
                 .weight = nl_tensor_rows(&c->weight, 0, SPATIAL_CHANNELS),
                 .bias = nl_tensor_rows(&c->bias, 0, SPATIAL_CHANNELS), .y = narrow, .stride = 1,
                 .activation = NL_ACT_RELU, .tf32 = w->net->precision == NL_PRECISION_TF32));
    if (narrow.data != y.data) /* means of one pixel */
        NL_TRY(pool(w, &narrow, NL_POOL_AVERAGE, 1, 1, 0, &y));
cleanup:
    nl_arena_release(w->device, mark);
    return status;
}

/* 17 x 17: 1x1 | 7x7 by parts | twice that | pool */
static nl_status block_c(walk *w, const char *name, const char *torch, int64_t inner)
{
    begin_block(w, name, torch, 17, 4 * 192);
    NL_CHECK(BRANCH({"conv", "branch1x1", 192, 1, 1, 1, true}));
    NL_CHECK(BRANCH({"tower/conv", "branch7x7_1", inner, 1, 1, 1, true},
                    {"tower/conv_1", "branch7x7_2", inner, 1, 7, 1, true},
                    {"tower/conv_2", "branch7x7_3", 192, 7, 1, 1, true}));
    NL_CHECK(BRANCH({"tower_1/conv", "branch7x7dbl_1", inner, 1, 1, 1, true},
                    {"tower_1/conv_1", "branch7x7dbl_2", inner, 7, 1, 1, true},
                    {"tower_1/conv_2", "branch7x7dbl_3", inner, 1, 7, 1, true},
                    {"tower_1/conv_3", "branch7x7dbl_4", inner, 7, 1, 1, true},
                    {"tower_1/conv_4", "branch7x7dbl_5", 192, 1, 7, 1, true}));
    NL_CHECK(average_branch(w, 192));
    end_block(w);
    return NL_OK;
}

/* 17 x 17 to 8 x 8 */
static nl_status block_d(walk *w)
{
    begin_block(w, "mixed_8", "Mixed_7a", 8, 320 + 192 + 768);
    NL_CHECK(BRANCH({"tower/conv", "branch3x3_1", 192, 1, 1, 1, true},
                    {"tower/conv_1", "branch3x3_2", 320, 3, 3, 2, false}));
    NL_CHECK(BRANCH({"tower_1/conv", "branch7x7x3_1", 192, 1, 1, 1, true},
                    {"tower_1/conv_1", "branch7x7x3_2", 192, 1, 7, 1, true},
                    {"tower_1/conv_2", "branch7x7x3_3", 192, 7, 1, 1, true},
                    {"tower_1/conv_3", "branch7x7x3_4", 192, 3, 3, 2, false}));
    NL_CHECK(reduce_branch(w));
    end_block(w);
    return NL_OK;
}

/* 8 x 8: 1x1 | 3x3 by parts | 3x3, then by parts | pool */
static nl_status block_e(walk *w, const char *name, const char *torch,
                         nl_status (*pool_branch)(walk *, int64_t))
{
    static const layer first[] = {{"tower/conv", "branch3x3_1", 384, 1, 1, 1, true}};
    static const layer first_fork[] = {{"tower/mixed/conv", "branch3x3_2a", 384, 1, 3, 1, true},
                                       {"tower/mixed/conv_1", "branch3x3_2b", 384, 3, 1, 1, true}};
    static const layer second[] = {{"tower_1/conv", "branch3x3dbl_1", 448, 1, 1, 1, true},
                                   {"tower_1/conv_1", "branch3x3dbl_2", 384, 3, 3, 1, true}};
    static const layer second_fork[] = {
        {"tower_1/mixed/conv", "branch3x3dbl_3a", 384, 1, 3, 1, true},
        {"tower_1/mixed/conv_1", "branch3x3dbl_3b", 384, 3, 1, 1, true}};
    begin_block(w, name, torch, 8, 2048);
    NL_CHECK(BRANCH({"conv", "branch1x1", 320, 1, 1, 1, true}));
    NL_CHECK(forked_branch(w, first, NL_COUNT(first), first_fork));
    NL_CHECK(forked_branch(w, second, NL_COUNT(second), second_fork));
    NL_CHECK(pool_branch(w, 192));
    end_block(w);
    return NL_OK;
}

/* ---- The whole */

/* Mean of x over its pixels. x [B, side, side, C], feature [B, C] */
static nl_status take_mean(walk *w, const nl_tensor *feature)
{
    const int64_t *shape = w->x.shape;
    if (w->list || !feature->data)
        return NL_OK;
    nl_tensor y = nl_tensor_reshape(feature, 4, (int64_t[]){shape[0], 1, 1, shape[3]});
    return pool(w, &w->x, NL_POOL_AVERAGE, (int)shape[1], 1, 0, &y);
}

/* Whether something is asked for that comes after `feature` in the network. */
static bool goes_on(const walk *w, const nl_tensor *features, nl_feature feature)
{
    static const nl_feature order[] = {NL_FEATURE_POOL_64, NL_FEATURE_POOL_192, NL_FEATURE_SPATIAL,
                                       NL_FEATURE_MIXED_7, NL_FEATURE_POOL_3,   NL_FEATURE_LOGITS};
    bool after = false, asked = w->list;
    for (int i = 0; i < NL_COUNT(order); i++) {
        asked = asked || (after && features[order[i]].data);
        after = after || order[i] == feature;
    }
    return asked;
}

/* Up to mixed_7, or to the last of the features asked for. */
static nl_status walk_first(walk *w, const nl_tensor *features)
{
    NL_CHECK(stem_layer(w, (layer){"conv", "Conv2d_1a_3x3", 32, 3, 3, 2, false}));
    NL_CHECK(stem_layer(w, (layer){"conv_1", "Conv2d_2a_3x3", 32, 3, 3, 1, false}));
    NL_CHECK(stem_layer(w, (layer){"conv_2", "Conv2d_2b_3x3", 64, 3, 3, 1, true}));
    NL_CHECK(stem_pool(w));
    NL_CHECK(take_mean(w, &features[NL_FEATURE_POOL_64]));
    if (!goes_on(w, features, NL_FEATURE_POOL_64))
        return NL_OK;
    NL_CHECK(stem_layer(w, (layer){"conv_3", "Conv2d_3b_1x1", 80, 1, 1, 1, false}));
    NL_CHECK(stem_layer(w, (layer){"conv_4", "Conv2d_4a_3x3", 192, 3, 3, 1, false}));
    NL_CHECK(stem_pool(w));
    NL_CHECK(take_mean(w, &features[NL_FEATURE_POOL_192]));
    if (!goes_on(w, features, NL_FEATURE_POOL_192))
        return NL_OK;
    NL_CHECK(block_a(w, "mixed", "Mixed_5b", 32));
    NL_CHECK(block_a(w, "mixed_1", "Mixed_5c", 64));
    NL_CHECK(block_a(w, "mixed_2", "Mixed_5d", 64));
    NL_CHECK(block_b(w));
    NL_CHECK(block_c(w, "mixed_4", "Mixed_6b", 128));
    NL_CHECK(block_c(w, "mixed_5", "Mixed_6c", 160));
    NL_CHECK(take_spatial(w, &features[NL_FEATURE_SPATIAL]));
    if (!goes_on(w, features, NL_FEATURE_SPATIAL))
        return NL_OK;
    NL_CHECK(block_c(w, "mixed_6", "Mixed_6d", 160));
    NL_CHECK(block_c(w, "mixed_7", "Mixed_6e", 192));
    return take_mean(w, &features[NL_FEATURE_MIXED_7]);
}

static nl_status walk_last(walk *w)
{
    NL_CHECK(block_d(w));
    NL_CHECK(block_e(w, "mixed_9", "Mixed_7b", average_branch));
    return block_e(w, "mixed_10", "Mixed_7c", maximum_branch);
}

nl_status nl_inception_list(nl_inception *net)
{
    nl_device measuring;
    nl_device_measuring(net->device, &measuring);
    const nl_tensor none[NL_FEATURES] = {{0}};
    walk w = {
        .list = net, .device = &measuring, .type = NL_F32, .slot = 1, .name = "", .torch = ""};
    for (int i = 0; i < 2; i++)
        NL_CHECK(nl_arena_tensor(&measuring, NL_F32, 1, (int64_t[]){1}, &w.slots[i]));
    w.x.shape[0] = 1;
    w.x = next_slot(&w, SIDE, 3);
    NL_CHECK(walk_first(&w, none));
    net->after_mixed_7 = w.next;
    NL_CHECK(walk_last(&w));
    net->count = w.next;
    return NL_OK;
}

nl_status nl_inception_forward(const nl_inception *net, nl_device *device,
                               const nl_preprocessing *preprocessing, const nl_tensor *rgb,
                               const nl_tensor features[NL_FEATURES])
{
    walk w = {.net = net,
              .device = device,
              .type = net->precision == NL_PRECISION_FP16 ? NL_F16 : NL_F32,
              .slot = 1,
              .name = "",
              .torch = ""};
    int64_t mark = nl_arena_mark(device), batch = rgb->shape[0];
    bool logits = features[NL_FEATURE_LOGITS].data, pool_3 = features[NL_FEATURE_POOL_3].data;
    nl_status status;
    for (int f = 0; f < NL_FEATURES; f++)
        if (features[f].data && !nl_inception_has(net, f))
            return nl_fail(device->context, NL_ERROR_INTERNAL,
                           "Inception: %s is not in these weights", nl_feature_name(f));
    for (int i = 0; i < 2; i++)
        NL_TRY(
            nl_arena_tensor(device, w.type, 2, (int64_t[]){batch, net->slot_size[i]}, &w.slots[i]));
    w.x.shape[0] = batch;
    w.x = next_slot(&w, SIDE, 3);
    NL_TRY(NL_OP(device, resize, .x = *rgb, .y = w.x, .kind = preprocessing->resize,
                 .scale = preprocessing->scale, .shift = preprocessing->shift));
    NL_TRY(walk_first(&w, features));
    if (!goes_on(&w, features, NL_FEATURE_MIXED_7))
        goto cleanup;
    NL_TRY(walk_last(&w));
    nl_tensor mean = features[NL_FEATURE_POOL_3];
    if (!pool_3)
        NL_TRY(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){batch, w.x.shape[3]}, &mean));
    NL_TRY(take_mean(&w, &mean));
    if (logits)
        NL_TRY(NL_OP(device, linear, .x = mean, .weight = net->classifier,
                     .y = features[NL_FEATURE_LOGITS]));
cleanup:
    nl_arena_release(device, mark);
    return status;
}
