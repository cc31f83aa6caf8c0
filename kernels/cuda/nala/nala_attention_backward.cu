/* SPDX-License-Identifier: MIT */
/* NaLa attention backward: the tensor core kernels where they serve (bf16, cosine map), otherwise tiles in fp32,
 * one block for a (image, head). With u_t = do_t / denominator and r_t = u_t . o_t, features turned with rope where they
 * meet S or dS:
 *
 *   dq       dphi_q = u S^T - r z
 *   dS, dz   dS = phi_q^T u, dz = -phi_q^T r
 *   dk, dv   dv = phi_k dS / N, dphi_k = (v dS^T + dz) / N
 *
 * Each is a walk over the tokens, so that one matrix at a time lies in shared memory. */
#include "backward_kernel.cuh"
#include "column_sums.cuh"
#include "features_backward.cuh"
#include "tiles.cuh"

struct tile_gradient {
    const void *qkvg, *out, *dout;
    void *dqkv;
    const float *state, *total; /* [B h, F, d], [B h, F] */
    int64_t stride, gradient_stride;
    int tokens, heads;
    nl_nala_map map;
    nl_nala_layout layout;
    const float *log_lambda, *log_tau; /* [h], or NULL */
    float *
        exponents; /* with them: [B, (log_lambda, log_tau), h], what blocks give to their gradient */
};

/* Rows of one head, at the first token. */
template <typename T> struct head_rows {
    const T *q, *k, *v, *out, *dout;
    T *dq, *dk, *dv;
};

/* dx of a warp's row x from the gradient of its features: g, still turned, and factor times z. LEARNT: adds to lane 0's
 * *exponents the gradients by ln lambda and ln tau. */
template <typename T, int MAP, bool QUERY, bool LEARNT, int E>
__device__ __forceinline__ void store_row_gradient(const nl_nala_map &map, int token, const T *from,
                                                   float (&g)[2][E], float factor,
                                                   const float (&z)[2][E], T *to, float2 *exponents)
{
    float x[E], dx[E];
    nl_load_row(from, map.head_size, x);
    nl_turn_row(map, token, -1.f, g);
    const float2 terms = nl_row_sums<MAP>(map, x);
    nl_row_gradient row;
    row.row = nl_scalars_of<MAP, QUERY>(map, terms);
    row.norm = sqrtf(terms.x), row.power_norm = sqrtf(terms.y), row.lambda = map.lambda;
    row.norm_scale = map.norm_scale, row.learnt = LEARNT;
    float2 sums = make_float2(0.f, 0.f);
#pragma unroll
    for (int e = 0; e < E; e++) {
        dx[e] = 0.f;
        if (nl_column(e) < map.head_size)
            dx[e] = nl_map_gradient<MAP, QUERY>::own(
                x[e], make_float2(fmaf(factor, z[0][e], g[0][e]), fmaf(factor, z[1][e], g[1][e])),
                row, &sums);
    }
    sums.x = nl_warp_sum(sums.x), sums.y = nl_warp_sum(sums.y);
    if (LEARNT && threadIdx.x % 32 == 0) {
        exponents->x = fmaf(sums.x, row.row.power, exponents->x);
        exponents->y = fmaf(sums.x, QUERY ? map.lambda * map.tau : 0.f, exponents->y);
    }
    const float shared = nl_map_gradient<MAP, QUERY>::factor(row, sums);
#pragma unroll
    for (int e = 0; e < E; e++)
        dx[e] = nl_map_gradient<MAP, QUERY>::whole(x[e], dx[e], shared, row, sums);
    nl_store_row(to, map.head_size, dx);
}

