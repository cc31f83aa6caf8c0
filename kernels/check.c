/* SPDX-License-Identifier: MIT */
/* The front doors of the operations: arguments checked against ops.h, then the device's table. */
#include "check.h"

static void check_linear(nl_arguments *a, const nl_linear_args *args)
{
    TENSOR(x, NL_ARG_STRIDED | NL_ARG_MAYBE_F8, NL_ANY, NL_ANY);
    int64_t rows = args->x.shape[0], inputs = args->x.shape[1];
    TENSOR(weight, NL_ARG_WEIGHT | NL_ARG_MAYBE_F8, NL_ANY, inputs);
    nl_check(a, (args->x.dtype == NL_F8) == (args->weight.dtype == NL_F8),
             "x is %s, the weight %s: both are F8 or none", nl_dtype_name(args->x.dtype),
             nl_dtype_name(args->weight.dtype));
    int64_t outputs = args->weight.shape[0];
    TENSOR(bias, NL_ARG_OPTIONAL, outputs);
    bool f8 = args->y.dtype == NL_F8;
    TENSOR(y, NL_ARG_OUTPUT | (f8 ? NL_ARG_F8 : NL_ARG_STRIDED), rows, outputs);
    TENSOR(pre, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, outputs);
    TENSOR(room, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, outputs);
    nl_check(a, f8 == (args->room.data != NULL) && !(f8 && args->pre.data),
             "room is for y in F8, and pre is not");
    nl_check(a, !f8 || (args->weight_norm >= 0 && args->bias_norm >= 0), "a norm below 0");
    nl_check(a, args->epilogue <= NL_EPILOGUE_SILU, "no epilogue %d", (int)args->epilogue);
}

static void check_quantize(nl_arguments *a, const nl_quantize_args *args)
{
    TENSOR(x, NL_ARG_STRIDED, NL_ANY, NL_ANY);
    TENSOR(y, NL_ARG_F8 | NL_ARG_OUTPUT, args->x.shape[0], args->x.shape[1]);
    nl_check(a, args->activation <= NL_EPILOGUE_SILU, "no activation %d", (int)args->activation);
}

static void check_layernorm_modulate(nl_arguments *a, const nl_layernorm_modulate_args *args)
{
    bool in_place = args->branch.data && !args->sum.data;
    TENSOR(x, in_place ? NL_ARG_OUTPUT : 0, NL_ANY, NL_ANY);
    int64_t rows = args->x.shape[0], hidden = args->x.shape[1];
    int64_t images = images_of(a, rows, args->rows_per_image);
    TENSOR(branch, NL_ARG_OPTIONAL, rows, hidden);
    if (args->branch.data)
        TENSOR(gate, NL_ARG_STRIDED, images, hidden);
    nl_check(a, args->branch.data || (!args->gate.data && !args->sum.data),
             "a gate or a sum without a branch");
    TENSOR(sum, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, hidden);
    TENSOR(shift, NL_ARG_STRIDED, images, hidden);
    TENSOR(scale, NL_ARG_STRIDED, images, hidden);
    TENSOR(y, NL_ARG_OUTPUT | NL_ARG_MAYBE_F8, rows, hidden);
    if (args->norm == NL_NORM_RMS)
        TENSOR(weight, NL_ARG_F32, hidden);
    nl_check(a, args->norm <= NL_NORM_RMS, "no norm %d", (int)args->norm);
    check_eps(a, args->eps);
}

const char *const nl_feature_map_names[] = {NL_FEATURE_MAPS(NL_LIST_NAME) NULL};

#define ROW(constant, name, widths, norm_aware) {widths, norm_aware},
static const struct {
    int widths;
    bool norm_aware;
} feature_maps[] = {NL_FEATURE_MAPS(ROW)};
#undef ROW

bool nl_feature_map_norm_aware(nl_feature_map map)
{
    return feature_maps[map].norm_aware;
}

int64_t nl_feature_width(nl_feature_map map, int64_t head_size)
{
    return feature_maps[map].widths * head_size;
}

