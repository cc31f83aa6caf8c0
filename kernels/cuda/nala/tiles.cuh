/* SPDX-License-Identifier: MIT */
/*
 * NaLa attention in fp32 whatever the tensors' type, for every feature map, with or without rope: tiles of tokens in
 * shared memory. A block has a head. A warp works alone on the rows of a token, of which a lane has E elements; all warps
 * share the products between tiles.
 *
 * In shared memory a head's elements are padded with zeros to a multiple of four, and features with them:
 * feature (half, i) is column half * padded + i. FAR: a matrix that the card's shared memory has no room for (heads of 128
 * need 163 KB with it) lies in device memory, of which the second-level cache keeps it.
 */
#ifndef NL_CUDA_NALA_TILES_CUH
#define NL_CUDA_NALA_TILES_CUH

#include "cuda_common.cuh"
#include "features.cuh"
#include "rope.cuh"

#include "prim/shared_limit.cuh"

/* Blocks of a multiprocessor, for the register budget. */
#define NL_TILE_RESIDENT(E) ((E) == 2 ? 3 : 2)
enum { NL_TILE_THREADS = 256, NL_TILE_WARPS = NL_TILE_THREADS / 32, NL_TILE_MAX_HEAD = 128 };

struct nl_nala_map {
    int head_size, grid_width;
    float lambda, tau, norm_scale;
    const float2 *rope; /* nl_nala_rope_table, or NULL */
};

/* Rows are an odd number of 16-byte units apart, so that eight of them fall into eight bank groups. */
struct nl_nala_layout {
    int tile;           /* tokens, a multiple of 4 */
    int padded, width;  /* elements of a head, features */
    int stride;         /* of matrix [width, padded] and of vectors [tile, padded] */
    int feature_stride; /* of features [tile, width] */
    float *matrices;    /* FAR: of all blocks, or NULL */
};

struct nl_nala_tile {
    float *matrix;             /* [width, padded], a state or its gradient */
    float *features, *vectors; /* vectors: of v, do */
    float *totals[2];          /* [width] */
    float *numbers;            /* [tile], one for each token */
};

/* A block's matrix, and what else it has in shared memory. */
static inline int nl_nala_matrix_bytes(const nl_nala_layout *l)
{
    return 4 * l->width * l->stride;
}
static inline int nl_nala_tile_bytes(const nl_nala_layout *l)
{
    return 4 * (2 * l->width + l->tile * (l->feature_stride + l->stride + 1));
}

/* Of `halves` x head_size features in `limit` bytes of shared memory: tiles of 32 tokens for heads that leave room for three
 * blocks then, otherwise of 64, or shorter ones; *far: the matrix has no room. */
static inline nl_nala_layout nl_nala_make_layout(int64_t head_size, int halves, int limit,
                                                 bool *far)
{
    nl_nala_layout l = {};
    l.padded = (int)(head_size + 3) / 4 * 4, l.width = halves * l.padded;
    l.stride = (l.padded / 4 | 1) * 4, l.feature_stride = (l.width / 4 | 1) * 4;
    const int least = 16, most = l.padded <= 64 ? 32 : 64, matrix = nl_nala_matrix_bytes(&l);
    l.tile = least;
    *far = matrix + nl_nala_tile_bytes(&l) > limit;
    const int room = *far ? limit : limit - matrix;
    for (l.tile = most; l.tile > least && nl_nala_tile_bytes(&l) > room;)
        l.tile /= 2;
    return l;
}

/* use(a constant: elements of a row in a lane) */
template <typename Use> auto nl_for_elements(int64_t head_size, Use use)
{
    return head_size <= 64 ? use(nl_constant<2>()) : use(nl_constant<4>());
}

/* Whether exponents of a map may be learnt, and its halves of features. */
#define NL_AWARE(map, name, halves, aware)  aware,
#define NL_HALVES(map, name, halves, aware) halves,
static constexpr bool nl_norm_aware[] = {NL_FEATURE_MAPS(NL_AWARE)};
static constexpr int nl_map_halves[] = {NL_FEATURE_MAPS(NL_HALVES)};
#undef NL_AWARE
#undef NL_HALVES

