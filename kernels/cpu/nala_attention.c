/*
 * Norm-aware linear attention in two sweeps over the tokens. The first sums S = phi_k^T v and z of
 * each head in chunks of tokens, the second applies them to the queries. Features live in a tile of
 * TILE tokens and never reach memory. Chunks depend on the number of tokens alone and are added in
 * order, so that the result is the same for any number of threads.
 */
#include "nala_features.h"
#include "nl_cpu.h"
#include "vector.h"

#include <math.h>

enum {
    TILE = 64,
    MIN_CHUNK = 256, /* tokens */
    MAX_CHUNKS = 16,
    TASKS = 8 /* chunks of a group of heads for each thread */
};

#define DENOMINATOR_EPS 1e-6f

typedef struct plan {
    const nl_nala_attention_args *args;
    int64_t width;         /* of the features, padded to NL_ROW_UNIT; the padding is 0 */
    int64_t columns;       /* of v, padded to NL_COLUMN_UNIT */
    int64_t chunk, chunks; /* tokens of a chunk, chunks of a head */
    int64_t sum_size;      /* floats of the sums of a chunk: S [width, columns], z [width] */
    int64_t
        tile_size; /* floats of a thread's tile: phi [TILE, width], then v or o [TILE, columns] */
    int64_t rotary_size; /* floats of the rotary table: cos, then sin, [positions, d / 4] each */
    float *rotary;
    float *sums;
    float *tiles;
} plan;

static plan make_plan(const nl_nala_attention_args *args)
{
    plan p = {.args = args};
    p.width = nl_cpu_pad(nl_feature_width(args->feature_map, args->head_size), NL_ROW_UNIT);
    p.columns = nl_cpu_pad(args->head_size, NL_COLUMN_UNIT);
    p.chunk = nl_cpu_pad((args->tokens + MAX_CHUNKS - 1) / MAX_CHUNKS, TILE);
    p.chunk = NL_MAX(p.chunk, MIN_CHUNK);
    p.chunks = (args->tokens + p.chunk - 1) / p.chunk;
    p.sum_size = nl_cpu_pad(p.width * (p.columns + 1), 16);
    p.tile_size = TILE * (p.width + p.columns);
    if (args->rope)
        p.rotary_size =
            nl_cpu_pad(NL_MAX(args->grid_height, args->grid_width) * (args->head_size / 4) * 2, 16);
    return p;
}

/* Angles position * 10000^-linspace(0, 1, d / 4), both ends included (facts.md H.5). */
static void fill_rotary(const plan *p)
{
    int64_t quarter = p->args->head_size / 4;
    int64_t positions = NL_MAX(p->args->grid_height, p->args->grid_width);
    float *sines = p->rotary + positions * quarter;
    for (int64_t i = 0; i < quarter; i++) {
        double frequency = quarter > 1 ? pow(10000, -(double)i / (double)(quarter - 1)) : 1;
        for (int64_t position = 0; position < positions; position++) {
            p->rotary[position * quarter + i] = (float)cos((double)position * frequency);
            sines[position * quarter + i] = (float)sin((double)position * frequency);
        }
    }
}

/* Turns the d / 4 pairs of neighbours in phi [d / 2] by the angles of a position. */
static void turn(const plan *p, int64_t position, float *phi)
{
    int64_t quarter = p->args->head_size / 4;
    const float *c = p->rotary + position * quarter;
    const float *s = c + NL_MAX(p->args->grid_height, p->args->grid_width) * quarter;
#pragma omp simd
    for (int64_t i = 0; i < quarter; i++) {
        float a = phi[2 * i], b = phi[2 * i + 1];
        phi[2 * i] = a * c[i] - b * s[i];
        phi[2 * i + 1] = b * c[i] + a * s[i];
    }
}

/* In each d-wide part of phi the first half turns with the row, the second with the column. */
static void rotate(const plan *p, int64_t token, float *phi)
{
    int64_t d = p->args->head_size, width = nl_feature_width(p->args->feature_map, d);
    for (int64_t part = 0; part < width; part += d) {
        turn(p, token / p->args->grid_width, phi + part);
        turn(p, token % p->args->grid_width, phi + part + d / 2);
    }
}

/* phi [count, width] of queries or keys [first, first + count) of an image, not rotated. */
static void fill_tile(const plan *p, bool query, int64_t image, int64_t head, int64_t first,
                      int64_t count, float *phi)
{
    const nl_nala_attention_args *a = p->args;
    int64_t used = nl_feature_width(a->feature_map, a->head_size);
    int64_t column = (query ? head : a->heads + head) * a->head_size;
    for (int64_t i = 0; i < count; i++, phi += p->width) {
        nl_features(a, query, nl_cpu_row(&a->qkvg, image * a->tokens + first + i) + column, phi);
        for (int64_t f = used; f < p->width; f++)
            phi[f] = 0;
    }
}

/* v of `count` tokens with padded rows: in place where no padding is needed. */
static const float *values(const plan *p, int64_t image, int64_t head, int64_t first, int64_t count,
                           float *tile, int64_t *stride)
{
    const nl_nala_attention_args *a = p->args;
    int64_t d = a->head_size;
    const float *v = nl_cpu_row(&a->qkvg, image * a->tokens + first) + (2 * a->heads + head) * d;
    *stride = a->qkvg.row_stride;
    if (d == p->columns)
        return v;
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < p->columns; c++)
            tile[i * p->columns + c] = c < d ? v[i * *stride + c] : 0;
    *stride = p->columns;
    return tile;
}

