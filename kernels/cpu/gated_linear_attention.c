/* SPDX-License-Identifier: MIT */
/*
 * Gated linear attention token by token, a head at a time: its state of e x d floats stays in the nearer caches. The
 * backward pass goes through the tokens twice: forwards by S to dq, then backwards by dS to dk, dv and the sum that is the
 * gradient of log a.
 */
#include <math.h>
#include <string.h>

#include "nl_cpu.h"
#include "rows.h"
#include "vector.h"
#include "vector_math.h"

typedef struct scanned {
    const nl_tensor *qkv, *gate;
    const nl_scan *scan;
    int64_t heads, keys, size, tokens; /* h, e, d, T */
    float scale, normalizer;
} scanned;

static scanned scanned_of(const nl_tensor *qkv, const nl_tensor *gate, const nl_scan *scan,
                          int64_t heads, int64_t keys, int64_t size, float scale, float normalizer)
{
    return (scanned){.qkv = qkv,
                     .gate = gate,
                     .scan = scan,
                     .heads = heads,
                     .keys = keys,
                     .size = size,
                     .tokens = scan->grid_height * scan->grid_width,
                     .scale = scale,
                     .normalizer = normalizer};
}

/* Rows of a head at one token. */
typedef struct head_row {
    int64_t row;
    const float *q, *k, *v, *gate;
} head_row;

static head_row row_of(const scanned *s, int64_t index, int64_t place)
{
    int64_t head = index % s->heads;
    int64_t row = index / s->heads * s->tokens + nl_scan_token(s->scan, place);
    const float *qkv = nl_cpu_row(s->qkv, row);
    return (head_row){.row = row,
                      .q = qkv + head * s->keys,
                      .k = qkv + (s->heads + head) * s->keys,
                      .v = qkv + 2 * s->heads * s->keys + head * s->size,
                      .gate = nl_cpu_row(s->gate, row) + head * s->keys};
}

/* a [e] = sigmoid(gate)^(1 / normalizer) */
NL_ONE_COPY void decays_of(const scanned *s, const float *gate, float *restrict decays)
{
    float inverse = 1 / s->normalizer;
#pragma omp simd
    for (int64_t e = 0; e < s->keys; e++) {
        float least = gate[e] < 0 ? gate[e] : 0;
        decays[e] = nlv_exp((least - nlv_log(1 + nlv_exp(-fabsf(gate[e])))) * inverse);
    }
}

/* state [d] = a state + k v */
NL_ONE_COPY void update(float a, float k, const float *v, int64_t size, float *restrict state)
{
#pragma omp simd
    for (int64_t c = 0; c < size; c++)
        state[c] = a * state[c] + k * v[c];
}

static void forward_head(const scanned *s, int64_t index, const nl_tensor *out, float *state)
{
    float *decays = state + s->keys * s->size;
    memset(state, 0, (size_t)(s->keys * s->size) * sizeof(float));
    for (int64_t i = 0; i < s->tokens; i++) {
        head_row at = row_of(s, index, i);
        float *to = nl_cpu_row_out(out, at.row) + index % s->heads * s->size;
        memset(to, 0, (size_t)s->size * sizeof(float));
        decays_of(s, at.gate, decays);
        for (int64_t e = 0; e < s->keys; e++) {
            float *row = state + e * s->size;
            update(decays[e], at.k[e], at.v, s->size, row);
            nl_add_scaled(s->scale * at.q[e], row, s->size, to);
        }
    }
}

/* qkv [B * T, >= 2 h e + D], gate [B * T, h e] -> out [B * T, D] */
nl_status NL_CPU(gated_linear_attention)(nl_device *device,
                                         const nl_gated_linear_attention_args *args)
{
    scanned s = scanned_of(&args->qkv, &args->gate, &args->scan, args->heads, args->key_size,
                           args->head_size, args->scale, args->normalizer);
    int64_t heads = args->batch * s.heads, floats = nl_cpu_pad(s.keys * (s.size + 1), 16);
    int team = nl_cpu_team(device, heads * s.tokens * s.size);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * floats * (int64_t)sizeof(float), &scratch));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t index = 0; index < heads; index++)
        forward_head(&s, index, &args->out, (float *)scratch + omp_get_thread_num() * floats);
    return NL_OK;
}

