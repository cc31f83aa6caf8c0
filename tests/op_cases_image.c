/* SPDX-License-Identifier: MIT */
/* Cases of the operations of autoencoders and Inception. */
#include "op_cases.h"

static const struct conv2d_case {
    const char *text;
    int64_t batch, height, width, channels, out_channels, kernel_height, kernel_width;
    int stride, top, left, bottom, right; /* padding */
    bool no_bias, residual;
    nl_activation activation;
    nl_dtype weight;
    int64_t gap; /* between the pixels of y */
    bool doubled, tf32;
} conv2d_cases[] = {
    /* A lone number has no relative accuracy where product and bias cancel. */
    CASE(.batch = 1, .height = 1, .width = 1, .channels = 1, .out_channels = 1, .kernel_height = 1,
         .kernel_width = 1, .stride = 1, .no_bias = true),
    CASE(.batch = 3, .height = 8, .width = 8, .channels = 4, .out_channels = 4, .kernel_height = 1,
         .kernel_width = 1, .stride = 1),
    CASE(.batch = 2, .height = 9, .width = 7, .channels = 3, .out_channels = 64, .kernel_height = 3,
         .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1, .right = 1,
         .activation = NL_ACT_RELU),
    CASE(.batch = 2, .height = 12, .width = 20, .channels = 64, .out_channels = 64,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true, .activation = NL_ACT_RELU),
    CASE(.batch = 2, .height = 8, .width = 12, .channels = 16, .out_channels = 24,
         .kernel_height = 3, .kernel_width = 3, .stride = 2, .bottom = 1, .right = 1),
    CASE(.batch = 1, .height = 9, .width = 8, .channels = 5, .out_channels = 7, .kernel_height = 3,
         .kernel_width = 3, .stride = 2, .top = 1, .left = 1, .bottom = 1, .right = 1,
         .no_bias = true),
    CASE(.batch = 2, .height = 11, .width = 11, .channels = 3, .out_channels = 32,
         .kernel_height = 3, .kernel_width = 3, .stride = 2, .activation = NL_ACT_RELU),
    CASE(.batch = 2, .height = 6, .width = 9, .channels = 12, .out_channels = 9, .kernel_height = 5,
         .kernel_width = 5, .stride = 1, .top = 2, .left = 2, .bottom = 2, .right = 2,
         .activation = NL_ACT_SILU),
    CASE(.batch = 1, .height = 9, .width = 8, .channels = 32, .out_channels = 20,
         .kernel_height = 1, .kernel_width = 7, .stride = 1, .left = 3, .right = 3),
    CASE(.batch = 1, .height = 8, .width = 9, .channels = 20, .out_channels = 32,
         .kernel_height = 7, .kernel_width = 1, .stride = 1, .top = 3, .bottom = 3,
         .residual = true),
    CASE(.batch = 1, .height = 5, .width = 6, .channels = 3, .out_channels = 4, .kernel_height = 3,
         .kernel_width = 2, .stride = 1, .top = 2, .left = 1),
    CASE(.batch = 2, .height = 8, .width = 8, .channels = 32, .out_channels = 3, .kernel_height = 3,
         .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1, .right = 1,
         .no_bias = true, .residual = true, .activation = NL_ACT_SILU, .weight = NL_BF16),
    CASE(.batch = 2, .height = 7, .width = 9, .channels = 16, .out_channels = 24,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .activation = NL_ACT_RELU, .gap = 40),
    CASE(.batch = 2, .height = 5, .width = 6, .channels = 9, .out_channels = 7, .kernel_height = 1,
         .kernel_width = 1, .stride = 1, .no_bias = true, .gap = 3),
    CASE(.batch = 2, .height = 7, .width = 5, .channels = 32, .out_channels = 64,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true),
    CASE(.batch = 2, .height = 5, .width = 8, .channels = 64, .out_channels = 32,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true, .activation = NL_ACT_RELU, .tf32 = true),
    /* Large enough for fewer multiplications (kernels/cpu/winograd.c), whole tiles and not. */
    CASE(.batch = 2, .height = 24, .width = 40, .channels = 64, .out_channels = 64,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true, .activation = NL_ACT_RELU),
    CASE(.batch = 3, .height = 23, .width = 25, .channels = 32, .out_channels = 16,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .no_bias = true, .gap = 24),
    CASE(.batch = 2, .height = 13, .width = 11, .channels = 16, .out_channels = 48,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true, .activation = NL_ACT_RELU),
    CASE(.batch = 1, .height = 24, .width = 21, .channels = 128, .out_channels = 272,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .activation = NL_ACT_RELU),
    CASE(.batch = 1, .height = 6, .width = 75, .channels = 16, .out_channels = 16,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true, .weight = NL_BF16),
    CASE(.batch = 2, .height = 4, .width = 3, .channels = 5, .out_channels = 9, .kernel_height = 3,
         .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1, .right = 1,
         .no_bias = true, .doubled = true),
    CASE(.batch = 1, .height = 4, .width = 6, .channels = 16, .out_channels = 16,
         .kernel_height = 5, .kernel_width = 5, .stride = 2, .top = 2, .left = 2, .bottom = 2,
         .right = 2, .doubled = true, .residual = true),
    CASE(.batch = 2, .height = 13, .width = 13, .channels = 3, .out_channels = 32,
         .kernel_height = 3, .kernel_width = 3, .stride = 2, .activation = NL_ACT_RELU,
         .tf32 = true),
    CASE(.batch = 2, .height = 9, .width = 9, .channels = 48, .out_channels = 64,
         .kernel_height = 5, .kernel_width = 5, .stride = 1, .top = 2, .left = 2, .bottom = 2,
         .right = 2, .activation = NL_ACT_RELU, .tf32 = true, .gap = 192),
    CASE(.batch = 2, .height = 6, .width = 6, .channels = 64, .out_channels = 64,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true, .activation = NL_ACT_SILU, .tf32 = true),
    /* A picture by itself: parts of the channels, edges of tiles, few outputs, several tiles a block. */
    CASE(.batch = 1, .height = 8, .width = 8, .channels = 256, .out_channels = 128,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .no_bias = true),
    CASE(.batch = 1, .height = 17, .width = 9, .channels = 72, .out_channels = 136,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true, .activation = NL_ACT_SILU),
    CASE(.batch = 1, .height = 33, .width = 20, .channels = 128, .out_channels = 3,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1),
    CASE(.batch = 1, .height = 10, .width = 25, .channels = 64, .out_channels = 48,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .activation = NL_ACT_RELU, .gap = 16),
    CASE(.batch = 1, .height = 120, .width = 130, .channels = 16, .out_channels = 136,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .residual = true),
    CASE(.batch = 1, .height = 264, .width = 136, .channels = 16, .out_channels = 16,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .activation = NL_ACT_RELU),
    CASE(.batch = 1, .height = 8, .width = 8, .channels = 192, .out_channels = 128,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true, .no_bias = true),
    CASE(.batch = 1, .height = 9, .width = 13, .channels = 136, .out_channels = 40,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true, .residual = true),
    CASE(.batch = 1, .height = 65, .width = 130, .channels = 16, .out_channels = 24,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .doubled = true, .activation = NL_ACT_RELU),
    /* Strict fp32: tiles of 64, 96 and 32 outputs, a deep sum, too few channels for tiles. */
    CASE(.batch = 3, .height = 17, .width = 17, .channels = 32, .out_channels = 64,
         .kernel_height = 1, .kernel_width = 7, .stride = 1, .left = 3, .right = 3,
         .activation = NL_ACT_RELU, .gap = 80),
    CASE(.batch = 2, .height = 11, .width = 13, .channels = 16, .out_channels = 96,
         .kernel_height = 3, .kernel_width = 3, .stride = 2, .activation = NL_ACT_RELU),
    CASE(.batch = 5, .height = 9, .width = 6, .channels = 48, .out_channels = 160,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .right = 1, .gap = 32),
    CASE(.batch = 2, .height = 9, .width = 9, .channels = 192, .out_channels = 64,
         .kernel_height = 3, .kernel_width = 3, .stride = 1, .top = 1, .left = 1, .bottom = 1,
         .right = 1, .activation = NL_ACT_RELU, .gap = 40),
    CASE(.batch = 2, .height = 21, .width = 19, .channels = 3, .out_channels = 32,
         .kernel_height = 3, .kernel_width = 3, .stride = 2, .activation = NL_ACT_RELU),
};

