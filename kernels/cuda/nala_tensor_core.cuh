/*
 * NaLa attention forward on tensor cores, bf16 in and out, fp32 sums. q, k, v are read once, o is written once, and
 * features exist in registers only.
 *
 *   state   S[f, j] = 1/N sum_i phi_k(k_i)[f] v_i[j], with z as one more column of v that holds ones
 *   apply   o_t = phi_q(q_t) S / (phi_q(q_t) . z + 1e-6)
 *
 * Layout. A block has a warp for every 16 dimensions. A K tile lies in shared memory as it lies in device memory, [token][dimension];
 * ldmatrix.trans hands a warp the fragment of K^T [16 dimensions x 16 tokens] that mma.m16n8k16 wants as A, and the
 * map is applied to the fragment in place: one fragment of k becomes one of each half of the features. So warp w owns
 * dimensions 16 w .. 16 w + 15 in both halves, over all tokens, and S needs no
 * reduction between warps. For the queries the A fragment is [16 tokens x 16 dimensions], straight ldmatrix, and S in
 * bf16 is the B operand.
 *
 * Short sequences (one chunk): one kernel, one block for each (image, head), state then apply. Long ones: a block for
 * each chunk of tokens leaves its partial S, z in fp32; a small kernel adds the chunks in order; a third applies.
 */
#ifndef NL_NALA_TENSOR_CORE_CUH
#define NL_NALA_TENSOR_CORE_CUH

#include <cuda_bf16.h>

#include "nala_features.cuh"

struct nl_nala_problem {
    const __nv_bfloat16 *q, *k,
        *v; /* of image 0, head 0; rows of tokens `stride` apart, heads head_size apart */
    __nv_bfloat16 *out;                                    /* rows `out_stride` apart */
    int64_t image_stride, head_stride, stride;             /* elements, of q, k, v */
    int64_t out_image_stride, out_head_stride, out_stride; /* elements, of out */
    int tokens, heads, chunk;                              /* tokens of one block */
    float lambda, tau;
    float *partial;       /* [chunks, B h, F, NT * 8] fp32, or NULL */
    __nv_bfloat16 *state; /* [B h, F, S_STRIDE] bf16 for the apply kernel */
    float *saved_state;   /* [B h, F, d], or NULL: for the backward pass */
    float *saved_total;   /* [B h, F] */
};