/* nl_of_head of a problem with a map. */
template <bool LEARNT, typename Problem>
__device__ __forceinline__ const Problem &nl_tiles_of_head(const Problem &p, Problem *own)
{
    if (!LEARNT)
        return p;
    *own = p;
    own->map.lambda = expf(p.log_lambda[blockIdx.x]), own->map.tau = expf(p.log_tau[blockIdx.x]);
    return *own;
}

/* Map and layout of an operation's arguments, if tiles can hold its heads; scratch memory for rope's angles, for matrices
 * without room, and `more` bytes of it at *room. */
template <typename Args, typename Problem>
static nl_status nl_nala_make_map(nl_device *device, const Args *a, Problem *p, int64_t more = 0,
                                  void **room = NULL)
{
    if (a->head_size > NL_TILE_MAX_HEAD)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "NaLa attention: head size %lld, at most %d on the GPU; try --device cpu",
                       (long long)a->head_size, NL_TILE_MAX_HEAD);
    bool far;
    p->map =
        nl_nala_map{(int)a->head_size, (int)a->grid_width, a->lambda, a->tau, a->norm_scale, NULL};
    p->layout =
        nl_nala_make_layout(a->head_size, nl_map_halves[a->feature_map], nl_shared_limit(), &far);
    const int64_t positions = NL_MAX(a->grid_height, a->grid_width);
    const int64_t angles = a->rope ? nl_nala_rope_bytes(positions, a->head_size) : 0;
    const int64_t matrices = far ? a->batch * a->heads * nl_nala_matrix_bytes(&p->layout) : 0;
    if (angles + matrices + more == 0)
        return NL_OK;
    void *scratch;
    const nl_status status = nl_cuda_scratch(device, "NaLa attention's angles and matrices",
                                             matrices + angles + more, &scratch);
    if (status != NL_OK)
        return status;
    char *behind = (char *)scratch + matrices;
    if (far)
        p->layout.matrices = (float *)scratch;
    if (more > 0)
        *room = behind + angles;
    if (!a->rope)
        return NL_OK;
    p->map.rope = (const float2 *)behind;
    return nl_cuda_check(
        device,
        nl_nala_rope_table((float2 *)behind, positions, a->head_size, nl_cuda_of(device)->stream),
        "angles of rope");
}

/* Launches `near`, or `far` where the matrix has no room, a block for each (image, head), on a problem of nl_nala_make_map. */
template <typename Kernel, typename Problem>
static nl_status nl_nala_launch_tiles(nl_device *device, Kernel near, Kernel far, int64_t batch,
                                      const Problem &p)
{
    const nl_nala_layout *l = &p.layout;
    Kernel kernel = l->matrices ? far : near;
    const int bytes = nl_nala_tile_bytes(l) + (l->matrices ? 0 : nl_nala_matrix_bytes(l));
    cudaError_t error = nl_allow_shared(kernel, bytes);
    if (error == cudaSuccess) {
        kernel<<<dim3((unsigned)p.heads, (unsigned)batch), NL_TILE_THREADS, bytes,
                 nl_cuda_of(device)->stream>>>(p);
        error = cudaGetLastError();
    }
    return nl_cuda_check(device, error, "NaLa attention");
}

