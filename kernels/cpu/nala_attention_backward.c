/* SPDX-License-Identifier: MIT */
/*
 * Norm-aware linear attention backward, in two sweeps like the forward pass: the first goes through the queries, to
 * dq and the sums dS and dz; the second through the keys, to dk and dv. Features are computed again in a tile.
 */
#include "nala_features_backward.h"
#include "nala_tiles.h"

#include <string.h>

/* One head in the group that is worked on: S and dS between the sweeps. */
typedef struct head_memory {
    float *transposed; /* [columns, width]: S^T, then dS^T */
    float *total;      /* [width]: z */
    float *sums; /* chunks of dS [width, columns], dz [width]; then the first holds their sum / N */
} head_memory;

typedef struct backward {
    nl_nala_plan plan; /* tile: phi [TILE, width], dphi [TILE, width], u or v [TILE, columns] */
    const nl_nala_attention_backward_args *args;
    int64_t head_size;           /* floats of a head_memory */
    nl_log_exponents *exponents; /* [B h, chunks, (queries, keys)], where they are learnt */
} backward;

static head_memory memory_of(const backward *b, int64_t i)
{
    const nl_nala_plan *p = &b->plan;
    head_memory memory = {.transposed = p->sums + i * b->head_size};
    memory.total = memory.transposed + p->width * p->columns;
    memory.sums = p->sums + i * b->head_size + nl_cpu_pad(p->width * (p->columns + 1), 16);
    return memory;
}

/* to [columns, width] from [width, columns] with rows `stride` apart; what is beyond `width` x `columns` is 0 */
static void transpose(const backward *b, const float *from, int64_t width, int64_t columns,
                      int64_t stride, float *to)
{
    const nl_nala_plan *p = &b->plan;
    memset(to, 0, (size_t)(p->width * p->columns) * sizeof(float));
    for (int64_t f = 0; f < width; f++)
        for (int64_t c = 0; c < columns; c++)
            to[c * p->width + f] = from[f * stride + c];
}

/* S^T and z of a head, padded. */
static void load_state(const backward *b, int64_t index, const head_memory *memory)
{
    const nl_nala_plan *p = &b->plan;
    int64_t d = p->args->head_size, used = nl_feature_width(p->args->feature_map, d);
    transpose(b, (const float *)b->args->state.data + index * used * d, used, d, d,
              memory->transposed);
    for (int64_t f = 0; f < p->width; f++)
        memory->total[f] = f < used ? ((const float *)b->args->total.data)[index * used + f] : 0;
}

/* u [columns] = dout / denominator; u o is returned. */
static float scale_gradient(const backward *b, int64_t row, int64_t head, float denominator,
                            float *u)
{
    int64_t d = b->args->head_size;
    const float *dout = nl_cpu_row(&b->args->dout, row) + head * d;
    float inverse = 1.0f / denominator;
#pragma omp simd
    for (int64_t c = 0; c < d; c++)
        u[c] = dout[c] * inverse;
    for (int64_t c = d; c < b->plan.columns; c++)
        u[c] = 0;
    return nl_dot(u, nl_cpu_row(&b->args->out, row) + head * d, d);
}

/* dphi, turned back and with `factor` times `vector` added, goes through the features to dqkv and *exponents. part: 0 query,
 * 1 key; own: the head's arguments */
static void finish_row(const backward *b, const nl_nala_attention_args *own, int64_t index,
                       int64_t token, int part, float factor, const float *vector, float *dphi,
                       nl_log_exponents *exponents)
{
    const nl_nala_plan *p = &b->plan;
    int64_t d = p->args->head_size, row = index / p->args->heads * p->args->tokens + token;
    int64_t column = (part * p->args->heads + index % p->args->heads) * d;
    if (p->args->rope)
        nl_nala_rotate(p, token, -1, dphi);
#pragma omp simd
    for (int64_t f = 0; f < p->width; f++)
        dphi[f] += factor * vector[f];
    nl_features_backward(own, part == 0, nl_cpu_row(&b->args->qkvg, row) + column, dphi,
                         nl_cpu_row_out(&b->args->dqkv, row) + column, exponents);
}

/* What the tokens of a chunk give to the gradient of the head's exponents. */
static void put_exponents(const backward *b, int64_t index, int64_t chunk, int part,
                          nl_log_exponents exponents)
{
    if (b->exponents)
        b->exponents[(index * b->plan.chunks + chunk) * 2 + part] = exponents;
}