nl_nala_attention_args nl_nala_of_head(const nl_nala_attention_args *args, int64_t head)
{
    nl_nala_attention_args own = *args;
    if (args->log_lambda.data) {
        own.lambda = expf(((const float *)args->log_lambda.data)[head]);
        own.tau = expf(((const float *)args->log_tau.data)[head]);
    }
    return own;
}

static void check_nala_attention(nl_arguments *a, const nl_nala_attention_args *args)
{
    if (!check_attention_sizes(a, args->batch, args->tokens, args->heads, args->head_size))
        return;
    if (!check_feature_map(a, args->feature_map))
        return;
    int64_t rows = args->batch * args->tokens, hidden = args->heads * args->head_size;
    int64_t pairs = args->batch * args->heads;
    int64_t features = nl_feature_width(args->feature_map, args->head_size);
    TENSOR(qkvg, NL_ARG_STRIDED, rows, NL_MAX(args->qkvg.shape[1], 3 * hidden));
    TENSOR(out, NL_ARG_OUTPUT, rows, hidden);
    TENSOR(state, NL_ARG_OPTIONAL | NL_ARG_OUTPUT | NL_ARG_F32, pairs, features, args->head_size);
    TENSOR(total, NL_ARG_OPTIONAL | NL_ARG_OUTPUT | NL_ARG_F32, pairs, features);
    nl_check(a, isfinite(args->lambda) && isfinite(args->tau), "lambda or tau is not finite");
    TENSOR(log_lambda, NL_ARG_OPTIONAL | NL_ARG_F32, args->heads);
    TENSOR(log_tau, NL_ARG_OPTIONAL | NL_ARG_F32, args->heads);
    check_log_exponents(a, args->feature_map, args->log_lambda.data, args->log_tau.data);
    nl_check(a, args->norm_scale > 0 && isfinite(args->norm_scale), "norm_scale is not above 0");
    if (args->rope)
        check_turned(a, args->tokens, args->head_size, args->grid_height, args->grid_width);
}

static void check_layernorm_gate(nl_arguments *a, const nl_layernorm_gate_args *args)
{
    TENSOR(x, NL_ARG_IN_PLACE, NL_ANY, NL_ANY);
    int64_t rows = args->x.shape[0], hidden = args->x.shape[1];
    TENSOR(weight, 0, hidden);
    TENSOR(bias, 0, hidden);
    TENSOR(g, NL_ARG_OPTIONAL | NL_ARG_STRIDED, rows, hidden);
    TENSOR(y, NL_ARG_OUTPUT, rows, hidden);
    check_eps(a, args->eps);
}

static void check_softmax_attention(nl_arguments *a, const nl_softmax_attention_args *args)
{
    if (!check_attention_sizes(a, args->batch, args->tokens, args->heads, args->head_size))
        return;
    int64_t rows = args->batch * args->tokens, hidden = args->heads * args->head_size;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 3 * hidden));
    TENSOR(out, NL_ARG_OUTPUT, rows, hidden);
    TENSOR(lse, NL_ARG_OPTIONAL | NL_ARG_OUTPUT | NL_ARG_F32, args->batch * args->heads,
           args->tokens);
    check_attention_scale(a, args->scale);
}

static void check_mediator_attention(nl_arguments *a, const nl_mediator_attention_args *args)
{
    const nl_mediators *sizes = &args->sizes;
    int64_t rows, hidden = sizes->heads * sizes->head_size, pairs = sizes->batch * sizes->heads;
    int64_t count = sizes->side * sizes->side;
    if (!check_mediators(a, sizes, &rows))
        return;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 3 * hidden));
    TENSOR(out, NL_ARG_OUTPUT, rows, hidden);
    TENSOR(mediators, NL_ARG_OUTPUT | NL_ARG_F32, pairs, count, sizes->head_size);
    TENSOR(values, NL_ARG_OUTPUT | NL_ARG_F32, pairs, count, sizes->head_size);
    TENSOR(lse, NL_ARG_OUTPUT | NL_ARG_F32, pairs, count);
    check_attention_scale(a, args->scale);
}

