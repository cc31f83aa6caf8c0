/* SPDX-License-Identifier: MIT */
/* Gated linear attention and its gradients, one token after the other, by the states themselves. */
#include <string.h>

#include "reference.h"

/* One head of one image: its rows of the tensors, and where q, k and v begin. */
typedef struct head_view {
    const nl_tensor *qkv, *gate;
    const nl_scan *scan;
    int64_t first, tokens, keys, size; /* first row, T, e, d */
    int64_t q, k, v, gates, out;       /* columns */
    double normalizer;
} head_view;

static head_view head_of(const nl_tensor *qkv, const nl_tensor *gate, const nl_scan *scan,
                         int64_t heads, int64_t key_size, int64_t head_size, float normalizer,
                         int64_t index)
{
    int64_t head = index % heads, tokens = scan->grid_height * scan->grid_width;
    return (head_view){.qkv = qkv,
                       .gate = gate,
                       .scan = scan,
                       .first = index / heads * tokens,
                       .tokens = tokens,
                       .keys = key_size,
                       .size = head_size,
                       .q = head * key_size,
                       .k = (heads + head) * key_size,
                       .v = 2 * heads * key_size + head * head_size,
                       .gates = head * key_size,
                       .out = head * head_size,
                       .normalizer = normalizer};
}

/* The row at place i of the scan. */
static int64_t row_at(const head_view *view, int64_t i)
{
    return view->first + nl_scan_token(view->scan, i);
}

/* a of one token and key; *slope: d log a / d gate. */
static double decay(const head_view *view, int64_t row, int64_t e, double *slope)
{
    double x = nl_get(view->gate, row, view->gates + e);
    double soft = x > 0 ? log1p(exp(-x)) : log1p(exp(x)) - x; /* -log sigmoid(x) */
    if (slope)
        *slope = exp(-x - soft) / view->normalizer; /* (1 - sigmoid(x)) / normalizer */
    return exp(-soft / view->normalizer);
}

/* state [e, d] = diag(a) state + k^T v */
static void step(const head_view *view, int64_t row, double *state)
{
    for (int64_t e = 0; e < view->keys; e++) {
        double a = decay(view, row, e, NULL), k = nl_get(view->qkv, row, view->k + e);
        for (int64_t c = 0; c < view->size; c++)
            state[e * view->size + c] =
                a * state[e * view->size + c] + k * nl_get(view->qkv, row, view->v + c);
    }
}

/* qkv [B * T, >= 2 h e + D], gate [B * T, h e] -> out [B * T, D] */
nl_status nl_reference_gated_linear_attention(nl_device *device,
                                              const nl_gated_linear_attention_args *args)
{
    nl_status status = NL_OK;
    double *state = NULL;
    int64_t count = args->key_size * args->head_size;
    NL_TRY(NL_NEW_ARRAY(device->context, "the state of a head", count, &state));
    for (int64_t index = 0; index < args->batch * args->heads; index++) {
        head_view view = head_of(&args->qkv, &args->gate, &args->scan, args->heads, args->key_size,
                                 args->head_size, args->normalizer, index);
        memset(state, 0, (size_t)count * sizeof(double));
        for (int64_t i = 0; i < view.tokens; i++) {
            int64_t row = row_at(&view, i);
            step(&view, row, state);
            for (int64_t c = 0; c < view.size; c++) {
                double sum = 0;
                for (int64_t e = 0; e < view.keys; e++)
                    sum += nl_get(&args->qkv, row, view.q + e) * state[e * view.size + c];
                nl_put(&args->out, row, view.out + c, args->scale * sum);
            }
        }
    }
cleanup:
    nl_free(device->context, state);
    return status;
}

/* One token, from its state, the one before it and the gradient of its state, dstate, which becomes that of the state
 * before. */
static void token_backward(const nl_gated_linear_attention_backward_args *args,
                           const head_view *view, int64_t row, const double *state,
                           const double *before, double *dstate)
{
    int64_t d = view->size;
    for (int64_t c = 0; c < d; c++) {
        double dv = 0, dout = args->scale * nl_get(&args->dout, row, view->out + c);
        for (int64_t e = 0; e < view->keys; e++) {
            dstate[e * d + c] += nl_get(&args->qkv, row, view->q + e) * dout;
            dv += nl_get(&args->qkv, row, view->k + e) * dstate[e * d + c];
        }
        nl_put(&args->dqkv, row, view->v + c, dv);
    }
    for (int64_t e = 0; e < view->keys; e++) {
        double dq = 0, dk = 0, da = 0, slope, a = decay(view, row, e, &slope);
        for (int64_t c = 0; c < d; c++) {
            dq += args->scale * nl_get(&args->dout, row, view->out + c) * state[e * d + c];
            dk += dstate[e * d + c] * nl_get(&args->qkv, row, view->v + c);
            if (before)
                da += dstate[e * d + c] * before[e * d + c];
            dstate[e * d + c] *= a;
        }
        nl_put(&args->dqkv, row, view->q + e, dq);
        nl_put(&args->dqkv, row, view->k + e, dk);
        nl_put(&args->dgate, row, view->gates + e, da * a * slope);
    }
}

/* qkv, gate as forward, dout [B * T, D] -> dqkv [B * T, >= 2 h e + D], dgate [B * T, h e] */
nl_status
nl_reference_gated_linear_attention_backward(nl_device *device,
                                             const nl_gated_linear_attention_backward_args *args)
{
    nl_status status = NL_OK;
    double *states = NULL, *dstate; /* [T + 1, e, d], the last of them dstate */
    int64_t tokens = args->scan.grid_height * args->scan.grid_width;
    int64_t count = args->key_size * args->head_size;
    size_t bytes = (size_t)count * sizeof(double);
    NL_TRY(NL_NEW_ARRAY(device->context, "states of a head", (tokens + 1) * count, &states));
    dstate = states + tokens * count;
    for (int64_t index = 0; index < args->batch * args->heads; index++) {
        head_view view = head_of(&args->qkv, &args->gate, &args->scan, args->heads, args->key_size,
                                 args->head_size, args->normalizer, index);
        for (int64_t i = 0; i < tokens; i++) {
            if (i > 0)
                memcpy(states + i * count, states + (i - 1) * count, bytes);
            else
                memset(states, 0, bytes);
            step(&view, row_at(&view, i), states + i * count);
        }
        memset(dstate, 0, bytes);
        for (int64_t i = tokens - 1; i >= 0; i--)
            token_backward(args, &view, row_at(&view, i), states + i * count,
                           i > 0 ? states + (i - 1) * count : NULL, dstate);
    }
cleanup:
    nl_free(device->context, states);
    return status;
}
