/* SPDX-License-Identifier: MIT */
/* The front doors of the operations of ops_training.h. */
#include <math.h>

#include "check.h"
#include "frozen.h"

enum { GRADIENT = NL_ARG_F32 | NL_ARG_OUTPUT }; /* of a parameter */

static void check_linear_backward_data(nl_arguments *a, const nl_linear_backward_data_args *args)
{
    TENSOR(dy, NL_ARG_STRIDED, NL_ANY, NL_ANY);
    int64_t rows = args->dy.shape[0], outputs = args->dy.shape[1];
    TENSOR(weight, NL_ARG_WEIGHT, outputs, NL_ANY);
    int64_t inputs = args->weight.shape[1];
    TENSOR(pre, NL_ARG_OPTIONAL | NL_ARG_IN_PLACE, rows, inputs);
    TENSOR(dx, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows, inputs);
    TENSOR(x, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, inputs);
    TENSOR(dbias, NL_ARG_OPTIONAL | GRADIENT, inputs);
    nl_check(a, args->epilogue <= NL_EPILOGUE_SILU, "no epilogue %d", (int)args->epilogue);
    nl_check(a, args->pre.data || args->epilogue == NL_EPILOGUE_NONE, "an epilogue without pre");
    nl_check(a, args->pre.data || !args->x.data, "x without pre");
    nl_check(a, !args->pre.data || args->dx.data != args->pre.data, "dx is pre");
}

static void check_linear_backward_weight(nl_arguments *a,
                                         const nl_linear_backward_weight_args *args)
{
    TENSOR(dy, NL_ARG_STRIDED, NL_ANY, NL_ANY);
    TENSOR(x, NL_ARG_STRIDED, args->dy.shape[0], NL_ANY);
    TENSOR(dweight, NL_ARG_STRIDED | GRADIENT, args->dy.shape[1], args->x.shape[1]);
    TENSOR(dbias, NL_ARG_OPTIONAL | GRADIENT, args->dy.shape[1]);
}

static void check_activate_backward(nl_arguments *a, const nl_activate_backward_args *args)
{
    TENSOR_AS(x, NL_ARG_IN_PLACE, x);
    TENSOR_AS(dy, NL_ARG_IN_PLACE, x);
    TENSOR_AS(dx, NL_ARG_OUTPUT, x);
    nl_check(a, args->activation <= NL_ACT_GELU_TANH, "no activation %d", (int)args->activation);
}

static void check_layernorm_modulate_backward(nl_arguments *a,
                                              const nl_layernorm_modulate_backward_args *args)
{
    TENSOR(x, 0, NL_ANY, NL_ANY);
    int64_t rows = args->x.shape[0], hidden = args->x.shape[1];
    int64_t images = images_of(a, rows, args->rows_per_image);
    TENSOR(scale, NL_ARG_STRIDED, images, hidden);
    TENSOR(shift, NL_ARG_STRIDED | (args->y.data ? 0 : NL_ARG_OPTIONAL), images, hidden);
    TENSOR(dy, 0, rows, hidden);
    TENSOR(dx, NL_ARG_OUTPUT, rows, hidden);
    TENSOR(branch, NL_ARG_OPTIONAL, rows, hidden);
    int with_branch = args->branch.data ? 0 : NL_ARG_OPTIONAL;
    TENSOR(gate, NL_ARG_STRIDED | with_branch, images, hidden);
    TENSOR(dbranch, NL_ARG_OUTPUT | with_branch, rows, hidden);
    TENSOR(dgate, NL_ARG_STRIDED | NL_ARG_OUTPUT | with_branch, images, hidden);
    TENSOR(dbias, NL_ARG_OPTIONAL | GRADIENT, hidden);
    nl_check(a,
             args->branch.data ||
                 !(args->gate.data || args->dbranch.data || args->dgate.data || args->dbias.data),
             "a gate, dbranch, dgate or dbias without a branch");
    TENSOR(dshift, NL_ARG_STRIDED | NL_ARG_OUTPUT, images, hidden);
    TENSOR(dscale, NL_ARG_STRIDED | NL_ARG_OUTPUT, images, hidden);
    TENSOR(y, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, hidden);
    if (args->norm == NL_NORM_RMS) {
        TENSOR(weight, NL_ARG_F32, hidden);
        TENSOR(dweight, NL_ARG_F32 | NL_ARG_OUTPUT, hidden);
    }
    nl_check(a, args->norm <= NL_NORM_RMS, "no norm %d", (int)args->norm);
    check_eps(a, args->eps);
}