static nl_status run_conv2d(op_run *run, const void *op_case)
{
    const struct conv2d_case *c = op_case;
    int64_t factor = c->doubled ? 2 : 1;
    int64_t height = (factor * c->height + c->top + c->bottom - c->kernel_height) / c->stride + 1;
    int64_t width = (factor * c->width + c->left + c->right - c->kernel_width) / c->stride + 1;
    int64_t fan_in = c->channels * c->kernel_height * c->kernel_width;
    run->batch = c->batch;
    run->batch_tolerance = c->tf32 ? 1e-3 : OP_MATRIX_PRODUCT;
    if (c->weight == NL_BF16)
        run->tolerance = 1e-2;
    else if (c->tf32)
        run->tolerance = 1e-3;
    nl_conv2d_args args = {.stride = c->stride,
                           .pad_top = c->top,
                           .pad_left = c->left,
                           .pad_bottom = c->bottom,
                           .pad_right = c->right,
                           .activation = c->activation,
                           .tf32 = c->tf32};
    args.x =
        OP_TENSOR(run, .feature_map = true, .shape = {c->batch, c->height, c->width, c->channels});
    if (c->doubled)
        args.doubled = OP_TENSOR(run, .feature_map = true, .room = true,
                                 .shape = {c->batch, 2 * c->height, 2 * c->width, c->channels});
    args.weight =
        OP_TENSOR(run, .shape = {c->out_channels, c->channels, c->kernel_height, c->kernel_width},
                  .shared = true, .dtype = c->weight, .scale = 1 / sqrt((double)fan_in));
    if (!c->no_bias)
        args.bias = OP_TENSOR(run, .shape = {c->out_channels}, .shared = true);
    if (c->residual)
        args.residual = OP_TENSOR(run, .feature_map = true,
                                  .shape = {c->batch, height, width, c->out_channels});
    args.y =
        OP_TENSOR(run, .feature_map = true, .shape = {c->batch, height, width, c->out_channels},
                  .gap = c->gap, .output = "y");
    return nl_op_conv2d(run->device, &args);
}