/* u of a tile's tokens into m.vectors, r into m.numbers, with FEATURES theirs; adds -r times the unturned ones to dz. */
template <typename T, int MAP, bool FEATURES, int E>
__device__ __forceinline__ void load_queries(const tile_gradient &p, const head_rows<T> &h,
                                             const nl_nala_tile &m, int first, int count,
                                             const float (&z)[2][E], float (&dz)[2][E])
{
    const nl_nala_layout &l = p.layout;
    const int d = p.map.head_size;
    const int64_t hidden = (int64_t)p.heads * d;
    NL_FOR_TOKENS(t, nl_rows(count))
    {
        float f[2][E] = {}, u[E] = {};
        if (t < count) {
            float x[E], out[E], product = 0.f;
            nl_load_row(h.q + (first + t) * p.stride, d, x);
            nl_load_row(h.out + (first + t) * hidden, d, out);
            nl_load_row(h.dout + (first + t) * hidden, d, u);
            nl_row_features<MAP, true>(p.map, x, f);
            const float inverse = 1.f / (nl_row_product(f, z) + NL_NORM_EPS);
#pragma unroll
            for (int e = 0; e < E; e++)
                u[e] *= inverse, product = fmaf(u[e], out[e], product);
            product = nl_warp_sum(product);
            if (threadIdx.x % 32 == 0)
                m.numbers[t] = product;
#pragma unroll
            for (int e = 0; e < E; e++)
                dz[0][e] = fmaf(-product, f[0][e], dz[0][e]),
                dz[1][e] = fmaf(-product, f[1][e], dz[1][e]);
            if (FEATURES) /* a token beyond the last has no angles, and zeros must stay zeros */
                nl_turn_row(p.map, first + t, 1.f, f);
        }
        nl_store_row(m.vectors + t * l.stride, l.padded, u);
        if (FEATURES)
            nl_store_halves<MAP>(l, m.features + t * l.feature_stride, f);
    }
    __syncthreads();
}

/* dq; S is in m.matrix. */
template <typename T, int MAP, bool LEARNT, int E>
__device__ static void query_gradients(const tile_gradient &p, const head_rows<T> &h,
                                       const nl_nala_tile &m, const float (&z)[2][E],
                                       float2 *exponents)
{
    const nl_nala_layout &l = p.layout;
    float unused[2][E] = {};
    for (int first = 0; first < p.tokens; first += l.tile) {
        const int count = min(l.tile, p.tokens - first);
        load_queries<T, MAP, false>(p, h, m, first, count, z, unused);
        nl_times_transposed(l, m, count);
        __syncthreads();
        NL_FOR_TOKENS(t, count)
        {
            float g[2][E];
            nl_load_halves<MAP>(l, m.features + t * l.feature_stride, g);
            store_row_gradient<T, MAP, true, LEARNT>(
                p.map, first + t, h.q + (first + t) * p.stride, g, -m.numbers[t], z,
                h.dq + (first + t) * p.gradient_stride, exponents);
        }
        __syncwarp(); /* all lanes have read the numbers, of which lane 0 writes the next tile's */
    }
}

/* dS into m.matrix, dz into m.totals[1]. */
template <typename T, int MAP, int E>
__device__ static void state_gradient(const tile_gradient &p, const head_rows<T> &h,
                                      const nl_nala_tile &m, const float (&z)[2][E])
{
    const nl_nala_layout &l = p.layout;
    float dz[2][E] = {};
    nl_clear_matrix(l, m.matrix);
    for (int first = 0; first < p.tokens; first += l.tile) {
        const int count = min(l.tile, p.tokens - first);
        load_queries<T, MAP, true>(p, h, m, first, count, z, dz);
        nl_add_outer(l, m, count);
        __syncthreads();
    }
    nl_sum_warps<MAP>(l, m, dz, m.totals[1]);
}

/* dk and dv. */
template <typename T, int MAP, bool LEARNT, int E>
__device__ static void key_gradients(const tile_gradient &p, const head_rows<T> &h,
                                     const nl_nala_tile &m, float2 *exponents)
{
    const nl_nala_layout &l = p.layout;
    const float mean = 1.f / p.tokens;
    float dz[2][E], unused[2][E] = {};
    nl_load_halves<MAP>(l, m.totals[1], dz);
    for (int first = 0; first < p.tokens; first += l.tile) {
        const int count = min(l.tile, p.tokens - first);
        nl_load_keys<T, MAP>(l, p.map, m, h.k, h.v, p.stride, first, count, unused);
        __syncthreads();
        nl_times_matrix(l, m, count, p.map.head_size, [&](int t, int column, float x) {
            nl_put(h.dv + (first + t) * p.gradient_stride + column, mean * x);
        });
        __syncthreads();
        nl_times_transposed(l, m, count);
        __syncthreads();
        NL_FOR_TOKENS(t, count)
        {
            float g[2][E];
            nl_load_halves<MAP>(l, m.features + t * l.feature_stride, g);
#pragma unroll
            for (int e = 0; e < E; e++)
                g[0][e] *= mean, g[1][e] *= mean;
            store_row_gradient<T, MAP, false, LEARNT>(
                p.map, first + t, h.k + (first + t) * p.stride, g, mean, dz,
                h.dk + (first + t) * p.gradient_stride, exponents);
        }
    }
}