template <bool FAR>
__device__ __forceinline__ nl_nala_tile nl_nala_place(const nl_nala_layout &l, float *shared)
{
    const int size = l.width * l.stride;
    nl_nala_tile m;
    m.matrix = FAR ? l.matrices + (blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * size : shared;
    m.features = FAR ? shared : m.matrix + size;
    m.vectors = m.features + l.tile * l.feature_stride;
    m.totals[0] = m.vectors + l.tile * l.stride;
    m.totals[1] = m.totals[0] + l.width;
    m.numbers = m.totals[1] + l.width;
    return m;
}

/* ---- A token's row in a warp: element e of a lane is nl_column(e) of the head, neighbours come in pairs. */

__device__ __forceinline__ int nl_column(int e)
{
    return e / 2 * 64 + threadIdx.x % 32 * 2 + e % 2;
}

template <typename T, int E>
__device__ __forceinline__ void nl_load_row(const T *from, int head_size, float (&x)[E])
{
#pragma unroll
    for (int e = 0; e < E; e++)
        x[e] = nl_column(e) < head_size ? nl_get(from + nl_column(e)) : 0.f;
}
template <typename T, int E>
__device__ __forceinline__ void nl_store_row(T *to, int size, const float (&x)[E])
{
#pragma unroll
    for (int e = 0; e < E; e++)
        if (nl_column(e) < size)
            nl_put(to + nl_column(e), x[e]);
}

template <int MAP, int E>
__device__ __forceinline__ float2 nl_row_sums(const nl_nala_map &map, const float (&x)[E])
{
    float2 sums = make_float2(0.f, 0.f);
#pragma unroll
    for (int e = 0; e < E; e++) {
        const float2 terms = nl_map<MAP, true, false>::row_terms(x[e], map.lambda);
        sums.x += terms.x, sums.y += terms.y;
    }
    return make_float2(nl_warp_sum(sums.x),
                       nl_map<MAP, true, false>::TERMS == 2 ? nl_warp_sum(sums.y) : 0.f);
}

template <int MAP, bool QUERY>
__device__ __forceinline__ nl_row_scalars nl_scalars_of(const nl_nala_map &map, float2 sums)
{
    return QUERY
               ? nl_map<MAP, true, false>::query_scalars(sums, map.lambda, map.tau, map.norm_scale)
               : nl_map<MAP, true, false>::key_scalars(sums, map.lambda);
}

/* f: halves of features. */
template <int MAP, bool QUERY, int E>
__device__ __forceinline__ void nl_row_features(const nl_nala_map &map, const float (&x)[E],
                                                float (&f)[2][E])
{
    const nl_row_scalars row = nl_scalars_of<MAP, QUERY>(map, nl_row_sums<MAP>(map, x));
#pragma unroll
    for (int e = 0; e < E; e++) {
        f[0][e] = f[1][e] = 0.f;
        if (nl_column(e) >= map.head_size) /* 1 + elu of 0 is not 0 */
            continue;
        const float2 pair = QUERY ? nl_map<MAP, true, false>::query_feature(x[e], row)
                                  : nl_map<MAP, true, false>::key_feature(x[e], row);
        f[0][e] = pair.x, f[1][e] = pair.y;
    }
}

/* The inner product of two rows of features. */
template <int E>
__device__ __forceinline__ float nl_row_product(const float (&f)[2][E], const float (&z)[2][E])
{
    float sum = 0.f;
#pragma unroll
    for (int e = 0; e < E; e++)
        sum = fmaf(f[0][e], z[0][e], fmaf(f[1][e], z[1][e], sum));
    return nl_warp_sum(sum);
}

/* Turns both halves by the token's angles, with rope; direction -1: back. */
template <int E>
__device__ __forceinline__ void nl_turn_row(const nl_nala_map &map, int token, float direction,
                                            float (&f)[2][E])
{
    if (!map.rope)
        return;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        if (nl_column(e) >= map.head_size)
            continue;
        const int column = nl_column(e), side = map.head_size / 2;
        const bool in_rows = column < side;
        const int position = in_rows ? token / map.grid_width : token % map.grid_width;
        const float2 angle =
            map.rope[position * (side / 2) + (in_rows ? column : column - side) / 2];
        const float cosine = angle.x, sine = direction * angle.y;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float a = f[half][e], b = f[half][e + 1];
            f[half][e] = a * cosine - b * sine;
            f[half][e + 1] = b * cosine + a * sine;
        }
    }
}