static const struct groupnorm_case {
    const char *text;
    int64_t batch, height, width, channels, groups;
    bool silu, in_place;
    bool addend, branch, kept, kept_in_x;
} groupnorm_cases[] = {
    CASE(.batch = 1, .height = 1, .width = 1, .channels = 4, .groups = 2),
    CASE(.batch = 3, .height = 8, .width = 8, .channels = 64, .groups = 32, .silu = true),
    CASE(.batch = 2, .height = 7, .width = 5, .channels = 96, .groups = 32, .in_place = true),
    CASE(.batch = 2, .height = 16, .width = 16, .channels = 128, .groups = 32, .silu = true,
         .in_place = true),
    CASE(.batch = 2, .height = 3, .width = 3, .channels = 15, .groups = 3),
    CASE(.batch = 1, .height = 5, .width = 4, .channels = 7, .groups = 1, .silu = true),
    CASE(.batch = 1, .height = 5, .width = 4, .channels = 6, .groups = 6),
    CASE(.batch = 2, .height = 20, .width = 16, .channels = 64, .groups = 16, .addend = true,
         .silu = true),
    CASE(.batch = 2, .height = 5, .width = 7, .channels = 256, .groups = 32, .addend = true,
         .in_place = true),
    CASE(.batch = 3, .height = 18, .width = 16, .channels = 128, .groups = 32, .addend = true,
         .branch = true, .kept = true, .silu = true),
    CASE(.batch = 2, .height = 6, .width = 6, .channels = 64, .groups = 8, .branch = true,
         .kept_in_x = true),
    CASE(.batch = 2, .height = 6, .width = 6, .channels = 64, .groups = 8, .addend = true,
         .kept_in_x = true, .silu = true),
    CASE(.batch = 2, .height = 3, .width = 4, .channels = 15, .groups = 3, .addend = true,
         .branch = true, .kept = true),
};