namespace nl_nala
{

template <int D, int HALVES> struct shape {
    static constexpr int DP = (D + 15) / 16 * 16; /* dimensions, padded with zeros */
    static constexpr int WARPS = DP / 16; /* each owns 16 dimensions, and 16 queries of a tile */
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int TILE = 16 * WARPS; /* tokens */
    static constexpr int STAGES = 2; /* tiles of k and v in flight; 3 leave room for fewer blocks */
    static constexpr int RESIDENT = D <= 64 ? 4 : 1;
        /* blocks a multiprocessor, for the register budget */ /* tiles of k and v in flight */
    static constexpr int F = HALVES * DP;                      /* rows of S in shared memory */
    static constexpr int NT = (D + 7) / 8 + 1;                 /* 8-column tiles of [v | 1] */
    static constexpr int COLUMNS = NT * 8 > DP ? NT * 8 : DP;
    /* Row stride: an odd number of 16-byte units, so that eight rows fall into eight bank groups. */
    static constexpr int STRIDE = (COLUMNS / 8 % 2 ? COLUMNS : COLUMNS + 8);
    static constexpr int TILE_ELEMENTS = TILE * STRIDE;
    static constexpr int STATE_ELEMENTS = F * STRIDE;
    static constexpr int SHARED_BYTES =
        2 * (2 * STAGES * TILE_ELEMENTS + STATE_ELEMENTS) + 4 * STAGES * TILE;
};

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void commit_async()
{
    asm volatile("cp.async.commit_group;");
}
template <int N> __device__ __forceinline__ void wait_async()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_matrix_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
/* B fragments of 16 rows and the column tiles n, n + 1 (where there is one) of a row-major [rows, columns] matrix. */
template <int NT, int STRIDE>
__device__ __forceinline__ void load_columns(uint32_t (&b)[4], const __nv_bfloat16 *rows, int n)
{
    const int lane = threadIdx.x % 32;
    if (n + 1 < NT)
        load_matrix_transposed(b,
                               shared_address(rows + lane % 16 * STRIDE + n * 8 + lane / 16 * 8));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(shared_address(rows + lane % 16 * STRIDE + n * 8)));
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float2 unpack(uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
__device__ __forceinline__ uint32_t pack(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Queues the copy of S::TILE tokens from `first` on: D dimensions of each, zeros beyond `last`. */
template <int D, typename S>
__device__ __forceinline__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *from,
                                          int64_t stride, int first, int last)
{
    constexpr int CHUNKS = D / 8, COUNT = S::TILE * CHUNKS;
#pragma unroll
    for (int round = 0; round < (COUNT + S::THREADS - 1) / S::THREADS; round++) {
        const int i = threadIdx.x + round * S::THREADS, row = i / CHUNKS, chunk = i % CHUNKS;
        if (COUNT % S::THREADS == 0 || i < COUNT)
            copy_async(shared_address(tile + row * S::STRIDE + chunk * 8),
                       from + min(first + row, last - 1) * stride + chunk * 8, first + row < last);
    }
}

/* Norms through the tensor cores: adds the squares of a fragment [16 rows x 16] to the sums of its rows. Every column of
 * `sums` gets the same: rows lane / 4 in sums[0], lane / 4 + 8 in sums[2]. */
__device__ __forceinline__ void add_squares(float (&sums)[4], const uint32_t (&raw)[4])
{
    const uint32_t ones = 0x3f803f80;
    uint32_t squares[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        squares[i] = nl_bits(__hmul2(nl_pair(raw[i]), nl_pair(raw[i])));
    multiply(sums, squares, ones, ones);
}

/* The scalars of a tile's keys, as the map's elements want them: bf16 for the packed maps, fp32 for the others. */
template <int D, int MAP, bool CUBE, typename S>
__device__ __forceinline__ void key_scales(const nl_nala_problem &p, const __nv_bfloat16 *kt,
                                           float *scale)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (nl_map_packed<MAP>::value) {
        float sums[4] = {};
#pragma unroll
        for (int m = 0; m < S::WARPS; m++) {
            uint32_t raw[4];
            load_matrix(raw, shared_address(kt + (warp * 16 + lane % 16) * S::STRIDE + m * 16 +
                                            lane / 16 * 8));
            add_squares(sums, raw);
        }
        if (lane % 4 < 2) {
            const float sum = lane % 4 == 0 ? sums[0] : sums[2];
            ((__nv_bfloat16 *)scale)[warp * 16 + lane / 4 + lane % 4 * 8] =
                __float2bfloat16(nl_key_scalars<MAP, false>(make_float2(sum, 0.f), p.lambda).scale);
        }
    } else { /* two threads a token */
        const int row = threadIdx.x / 2, side = threadIdx.x % 2;
        float2 sums = make_float2(0.f, 0.f);
        for (int column = side * 8; column < D; column += 16)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 a = nl_row_terms<MAP, false, CUBE>(
                    __bfloat162float(kt[row * S::STRIDE + column + i]), p.lambda);
                sums.x += a.x, sums.y += a.y;
            }
        sums.x += __shfl_xor_sync(~0u, sums.x, 1), sums.y += __shfl_xor_sync(~0u, sums.y, 1);
        if (side == 0)
            scale[row] = nl_key_scalars<MAP, false>(sums, p.lambda).scale;
    }
}

/* The scalars of the two queries (rows lane / 4 and lane / 4 + 8) that a thread's fragments hold. */
template <int D, int MAP, bool CUBE, typename S>
__device__ __forceinline__ void query_scalars(const nl_nala_problem &p,
                                              const uint32_t (&raw)[S::WARPS][4],
                                              nl_row_scalars (&row)[2])
{
    if constexpr (nl_map_packed<MAP>::value) {
        float sums[4] = {};
#pragma unroll
        for (int m = 0; m < S::WARPS; m++)
            add_squares(sums, raw[m]);
        row[0] = nl_query_scalars<MAP, false>(make_float2(sums[0], 0.f), p.lambda, p.tau);
        row[1] = nl_query_scalars<MAP, false>(make_float2(sums[2], 0.f), p.lambda, p.tau);
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 sums = make_float2(0.f, 0.f);
#pragma unroll
            for (int m = 0; m < S::WARPS; m++)
#pragma unroll
                for (int i = r; i < 4; i += 2) {
                    const float2 pair = unpack(raw[m][i]);
                    const float2 a = nl_row_terms<MAP, false, CUBE>(pair.x, p.lambda);
                    const float2 b = nl_row_terms<MAP, false, CUBE>(pair.y, p.lambda);
                    sums.x += a.x + b.x, sums.y += a.y + b.y;
                }
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) {
                sums.x += __shfl_xor_sync(~0u, sums.x, offset);
                sums.y += __shfl_xor_sync(~0u, sums.y, offset);
            }
            row[r] = nl_query_scalars<MAP, false>(sums, p.lambda, p.tau);
        }
    }
}

