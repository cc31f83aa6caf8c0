/* SPDX-License-Identifier: MIT */
/*
 * Softmax attention in tiles, never holding a T x T matrix: for a block of queries, tile after tile
 * of keys updates the running maximum, sum and output (Milakov and Gimelshein 2018; Dao et al.
 * 2022). A block is one task, so that the order of all sums is fixed.
 */
#include "nl_cpu.h"
#include "vector.h"
#include "vector_math.h"

enum {
    QUERIES = 128, /* of a block */
    KEYS = 64,     /* of a tile */
    PART = 128     /* terms of a score that are summed one after the other */
};

#define LOG2_E 1.44269504f
#define LN_2   0.693147181f

typedef struct plan {
    const nl_softmax_attention_args *args;
    int64_t columns; /* head size padded to NL_COLUMN_UNIT */
} plan;

/* A thread's working memory; queries in units of log2, so that exp2 serves. */
typedef struct block {
    float *q;       /* [QUERIES, d] times scale log2(e) */
    float *keys;    /* [d, KEYS], transposed */
    float *v;       /* [KEYS, columns] where v needs padding */
    float *weights; /* [QUERIES, KEYS]: scores, then their exponentials */
    float *out;     /* [QUERIES, columns] */
    float *maximum; /* [QUERIES] */
    float *sum;     /* [QUERIES] */
} block;

static int64_t block_floats(const plan *p)
{
    int64_t d = p->args->head_size;
    return nl_cpu_pad(QUERIES * d + d * KEYS, 16) + KEYS * p->columns + QUERIES * KEYS +
           QUERIES * p->columns + 2 * QUERIES;
}

static block block_at(const plan *p, float *memory)
{
    int64_t d = p->args->head_size;
    block b = {.q = memory, .keys = memory + QUERIES * d};
    b.v = memory + nl_cpu_pad(QUERIES * d + d * KEYS, 16);
    b.weights = b.v + KEYS * p->columns;
    b.out = b.weights + QUERIES * KEYS;
    b.maximum = b.out + QUERIES * p->columns;
    b.sum = b.maximum + QUERIES;
    return b;
}

/* Row of token `token` of part 0 (q), 1 (k) or 2 (v). */
static const float *part_row(const plan *p, int part, int64_t image, int64_t head, int64_t token)
{
    const nl_softmax_attention_args *a = p->args;
    return nl_cpu_row(&a->qkv, image * a->tokens + token) + (part * a->heads + head) * a->head_size;
}

static void start(const plan *p, const block *b, int64_t image, int64_t head, int64_t first,
                  int64_t count)
{
    int64_t d = p->args->head_size, padded = nl_cpu_pad(count, NL_ROW_UNIT);
    float factor = p->args->scale * LOG2_E;
    for (int64_t i = 0; i < count; i++) {
        const float *q = part_row(p, 0, image, head, first + i);
#pragma omp simd
        for (int64_t c = 0; c < d; c++)
            b->q[i * d + c] = q[c] * factor;
    }
    for (int64_t i = count * d; i < padded * d; i++)
        b->q[i] = 0;
    for (int64_t i = 0; i < padded * p->columns; i++)
        b->out[i] = 0;
    for (int64_t i = 0; i < padded; i++) {
        b->maximum[i] = -INFINITY;
        b->sum[i] = 0;
    }
}

/* keys [d, KEYS] from `count` tokens; the others are 0. */
static void load_keys(const plan *p, const block *b, int64_t image, int64_t head, int64_t first,
                      int64_t count)
{
    int64_t d = p->args->head_size;
    for (int64_t j = 0; j < KEYS; j += 16)
        for (int64_t c = 0; c < d; c += 16)
            for (int64_t i = j; i < j + 16; i++) {
                const float *k = i < count ? part_row(p, 1, image, head, first + i) : NULL;
                for (int64_t e = c; e < NL_MIN(c + 16, d); e++)
                    b->keys[e * KEYS + i] = k ? k[e] : 0;
            }
}

static const float *load_values(const plan *p, const block *b, int64_t image, int64_t head,
                                int64_t first, int64_t count, int64_t *stride)
{
    int64_t d = p->args->head_size;
    *stride = p->args->qkv.row_stride;
    if (d == p->columns)
        return part_row(p, 2, image, head, first);
    for (int64_t i = 0; i < count; i++) {
        const float *v = part_row(p, 2, image, head, first + i);
        for (int64_t c = 0; c < p->columns; c++)
            b->v[i * p->columns + c] = c < d ? v[c] : 0;
    }
    *stride = p->columns;
    return b->v;
}