static nl_status run_groupnorm(op_run *run, const void *op_case)
{
    const struct groupnorm_case *c = op_case;
    int64_t count = c->batch * c->height * c->width * c->channels;
    run->batch = c->batch;
    float *x = op_normal(run, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t group = i % c->channels / (c->channels / c->groups);
        if (group == 0)
            x[i] += 10; /* a mean far from 0 */
        else if (group == c->groups - 1)
            x[i] *= 1e-3f; /* a variance as small as eps */
    }
    op_spec shape = {
        .feature_map = true, .shape = {c->batch, c->height, c->width, c->channels}, .values = x};
    nl_groupnorm_args args = {.groups = c->groups, .eps = 1e-6f, .silu = c->silu};
    args.y =
        OP_TENSOR(run, .feature_map = true, .shape = {c->batch, c->height, c->width, c->channels},
                  .output = "y", .in_place = c->in_place, .values = c->in_place ? x : NULL);
    if (c->kept_in_x)
        args.sum = OP_TENSOR(run, .feature_map = true, .output = "sum", .in_place = true,
                             .shape = {c->batch, c->height, c->width, c->channels}, .values = x);
    else if (c->kept)
        args.sum = OP_TENSOR(run, .feature_map = true, .output = "sum",
                             .shape = {c->batch, c->height, c->width, c->channels});
    args.x = c->in_place ? args.y : c->kept_in_x ? args.sum : op_tensor(run, &shape);
    if (c->branch)
        args.branch = OP_TENSOR(run, .feature_map = true,
                                .shape = {c->batch, c->height, c->width, c->channels});
    if (c->addend)
        args.addend = OP_TENSOR(run, .shape = {c->channels}, .shared = true);
    args.weight = OP_TENSOR(run, .shape = {c->channels}, .shared = true);
    args.bias = OP_TENSOR(run, .shape = {c->channels}, .shared = true);
    return nl_op_groupnorm(run->device, &args);
}

static const struct upsample2x_case {
    const char *text;
    int64_t batch, height, width, channels;
} upsample2x_cases[] = {
    CASE(.batch = 1, .height = 1, .width = 1, .channels = 1),
    CASE(.batch = 3, .height = 4, .width = 4, .channels = 64),
    CASE(.batch = 2, .height = 5, .width = 3, .channels = 7),
};

static nl_status run_upsample2x(op_run *run, const void *op_case)
{
    const struct upsample2x_case *c = op_case;
    run->batch = c->batch;
    run->tolerance = 0;
    nl_upsample2x_args args = {0};
    args.x =
        OP_TENSOR(run, .feature_map = true, .shape = {c->batch, c->height, c->width, c->channels});
    args.y =
        OP_TENSOR(run, .feature_map = true,
                  .shape = {c->batch, 2 * c->height, 2 * c->width, c->channels}, .output = "y");
    return nl_op_upsample2x(run->device, &args);
}

static const struct pool_case {
    const char *text;
    int64_t batch, height, width, channels;
    nl_pool kind;
    int kernel, stride, pad;
    int64_t gap; /* between the pixels of y */
    bool relu;
} pool_cases[] = {
    CASE(.batch = 1, .height = 3, .width = 3, .channels = 1, .kind = NL_POOL_MAX, .kernel = 3,
         .stride = 2),
    CASE(.batch = 2, .height = 11, .width = 8, .channels = 64, .kind = NL_POOL_MAX, .kernel = 3,
         .stride = 2),
    CASE(.batch = 2, .height = 7, .width = 5, .channels = 9, .kind = NL_POOL_MAX, .kernel = 3,
         .stride = 1, .pad = 1),
    CASE(.batch = 2, .height = 7, .width = 5, .channels = 9, .kind = NL_POOL_AVERAGE, .kernel = 3,
         .stride = 1, .pad = 1),
    CASE(.batch = 2, .height = 8, .width = 8, .channels = 64, .kind = NL_POOL_AVERAGE, .kernel = 8,
         .stride = 8),
    CASE(.batch = 1, .height = 6, .width = 7, .channels = 3, .kind = NL_POOL_AVERAGE, .kernel = 2,
         .stride = 2, .pad = 1),
    CASE(.batch = 2, .height = 7, .width = 9, .channels = 6, .kind = NL_POOL_MAX, .kernel = 3,
         .stride = 2, .gap = 10),
    CASE(.batch = 2, .height = 37, .width = 37, .channels = 70, .kind = NL_POOL_AVERAGE,
         .kernel = 37, .stride = 1),
    CASE(.batch = 2, .height = 9, .width = 11, .channels = 32, .kind = NL_POOL_AVERAGE, .kernel = 3,
         .stride = 1, .pad = 1, .gap = 24, .relu = true),
    CASE(.batch = 3, .height = 5, .width = 3, .channels = 20, .kind = NL_POOL_AVERAGE, .kernel = 5,
         .stride = 2, .pad = 2, .relu = true),
    CASE(.batch = 2, .height = 6, .width = 13, .channels = 16, .kind = NL_POOL_MAX, .kernel = 2,
         .stride = 1, .relu = true),
};