/* The state of tokens [first, last) into acc: rows of this warp, unscaled. */
template <int D, int MAP, bool CUBE>
__device__ __forceinline__ void accumulate_state(
    const nl_nala_problem &p, const __nv_bfloat16 *k, const __nv_bfloat16 *v, int first, int last,
    __nv_bfloat16 *tiles, float *scales,
    float (&acc)[nl_map_halves<MAP>::value][shape<D, nl_map_halves<MAP>::value>::NT][4])
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int count = (last - first + S::TILE - 1) / S::TILE;

    /* Columns beyond the head: zeros, and the first of them in v ones, which makes z a column of S. (In k it meets no
     * feature: what lies beyond the head is masked where it could.) */
    for (int i = threadIdx.x; i < 2 * S::STAGES * S::TILE; i += S::THREADS)
        for (int column = D; column < S::COLUMNS; column += 8) {
            const bool one = column == D && i / S::TILE % 2 == 1;
            *(uint4 *)(tiles + i * S::STRIDE + column) = make_uint4(one ? 0x3f80 : 0, 0, 0, 0);
        }

    auto fetch = [&](int tile) {
        if (tile < count) {
            __nv_bfloat16 *stage = tiles + (tile % S::STAGES) * 2 * S::TILE_ELEMENTS;
            load_tile<D, S>(stage, k, p.stride, first + tile * S::TILE, last);
            load_tile<D, S>(stage + S::TILE_ELEMENTS, v, p.stride, first + tile * S::TILE, last);
        }
        commit_async();
    };
    for (int tile = 0; tile < S::STAGES - 1; tile++)
        fetch(tile);

    for (int tile = 0; tile < count; tile++) {
        wait_async<S::STAGES - 2>();
        __syncthreads(); /* this tile has arrived, the stage fetched next is free */
        fetch(tile + S::STAGES - 1);
        __nv_bfloat16 *kt = tiles + (tile % S::STAGES) * 2 * S::TILE_ELEMENTS;
        __nv_bfloat16 *vt = kt + S::TILE_ELEMENTS;
        float *scale = scales + (tile % S::STAGES) * S::TILE;

        key_scales<D, MAP, CUBE, S>(p, kt, scale);
        if (tile == count - 1) /* tokens that are not there count for nothing in z either */
            for (int row = threadIdx.x + last - first - tile * S::TILE; row < S::TILE;
                 row += S::THREADS)
                vt[row * S::STRIDE + D] = __float2bfloat16(0.f);
        __syncthreads();

#pragma unroll
        for (int step = 0; step < S::TILE / 16; step++) {
            const int token = step * 16;
            /* Matrices: (dimensions 0-7, 8-15) x (tokens 0-7), then the same for tokens 8-15. */
            uint32_t raw[4], features[HALVES][4];
            load_matrix_transposed(
                raw, shared_address(kt + (token + lane % 8 + lane / 16 * 8) * S::STRIDE +
                                    warp * 16 + lane / 8 % 2 * 8));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                /* This thread's columns of A: tokens 2 (lane % 4) + {0, 1} and 8 more. */
                const int at = token + i / 2 * 8 + 2 * (lane % 4);
                if constexpr (nl_map_packed<MAP>::value) {
                    nl_key_pair<CUBE>(raw[i],
                                      *(const uint32_t *)((const __nv_bfloat16 *)scale + at),
                                      p.lambda, &features[0][i], &features[HALVES - 1][i]);
                } else {
                    const float2 pair = unpack(raw[i]), s = *(const float2 *)(scale + at);
                    const float2 a =
                        nl_key_feature<MAP, false, CUBE>(pair.x, nl_row_scalars{s.x, p.lambda});
                    const float2 b =
                        nl_key_feature<MAP, false, CUBE>(pair.y, nl_row_scalars{s.y, p.lambda});
                    features[0][i] = pack(a.x, b.x);
                    if (HALVES == 2)
                        features[HALVES - 1][i] = pack(a.y, b.y);
                }
            }
#pragma unroll
            for (int n = 0; n < S::NT; n += 2) {
                uint32_t b[4];
                load_columns<S::NT, S::STRIDE>(b, vt + token * S::STRIDE, n);
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    multiply(acc[half][n], features[half], b[0], b[1]);
                    if (n + 1 < S::NT)
                        multiply(acc[half][n + 1], features[half], b[2], b[3]);
                }
            }
        }
    }
    wait_async<0>();
    __syncthreads();
}

