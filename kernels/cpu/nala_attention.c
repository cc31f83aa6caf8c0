/* SPDX-License-Identifier: MIT */
/*
 * Norm-aware linear attention in two sweeps over the tokens. The first sums S = phi_k^T v and z of
 * each head in chunks of tokens, the second applies them to the queries. Features live in a tile of
 * TILE tokens and never reach memory. Chunks depend on the number of tokens alone and are added in
 * order, so that the result is the same for any number of threads.
 */
#include "nala_tiles.h"

/* sums = sum of phi_k^T v and phi_k over one chunk of tokens. */
static void sum_chunk(const nl_nala_plan *p, int64_t index, int64_t chunk, float *tile, float *sums)
{
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens);
    float *total = sums + p->width * p->columns;
    for (int64_t i = 0; i < p->sum_size; i++)
        sums[i] = 0;
    for (int64_t first = chunk * p->chunk; first < end; first += NL_NALA_TILE) {
        int64_t count = NL_MIN(NL_NALA_TILE, end - first), stride;
        nl_nala_prefetch(nl_cpu_row(&a->qkvg, image * a->tokens + first) +
                             (2 * a->heads + head) * a->head_size,
                         a->qkvg.row_stride, count, a->head_size);
        nl_nala_fill_tile(p, false, image, head, first, count, tile);
        for (int64_t i = 0; i < count; i++) {
            float *phi = tile + i * p->width;
#pragma omp simd
            for (int64_t f = 0; f < p->width; f++)
                total[f] += phi[f];
            if (a->rope)
                nl_nala_rotate(p, first + i, 1, phi);
        }
        const float *v =
            nl_nala_values(p, image, head, first, count, tile + NL_NALA_TILE * p->width, &stride);
        nl_small_product(true, p->width, p->columns, count, tile, 1, p->width, v, stride, sums,
                         p->columns);
    }
}

/* Adds the sums of a head's chunks in order into the first, times 1/N, and saves them if asked. */
static void finish_sums(const nl_nala_plan *p, int64_t index, float *sums)
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
static void apply_chunk(const nl_nala_plan *p, int64_t index, int64_t chunk, float *tile,
                        const float *sums)
{
    const nl_nala_attention_args *a = p->args;
    int64_t image = index / a->heads, head = index % a->heads, d = a->head_size;
    int64_t end = NL_MIN((chunk + 1) * p->chunk, a->tokens);
    const float *total = sums + p->width * p->columns;
    float *result = tile + NL_NALA_TILE * p->width, inverse[NL_NALA_TILE];
    for (int64_t first = chunk * p->chunk; first < end; first += NL_NALA_TILE) {
        int64_t count = NL_MIN(NL_NALA_TILE, end - first);
        nl_nala_prefetch(nl_cpu_row(&a->out, image * a->tokens + first) + head * d,
                         a->out.row_stride, count, d);
        nl_nala_fill_tile(p, true, image, head, first, count, tile);
        for (int64_t i = 0; i < count; i++) {
            float *phi = tile + i * p->width;
            inverse[i] = 1.0f / (nl_dot(phi, total, p->width) + NL_DENOMINATOR_EPS);
            if (a->rope)
                nl_nala_rotate(p, first + i, 1, phi);
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
static void attend(const nl_nala_plan *p, int team, int64_t first, int64_t count)
{
#pragma omp parallel num_threads(team)
    {
        float *tile = p->tiles + omp_get_thread_num() * p->tile_size;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count * p->chunks; i++)
            sum_chunk(p, first + i / p->chunks, i % p->chunks, tile, p->sums + i * p->sum_size);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; i++)
            finish_sums(p, first + i, p->sums + i * p->chunks * p->sum_size);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count * p->chunks; i++)
            apply_chunk(p, first + i / p->chunks, i % p->chunks, tile,
                        p->sums + i / p->chunks * p->chunks * p->sum_size);
    }
}

/* qkvg [B * T, >= 3D] -> out [B * T, D], state [B * h, F, d], total [B * h, F] */
nl_status NL_CPU(nala_attention)(nl_device *device, const nl_nala_attention_args *args)
{
    nl_nala_plan p = nl_nala_make_plan(args, NL_ROW_UNIT);
    int64_t heads = args->batch * args->heads;
    int team = nl_cpu_team(device, heads * args->tokens * args->head_size);
    int64_t group = NL_MIN(heads, (NL_NALA_TASKS * team + p.chunks - 1) / p.chunks);
    int64_t floats = p.rotary_size + group * p.chunks * p.sum_size + team * p.tile_size;
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, floats * (int64_t)sizeof(float), &scratch));
    p.rotary = scratch;
    p.sums = p.rotary + p.rotary_size;
    p.tiles = p.sums + group * p.chunks * p.sum_size;
    if (args->rope)
        nl_nala_fill_rotary(&p);
    for (int64_t first = 0; first < heads; first += group)
        attend(&p, team, first, NL_MIN(group, heads - first));
    return NL_OK;
}