/* Halves of a row of [.., width] in shared memory. */
template <int MAP, int E>
__device__ __forceinline__ void nl_load_halves(const nl_nala_layout &l, const float *from,
                                               float (&f)[2][E])
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        nl_load_row(from + half * l.padded, half < nl_halves<MAP> ? l.padded : 0, f[half]);
}
template <int MAP, int E>
__device__ __forceinline__ void nl_store_halves(const nl_nala_layout &l, float *to,
                                                const float (&f)[2][E])
{
#pragma unroll
    for (int half = 0; half < nl_halves<MAP>; half++)
        nl_store_row(to + half * l.padded, l.padded, f[half]);
}

/* total [width] = the sum over the warps of what their lanes hold, in order. Takes the features' place. */
template <int MAP, int E>
__device__ __forceinline__ void nl_sum_warps(const nl_nala_layout &l, const nl_nala_tile &m,
                                             const float (&f)[2][E], float *total)
{
    __syncthreads();
    nl_store_halves<MAP>(l, m.features + threadIdx.x / 32 * l.width, f);
    __syncthreads();
    for (int i = threadIdx.x; i < l.width; i += NL_TILE_THREADS) {
        float sum = 0.f;
        for (int warp = 0; warp < NL_TILE_WARPS; warp++)
            sum += m.features[warp * l.width + i];
        total[i] = sum;
    }
    __syncthreads();
}

/* From [F] and [F, d], as they lie in device memory, to the padded rows of shared memory, and zeros. */
__device__ __forceinline__ void nl_load_total(const nl_nala_layout &l, int head_size,
                                              const float *from, float *total)
{
    for (int i = threadIdx.x; i < l.width; i += NL_TILE_THREADS) {
        const int half = i / l.padded, dim = i % l.padded;
        total[i] = dim < head_size ? from[half * head_size + dim] : 0.f;
    }
}
__device__ __forceinline__ void nl_load_matrix(const nl_nala_layout &l, int head_size,
                                               const float *from, float *matrix)
{
    for (int i = threadIdx.x; i < l.width * l.padded; i += NL_TILE_THREADS) {
        const int f = i / l.padded, column = i % l.padded, half = f / l.padded, dim = f % l.padded;
        matrix[f * l.stride + column] = dim < head_size && column < head_size
                                            ? from[(half * head_size + dim) * head_size + column]
                                            : 0.f;
    }
}
__device__ __forceinline__ void nl_clear_matrix(const nl_nala_layout &l, float *matrix)
{
    for (int i = threadIdx.x; i < l.width * l.stride; i += NL_TILE_THREADS)
        matrix[i] = 0.f;
}

/* ---- Products of tiles. */

/* Rows of a tile of `count` tokens: what goes into a sum over tokens is filled up with zeros. */
__device__ __forceinline__ int nl_rows(int count)
{
    return (count + 3) / 4 * 4;
}

/* x[k][i] of four rows (or columns) and four steps of the depth. BY_DEPTH: the operand is [depth, rows], and the rows
 * from `first` on are neighbours; otherwise it is [rows, depth], and they are `step` apart. */
template <bool BY_DEPTH>
__device__ __forceinline__ void nl_load_four(float (&x)[4][4], const float *from, int stride,
                                             int first, int step, int depth)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (BY_DEPTH) {
            const float4 a = *(const float4 *)(from + (depth + i) * stride + first);
            x[i][0] = a.x, x[i][1] = a.y, x[i][2] = a.z, x[i][3] = a.w;
        } else {
            const float4 a = *(const float4 *)(from + (first + i * step) * stride + depth);
            x[0][i] = a.x, x[1][i] = a.y, x[2][i] = a.z, x[3][i] = a.w;
        }
}

/* A B for A [rows, depth] and B [depth, columns], all multiples of 4. A_BY_DEPTH: A lies as [depth, rows]; B_BY_DEPTH: B
 * lies as [depth, columns], otherwise as [columns, depth]. A thread has 4 x 4 elements at a time; put(row, column, step,
 * values) takes four of a row, in columns `step` apart (1 where B_BY_DEPTH). */