/* o for tokens [first, last) from the state in shared memory. */
template <int D, int MAP, bool CUBE>
__device__ __forceinline__ void apply_state(const nl_nala_problem &p, const __nv_bfloat16 *q,
                                            __nv_bfloat16 *out, int first, int last,
                                            const __nv_bfloat16 *state, __nv_bfloat16 *tiles)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    constexpr int Q_STAGES = 2 * S::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int count = (last - first + S::TILE - 1) / S::TILE;

    auto fetch = [&](int tile) {
        if (tile < count)
            load_tile<D, S>(tiles + (tile % Q_STAGES) * S::TILE_ELEMENTS, q, p.stride,
                            first + tile * S::TILE, last);
        commit_async();
    };
    for (int tile = 0; tile < Q_STAGES - 1; tile++)
        fetch(tile);

    for (int tile = 0; tile < count; tile++) {
        wait_async<Q_STAGES - 2>();
        __syncthreads();
        fetch(tile + Q_STAGES - 1);
        __nv_bfloat16 *rows = tiles + (tile % Q_STAGES) * S::TILE_ELEMENTS + warp * 16 * S::STRIDE;

        uint32_t raw[S::WARPS][4]; /* rows 0-7, 8-15 of dimensions 0-7, then of dimensions 8-15 */
#pragma unroll
        for (int m = 0; m < S::WARPS; m++) {
            load_matrix(raw[m],
                        shared_address(rows + lane % 16 * S::STRIDE + m * 16 + lane / 16 * 8));
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (m * 16 + i / 2 * 8 >= D)
                    raw[m][i] = 0;
        }
        nl_row_scalars row[2];
        query_scalars<D, MAP, CUBE, S>(p, raw, row);
        const float offset[2] = {row[0].power * __log2f(row[0].scale),
                                 row[1].power * __log2f(row[1].scale)};
        const __nv_bfloat162 scale[2] = {nl_pair_of(row[0].scale), nl_pair_of(row[1].scale)};

        float acc[S::NT][4] = {};
#pragma unroll
        for (int m = 0; m < S::WARPS; m++) {
            uint32_t features[HALVES][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (nl_map_packed<MAP>::value) {
                    nl_query_pair<CUBE>(raw[m][i], scale[i % 2], row[i % 2].power, offset[i % 2],
                                        &features[0][i], &features[HALVES - 1][i]);
                } else {
                    const float2 pair = unpack(raw[m][i]);
                    const float2 a = nl_query_feature<MAP, false, CUBE>(pair.x, row[i % 2]);
                    const float2 b = nl_query_feature<MAP, false, CUBE>(pair.y, row[i % 2]);
                    features[0][i] = pack(a.x, b.x);
                    if (HALVES == 2)
                        features[HALVES - 1][i] = pack(a.y, b.y);
                    if (m * 16 + i / 2 * 8 >= D)
                        features[0][i] = 0; /* 1 + elu(0) is not 0 */
                }
            }
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int n = 0; n < S::NT; n += 2) {
                    uint32_t b[4];
                    load_columns<S::NT, S::STRIDE>(b, state + (half * S::DP + m * 16) * S::STRIDE,
                                                   n);
                    multiply(acc[n], features[half], b[0], b[1]);
                    if (n + 1 < S::NT)
                        multiply(acc[n + 1], features[half], b[2], b[3]);
                }
        }

        /* The last tile's first column is the denominator: lanes 0, 4, 8, ... hold it for their two rows. */
        const float low = 1.f / (__shfl_sync(~0u, acc[S::NT - 1][0], lane & ~3) + 1e-6f);
        const float high = 1.f / (__shfl_sync(~0u, acc[S::NT - 1][2], lane & ~3) + 1e-6f);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < S::NT - 1;
             n++) { /* through the warp's own rows of the tile to whole lines */
            *(uint32_t *)(rows + lane / 4 * S::STRIDE + n * 8 + lane % 4 * 2) =
                pack(acc[n][0] * low, acc[n][1] * low);
            *(uint32_t *)(rows + (lane / 4 + 8) * S::STRIDE + n * 8 + lane % 4 * 2) =
                pack(acc[n][2] * high, acc[n][3] * high);
        }
        __syncwarp();
        constexpr int CHUNKS = D / 8;
        for (int i = lane; i < 16 * CHUNKS; i += 32) {
            const int r = i / CHUNKS, chunk = i % CHUNKS,
                      token = first + tile * S::TILE + warp * 16 + r;
            if (token < last)
                *(uint4 *)(out + token * p.out_stride + chunk * 8) =
                    *(const uint4 *)(rows + r * S::STRIDE + chunk * 8);
        }
    }
    wait_async<0>();
}