static nl_status run_pool(op_run *run, const void *op_case)
{
    const struct pool_case *c = op_case;
    int64_t height = (c->height + 2 * c->pad - c->kernel) / c->stride + 1;
    int64_t width = (c->width + 2 * c->pad - c->kernel) / c->stride + 1;
    run->batch = c->batch;
    if (c->kind == NL_POOL_MAX)
        run->tolerance = 0;
    nl_pool_args args = {
        .kind = c->kind, .kernel = c->kernel, .stride = c->stride, .pad = c->pad, .relu = c->relu};
    /* All negative in part, so that padding taken for 0 shows in a maximum. */
    args.x =
        OP_TENSOR(run, .activation = true, .shape = {c->batch, c->height, c->width, c->channels},
                  .shift = c->relu ? 0 : -2);
    args.y = OP_TENSOR(run, .activation = true, .shape = {c->batch, height, width, c->channels},
                       .gap = c->gap, .output = "y");
    return nl_op_pool(run->device, &args);
}

static const struct resize_case {
    const char *text;
    int64_t batch, height, width, channels, out_height, out_width;
    nl_resize kind;
    float scale, shift;
} resize_cases[] = {
    CASE(.batch = 1, .height = 1, .width = 1, .channels = 1, .out_height = 3, .out_width = 2,
         .kind = NL_RESIZE_BICUBIC, .scale = 1),
    CASE(.batch = 2, .height = 9, .width = 14, .channels = 3, .out_height = 23, .out_width = 19,
         .kind = NL_RESIZE_LEGACY, .scale = 1 / 128.0f, .shift = -1),
    CASE(.batch = 2, .height = 31, .width = 17, .channels = 3, .out_height = 11, .out_width = 13,
         .kind = NL_RESIZE_LEGACY, .scale = 1),
    CASE(.batch = 2, .height = 9, .width = 14, .channels = 3, .out_height = 23, .out_width = 5,
         .kind = NL_RESIZE_BILINEAR, .scale = 1 / 127.5f, .shift = -1),
    CASE(.batch = 2, .height = 9, .width = 14, .channels = 3, .out_height = 23, .out_width = 19,
         .kind = NL_RESIZE_BICUBIC, .scale = 1 / 128.0f, .shift = -1),
    CASE(.batch = 2, .height = 31, .width = 2, .channels = 3, .out_height = 7, .out_width = 2,
         .kind = NL_RESIZE_BICUBIC, .scale = 1),
    CASE(.batch = 1, .height = 64, .width = 96, .channels = 1, .out_height = 64, .out_width = 5,
         .kind = NL_RESIZE_BICUBIC, .scale = 1),
};

static nl_status run_resize(op_run *run, const void *op_case)
{
    const struct resize_case *c = op_case;
    int64_t count = c->batch * c->height * c->width * c->channels;
    run->batch = c->batch;
    float *pixels = op_normal(run, count);
    for (int64_t i = 0; i < count; i++)
        pixels[i] = (float)op_integer(run, 256);
    nl_resize_args args = {.kind = c->kind, .scale = c->scale, .shift = c->shift};
    args.x = OP_TENSOR(run, .shape = {c->batch, c->height, c->width, c->channels}, .dtype = NL_U8,
                       .values = pixels);
    args.y =
        OP_TENSOR(run, .activation = true,
                  .shape = {c->batch, c->out_height, c->out_width, c->channels}, .output = "y");
    return nl_op_resize(run->device, &args);
}