static void check_layernorm_gate_backward(nl_arguments *a,
                                          const nl_layernorm_gate_backward_args *args)
{
    TENSOR(x, NL_ARG_IN_PLACE, NL_ANY, NL_ANY);
    int64_t rows = args->x.shape[0], hidden = args->x.shape[1];
    TENSOR(weight, 0, hidden);
    TENSOR(bias, 0, hidden);
    TENSOR(g, NL_ARG_OPTIONAL | NL_ARG_STRIDED, rows, hidden);
    TENSOR(dy, NL_ARG_IN_PLACE, rows, hidden);
    TENSOR(dx, NL_ARG_OUTPUT, rows, hidden);
    TENSOR(dg, NL_ARG_STRIDED | NL_ARG_OUTPUT | (args->g.data ? 0 : NL_ARG_OPTIONAL), rows, hidden);
    TENSOR(dg_sums, NL_ARG_OPTIONAL | GRADIENT, hidden);
    nl_check(a, args->g.data || !(args->dg.data || args->dg_sums.data), "dg or dg_sums without g");
    TENSOR(dweight, GRADIENT, hidden);
    TENSOR(dbias, GRADIENT, hidden);
    TENSOR(y, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, rows, hidden);
    check_eps(a, args->eps);
}

nl_nala_attention_args nl_nala_forward_of(const nl_nala_attention_backward_args *args)
{
    return (nl_nala_attention_args){.qkvg = args->qkvg,
                                    .batch = args->batch,
                                    .tokens = args->tokens,
                                    .heads = args->heads,
                                    .head_size = args->head_size,
                                    .feature_map = args->feature_map,
                                    .lambda = args->lambda,
                                    .tau = args->tau,
                                    .log_lambda = args->log_lambda,
                                    .log_tau = args->log_tau,
                                    .norm_scale = args->norm_scale,
                                    .rope = args->rope,
                                    .grid_height = args->grid_height,
                                    .grid_width = args->grid_width};
}

static void check_nala_attention_backward(nl_arguments *a,
                                          const nl_nala_attention_backward_args *args)
{
    if (!check_attention_sizes(a, args->batch, args->tokens, args->heads, args->head_size))
        return;
    if (!check_feature_map(a, args->feature_map))
        return;
    int64_t rows = args->batch * args->tokens, hidden = args->heads * args->head_size;
    int64_t pairs = args->batch * args->heads;
    int64_t features = nl_feature_width(args->feature_map, args->head_size);
    TENSOR(qkvg, NL_ARG_STRIDED, rows, NL_MAX(args->qkvg.shape[1], 3 * hidden));
    TENSOR(out, 0, rows, hidden);
    TENSOR(dout, 0, rows, hidden);
    TENSOR(state, NL_ARG_F32, pairs, features, args->head_size);
    TENSOR(total, NL_ARG_F32, pairs, features);
    TENSOR(dqkv, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows, NL_MAX(args->dqkv.shape[1], 3 * hidden));
    TENSOR(sums, NL_ARG_OPTIONAL | GRADIENT, 3 * hidden);
    nl_check(a, isfinite(args->lambda) && isfinite(args->tau), "lambda or tau is not finite");
    TENSOR(log_lambda, NL_ARG_OPTIONAL | NL_ARG_F32, args->heads);
    TENSOR(log_tau, NL_ARG_OPTIONAL | NL_ARG_F32, args->heads);
    TENSOR(dlog_lambda, GRADIENT | (args->log_lambda.data ? 0 : NL_ARG_OPTIONAL), args->heads);
    TENSOR(dlog_tau, GRADIENT | (args->log_tau.data ? 0 : NL_ARG_OPTIONAL), args->heads);
    check_log_exponents(a, args->feature_map, args->log_lambda.data, args->log_tau.data);
    nl_check(a, args->norm_scale > 0 && isfinite(args->norm_scale), "norm_scale is not above 0");
    if (args->rope)
        check_turned(a, args->tokens, args->head_size, args->grid_height, args->grid_width);
}