/* Their sums over images and chunks, in order, added to the gradients. */
static void add_exponents(const backward *b)
{
    const nl_nala_attention_backward_args *args = b->args;
    int64_t count = 2 * b->plan.chunks;
    for (int64_t head = 0; b->exponents && head < args->heads; head++) {
        double lambda = 0, tau = 0;
        for (int64_t image = 0; image < args->batch; image++)
            for (int64_t i = 0; i < count; i++) {
                const nl_log_exponents *part =
                    &b->exponents[(image * args->heads + head) * count + i];
                lambda += part->lambda;
                tau += part->tau;
            }
        ((float *)args->dlog_lambda.data)[head] += (float)lambda;
        ((float *)args->dlog_tau.data)[head] += (float)tau;
    }
}

/* Queries of one chunk: dphi = S u - (u o) z; dS += phi^T u, dz -= (u o) phi. */
static void query_chunk(const backward *b, int64_t index, int64_t chunk, float *tile,
                        const head_memory *memory)
{
    const nl_nala_plan *p = &b->plan;
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens);
    float *sums = memory->sums + chunk * p->sum_size, *dtotal = sums + p->width * p->columns;
    float *dphi = tile + NL_NALA_TILE * p->width, *u = dphi + NL_NALA_TILE * p->width;
    float products[NL_NALA_TILE];
    nl_nala_attention_args own = nl_nala_of_head(a, head);
    nl_log_exponents exponents = {0, 0};
    memset(sums, 0, (size_t)p->sum_size * sizeof(float));
    for (int64_t first = chunk * p->chunk; first < end; first += NL_NALA_TILE) {
        int64_t count = NL_MIN(NL_NALA_TILE, end - first);
        nl_nala_fill_tile(p, true, image, head, first, count, tile);
        for (int64_t i = 0; i < count; i++) {
            float *phi = tile + i * p->width;
            float denominator = nl_dot(phi, memory->total, p->width) + NL_DENOMINATOR_EPS;
            float product = scale_gradient(b, image * a->tokens + first + i, head, denominator,
                                           u + i * p->columns);
#pragma omp simd
            for (int64_t f = 0; f < p->width; f++)
                dtotal[f] -= product * phi[f];
            products[i] = product;
            if (a->rope)
                nl_nala_rotate(p, first + i, 1, phi);
        }
        /* Rows from `count` on hold whatever they held before; their results are not used. */
        nl_small_product(false, nl_cpu_pad(count, NL_ROW_UNIT), p->width, p->columns, u, p->columns,
                         1, memory->transposed, p->width, dphi, p->width);
        nl_small_product(true, p->width, p->columns, count, tile, 1, p->width, u, p->columns, sums,
                         p->columns);
        for (int64_t i = 0; i < count; i++)
            finish_row(b, &own, index, first + i, 0, -products[i], memory->total,
                       dphi + i * p->width, &exponents);
    }
    put_exponents(b, index, chunk, 0, exponents);
}

/* Adds the sums of a head's chunks in order into the first, times 1/N; dS^T takes the place of S^T. */
static void finish_sums(const backward *b, const head_memory *memory)
{
    const nl_nala_plan *p = &b->plan;
    float *sums = memory->sums, scale = 1.0f / (float)p->args->tokens;
    for (int64_t chunk = 1; chunk < p->chunks; chunk++)
#pragma omp simd
        for (int64_t i = 0; i < p->sum_size; i++)
            sums[i] += sums[chunk * p->sum_size + i];
    for (int64_t i = 0; i < p->sum_size; i++)
        sums[i] *= scale;
    transpose(b, sums, p->width, p->columns, p->columns, memory->transposed);
}