static void check_gated_linear_attention(nl_arguments *a,
                                         const nl_gated_linear_attention_args *args)
{
    int64_t rows, keys = args->heads * args->key_size, hidden = args->heads * args->head_size;
    if (!check_scanned(a, args->batch, args->heads, args->key_size, args->head_size, &args->scan,
                       &rows))
        return;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 2 * keys + hidden));
    TENSOR(gate, 0, rows, keys);
    TENSOR(out, NL_ARG_OUTPUT, rows, hidden);
    check_scan_numbers(a, args->scale, args->normalizer);
}

static void check_head_norm_gate(nl_arguments *a, const nl_head_norm_gate_args *args)
{
    TENSOR(x, NL_ARG_IN_PLACE, NL_ANY, NL_ANY);
    TENSOR(weight, NL_ARG_F32, NL_ANY);
    check_whole_heads(a, args->x.shape[1], args->weight.shape[0]);
    TENSOR_AS(g, NL_ARG_STRIDED, x);
    TENSOR_AS(y, NL_ARG_OUTPUT, x);
    check_eps(a, args->eps);
}

static void check_swiglu(nl_arguments *a, const nl_swiglu_args *args)
{
    TENSOR(y, NL_ARG_OUTPUT, NL_ANY, NL_ANY);
    TENSOR(x, 0, args->y.shape[0], 2 * args->y.shape[1]);
}

static void check_qk_norm(nl_arguments *a, const nl_qk_norm_args *args)
{
    int64_t head = args->q_weight.shape[0];
    TENSOR(x, NL_ARG_STRIDED | NL_ARG_OUTPUT, NL_ANY, NL_ANY);
    TENSOR(q_weight, NL_ARG_F32, NL_ANY);
    TENSOR(k_weight, NL_ARG_F32, head);
    TENSOR(q_bias, NL_ARG_OPTIONAL | NL_ARG_F32, head);
    TENSOR(k_bias, NL_ARG_OPTIONAL | NL_ARG_F32, head);
    nl_check(a, !args->q_bias.data == !args->k_bias.data, "a bias for one of q and k alone");
    check_heads(a, args->x.shape[1], head);
    TENSOR_AS(raw, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, x);
    check_eps(a, args->eps);
}

static void check_rope(nl_arguments *a, const nl_rope_args *args)
{
    int64_t tokens = args->table.shape[0], head = args->table.shape[1];
    TENSOR(x, NL_ARG_STRIDED | NL_ARG_OUTPUT, NL_ANY, NL_ANY);
    TENSOR(table, NL_ARG_F32, NL_ANY, NL_ANY);
    nl_check(a, tokens > 0 && args->x.shape[0] % NL_MAX(tokens, 1) == 0,
             "x: %lld rows are not those of images of %lld tokens", (long long)args->x.shape[0],
             (long long)tokens);
    nl_check(a, head > 0 && head % 2 == 0 && args->x.shape[1] % NL_MAX(head, 1) == 0,
             "x: %lld columns are not heads of %lld, which is even", (long long)args->x.shape[1],
             (long long)head);
}

static void check_depthwise_conv(nl_arguments *a, const nl_depthwise_conv_args *args)
{
    int64_t rows = grid_rows(a, args->batch, args->grid_height, args->grid_width);
    if (a->status != NL_OK)
        return;
    int64_t channels = args->x.shape[1], kernel = args->weight.shape[3];
    TENSOR(x, NL_ARG_STRIDED, rows, NL_ANY);
    TENSOR(weight, 0, channels, 1, kernel, kernel);
    nl_check(a, kernel % 2 == 1, "weight: kernel %lld is not odd", (long long)kernel);
    TENSOR(bias, 0, channels);
    TENSOR(addend, NL_ARG_OPTIONAL, rows, channels);
    TENSOR(out, NL_ARG_OUTPUT, rows, channels);
}

