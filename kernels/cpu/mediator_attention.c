/* SPDX-License-Identifier: MIT */
/* Attention through mediators and its gradients, a head at a time: mediators, their values and weights stay in the nearer
 * caches. */
#include <math.h>
#include <string.h>

#include "nl_cpu.h"
#include "rows.h"
#include "vector.h"
#include "vector_math.h"

typedef struct mediated {
    const nl_tensor *qkv;
    const nl_mediators *sizes;
    int64_t tokens, count, d, hidden; /* T, M, d, D */
    float scale;
} mediated;

static mediated mediated_of(const nl_tensor *qkv, const nl_mediators *sizes, float scale)
{
    return (mediated){.qkv = qkv,
                      .sizes = sizes,
                      .tokens = sizes->grid_height * sizes->grid_width,
                      .count = sizes->side * sizes->side,
                      .d = sizes->head_size,
                      .hidden = sizes->heads * sizes->head_size,
                      .scale = scale};
}

static int64_t row_of(const mediated *m, int64_t index, int64_t token)
{
    return index / m->sizes->heads * m->tokens + token;
}

/* q (part 0), k (1) or v (2) of a token, [d]. */
static const float *part(const mediated *m, int64_t index, int64_t token, int which)
{
    return nl_cpu_row(m->qkv, row_of(m, index, token)) + which * m->hidden +
           index % m->sizes->heads * m->d;
}

/* x [count] = exp(x - their maximum) / their sum; returns maximum + log(sum) */
NL_ONE_COPY float softmax(float *x, int64_t count)
{
    float maximum = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        maximum = x[i] > maximum ? x[i] : maximum;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] = nlv_exp(x[i] - maximum);
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    float inverse = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] *= inverse;
    return maximum + logf(sum);
}

static float area_of(nl_cell cell)
{
    return (float)((cell.bottom - cell.top) * (cell.right - cell.left));
}

/* One mediator [d], the values [d] that it gathers, and the log of its sum; weights [T]. */
static float gather(const mediated *m, int64_t index, int64_t a, float *weights, float *mediator,
                    float *values)
{
    nl_cell cell = nl_mediator_cell(m->sizes, a);
    float share = 1 / area_of(cell);
    memset(mediator, 0, (size_t)m->d * sizeof(float));
    memset(values, 0, (size_t)m->d * sizeof(float));
    for (int64_t y = cell.top; y < cell.bottom; y++)
        for (int64_t x = cell.left; x < cell.right; x++)
            nl_add_scaled(share, part(m, index, y * m->sizes->grid_width + x, 0), m->d, mediator);
    for (int64_t t = 0; t < m->tokens; t++)
        weights[t] = m->scale * nl_dot(mediator, part(m, index, t, 1), m->d);
    float lse = softmax(weights, m->tokens);
    for (int64_t t = 0; t < m->tokens; t++)
        nl_add_scaled(weights[t], part(m, index, t, 2), m->d, values);
    return lse;
}

/* weights [M] of a token's query on the mediators [M, d] */
static void weigh(const mediated *m, int64_t index, int64_t token, const float *mediators,
                  float *weights)
{
    const float *q = part(m, index, token, 0);
    for (int64_t a = 0; a < m->count; a++)
        weights[a] = m->scale * nl_dot(q, mediators + a * m->d, m->d);
    softmax(weights, m->count);
}

/* qkv [B * T, >= 3D] -> out [B * T, D], mediators, values [B * h, M, d], lse [B * h, M] */
nl_status NL_CPU(mediator_attention)(nl_device *device, const nl_mediator_attention_args *args)
{
    mediated m = mediated_of(&args->qkv, &args->sizes, args->scale);
    int64_t heads = args->sizes.batch * args->sizes.heads, size = m.count * m.d;
    int64_t floats = nl_cpu_pad(m.tokens + m.count, 16);
    int team = nl_cpu_team(device, heads * m.tokens * m.d);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * floats * (int64_t)sizeof(float), &scratch));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t index = 0; index < heads; index++) {
        float *weights = (float *)scratch + omp_get_thread_num() * floats;
        float *mediators = (float *)args->mediators.data + index * size;
        float *values = (float *)args->values.data + index * size;
        for (int64_t a = 0; a < m.count; a++)
            ((float *)args->lse.data)[index * m.count + a] =
                gather(&m, index, a, weights, mediators + a * m.d, values + a * m.d);
        for (int64_t t = 0; t < m.tokens; t++) {
            float *out =
                nl_cpu_row_out(&args->out, row_of(&m, index, t)) + index % args->sizes.heads * m.d;
            weigh(&m, index, t, mediators, weights);
            memset(out, 0, (size_t)m.d * sizeof(float));
            for (int64_t a = 0; a < m.count; a++)
                nl_add_scaled(weights[a], values + a * m.d, m.d, out);
        }
    }
    return NL_OK;
}

/* Gradients of a head, [M, d] each, and room [2 M]. */
typedef struct head_memory {
    float *dmediators, *dvalues, *weights;
} head_memory;