template <bool A_BY_DEPTH, bool B_BY_DEPTH, typename Put>
__device__ __forceinline__ void nl_tile_product(int rows, int columns, int depth, const float *a,
                                                int a_stride, const float *b, int b_stride, Put put)
{
    const int down = rows / 4, across = columns / 4;
    const int row_step = A_BY_DEPTH ? 1 : down, column_step = B_BY_DEPTH ? 1 : across;
    for (int i = threadIdx.x; i < down * across; i += NL_TILE_THREADS) {
        const int row = i / across * (A_BY_DEPTH ? 4 : 1);
        const int column = i % across * (B_BY_DEPTH ? 4 : 1);
        float sum[4][4] = {};
        for (int k = 0; k < depth; k += 4) {
            float x[4][4], y[4][4];
            nl_load_four<A_BY_DEPTH>(x, a, a_stride, row, row_step, k);
            nl_load_four<B_BY_DEPTH>(y, b, b_stride, column, column_step, k);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        sum[r][c] = fmaf(x[j][r], y[j][c], sum[r][c]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
            put(row + r * row_step, column, column_step, sum[r]);
    }
}

/* matrix += features^T vectors over `count` tokens. */
__device__ __forceinline__ void nl_add_outer(const nl_nala_layout &l, const nl_nala_tile &m,
                                             int count)
{
    nl_tile_product<true, true>(
        l.width, l.padded, nl_rows(count), m.features, l.feature_stride, m.vectors, l.stride,
        [&](int f, int column, int, const float(&x)[4]) {
            float4 *at = (float4 *)(m.matrix + f * l.stride + column);
            const float4 y = *at;
            *at = make_float4(y.x + x[0], y.y + x[1], y.z + x[2], y.w + x[3]);
        });
}

/* features matrix: calls put(token, column, value) for the `count` tokens and the columns that the head has. */
template <typename Put>
__device__ __forceinline__ void nl_times_matrix(const nl_nala_layout &l, const nl_nala_tile &m,
                                                int count, int head_size, Put put)
{
    nl_tile_product<false, true>(nl_rows(count), l.padded, l.width, m.features, l.feature_stride,
                                 m.matrix, l.stride,
                                 [&](int token, int column, int, const float(&x)[4]) {
#pragma unroll
                                     for (int i = 0; i < 4; i++)
                                         if (token < count && column + i < head_size)
                                             put(token, column + i, x[i]);
                                 });
}

/* features = vectors matrix^T of `count` tokens. */
__device__ __forceinline__ void nl_times_transposed(const nl_nala_layout &l, const nl_nala_tile &m,
                                                    int count)
{
    nl_tile_product<false, false>(nl_rows(count), l.width, l.padded, m.vectors, l.stride, m.matrix,
                                  l.stride, [&](int token, int f, int step, const float(&x)[4]) {
#pragma unroll
                                      for (int i = 0; i < 4; i++)
                                          m.features[token * l.feature_stride + f + i * step] =
                                              x[i];
                                  });
}

/* The warp's tokens of a tile. */
#define NL_FOR_TOKENS(t, tokens) for (int t = threadIdx.x / 32; t < (tokens); t += NL_TILE_WARPS)

/* A row of key features and one of values for each token of a tile; adds unrotated features to `total`. */
template <typename T, int MAP, int E>
__device__ __forceinline__ void
nl_load_keys(const nl_nala_layout &l, const nl_nala_map &map, const nl_nala_tile &m, const T *k,
             const T *v, int64_t stride, int first, int count, float (&total)[2][E])
{
    NL_FOR_TOKENS(t, nl_rows(count))
    {
        float f[2][E] = {}, x[E] = {};
        if (t < count) {
            nl_load_row(k + (first + t) * stride, map.head_size, x);
            nl_row_features<MAP, false>(map, x, f);
#pragma unroll
            for (int e = 0; e < E; e++)
                total[0][e] += f[0][e], total[1][e] += f[1][e];
            nl_turn_row(map, first + t, 1.f, f);
            nl_load_row(v + (first + t) * stride, map.head_size, x);
        }
        nl_store_halves<MAP>(l, m.features + t * l.feature_stride, f);
        nl_store_row(m.vectors + t * l.stride, l.padded, x);
    }
}

#endif