static void check_softmax_attention_backward(nl_arguments *a,
                                             const nl_softmax_attention_backward_args *args)
{
    if (!check_attention_sizes(a, args->batch, args->tokens, args->heads, args->head_size))
        return;
    int64_t rows = args->batch * args->tokens, hidden = args->heads * args->head_size;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 3 * hidden));
    TENSOR(out, 0, rows, hidden);
    TENSOR(dout, 0, rows, hidden);
    TENSOR(lse, NL_ARG_F32, args->batch * args->heads, args->tokens);
    TENSOR(dqkv, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows, NL_MAX(args->dqkv.shape[1], 3 * hidden));
    check_attention_scale(a, args->scale);
}

static void check_mediator_attention_backward(nl_arguments *a,
                                              const nl_mediator_attention_backward_args *args)
{
    const nl_mediators *sizes = &args->sizes;
    int64_t rows, hidden = sizes->heads * sizes->head_size, pairs = sizes->batch * sizes->heads;
    int64_t count = sizes->side * sizes->side;
    if (!check_mediators(a, sizes, &rows))
        return;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 3 * hidden));
    TENSOR(mediators, NL_ARG_F32, pairs, count, sizes->head_size);
    TENSOR(values, NL_ARG_F32, pairs, count, sizes->head_size);
    TENSOR(lse, NL_ARG_F32, pairs, count);
    TENSOR(dout, 0, rows, hidden);
    TENSOR(dqkv, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows, NL_MAX(args->dqkv.shape[1], 3 * hidden));
    check_attention_scale(a, args->scale);
}

static void
check_gated_linear_attention_backward(nl_arguments *a,
                                      const nl_gated_linear_attention_backward_args *args)
{
    int64_t rows, keys = args->heads * args->key_size, hidden = args->heads * args->head_size;
    if (!check_scanned(a, args->batch, args->heads, args->key_size, args->head_size, &args->scan,
                       &rows))
        return;
    TENSOR(qkv, NL_ARG_STRIDED, rows, NL_MAX(args->qkv.shape[1], 2 * keys + hidden));
    TENSOR(gate, 0, rows, keys);
    TENSOR(dout, 0, rows, hidden);
    TENSOR(dqkv, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows,
           NL_MAX(args->dqkv.shape[1], 2 * keys + hidden));
    TENSOR(dgate, NL_ARG_OUTPUT, rows, keys);
    check_scan_numbers(a, args->scale, args->normalizer);
}

static void check_head_norm_gate_backward(nl_arguments *a,
                                          const nl_head_norm_gate_backward_args *args)
{
    TENSOR(x, 0, NL_ANY, NL_ANY);
    TENSOR(weight, NL_ARG_F32, NL_ANY);
    check_whole_heads(a, args->x.shape[1], args->weight.shape[0]);
    TENSOR_AS(g, NL_ARG_STRIDED, x);
    TENSOR_AS(dy, NL_ARG_IN_PLACE, x);
    TENSOR_AS(dx, NL_ARG_OUTPUT, x);
    TENSOR_AS(dg, NL_ARG_STRIDED | NL_ARG_OUTPUT, x);
    TENSOR_AS(dweight, GRADIENT, weight);
    TENSOR_AS(y, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, x);
    check_eps(a, args->eps);
}

static void check_swiglu_backward(nl_arguments *a, const nl_swiglu_backward_args *args)
{
    TENSOR(dy, NL_ARG_IN_PLACE, NL_ANY, NL_ANY);
    TENSOR(x, 0, args->dy.shape[0], 2 * args->dy.shape[1]);
    TENSOR_AS(dx, NL_ARG_OUTPUT, x);
    TENSOR_AS(y, NL_ARG_OPTIONAL | NL_ARG_OUTPUT, dy);
}