static void check_patch_embed(nl_arguments *a, const nl_patch_embed_args *args)
{
    TENSOR(x, 0, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    const int64_t *x = args->x.shape;
    int64_t patch = args->weight.shape[3], hidden = args->weight.shape[0];
    TENSOR(weight, 0, NL_ANY, x[1], patch, patch);
    int64_t tokens = grid_tokens(a, x[2], x[3], patch);
    TENSOR(bias, 0, hidden);
    TENSOR(position, 0, tokens, hidden);
    TENSOR(tokens, NL_ARG_OUTPUT, x[0] * tokens, hidden);
}

static void check_unpatchify(nl_arguments *a, const nl_unpatchify_args *args)
{
    TENSOR(x, NL_ARG_OUTPUT, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    const int64_t *x = args->x.shape;
    int64_t tokens = grid_tokens(a, x[2], x[3], args->patch);
    int64_t columns = patch_columns(a, args->patch, args->head_channels, x[1]);
    TENSOR(tokens, 0, x[0] * tokens, columns);
}

static void check_time_features(nl_arguments *a, const nl_time_features_args *args)
{
    TENSOR(t, NL_ARG_F32, NL_ANY);
    TENSOR(features, NL_ARG_OUTPUT, args->t.shape[0], NL_ANY);
    nl_check(a, args->features.shape[1] % 2 == 0, "features: width %lld is odd",
             (long long)args->features.shape[1]);
}

static void check_add_label(nl_arguments *a, const nl_add_label_args *args)
{
    TENSOR(labels, NL_ARG_I32, NL_ANY);
    int64_t images = args->labels.shape[0];
    TENSOR(time, 0, args->time.shape[0] == 1 ? 1 : images, NL_ANY);
    int64_t hidden = args->time.shape[1];
    TENSOR(table, NL_ARG_WEIGHT, NL_ANY, hidden);
    TENSOR(crop, NL_ARG_F32 | NL_ARG_OPTIONAL, args->crop.shape[0] == 1 ? 1 : images, NL_ANY);
    if (args->crop.data)
        TENSOR(crop_weight, NL_ARG_F32, hidden, args->crop.shape[1]);
    TENSOR(c, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, images, hidden);
    TENSOR(y, NL_ARG_OUTPUT, images, hidden);
}

/* Positions of a window, or a size that no tensor has. */
static int64_t window_count(int64_t size, int64_t padding, int64_t kernel, int64_t stride)
{
    int64_t free = size + padding - kernel;
    return stride > 0 && free >= 0 ? free / stride + 1 : 0;
}

#define MAP NL_ARG_FEATURE_MAP

static void check_conv2d(nl_arguments *a, const nl_conv2d_args *args)
{
    const int64_t *w = args->weight.shape, *x = args->x.shape;
    TENSOR(x, MAP | NL_ARG_F16, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    TENSOR(doubled, MAP | NL_ARG_OPTIONAL | NL_ARG_OUTPUT | NL_ARG_F16, x[0], 2 * x[1], 2 * x[2],
           x[3]);
    if (args->doubled.data)
        x = args->doubled.shape;
    TENSOR(weight, NL_ARG_WEIGHT, NL_ANY, x[3], NL_ANY, NL_ANY);
    TENSOR(bias, NL_ARG_OPTIONAL | NL_ARG_F32, w[0]);
    nl_check(a,
             args->stride > 0 && args->pad_top >= 0 && args->pad_left >= 0 &&
                 args->pad_bottom >= 0 && args->pad_right >= 0,
             "no stride %d or padding %d %d %d %d", args->stride, args->pad_top, args->pad_left,
             args->pad_bottom, args->pad_right);
    int64_t height =
        window_count(x[1], (int64_t)args->pad_top + args->pad_bottom, w[2], args->stride);
    int64_t width =
        window_count(x[2], (int64_t)args->pad_left + args->pad_right, w[3], args->stride);
    TENSOR(y, MAP | NL_ARG_OUTPUT | NL_ARG_F16 | (args->residual.data ? 0 : NL_ARG_STRIDED), x[0],
           height, width, w[0]);
    TENSOR(residual, MAP | NL_ARG_OPTIONAL | NL_ARG_F16, x[0], height, width, w[0]);
    nl_check(a,
             args->x.dtype == args->y.dtype &&
                 (!args->residual.data || args->residual.dtype == args->y.dtype) &&
                 (!args->doubled.data || args->doubled.dtype == args->y.dtype),
             "x, y and residual are of different types");
    nl_check(a, args->activation <= NL_ACT_SILU, "no activation %d", (int)args->activation);
}

static void check_groupnorm(nl_arguments *a, const nl_groupnorm_args *args)
{
    TENSOR(x, MAP | NL_ARG_IN_PLACE, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    int64_t channels = args->x.shape[3];
    TENSOR_AS(branch, MAP | NL_ARG_OPTIONAL | NL_ARG_IN_PLACE, x);
    TENSOR(addend, NL_ARG_OPTIONAL | NL_ARG_F32, channels);
    TENSOR_AS(sum, MAP | NL_ARG_OPTIONAL | NL_ARG_OUTPUT, x);
    TENSOR(weight, NL_ARG_F32, channels);
    TENSOR(bias, NL_ARG_F32, channels);
    TENSOR_AS(y, MAP | NL_ARG_OUTPUT, x);
    nl_dtype type = args->x.dtype;
    nl_check(a,
             args->y.dtype == type && (!args->branch.data || args->branch.dtype == type) &&
                 (!args->sum.data || args->sum.dtype == type),
             "x, branch, sum and y are of different types");
    nl_check(a, args->sum.data || !args->branch.data, "a branch without a sum");
    nl_check(a, !args->sum.data || args->branch.data || args->addend.data, "a sum of x alone");
    nl_check(a, args->groups > 0 && channels % args->groups == 0,
             "%lld groups do not divide %lld channels", (long long)args->groups,
             (long long)channels);
    check_eps(a, args->eps);
}

static void check_upsample2x(nl_arguments *a, const nl_upsample2x_args *args)
{
    const int64_t *x = args->x.shape;
    TENSOR(x, MAP, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    TENSOR(y, MAP | NL_ARG_OUTPUT, x[0], 2 * x[1], 2 * x[2], x[3]);
    nl_check(a, args->x.dtype == args->y.dtype, "x and y are of different types");
}

static void check_pool(nl_arguments *a, const nl_pool_args *args)
{
    const int64_t *x = args->x.shape;
    TENSOR(x, NL_ARG_F16, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    /* Every window must touch the picture. */
    nl_check(a, args->kernel > 0 && args->stride > 0 && args->pad >= 0 && args->pad < args->kernel,
             "no pooling of kernel %d, stride %d, padding %d", args->kernel, args->stride,
             args->pad);
    nl_check(a, args->kind <= NL_POOL_AVERAGE, "no pooling %d", (int)args->kind);
    int64_t padding = 2 * (int64_t)args->pad;
    TENSOR(y, NL_ARG_OUTPUT | NL_ARG_STRIDED | NL_ARG_F16, x[0],
           window_count(x[1], padding, args->kernel, args->stride),
           window_count(x[2], padding, args->kernel, args->stride), x[3]);
}

static void check_resize(nl_arguments *a, const nl_resize_args *args)
{
    TENSOR(x, NL_ARG_U8, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    TENSOR(y, NL_ARG_OUTPUT | NL_ARG_F16, args->x.shape[0], NL_ANY, NL_ANY, args->x.shape[3]);
    nl_check(a, args->kind <= NL_RESIZE_BICUBIC, "no kind of resizing %d", (int)args->kind);
    nl_check(a, isfinite(args->scale) && isfinite(args->shift), "scale or shift is not finite");
}

static void check_activate(nl_arguments *a, const nl_activate_args *args)
{
    TENSOR_AS(x, MAP | NL_ARG_IN_PLACE, x);
    TENSOR_AS(y, MAP | NL_ARG_OUTPUT, x);
    nl_check(a, args->x.dtype == args->y.dtype, "x and y are of different types");
    nl_check(a, args->activation <= NL_ACT_GELU_TANH, "no activation %d", (int)args->activation);
}

static void check_layout(nl_arguments *a, const nl_layout_args *args)
{
    const int64_t *x = args->x.shape;
    TENSOR(x, MAP, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    if (args->to_nhwc)
        TENSOR(y, MAP | NL_ARG_OUTPUT, x[0], x[2], x[3], x[1]);
    else
        TENSOR(y, MAP | NL_ARG_OUTPUT, x[0], x[3], x[1], x[2]);
}

#undef MAP

static void check_to_uint8(nl_arguments *a, const nl_to_uint8_args *args)
{
    TENSOR_AS(x, 0, x);
    TENSOR_AS(y, NL_ARG_OUTPUT | NL_ARG_U8, x);
}

static void check_guide(nl_arguments *a, const nl_guide_args *args)
{
    const int64_t *y = args->y.shape;
    TENSOR(y, NL_ARG_OUTPUT, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    TENSOR(prediction, 0, 2 * y[0], y[1], y[2], y[3]);
    nl_check(a, args->channels >= 0 && args->channels <= y[1],
             "channels is %lld, expected 0 to %lld", (long long)args->channels, (long long)y[1]);
}

static void check_combine(nl_arguments *a, const nl_combine_args *args)
{
    nl_check(a, args->terms >= 1 && args->terms <= NL_MAX_TERMS, "terms is %d, expected 1 to %d",
             args->terms, NL_MAX_TERMS);
    nl_check(a, args->coefficients, "coefficients are missing");
    TENSOR_AS(y, NL_ARG_OUTPUT, y);
    for (int i = 0; a->status == NL_OK && i < args->terms; i++)
        nl_check_tensor(a, "x", &args->x[i], NL_ARG_IN_PLACE, args->y.ndim, args->y.shape);
}

static void check_diffusion_step(nl_arguments *a, const nl_diffusion_step_args *args)
{
    TENSOR_AS(x, NL_ARG_IN_PLACE, x);
    nl_check(a, args->x.ndim >= 2, "x has %d sizes, expected [B, C, ...]", args->x.ndim);
    nl_tensor expected = args->x;
    if (args->learned_range || args->prediction.shape[1] != args->x.shape[1])
        expected.shape[1] *= 2;
    nl_check_tensor(a, "prediction", &args->prediction, 0, expected.ndim, expected.shape);
    TENSOR_AS(noise, NL_ARG_OPTIONAL, x);
    TENSOR_AS(y, NL_ARG_OUTPUT, x);
}

static void check_scaled_norm(nl_arguments *a, const nl_scaled_norm_args *args)
{
    TENSOR_AS(x, 0, x);
    TENSOR_AS(a, 0, x);
    TENSOR_AS(b, NL_ARG_OPTIONAL, x);
    nl_check(a, args->rms, "rms is missing");
}

static void check_normal(nl_arguments *a, const nl_normal_args *args)
{
    TENSOR_AS(y, NL_ARG_OUTPUT, y);
    nl_check(a, args->images, "images are missing");
}

static void check_finite(nl_arguments *a, const nl_finite_args *args)
{
    TENSOR_AS(x, 0, x);
    TENSOR(found, NL_ARG_OUTPUT | NL_ARG_I32, 1);
    nl_check(a, args->mark != 0, "mark is 0");
}

static void check_scatter_matrix(nl_arguments *a, const nl_scatter_matrix_args *args)
{
    TENSOR(x, NL_ARG_F32, NL_ANY, NL_ANY);
    int64_t size = args->x.shape[1];
    TENSOR(shift, NL_ARG_F32, size);
    TENSOR(scatter, NL_ARG_F64 | NL_ARG_OUTPUT, size, size);
    TENSOR(sums, NL_ARG_F64 | NL_ARG_OUTPUT, size);
}

NL_OPERATIONS(NL_FRONT_DOOR)