/* weights [queries, KEYS] = q keys, by parts of the head size: errors of a score are errors of its
 * exponential times the score, so large scores of large heads want shorter chains of sums. */
static void score(const block *b, int64_t queries, int64_t d)
{
    nl_small_product(false, queries, KEYS, NL_MIN(d, PART), b->q, d, 1, b->keys, KEYS, b->weights,
                     KEYS);
    for (int64_t c = PART; c < d; c += PART)
        nl_small_product(true, queries, KEYS, NL_MIN(d - c, PART), b->q + c, d, 1,
                         b->keys + c * KEYS, KEYS, b->weights, KEYS);
}

/* Scores [KEYS] of one query become exponentials; the output so far shrinks with the maximum. */
static void soften(const plan *p, const block *b, int64_t query, int64_t count)
{
    float *weights = b->weights + query * KEYS, *out = b->out + query * p->columns;
    float maximum = b->maximum[query], sum = 0;
    for (int64_t i = count; i < KEYS; i++)
        weights[i] = -INFINITY;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < KEYS; i++)
        maximum = weights[i] > maximum ? weights[i] : maximum;
    float shrink = b->sum[query] > 0 ? nlv_exp2(b->maximum[query] - maximum) : 1;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < KEYS; i++) {
        float weight = nlv_exp2(weights[i] - maximum);
        weights[i] = weight;
        sum += weight;
    }
    b->sum[query] = b->sum[query] * shrink + sum;
    b->maximum[query] = maximum;
    if (shrink != 1) {
#pragma omp simd
        for (int64_t c = 0; c < p->columns; c++)
            out[c] *= shrink;
    }
}

static void finish(const plan *p, const block *b, int64_t image, int64_t head, int64_t first,
                   int64_t count)
{
    const nl_softmax_attention_args *a = p->args;
    int64_t d = a->head_size;
    for (int64_t i = 0; i < count; i++) {
        float *out = nl_cpu_row_out(&a->out, image * a->tokens + first + i) + head * d;
        float inverse = 1.0f / b->sum[i];
#pragma omp simd
        for (int64_t c = 0; c < d; c++)
            out[c] = b->out[i * p->columns + c] * inverse;
        if (a->lse.data)
            ((float *)a->lse.data)[(image * a->heads + head) * a->tokens + first + i] =
                LN_2 * (b->maximum[i] + nlv_log2(b->sum[i]));
    }
}

/* Queries [first, first + count) of one image and head. */
static void attend(const plan *p, const block *b, int64_t image, int64_t head, int64_t first,
                   int64_t count)
{
    int64_t d = p->args->head_size, tokens = p->args->tokens;
    int64_t padded = nl_cpu_pad(count, NL_ROW_UNIT);
    start(p, b, image, head, first, count);
    for (int64_t key = 0; key < tokens; key += KEYS) {
        int64_t keys = NL_MIN(KEYS, tokens - key), stride;
        load_keys(p, b, image, head, key, keys);
        score(b, padded, d);
        for (int64_t query = 0; query < padded; query++)
            soften(p, b, query, keys);
        const float *v = load_values(p, b, image, head, key, keys, &stride);
        nl_small_product(true, padded, p->columns, keys, b->weights, KEYS, 1, v, stride, b->out,
                         p->columns);
    }
    finish(p, b, image, head, first, count);
}

/* qkv [B * T, >= 3D] -> out [B * T, D], lse [B * h, T] */
nl_status NL_CPU(softmax_attention)(nl_device *device, const nl_softmax_attention_args *args)
{
    plan p = {.args = args, .columns = nl_cpu_pad(args->head_size, NL_COLUMN_UNIT)};
    int64_t blocks = (args->tokens + QUERIES - 1) / QUERIES;
    int64_t heads = args->batch * args->heads, size = block_floats(&p);
    int team = nl_cpu_team(device, heads * args->tokens * args->tokens);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, team * size * (int64_t)sizeof(float), &scratch));
#pragma omp parallel num_threads(team)
    {
        block b = block_at(&p, (float *)scratch + omp_get_thread_num() * size);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < heads * blocks; i++) {
            int64_t index = i / blocks, first = i % blocks * QUERIES;
            attend(&p, &b, index / args->heads, index % args->heads, first,
                   NL_MIN(QUERIES, args->tokens - first));
        }
    }
    return NL_OK;
}