/* grid (heads, batch) */
template <typename T, int MAP, int E, bool LEARNT, bool FAR>
__global__ void __launch_bounds__(NL_TILE_THREADS, NL_TILE_RESIDENT(E))
    tile_backward_kernel(const tile_gradient given)
{
    extern __shared__ __align__(16) float shared[];
    tile_gradient own;
    const tile_gradient &p = nl_tiles_of_head<LEARNT>(given, &own);
    const nl_nala_layout &l = p.layout;
    const int d = p.map.head_size, features = nl_halves<MAP> * d;
    const int64_t hidden = (int64_t)p.heads * d, image = blockIdx.y * (int64_t)p.tokens;
    const int64_t pair = (int64_t)blockIdx.y * p.heads + blockIdx.x, column = blockIdx.x * d;
    const nl_nala_tile m = nl_nala_place<FAR>(l, shared);
    head_rows<T> h;
    h.q = (const T *)p.qkvg + image * p.stride + column, h.k = h.q + hidden, h.v = h.k + hidden;
    h.out = (const T *)p.out + image * hidden + column;
    h.dout = (const T *)p.dout + image * hidden + column;
    h.dq = (T *)p.dqkv + image * p.gradient_stride + column;
    h.dk = h.dq + hidden, h.dv = h.dk + hidden;

    nl_load_matrix(l, d, p.state + pair * features * d, m.matrix);
    nl_load_total(l, d, p.total + pair * features, m.totals[0]);
    __syncthreads();
    float z[2][E];
    nl_load_halves<MAP>(l, m.totals[0], z);
    float2 exponents = make_float2(0.f, 0.f);
    query_gradients<T, MAP, LEARNT>(p, h, m, z, &exponents);
    __syncthreads();
    state_gradient<T, MAP>(p, h, m, z);
    key_gradients<T, MAP, LEARNT, E>(p, h, m, &exponents);
    if (LEARNT) {
        const float by_lambda = nl_block_sum(exponents.x), by_tau = nl_block_sum(exponents.y);
        float *to = p.exponents + blockIdx.y * 2 * p.heads + blockIdx.x;
        if (threadIdx.x == 0)
            to[0] = by_lambda, to[p.heads] = by_tau;
    }
}

/* Adds `count` parts [(log_lambda, log_tau), h] to the gradients. */
static void add_exponents(cudaStream_t stream, const float *parts, int64_t count,
                          const nl_nala_attention_backward_args *a)
{
    nl_cuda_add_parts(
        stream, parts, count,
        {{(float *)a->dlog_lambda.data, a->heads}, {(float *)a->dlog_tau.data, a->heads}});
}

static nl_status run_tiles(nl_device *device, const nl_nala_attention_backward_args *a)
{
    tile_gradient p = {};
    p.qkvg = a->qkvg.data, p.out = a->out.data, p.dout = a->dout.data, p.dqkv = a->dqkv.data;
    p.state = (const float *)a->state.data, p.total = (const float *)a->total.data;
    p.stride = a->qkvg.row_stride, p.gradient_stride = a->dqkv.row_stride;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.log_lambda = (const float *)a->log_lambda.data, p.log_tau = (const float *)a->log_tau.data;
    void *room = NULL;
    nl_status status =
        nl_nala_make_map(device, a, &p, p.log_lambda ? a->batch * 2 * a->heads * 4 : 0, &room);
    p.exponents = (float *)room;
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->out, T, {
        status = nl_for_feature_map(a->feature_map, [&](auto map) {
            constexpr int MAP = map.value;
            return nl_for_elements(a->head_size, [&](auto elements) {
                constexpr int E = elements.value;
                constexpr bool FAR = E > 2; /* smaller heads always have room */
                auto near = tile_backward_kernel<T, MAP, E, false, false>;
                auto far = tile_backward_kernel<T, MAP, E, false, FAR>;
                if constexpr (nl_norm_aware[MAP])
                    if (p.log_lambda) {
                        near = tile_backward_kernel<T, MAP, E, true, false>;
                        far = tile_backward_kernel<T, MAP, E, true, FAR>;
                    }
                return nl_nala_launch_tiles(device, near, far, a->batch, p);
            });
        });
    });
    if (status == NL_OK && p.log_lambda)
        add_exponents(nl_cuda_of(device)->stream, p.exponents, a->batch, a);
    return status;
}