/* dq = scale S dout */
static void queries_backward(const scanned *s, const nl_gated_linear_attention_backward_args *args,
                             int64_t index, float *state, float *decays)
{
    int64_t head = index % s->heads;
    memset(state, 0, (size_t)(s->keys * s->size) * sizeof(float));
    for (int64_t i = 0; i < s->tokens; i++) {
        head_row at = row_of(s, index, i);
        const float *dout = nl_cpu_row(&args->dout, at.row) + head * s->size;
        float *dq = nl_cpu_row_out(&args->dqkv, at.row) + head * s->keys;
        decays_of(s, at.gate, decays);
        for (int64_t e = 0; e < s->keys; e++) {
            float *row = state + e * s->size;
            update(decays[e], at.k[e], at.v, s->size, row);
            dq[e] = s->scale * nl_dot(row, dout, s->size);
        }
    }
}

/* dS = diag(a of the token after) dS + scale q^T dout; dv = k dS, dk = dS v. sums [e]: of q dq - k dk so far. */
static void keys_backward(const scanned *s, const nl_gated_linear_attention_backward_args *args,
                          int64_t index, float *dstate, float *decays, float *sums)
{
    int64_t head = index % s->heads;
    memset(dstate, 0, (size_t)(s->keys * s->size) * sizeof(float));
    for (int64_t e = 0; e < s->keys; e++)
        decays[e] = sums[e] = 0;
    for (int64_t i = s->tokens - 1; i >= 0; i--) {
        head_row at = row_of(s, index, i);
        const float *dout = nl_cpu_row(&args->dout, at.row) + head * s->size;
        float *dqkv = nl_cpu_row_out(&args->dqkv, at.row), *dq = dqkv + head * s->keys;
        float *dk = dqkv + (s->heads + head) * s->keys;
        float *dv = dqkv + 2 * s->heads * s->keys + head * s->size;
        float *dgate = nl_cpu_row_out(&args->dgate, at.row) + head * s->keys;
        memset(dv, 0, (size_t)s->size * sizeof(float));
        for (int64_t e = 0; e < s->keys; e++) {
            float *row = dstate + e * s->size;
            update(decays[e], s->scale * at.q[e], dout, s->size, row);
            nl_add_scaled(at.k[e], row, s->size, dv);
            dk[e] = nl_dot(row, at.v, s->size);
            sums[e] += at.q[e] * dq[e] - at.k[e] * dk[e];
            dgate[e] = sums[e] * nlv_sigmoid(-at.gate[e]) / s->normalizer;
        }
        decays_of(s, at.gate, decays);
    }
}

/* qkv, gate as forward, dout [B * T, D] -> dqkv [B * T, >= 2 h e + D], dgate [B * T, h e] */
nl_status
NL_CPU(gated_linear_attention_backward)(nl_device *device,
                                        const nl_gated_linear_attention_backward_args *args)
{
    scanned s = scanned_of(&args->qkv, &args->gate, &args->scan, args->heads, args->key_size,
                           args->head_size, args->scale, args->normalizer);
    int64_t heads = args->batch * s.heads, floats = nl_cpu_pad(s.keys * (s.size + 2), 16);
    int team = nl_cpu_team(device, heads * s.tokens * s.size);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * floats * (int64_t)sizeof(float), &scratch));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t index = 0; index < heads; index++) {
        float *state = (float *)scratch + omp_get_thread_num() * floats;
        float *decays = state + s.keys * s.size;
        queries_backward(&s, args, index, state, decays);
        keys_backward(&s, args, index, state, decays, decays + s.keys);
    }
    return NL_OK;
}