/* A token as a query: dq without its part in mediators; dvalues and dmediators are added to. */
static void query_backward(const mediated *m, const nl_mediator_attention_backward_args *args,
                           int64_t index, int64_t token, const head_memory *memory)
{
    int64_t row = row_of(m, index, token), column = index % m->sizes->heads * m->d;
    const float *mediators = (float *)args->mediators.data + index * m->count * m->d;
    const float *values = (float *)args->values.data + index * m->count * m->d;
    const float *dout = nl_cpu_row(&args->dout, row) + column, *q = part(m, index, token, 0);
    float *dq = nl_cpu_row_out(&args->dqkv, row) + column;
    float *weights = memory->weights, *changes = weights + m->count, mean = 0;
    weigh(m, index, token, mediators, weights);
    for (int64_t a = 0; a < m->count; a++) {
        changes[a] = nl_dot(dout, values + a * m->d, m->d);
        mean += weights[a] * changes[a];
    }
    memset(dq, 0, (size_t)m->d * sizeof(float));
    for (int64_t a = 0; a < m->count; a++) {
        float change = m->scale * weights[a] * (changes[a] - mean);
        nl_add_scaled(weights[a], dout, m->d, memory->dvalues + a * m->d);
        nl_add_scaled(change, mediators + a * m->d, m->d, dq);
        nl_add_scaled(change, q, m->d, memory->dmediators + a * m->d);
    }
}

/* A token as key and value. means [M]: of dvalues and values. */
static void key_backward(const mediated *m, const nl_mediator_attention_backward_args *args,
                         int64_t index, int64_t token, const float *means,
                         const head_memory *memory)
{
    int64_t row = row_of(m, index, token), column = index % m->sizes->heads * m->d;
    const float *mediators = (float *)args->mediators.data + index * m->count * m->d;
    const float *lse = (float *)args->lse.data + index * m->count;
    const float *k = part(m, index, token, 1), *v = part(m, index, token, 2);
    float *dk = nl_cpu_row_out(&args->dqkv, row) + m->hidden + column, *dv = dk + m->hidden;
    memset(dk, 0, (size_t)m->d * sizeof(float));
    memset(dv, 0, (size_t)m->d * sizeof(float));
    for (int64_t a = 0; a < m->count; a++) {
        const float *mediator = mediators + a * m->d, *dvalue = memory->dvalues + a * m->d;
        float weight = nlv_exp(m->scale * nl_dot(mediator, k, m->d) - lse[a]);
        float change = m->scale * weight * (nl_dot(dvalue, v, m->d) - means[a]);
        nl_add_scaled(weight, dvalue, m->d, dv);
        nl_add_scaled(change, mediator, m->d, dk);
        nl_add_scaled(change, k, m->d, memory->dmediators + a * m->d);
    }
}

static void head_backward(const mediated *m, const nl_mediator_attention_backward_args *args,
                          int64_t index, const head_memory *memory)
{
    const float *values = (float *)args->values.data + index * m->count * m->d;
    memset(memory->dmediators, 0, (size_t)(2 * m->count * m->d) * sizeof(float));
    for (int64_t t = 0; t < m->tokens; t++)
        query_backward(m, args, index, t, memory);
    for (int64_t a = 0; a < m->count; a++)
        memory->weights[a] = nl_dot(memory->dvalues + a * m->d, values + a * m->d, m->d);
    for (int64_t t = 0; t < m->tokens; t++)
        key_backward(m, args, index, t, memory->weights, memory);
    for (int64_t a = 0; a < m->count; a++) {
        nl_cell cell = nl_mediator_cell(m->sizes, a);
        for (int64_t y = cell.top; y < cell.bottom; y++)
            for (int64_t x = cell.left; x < cell.right; x++)
                nl_add_scaled(
                    1 / area_of(cell), memory->dmediators + a * m->d, m->d,
                    nl_cpu_row_out(&args->dqkv, row_of(m, index, y * m->sizes->grid_width + x)) +
                        index % m->sizes->heads * m->d);
    }
}

/* qkv, mediators, values, lse as forward, dout [B * T, D] -> dqkv [B * T, >= 3D] */
nl_status NL_CPU(mediator_attention_backward)(nl_device *device,
                                              const nl_mediator_attention_backward_args *args)
{
    mediated m = mediated_of(&args->qkv, &args->sizes, args->scale);
    int64_t heads = args->sizes.batch * args->sizes.heads, size = m.count * m.d;
    int64_t floats = nl_cpu_pad(2 * (size + m.count), 16);
    int team = nl_cpu_team(device, heads * m.tokens * m.d);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * floats * (int64_t)sizeof(float), &scratch));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t index = 0; index < heads; index++) {
        float *own = (float *)scratch + omp_get_thread_num() * floats;
        const head_memory memory = {own, own + size, own + 2 * size};
        head_backward(&m, args, index, &memory);
    }
    return NL_OK;
}