/* *summed: a->sums, too, is done. */
static nl_status run(nl_device *device, const nl_nala_attention_backward_args *a, bool *summed)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t hidden = a->heads * a->head_size;
    *summed = false;
    const int64_t angles =
        !a->rope ? 0 : nl_nala_rope_bytes(NL_MAX(a->grid_height, a->grid_width), a->head_size);
    const int64_t needed = nl_nala_backward_workspace(a->batch, a->heads, a->tokens, a->head_size);
    const int64_t bytes = angles + needed;
    if (a->out.dtype != NL_BF16 || a->feature_map != NL_FEATURES_COSINE || needed == 0 ||
        a->qkvg.row_stride % 8 || a->dqkv.row_stride % 8 || (uintptr_t)a->dqkv.data % 16)
        return run_tiles(device, a);

    const bool sums = a->sums.data && nl_nala_backward_leaves_sums(a->tokens, a->head_size);
    const int64_t sums_bytes = sums ? a->batch * 3 * hidden * 4 : 0;
    const int64_t parts =
        a->log_lambda.data ? a->batch * nl_nala_backward_parts(a->tokens, a->head_size) : 0;
    void *workspace;
    nl_status status = nl_cuda_scratch(device, "the state's gradient of NaLa attention",
                                       bytes + sums_bytes + parts * 2 * a->heads * 4, &workspace);
    if (status != NL_OK)
        return status;
    nl_nala_gradient p = {};
    p.q = (const __nv_bfloat16 *)a->qkvg.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (const __nv_bfloat16 *)a->out.data, p.dout = (const __nv_bfloat16 *)a->dout.data;
    p.dq = (__nv_bfloat16 *)a->dqkv.data, p.dk = p.dq + hidden, p.dv = p.dk + hidden;
    p.stride = a->qkvg.row_stride, p.out_stride = hidden, p.gradient_stride = a->dqkv.row_stride;
    p.state = (const float *)a->state.data, p.total = (const float *)a->total.data;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.lambda = a->lambda, p.tau = a->tau;
    p.norm_scale = a->norm_scale;
    p.sums = sums ? (float *)((char *)workspace + bytes) : NULL;
    p.log_lambda = (const float *)a->log_lambda.data, p.log_tau = (const float *)a->log_tau.data;
    p.exponents = parts ? (float *)((char *)workspace + bytes + sums_bytes) : NULL;
    cudaError_t error = !a->rope ? cudaSuccess
                                 : nl_nala_rope_place(&p.rope, a->grid_height, a->grid_width,
                                                      a->head_size, workspace, stream);
    if (error == cudaSuccess)
        error = nl_nala_backward(p, a->batch, a->head_size, (char *)workspace + angles, stream);
    if (error == cudaErrorInvalidValue) { /* a card with too little shared memory */
        (void)cudaGetLastError();
        return run_tiles(device, a);
    }
    *summed = sums;
    if (error == cudaSuccess && sums)
        nl_cuda_add_parts(stream, p.sums, a->batch, {{(float *)a->sums.data, 3 * hidden}});
    if (error == cudaSuccess && parts)
        add_exponents(stream, p.exponents, parts, a);
    return nl_cuda_check(device, error, "nala_attention_backward");
}

extern "C" nl_status nl_cuda_nala_attention_backward(nl_device *device,
                                                     const nl_nala_attention_backward_args *a)
{
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    bool summed;
    const nl_status status = run(device, a, &summed);
    if (status != NL_OK || summed || !a->sums.data)
        return status;
    const nl_tensor columns = nl_tensor_columns(&a->dqkv, 0, a->sums.shape[0]);
    return nl_cuda_column_sums(device, &columns, (float *)a->sums.data);
}