static const struct activate_case {
    const char *text;
    int64_t batch, size;
    nl_activation activation;
    bool in_place;
} activate_cases[] = {
    CASE(.batch = 1, .size = 1, .activation = NL_ACT_SILU),
    CASE(.batch = 3, .size = 331, .activation = NL_ACT_NONE),
    CASE(.batch = 3, .size = 331, .activation = NL_ACT_RELU, .in_place = true),
    CASE(.batch = 3, .size = 331, .activation = NL_ACT_SILU),
    CASE(.batch = 3, .size = 331, .activation = NL_ACT_SOFT_CLAMP, .in_place = true),
    CASE(.batch = 3, .size = 331, .activation = NL_ACT_GELU_TANH),
};

static nl_status run_activate(op_run *run, const void *op_case)
{
    const struct activate_case *c = op_case;
    run->batch = c->batch;
    nl_activate_args args = {.activation = c->activation};
    args.y = OP_TENSOR(run, .feature_map = true, .shape = {c->batch, c->size}, .output = "y",
                       .in_place = c->in_place, .scale = 10);
    args.x = c->in_place
                 ? args.y
                 : OP_TENSOR(run, .feature_map = true, .shape = {c->batch, c->size}, .scale = 20);
    return nl_op_activate(run->device, &args);
}

static const struct layout_case {
    const char *text;
    int64_t batch, channels, height, width;
    bool to_nhwc;
    float scale, shift;
} layout_cases[] = {
    CASE(.batch = 1, .channels = 1, .height = 1, .width = 1, .to_nhwc = true, .scale = 1),
    CASE(.batch = 3, .channels = 4, .height = 9, .width = 7, .to_nhwc = true, .scale = 5.5f,
         .shift = 0.25f),
    CASE(.batch = 3, .channels = 4, .height = 9, .width = 7, .scale = 0.18215f, .shift = -1),
    CASE(.batch = 2, .channels = 67, .height = 5, .width = 3, .scale = 1),
    CASE(.batch = 2, .channels = 67, .height = 16, .width = 33, .to_nhwc = true, .scale = 1),
};

static nl_status run_layout(op_run *run, const void *op_case)
{
    const struct layout_case *c = op_case;
    op_spec planes = {.shape = {c->batch, c->channels, c->height, c->width}};
    op_spec pixels = {.feature_map = true, .shape = {c->batch, c->height, c->width, c->channels}};
    run->batch = c->batch;
    (c->to_nhwc ? &pixels : &planes)->output = "y";
    nl_layout_args args = {.to_nhwc = c->to_nhwc, .scale = c->scale, .shift = c->shift};
    args.x = op_tensor(run, c->to_nhwc ? &planes : &pixels);
    args.y = op_tensor(run, c->to_nhwc ? &pixels : &planes);
    return nl_op_layout(run->device, &args);
}

static const struct to_uint8_case {
    const char *text;
    int64_t batch, size;
    float scale, shift;
} to_uint8_cases[] = {
    CASE(.batch = 1, .size = 7, .scale = 127.5f, .shift = 128),
    CASE(.batch = 3, .size = 331, .scale = 127.5f, .shift = 128),
    CASE(.batch = 3, .size = 331, .scale = 127.5f, .shift = 127.5f),
    CASE(.batch = 2, .size = 64, .scale = 255),
};

/* Multiples of 2^-10, so that products and sums are exact and no rounding can decide a truncation.
 */
static nl_status run_to_uint8(op_run *run, const void *op_case)
{
    const struct to_uint8_case *c = op_case;
    static const float special[] = {NAN, INFINITY, -INFINITY, 1, -1, 1e30f, -1e30f, 0.9970703125f};
    int64_t count = c->batch * c->size;
    run->batch = c->batch;
    run->tolerance = 0;
    float *x = op_normal(run, count);
    for (int64_t i = 0; i < count; i++)
        x[i] = i < NL_COUNT(special) ? special[i] : nearbyintf(x[i] * 1024) / 1024;
    nl_to_uint8_args args = {.scale = c->scale, .shift = c->shift};
    args.x = OP_TENSOR(run, .activation = true, .shape = {c->batch, c->size}, .values = x);
    args.y = OP_TENSOR(run, .shape = {c->batch, c->size}, .dtype = NL_U8, .output = "y");
    return nl_op_to_uint8(run->device, &args);
}

const op_family op_image_families[] = {
    FAMILY(conv2d),   FAMILY(groupnorm), FAMILY(upsample2x), FAMILY(pool), FAMILY(resize),
    FAMILY(activate), FAMILY(layout),    FAMILY(to_uint8),   {0},
};