/* Keys of one chunk: dv = phi dS, dphi = dS v + dz, dS and dz being over N. */
static void key_chunk(const backward *b, int64_t index, int64_t chunk, float *tile,
                      const head_memory *memory)
{
    const nl_nala_plan *p = &b->plan;
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads, d = a->head_size;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens), column = (2 * a->heads + head) * d;
    const float *dtotal = memory->sums + p->width * p->columns;
    float *dphi = tile + NL_NALA_TILE * p->width, *v = dphi + NL_NALA_TILE * p->width;
    nl_nala_attention_args own = nl_nala_of_head(a, head);
    nl_log_exponents exponents = {0, 0};
    for (int64_t first = chunk * p->chunk; first < end; first += NL_NALA_TILE) {
        int64_t count = NL_MIN(NL_NALA_TILE, end - first), row = image * a->tokens + first;
        int64_t padded = nl_cpu_pad(count, NL_ROW_UNIT);
        nl_nala_fill_tile(p, false, image, head, first, count, tile);
        for (int64_t i = 0; a->rope && i < count; i++)
            nl_nala_rotate(p, first + i, 1, tile + i * p->width);
        nl_small_product(false, padded, p->columns, p->width, tile, p->width, 1, memory->sums,
                         p->columns, v, p->columns);
        for (int64_t i = 0; i < count; i++) {
            const float *from = nl_cpu_row(&a->qkvg, row + i) + column;
            memcpy(nl_cpu_row_out(&b->args->dqkv, row + i) + column, v + i * p->columns,
                   (size_t)d * sizeof(float));
            memcpy(v + i * p->columns, from, (size_t)d * sizeof(float));
            for (int64_t c = d; c < p->columns; c++)
                v[i * p->columns + c] = 0;
        }
        nl_small_product(false, padded, p->width, p->columns, v, p->columns, 1, memory->transposed,
                         p->width, dphi, p->width);
        for (int64_t i = 0; i < count; i++)
            finish_row(b, &own, index, first + i, 1, 1, dtotal, dphi + i * p->width, &exponents);
    }
    put_exponents(b, index, chunk, 1, exponents);
}

/* Heads [first, first + count) of all images' heads. */
static void run_group(const backward *b, int team, int64_t first, int64_t count)
{
    const nl_nala_plan *p = &b->plan;
#pragma omp parallel num_threads(team)
    {
        float *tile = p->tiles + omp_get_thread_num() * p->tile_size;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++) {
            head_memory memory = memory_of(b, i);
            load_state(b, first + i, &memory);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count * p->chunks; i++) {
            head_memory memory = memory_of(b, i / p->chunks);
            query_chunk(b, first + i / p->chunks, i % p->chunks, tile, &memory);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++) {
            head_memory memory = memory_of(b, i);
            finish_sums(b, &memory);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count * p->chunks; i++) {
            head_memory memory = memory_of(b, i / p->chunks);
            key_chunk(b, first + i / p->chunks, i % p->chunks, tile, &memory);
        }
    }
}

/* qkvg [B * T, >= 3D]; out, dout [B * T, D]; state [B * h, F, d], total [B * h, F] -> dqkv [B * T, >= 3D] */
nl_status NL_CPU(nala_attention_backward)(nl_device *device,
                                          const nl_nala_attention_backward_args *args)
{
    nl_nala_attention_args forward = nl_nala_forward_of(args);
    backward b = {.plan = nl_nala_make_plan(&forward, NL_COLUMN_UNIT), .args = args};
    nl_nala_plan *p = &b.plan;
    int64_t heads = args->batch * args->heads;
    int team = nl_cpu_team(device, heads * args->tokens * args->head_size);
    int64_t group = NL_MIN(heads, (NL_NALA_TASKS * team + p->chunks - 1) / p->chunks);
    p->tile_size = NL_NALA_TILE * (2 * p->width + p->columns);
    b.head_size = nl_cpu_pad(p->width * (p->columns + 1), 16) + p->chunks * p->sum_size;
    int64_t exponents = args->log_lambda.data ? 2 * 2 * heads * p->chunks : 0;
    int64_t floats = p->rotary_size + group * b.head_size + team * p->tile_size + exponents;
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, floats * (int64_t)sizeof(float), &scratch));
    p->rotary = scratch;
    p->sums = p->rotary + p->rotary_size;
    p->tiles = p->sums + group * b.head_size;
    if (exponents)
        b.exponents = (nl_log_exponents *)(p->tiles + team * p->tile_size);
    if (args->rope)
        nl_nala_fill_rotary(p);
    for (int64_t first = 0; first < heads; first += group)
        run_group(&b, team, first, NL_MIN(group, heads - first));
    add_exponents(&b);
    if (args->sums.data)
        NL_CPU(column_sums)(device, &args->dqkv, args->sums.shape[0], args->sums.data);
    return NL_OK;
}