/* sums = sum of phi_k^T v and phi_k over one chunk of tokens. */
static void sum_chunk(const plan *p, int64_t index, int64_t chunk, float *tile, float *sums)
{
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens);
    float *total = sums + p->width * p->columns;
    for (int64_t i = 0; i < p->sum_size; i++)
        sums[i] = 0;
    for (int64_t first = chunk * p->chunk; first < end; first += TILE) {
        int64_t count = NL_MIN(TILE, end - first), stride;
        fill_tile(p, false, image, head, first, count, tile);
        for (int64_t i = 0; i < count; i++) {
            float *phi = tile + i * p->width;
#pragma omp simd
            for (int64_t f = 0; f < p->width; f++)
                total[f] += phi[f];
            if (a->rope)
                rotate(p, first + i, phi);
        }
        const float *v = values(p, image, head, first, count, tile + TILE * p->width, &stride);
        nl_small_product(true, p->width, p->columns, count, tile, 1, p->width, v, stride, sums,
                         p->columns);
    }
}

/* Adds the sums of a head's chunks in order into the first, times 1/N, and saves them if asked. */
static void finish_sums(const plan *p, int64_t index, float *sums)
{
    const nl_nala_attention_args *a = p->args;
    int64_t d = a->head_size, used = nl_feature_width(a->feature_map, d);
    float scale = 1.0f / (float)a->tokens;
    for (int64_t chunk = 1; chunk < p->chunks; chunk++)
#pragma omp simd
        for (int64_t i = 0; i < p->sum_size; i++)
            sums[i] += sums[chunk * p->sum_size + i];
    for (int64_t i = 0; i < p->sum_size; i++)
        sums[i] *= scale;
    const float *total = sums + p->width * p->columns;
    for (int64_t f = 0; f < used; f++) {
        for (int64_t c = 0; a->state.data && c < d; c++)
            ((float *)a->state.data)[(index * used + f) * d + c] = sums[f * p->columns + c];
        if (a->total.data)
            ((float *)a->total.data)[index * used + f] = total[f];
    }
}

/* o = phi_q S / (phi_q . z + 1e-6) for one chunk of queries. */
static void apply_chunk(const plan *p, int64_t index, int64_t chunk, float *tile, const float *sums)
{
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads, d = a->head_size;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens);
    const float *total = sums + p->width * p->columns;
    float *result = tile + TILE * p->width, inverse[TILE];
    for (int64_t first = chunk * p->chunk; first < end; first += TILE) {
        int64_t count = NL_MIN(TILE, end - first);
        fill_tile(p, true, image, head, first, count, tile);
        for (int64_t i = 0; i < count; i++) {
            float *phi = tile + i * p->width;
            inverse[i] = 1.0f / (nl_dot(phi, total, p->width) + DENOMINATOR_EPS);
            if (a->rope)
                rotate(p, first + i, phi);
        }
        /* Rows from `count` on hold whatever the tile held before; their results are not used. */
        nl_small_product(false, nl_cpu_pad(count, NL_ROW_UNIT), p->columns, p->width, tile,
                         p->width, 1, sums, p->columns, result, p->columns);
        for (int64_t i = 0; i < count; i++) {
            float *out = nl_cpu_row_out(&a->out, image * a->tokens + first + i) + head * d;
#pragma omp simd
            for (int64_t c = 0; c < d; c++)
                out[c] = result[i * p->columns + c] * inverse[i];
        }
    }
}

/* Heads [first, first + count) of all images' heads. */
static void attend(const plan *p, int team, int64_t first, int64_t count)
{
#pragma omp parallel num_threads(team)
    {
        float *tile = p->tiles + omp_get_thread_num() * p->tile_size;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count * p->chunks; i++)
            sum_chunk(p, first + i / p->chunks, i % p->chunks, tile, p->sums + i * p->sum_size);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++)
            finish_sums(p, first + i, p->sums + i * p->chunks * p->sum_size);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count * p->chunks; i++)
            apply_chunk(p, first + i / p->chunks, i % p->chunks, tile,
                        p->sums + i / p->chunks * p->chunks * p->sum_size);
    }
}

/* qkvg [B * T, >= 3D] -> out [B * T, D], state [B * h, F, d], total [B * h, F] */
nl_status NL_CPU(nala_attention)(nl_device *device, const nl_nala_attention_args *args)
{
    plan p = make_plan(args);
    int64_t heads = args->batch * args->heads;
    int team = nl_cpu_team(device, heads * args->tokens * args->head_size);
    int64_t group = NL_MIN(heads, (TASKS * team + p.chunks - 1) / p.chunks);
    int64_t floats = p.rotary_size + group * p.chunks * p.sum_size + team * p.tile_size;
    void *scratch;
    nl_status status = nl_cpu_scratch(device, floats * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
    p.rotary = scratch;
    p.sums = p.rotary + p.rotary_size;
    p.tiles = p.sums + group * p.chunks * p.sum_size;
    if (args->rope)
        fill_rotary(&p);
    for (int64_t first = 0; first < heads; first += group)
        attend(&p, team, first, NL_MIN(group, heads - first));
    return NL_OK;
}