/* One block for each (image, head): grid (heads, batch). */
template <int D, int MAP, bool CUBE>
__global__ void __launch_bounds__(shape<D, nl_map_halves<MAP>::value>::THREADS,
                                  shape<D, nl_map_halves<MAP>::value>::RESIDENT)
    fused_kernel(const nl_nala_problem p)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tiles = (__nv_bfloat16 *)shared;
    __nv_bfloat16 *state = tiles + 2 * S::STAGES * S::TILE_ELEMENTS;
    float *scales = (float *)(state + S::STATE_ELEMENTS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t offset = blockIdx.y * p.image_stride + blockIdx.x * p.head_stride;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;

    float acc[HALVES][S::NT][4] = {};
    accumulate_state<D, MAP, CUBE>(p, p.k + offset, p.v + offset, 0, p.tokens, tiles, scales, acc);

    const float mean = 1.f / p.tokens;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int n = 0; n < S::NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int dim = warp * 16 + lane / 4 + i * 8, column = n * 8 + lane % 4 * 2;
                const float a = acc[half][n][2 * i] * mean, b = acc[half][n][2 * i + 1] * mean;
                *(uint32_t *)(state + (half * S::DP + dim) * S::STRIDE + column) = pack(a, b);
                if (p.saved_state && dim < D) {
                    const int64_t f = index * HALVES * D + half * D + dim;
                    if (column < D)
                        *(float2 *)(p.saved_state + f * D + column) = make_float2(a, b);
                    else if (column == D)
                        p.saved_total[f] = a;
                }
            }
    __syncthreads();
    apply_state<D, MAP, CUBE>(
        p, p.q + offset, p.out + blockIdx.y * p.out_image_stride + blockIdx.x * p.out_head_stride,
        0, p.tokens, state, tiles);
}