static void check_qk_norm_backward(nl_arguments *a, const nl_qk_norm_backward_args *args)
{
    int64_t head = args->q_weight.shape[0];
    TENSOR(raw, 0, NL_ANY, NL_ANY);
    TENSOR(q_weight, NL_ARG_F32, NL_ANY);
    TENSOR(k_weight, NL_ARG_F32, head);
    check_heads(a, args->raw.shape[1], head);
    TENSOR_AS(dx, NL_ARG_STRIDED | NL_ARG_OUTPUT, raw);
    TENSOR(dq_weight, NL_ARG_F32 | NL_ARG_OUTPUT, head);
    TENSOR(dk_weight, NL_ARG_F32 | NL_ARG_OUTPUT, head);
    TENSOR(dq_bias, NL_ARG_OPTIONAL | NL_ARG_F32 | NL_ARG_OUTPUT, head);
    TENSOR(dk_bias, NL_ARG_OPTIONAL | NL_ARG_F32 | NL_ARG_OUTPUT, head);
    nl_check(a, !args->dq_bias.data == !args->dk_bias.data, "a bias for one of q and k alone");
    check_eps(a, args->eps);
}

static void check_dropout(nl_arguments *a, const nl_dropout_args *args)
{
    TENSOR(x, NL_ARG_OUTPUT, NL_ANY, NL_ANY);
    int64_t images = images_of(a, args->x.shape[0], args->rows_per_image);
    TENSOR(samples, NL_ARG_I64, images);
    nl_check(a, args->probability >= 0 && args->probability < 1, "no probability %g",
             (double)args->probability);
    int64_t count = args->rows_per_image * args->x.shape[1];
    nl_check(a, args->first % 4 == 0 && args->first + (uint64_t)count <= (uint64_t)1 << 34,
             "elements %llu to %llu are not in a stream", (unsigned long long)args->first,
             (unsigned long long)args->first + (unsigned long long)count);
}

static void check_depthwise_conv_backward(nl_arguments *a,
                                          const nl_depthwise_conv_backward_args *args)
{
    int64_t rows = grid_rows(a, args->batch, args->grid_height, args->grid_width);
    if (a->status != NL_OK)
        return;
    int64_t channels = args->x.shape[1], kernel = args->weight.shape[3];
    TENSOR(x, NL_ARG_STRIDED, rows, NL_ANY);
    TENSOR(weight, 0, channels, 1, kernel, kernel);
    nl_check(a, kernel % 2 == 1, "weight: kernel %lld is not odd", (long long)kernel);
    TENSOR(dout, 0, rows, channels);
    TENSOR(dx, NL_ARG_STRIDED | NL_ARG_OUTPUT, rows, channels);
    TENSOR_AS(dweight, GRADIENT, weight);
    TENSOR(dbias, GRADIENT, channels);
}

