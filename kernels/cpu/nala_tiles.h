/* SPDX-License-Identifier: MIT */
/*
 * What the forward and the backward pass of NaLa attention share: how tokens are cut into chunks and tiles, and the
 * features of a tile. Chunks depend on the number of tokens alone and are added in order, so that results are the
 * same for any number of threads.
 */
#ifndef NL_CPU_NALA_TILES_H
#define NL_CPU_NALA_TILES_H

#include <math.h>

#include "nala_features.h"
#include "nl_cpu.h"
#include "vector.h"

enum {
    NL_NALA_TILE = 64,
    NL_NALA_MIN_CHUNK = 256, /* tokens */
    NL_NALA_MAX_CHUNKS = 16,
    NL_NALA_TASKS = 8 /* chunks of a group of heads for each thread */
};

#define NL_DENOMINATOR_EPS 1e-6f

typedef struct nl_nala_plan {
    const nl_nala_attention_args *args;
    int64_t width;         /* of the features, padded; the padding is 0 */
    int64_t columns;       /* of v, padded to NL_COLUMN_UNIT */
    int64_t chunk, chunks; /* tokens of a chunk, chunks of a head */
    int64_t sum_size;      /* floats of the sums of a chunk: S [width, columns], z [width] */
    int64_t
        tile_size; /* floats of a thread's tile: phi [TILE, width], then v or o [TILE, columns] */
    int64_t rotary_size; /* floats of the rotary table: cos, then sin, [positions, d / 4] each */
    float *rotary;
    float *sums;
    float *tiles;
} nl_nala_plan;

/* unit: of the width of features. */
static inline nl_nala_plan nl_nala_make_plan(const nl_nala_attention_args *args, int64_t unit)
{
    nl_nala_plan p = {.args = args};
    p.width = nl_cpu_pad(nl_feature_width(args->feature_map, args->head_size), unit);
    p.columns = nl_cpu_pad(args->head_size, NL_COLUMN_UNIT);
    p.chunk =
        nl_cpu_pad((args->tokens + NL_NALA_MAX_CHUNKS - 1) / NL_NALA_MAX_CHUNKS, NL_NALA_TILE);
    p.chunk = NL_MAX(p.chunk, NL_NALA_MIN_CHUNK);
    p.chunks = (args->tokens + p.chunk - 1) / p.chunk;
    p.sum_size = nl_cpu_pad(p.width * (p.columns + 1), 16);
    p.tile_size = NL_NALA_TILE * (p.width + p.columns);
    if (args->rope)
        p.rotary_size =
            nl_cpu_pad(NL_MAX(args->grid_height, args->grid_width) * (args->head_size / 4) * 2, 16);
    return p;
}

/* Angles position * 10000^-linspace(0, 1, d / 4), both ends included (docs/public-code.md E). */
static inline void nl_nala_fill_rotary(const nl_nala_plan *p)
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
static inline void nl_nala_turn(const nl_nala_plan *p, int64_t position, float sense, float *phi)
{
    int64_t quarter = p->args->head_size / 4;
    const float *c = p->rotary + position * quarter;
    const float *s = c + NL_MAX(p->args->grid_height, p->args->grid_width) * quarter;
#pragma omp simd
    for (int64_t i = 0; i < quarter; i++) {
        float a = phi[2 * i], b = phi[2 * i + 1];
        phi[2 * i] = a * c[i] - b * sense * s[i];
        phi[2 * i + 1] = b * c[i] + a * sense * s[i];
    }
}

/* In each d-wide part of phi the first half turns with the row, the second with the column.
 * sense: 1, or -1 to turn back. */
static inline void nl_nala_rotate(const nl_nala_plan *p, int64_t token, float sense, float *phi)
{
    int64_t d = p->args->head_size, width = nl_feature_width(p->args->feature_map, d);
    for (int64_t part = 0; part < width; part += d) {
        nl_nala_turn(p, token / p->args->grid_width, sense, phi + part);
        nl_nala_turn(p, token % p->args->grid_width, sense, phi + part + d / 2);
    }
}

/* Asks for rows of x [count, d] before they are needed: they lie in the cache of the core that made them, or of the one that
 * read them last. */
static inline void nl_nala_prefetch(const float *x, int64_t stride, int64_t count, int64_t d)
{
    enum { LINE = 16 }; /* floats */
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < d; c += LINE)
            __builtin_prefetch(x + i * stride + c);
}

/* For each of `count` rows of x the inverse of its norm and the exponent of its features. All are read here, one soon after the
 * other, so that the waits for memory overlap. */
static inline void nl_nala_norms(const nl_nala_attention_args *own, bool query, const float *x,
                                 int64_t stride, int64_t count, float *inverse, float *power)
{
    float norm[NL_NALA_TILE] = {0};
    const bool aware = query && nl_feature_map_norm_aware(own->feature_map);
    for (int64_t i = 0; i < count; i++)
        norm[i] = nl_dot(x + i * stride, x + i * stride, own->head_size);
#pragma omp simd
    for (int64_t i = 0; i < NL_NALA_TILE; i++) {
        norm[i] = sqrtf(norm[i]);
        inverse[i] = 1.0f / (norm[i] + NL_NORM_EPS);
        power[i] = own->lambda;
    }
    if (aware)
#pragma omp simd
        for (int64_t i = 0; i < NL_NALA_TILE; i++)
            power[i] = own->lambda * (own->tau + nlv_tanh(own->norm_scale * norm[i]));
}

/* phi [count, width] of queries or keys [first, first + count) of an image, not rotated. */
static inline void nl_nala_fill_tile(const nl_nala_plan *p, bool query, int64_t image, int64_t head,
                                     int64_t first, int64_t count, float *phi)
{
    const nl_nala_attention_args own = nl_nala_of_head(p->args, head), *a = &own;
    int64_t used = nl_feature_width(a->feature_map, a->head_size), stride = a->qkvg.row_stride;
    const float *x = nl_cpu_row(&a->qkvg, image * a->tokens + first) +
                     (query ? head : a->heads + head) * a->head_size;
    float inverse[NL_NALA_TILE], power[NL_NALA_TILE];
    nl_nala_norms(a, query, x, stride, count, inverse, power);
    for (int64_t i = 0; i < count; i++, phi += p->width) {
        nl_features(a, query, x + i * stride, inverse[i], power[i], phi);
        for (int64_t f = used; f < p->width; f++)
            phi[f] = 0;
    }
}

/* v of `count` tokens with padded rows: in place where no padding is needed. */
static inline const float *nl_nala_values(const nl_nala_plan *p, int64_t image, int64_t head,
                                          int64_t first, int64_t count, float *tile,
                                          int64_t *stride)
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

#endif