/* grid (heads, batch, chunks): partial sums of one chunk, [chunk, B h, F, NT * 8] fp32. */
template <int D, int MAP, bool CUBE>
__global__ void __launch_bounds__(shape<D, nl_map_halves<MAP>::value>::THREADS,
                                  shape<D, nl_map_halves<MAP>::value>::RESIDENT)
    partial_kernel(const nl_nala_problem p)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tiles = (__nv_bfloat16 *)shared;
    float *scales = (float *)(tiles + 2 * S::STAGES * S::TILE_ELEMENTS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t offset = blockIdx.y * p.image_stride + blockIdx.x * p.head_stride;
    const int64_t pairs = (int64_t)gridDim.x * gridDim.y;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int first = blockIdx.z * p.chunk, last = min(first + p.chunk, p.tokens);

    float acc[HALVES][S::NT][4] = {};
    accumulate_state<D, MAP, CUBE>(p, p.k + offset, p.v + offset, first, last, tiles, scales, acc);
    float *to = p.partial + (blockIdx.z * pairs + index) * S::F * S::NT * 8;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int n = 0; n < S::NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(float2 *)(to + (half * S::DP + warp * 16 + lane / 4 + i * 8) * S::NT * 8 + n * 8 +
                            lane % 4 * 2) =
                    make_float2(acc[half][n][2 * i], acc[half][n][2 * i + 1]);
}

/* Adds the chunks in order; one thread for two neighbouring columns. grid (rows of F * NT * 4 / 256, B h). */
template <int D, int MAP>
__global__ void reduce_kernel(const nl_nala_problem p, int chunks, int64_t pairs)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= S::F * S::NT * 4)
        return;
    const int f = i / (S::NT * 4), column = i % (S::NT * 4) * 2;
    const int64_t index = blockIdx.y, step = pairs * S::F * S::NT * 8;
    const float *from = p.partial + index * S::F * S::NT * 8 + (int64_t)f * S::NT * 8 + column;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
        const float2 x = *(const float2 *)(from + c * step);
        sum.x += x.x, sum.y += x.y;
    }
    const float mean = 1.f / p.tokens;
    sum.x *= mean, sum.y *= mean;
    *(uint32_t *)(p.state + (index * S::F + f) * S::STRIDE + column) = pack(sum.x, sum.y);
    const int half = f / S::DP, dim = f % S::DP;
    if (p.saved_state && dim < D) {
        const int64_t row = index * HALVES * D + half * D + dim;
        if (column < D)
            *(float2 *)(p.saved_state + row * D + column) = sum;
        else if (column == D)
            p.saved_total[row] = sum.x;
    }
}

/* grid (heads, batch, chunks) */
template <int D, int MAP, bool CUBE>
__global__ void __launch_bounds__(shape<D, nl_map_halves<MAP>::value>::THREADS,
                                  shape<D, nl_map_halves<MAP>::value>::RESIDENT)
    apply_kernel(const nl_nala_problem p)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    using S = shape<D, HALVES>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tiles = (__nv_bfloat16 *)shared;
    __nv_bfloat16 *state = tiles + 2 * S::STAGES * S::TILE_ELEMENTS;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int first = blockIdx.z * p.chunk, last = min(first + p.chunk, p.tokens);
    const uint4 *from = (const uint4 *)(p.state + index * S::STATE_ELEMENTS);
    for (int i = threadIdx.x; i < S::STATE_ELEMENTS / 8; i += S::THREADS)
        ((uint4 *)state)[i] = from[i];
    __syncthreads();
    apply_state<D, MAP, CUBE>(p, p.q + blockIdx.y * p.image_stride + blockIdx.x * p.head_stride,
                              p.out + blockIdx.y * p.out_image_stride +
                                  blockIdx.x * p.out_head_stride,
                              first, last, state, tiles);
}

} // namespace nl_nala

#endif