static void check_patch_embed_backward(nl_arguments *a, const nl_patch_embed_backward_args *args)
{
    TENSOR(x, NL_ARG_F32, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    const int64_t *x = args->x.shape;
    TENSOR(dweight, GRADIENT, NL_ANY, x[1], args->dweight.shape[3], args->dweight.shape[3]);
    int64_t patch = args->dweight.shape[3], hidden = args->dweight.shape[0];
    int64_t tokens = grid_tokens(a, x[2], x[3], patch);
    TENSOR(weight, args->dx.data ? 0 : NL_ARG_OPTIONAL, hidden, x[1], patch, patch);
    TENSOR(dtokens, 0, x[0] * tokens, hidden);
    TENSOR(dbias, GRADIENT, hidden);
    TENSOR_AS(dx, NL_ARG_OPTIONAL | NL_ARG_F32 | NL_ARG_OUTPUT, x);
}

static void check_unpatchify_backward(nl_arguments *a, const nl_unpatchify_backward_args *args)
{
    TENSOR(dx, NL_ARG_F32, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    const int64_t *x = args->dx.shape;
    int64_t tokens = grid_tokens(a, x[2], x[3], args->patch);
    int64_t columns = patch_columns(a, args->patch, args->head_channels, x[1]);
    TENSOR(dtokens, NL_ARG_OUTPUT, x[0] * tokens, columns);
}

static void check_add_label_backward(nl_arguments *a, const nl_add_label_backward_args *args)
{
    TENSOR(c, 0, NL_ANY, NL_ANY);
    int64_t images = args->c.shape[0], hidden = args->c.shape[1];
    TENSOR(labels, NL_ARG_I32, images);
    TENSOR(dy, 0, images, hidden);
    TENSOR(dtime, NL_ARG_OUTPUT, images, hidden);
    TENSOR(dtable, GRADIENT, NL_ANY, hidden);
    TENSOR(crop, NL_ARG_F32 | NL_ARG_OPTIONAL, images, NL_ANY);
    if (args->crop.data)
        TENSOR(dcrop_weight, GRADIENT, hidden, args->crop.shape[1]);
}

static void check_latents(nl_arguments *a, const nl_latents_args *args)
{
    TENSOR(y, NL_ARG_F32 | NL_ARG_OUTPUT, NL_ANY, NL_ANY, NL_ANY, NL_ANY);
    const int64_t *y = args->y.shape;
    bool moments = args->x.shape[1] != y[1];
    TENSOR(x, NL_ARG_STORED, y[0], moments ? 2 * y[1] : y[1], y[2], y[3]);
    TENSOR_AS(noise, NL_ARG_F32 | (moments ? 0 : NL_ARG_OPTIONAL), y);
    nl_check(a, isfinite(args->scale) && isfinite(args->shift), "scale or shift is not finite");
}

static void check_diffuse(nl_arguments *a, const nl_diffuse_args *args)
{
    TENSOR_AS(data, NL_ARG_F32, data);
    TENSOR_AS(noise, NL_ARG_F32, data);
    TENSOR(coefficients, NL_ARG_F32, args->data.shape[0], NL_LOSS_COLUMNS);
    TENSOR_AS(y, NL_ARG_F32 | NL_ARG_OUTPUT, data);
}

/* prediction [B, at least C, ...] for a tensor [B, C, ...]; channels 0: any number of them. */
static void check_prediction(nl_arguments *a, const nl_tensor *prediction,
                             const nl_tensor *dprediction, const nl_tensor *data, int64_t channels)
{
    nl_check(a, data->ndim >= 2, "data has %d sizes, expected [B, C, ...]", data->ndim);
    nl_tensor expected = *data;
    expected.shape[1] = channels > 0 ? channels : prediction->shape[1];
    nl_check(a, expected.shape[1] >= data->shape[1],
             "prediction has %lld channels, expected the %lld of data or more",
             (long long)expected.shape[1], (long long)data->shape[1]);
    nl_check_tensor(a, "prediction", prediction, NL_ARG_F32, expected.ndim, expected.shape);
    nl_check_tensor(a, "dprediction", dprediction, NL_ARG_OPTIONAL | NL_ARG_F32 | NL_ARG_OUTPUT,
                    expected.ndim, expected.shape);
}

static void check_regression_loss(nl_arguments *a, const nl_regression_loss_args *args)
{
    TENSOR_AS(data, NL_ARG_F32, data);
    TENSOR_AS(noise, NL_ARG_F32, data);
    check_prediction(a, &args->prediction, &args->dprediction, &args->data, 0);
    TENSOR(coefficients, NL_ARG_F32, args->data.shape[0], NL_LOSS_COLUMNS);
    TENSOR(loss, NL_ARG_F32 | NL_ARG_OUTPUT, args->data.shape[0]);
    nl_check(a, args->adaptive >= 0 && args->adaptive < INFINITY, "adaptive %g",
             (double)args->adaptive);
}

static void check_matching_loss(nl_arguments *a, const nl_matching_loss_args *args)
{
    TENSOR_AS(data, NL_ARG_F32, data);
    TENSOR_AS(noise, NL_ARG_F32, data);
    TENSOR_AS(teacher, NL_ARG_F32, data);
    TENSOR_AS(fake, NL_ARG_F32, data);
    TENSOR(coefficients, NL_ARG_F32, args->data.shape[0], NL_LOSS_COLUMNS);
    TENSOR(loss, NL_ARG_F32 | NL_ARG_OUTPUT, args->data.shape[0]);
    TENSOR_AS(doutput, NL_ARG_OPTIONAL | NL_ARG_F32 | NL_ARG_OUTPUT, data);
}

static void check_variational_loss(nl_arguments *a, const nl_variational_loss_args *args)
{
    TENSOR_AS(data, NL_ARG_F32, data);
    TENSOR_AS(x, NL_ARG_F32, data);
    check_prediction(a, &args->prediction, &args->dprediction, &args->data,
                     2 * args->data.shape[1]);
    TENSOR(coefficients, NL_ARG_F32, args->data.shape[0], NL_VB_COLUMNS);
    TENSOR(loss, NL_ARG_F32 | NL_ARG_OUTPUT, args->data.shape[0]);
}

static void check_zero(nl_arguments *a, const nl_zero_args *args)
{
    TENSOR_AS(x, NL_ARG_OUTPUT, x);
}

static void check_mean(nl_arguments *a, const nl_mean_args *args)
{
    TENSOR(x, NL_ARG_F32, NL_ANY);
    TENSOR(y, NL_ARG_F32 | NL_ARG_OUTPUT, 1);
}

static void check_gradient_norm(nl_arguments *a, const nl_gradient_norm_args *args)
{
    TENSOR(x, NL_ARG_F32, NL_ANY);
    TENSOR(norm, NL_ARG_F32 | NL_ARG_OUTPUT, 1);
}

static void check_segments(nl_arguments *a, const nl_adamw_args *args)
{
    int64_t end = 0;
    for (int i = 0; i < args->segment_count; i++) {
        const nl_segment *segment = &args->segments[i];
        nl_check(a,
                 segment->first >= end && segment->count > 0 && segment->weights &&
                     (segment->dtype == NL_F32 || segment->dtype == NL_BF16) &&
                     segment->count <= args->master.shape[0] - segment->first,
                 "segment %d, %lld elements from %lld on, is empty, out of order or beyond %lld", i,
                 (long long)segment->count, (long long)segment->first,
                 (long long)args->master.shape[0]);
        if (a->status != NL_OK)
            return;
        nl_check(
            a,
            !nl_frozen(a->device, segment->weights, segment->count * nl_dtype_size(segment->dtype)),
            "segment %d goes to weights that were frozen", i);
        end = segment->first + segment->count;
    }
}

static void check_adamw(nl_arguments *a, const nl_adamw_args *args)
{
    TENSOR(gradient, NL_ARG_F32, NL_ANY);
    int64_t count = args->gradient.shape[0];
    TENSOR(master, NL_ARG_F32 | NL_ARG_OUTPUT, count);
    TENSOR(first, NL_ARG_F32 | NL_ARG_OUTPUT, count);
    TENSOR(second, NL_ARG_F32 | NL_ARG_OUTPUT, count);
    nl_check(a, args->ema_count >= 0 && args->ema_count <= NL_MAX_EMA,
             "%d moving averages, at most %d", args->ema_count, NL_MAX_EMA);
    for (int i = 0; a->status == NL_OK && i < args->ema_count; i++)
        TENSOR(ema[i], NL_ARG_F32 | NL_ARG_OUTPUT, count);
    TENSOR(hyper, NL_ARG_F32, NL_HYPER_COLUMNS);
    TENSOR(norm, NL_ARG_F32, 1);
    TENSOR(counter, NL_ARG_I32 | NL_ARG_OUTPUT, 2);
    nl_check(a, args->segment_count > 0 && args->segments, "segments are missing");
    if (a->status == NL_OK)
        check_segments(a, args);
    TENSOR(segment_table, NL_ARG_U8, args->segment_count * (int64_t)sizeof(nl_segment));
}

NL_TRAINING_OPERATIONS(NL_FRONT_DOOR)
