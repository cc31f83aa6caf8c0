/* SPDX-License-Identifier: MIT */
/*
 * Softmax attention backward, never holding a T x T matrix: a task is one head of one image, whose tiles of queries
 * and keys are gone through in order. Scores are computed again; P = exp(scale q k - lse).
 */
#include "nl_cpu.h"
#include "vector.h"
#include "vector_math.h"

#include <string.h>

enum { TILE = 64 /* queries and keys */ };

#define LOG2_E 1.44269504f

/* A thread's working memory; rows of q, k, v, dout padded to `columns` with 0, tiles padded to TILE rows. */
typedef struct head_memory {
    float *q, *k, *v, *dout;            /* [TILE, columns] */
    float *k_transposed, *v_transposed; /* [columns, TILE] */
    float *weights, *dscores;           /* [TILE, TILE]: P, dS */
    float *dk, *dv;                     /* [TILE, columns] */
    float *dq;                          /* [padded T, columns] */
    float *rows;                        /* [2, TILE]: lse in units of log2, do o */
} head_memory;

typedef struct plan {
    const nl_softmax_attention_backward_args *args;
    int64_t columns, padded; /* head size and tokens, padded */
} plan;

static int64_t memory_floats(const plan *p)
{
    return (8 * TILE + p->padded) * p->columns + 2 * TILE * TILE + 2 * TILE;
}

static head_memory memory_at(const plan *p, float *memory)
{
    int64_t size = TILE * p->columns;
    head_memory m = {.q = memory};
    m.k = m.q + size;
    m.v = m.k + size;
    m.dout = m.v + size;
    m.k_transposed = m.dout + size;
    m.v_transposed = m.k_transposed + size;
    m.dk = m.v_transposed + size;
    m.dv = m.dk + size;
    m.dq = m.dv + size;
    m.weights = m.dq + p->padded * p->columns;
    m.dscores = m.weights + TILE * TILE;
    m.rows = m.dscores + TILE * TILE;
    return m;
}

/* to [TILE, columns] = factor times `count` rows of from at this column. */
static void load(const plan *p, const nl_tensor *from, int64_t row, int64_t column, int64_t count,
                 float factor, float *to)
{
    int64_t d = p->args->head_size;
    memset(to, 0, (size_t)(TILE * p->columns) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        const float *x = nl_cpu_row(from, row + i) + column;
#pragma omp simd
        for (int64_t c = 0; c < d; c++)
            to[i * p->columns + c] = factor * x[c];
    }
}

static void store(const plan *p, const float *from, int64_t row, int64_t column, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(nl_cpu_row_out(&p->args->dqkv, row + i) + column, from + i * p->columns,
               (size_t)p->args->head_size * sizeof(float));
}

static void transpose(const plan *p, const float *from, float *to)
{
    for (int64_t i = 0; i < TILE; i++)
        for (int64_t c = 0; c < p->columns; c++)
            to[c * TILE + i] = from[i * p->columns + c];
}

/* P and dS = P (do v - do o) of the tile of queries with that of keys; `queries` and `keys` are real. */
static void differentiate(const head_memory *m, int64_t queries, int64_t keys)
{
    const float *lse = m->rows, *products = m->rows + TILE;
    for (int64_t i = 0; i < TILE; i++) {
        float *weights = m->weights + i * TILE, *dscores = m->dscores + i * TILE;
        int64_t count = i < queries ? keys : 0;
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            weights[j] = nlv_exp2(weights[j] - lse[i]);
            dscores[j] = weights[j] * (dscores[j] - products[i]);
        }
        for (int64_t j = count; j < TILE; j++)
            weights[j] = dscores[j] = 0;
    }
}

/* One tile of queries with the tile of keys that is loaded. */
static void query_tile(const plan *p, const head_memory *m, int64_t index, int64_t first,
                       int64_t keys)
{
    const nl_softmax_attention_backward_args *a = p->args;
    int64_t d = a->head_size, n = p->columns, row = index / a->heads * a->tokens + first;
    int64_t column = index % a->heads * d, count = NL_MIN(TILE, a->tokens - first);
    load(p, &a->qkv, row, column, count, a->scale * LOG2_E, m->q);
    load(p, &a->dout, row, column, count, 1, m->dout);
    for (int64_t i = 0; i < count; i++) {
        m->rows[i] = LOG2_E * ((const float *)a->lse.data)[index * a->tokens + first + i];
        m->rows[TILE + i] = nl_dot(m->dout + i * n, nl_cpu_row(&a->out, row + i) + column, d);
    }
    nl_small_product(false, TILE, TILE, n, m->q, n, 1, m->k_transposed, TILE, m->weights, TILE);
    nl_small_product(false, TILE, TILE, n, m->dout, n, 1, m->v_transposed, TILE, m->dscores, TILE);
    differentiate(m, count, keys);
    nl_small_product(true, TILE, n, TILE, m->weights, 1, TILE, m->dout, n, m->dv, n);
    nl_small_product(true, TILE, n, TILE, m->dscores, 1, TILE, m->q, n, m->dk, n);
    nl_small_product(true, TILE, n, TILE, m->dscores, TILE, 1, m->k, n, m->dq + first * n, n);
}

static void scale_tile(float factor, int64_t count, float *x)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] *= factor;
}

/* One head of one image. q is loaded times scale log2(e), so dk leaves with a factor log2(e) too many. */
static void head_backward(const plan *p, const head_memory *m, int64_t index)
{
    const nl_softmax_attention_backward_args *a = p->args;
    int64_t d = a->head_size, size = a->heads * d, first = index / a->heads * a->tokens;
    int64_t column = index % a->heads * d;
    memset(m->dq, 0, (size_t)(p->padded * p->columns) * sizeof(float));
    for (int64_t key = 0; key < a->tokens; key += TILE) {
        int64_t keys = NL_MIN(TILE, a->tokens - key);
        load(p, &a->qkv, first + key, size + column, keys, 1, m->k);
        load(p, &a->qkv, first + key, 2 * size + column, keys, 1, m->v);
        transpose(p, m->k, m->k_transposed);
        transpose(p, m->v, m->v_transposed);
        memset(m->dk, 0, (size_t)(2 * TILE * p->columns) * sizeof(float)); /* and dv */
        for (int64_t query = 0; query < a->tokens; query += TILE)
            query_tile(p, m, index, query, keys);
        scale_tile(1 / LOG2_E, TILE * p->columns, m->dk);
        store(p, m->dk, first + key, size + column, keys);
        store(p, m->dv, first + key, 2 * size + column, keys);
    }
    scale_tile(a->scale, p->padded * p->columns, m->dq);
    store(p, m->dq, first, column, a->tokens);
}

/* qkv [B * T, >= 3D]; out, dout [B * T, D]; lse [B * h, T] -> dqkv [B * T, >= 3D] */
nl_status NL_CPU(softmax_attention_backward)(nl_device *device,
                                             const nl_softmax_attention_backward_args *args)
{
    plan p = {.args = args,
              .columns = nl_cpu_pad(args->head_size, NL_COLUMN_UNIT),
              .padded = nl_cpu_pad(args->tokens, TILE)};
    int64_t heads = args->batch * args->heads, size = memory_floats(&p);
    int team = nl_cpu_team(device, heads * args->tokens * args->tokens);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * size * (int64_t)sizeof(float), &scratch));
#pragma omp parallel num_threads(team)
    {
        head_memory m = memory_at(&p, (float *)scratch + omp_get_thread_num() * size);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < heads; i++)
            head_backward(&p, &m, i);
    }
    return NL_OK;
}
