/* SPDX-License-Identifier: MIT */
/*
 * Kernels and launchers of NaLa attention backward; backward_kernel.cuh has the arithmetic.
 *
 *   whole_kernel   a head of up to 512 tokens: a block, queries and then keys
 *   query_kernel   a chunk of queries: dq, partial dS and dz
 *   reduce_kernel  dS and dz of the chunks, added in order
 *   key_kernel     a chunk of keys: dk, dv
 *
 * In shared memory are a tile of queries, [q | o], whose place their features take, and do; S in bf16 and z in fp32, then dS
 * and dz; for keys two stages of k and v. A warp's 16 tokens, their scalars and gradients stay in registers, and so do its
 * 16 features' rows of dS over all tiles, so that dS needs no sum between warps. What a block reads next is brought into the
 * second level cache meanwhile: registers and shared memory have no room for a second tile of queries.
 */
#include "backward_kernel.cuh"

#include "prim/shared_limit.cuh"

using namespace nl_nala_gradients;

namespace
{

/* Where a block's (image, head) begins. */
struct place {
    int64_t pair, pairs, token, column;
    __device__ __forceinline__ place(const nl_nala_gradient &p, int head_size)
        : pair((int64_t)blockIdx.y * gridDim.x + blockIdx.x), pairs((int64_t)gridDim.x * gridDim.y),
          token(blockIdx.y * (int64_t)p.tokens), column(blockIdx.x * head_size)
    {
    }
};

/* Queues the copies of a tile of queries: q | o and do. */
template <int D>
__device__ __forceinline__ void load_queries(const nl_nala_gradient &p, const place &at, int first,
                                             int last, __nv_bfloat16 *tile, __nv_bfloat16 *dtile)
{
    using S = shape<D>;
    const int64_t out = at.token * p.out_stride + at.column;
    load_rows<D, S::QUERY_TILE, S::WIDE>(tile, p.q + at.token * p.stride + at.column, p.stride,
                                         first, last);
    load_rows<D, S::QUERY_TILE, S::WIDE>(tile + S::DP, p.out + out, p.out_stride, first, last);
    load_rows<D, S::QUERY_TILE, S::STRIDE>(dtile, p.dout + out, p.out_stride, first, last);
    cp_async_commit_group();
}
template <int D>
__device__ __forceinline__ void prefetch_queries(const nl_nala_gradient &p, const place &at,
                                                 int first, int last)
{
    constexpr int TILE = shape<D>::QUERY_TILE;
    const int64_t out = at.token * p.out_stride + at.column;
    prefetch_rows<TILE>(p.q + at.token * p.stride + at.column, p.stride, first, last);
    prefetch_rows<TILE>(p.out + out, p.out_stride, first, last);
    prefetch_rows<TILE>(p.dout + out, p.out_stride, first, last);
}

/* What lies beyond the columns of do and, where a head is padded, of o: zeros of do meet it, and NaN times 0 is NaN. */
template <int D>
__device__ __forceinline__ void clear_padding(__nv_bfloat16 *tile, __nv_bfloat16 *dtile)
{
    using S = shape<D>;
    for (int row = threadIdx.x; row < S::QUERY_TILE; row += blockDim.x) {
        *(uint4 *)(dtile + row * S::STRIDE + D) = make_uint4(0, 0, 0, 0);
        if (S::DP > D)
            *(uint4 *)(tile + row * S::WIDE + S::DP + D) = make_uint4(0, 0, 0, 0);
    }
}

/* Queues the copies of TILE keys and values, if there are any, into [(k, v), TILE, STRIDE]. */
template <int D, int TILE>
__device__ __forceinline__ void load_keys(const nl_nala_gradient &p, const place &at, int first,
                                          int last, __nv_bfloat16 *to)
{
    constexpr int STRIDE = shape<D>::STRIDE;
    const int64_t from = at.token * p.stride + at.column;
    if (first < last) {
        load_rows<D, TILE, STRIDE>(to, p.k + from, p.stride, first, last);
        load_rows<D, TILE, STRIDE>(to + TILE * STRIDE, p.v + from, p.stride, first, last);
    }
    cp_async_commit_group();
}

/* The warp's 16 of a tile of keys. */
template <int D, bool CUBE, bool ROPE, int TILE, bool SUMS, bool LEARNT>
__device__ __forceinline__ void key_tile(const nl_nala_gradient &p, const place &at, int first,
                                         int last, const __nv_bfloat16 *tile,
                                         const __nv_bfloat16 *dstate, const float *dtotal,
                                         key_sums<D> &sums, log_exponents &exponents)
{
    const int row = threadIdx.x / 32 * 16;
    const int64_t base = at.token * p.gradient_stride + at.column;
    const __nv_bfloat16 *krows = tile + row * shape<D>::STRIDE;
    __nv_bfloat16 *dk[2], *dv[2];
    row_pointers(p.dk + base, p.gradient_stride, first + row, last, dk);
    row_pointers(p.dv + base, p.gradient_stride, first + row, last, dv);
    key_rows<D, CUBE, ROPE, SUMS, LEARNT>(p, first + row, krows, krows + TILE * shape<D>::STRIDE,
                                          dstate, dtotal, dk, dv, sums, exponents);
}

/* dS of the warp's 16 features in bf16 to rows STRIDE apart, dz to dtotal. */
template <int D>
__device__ __forceinline__ void put_state(const float (&acc)[shape<D>::NT][4],
                                          __nv_bfloat16 *dstate, float *dtotal)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int f = warp * 16 + lane / 4 + i * 8, column = n * 8 + lane % 4 * 2;
            if (column < D)
                *(uint32_t *)(dstate + f * S::STRIDE + column) =
                    pack_bf16x2(acc[n][2 * i], acc[n][2 * i + 1]);
            else if (column == D)
                dtotal[f] = acc[n][2 * i] + acc[n][2 * i + 1];
        }
}

/* Sums over all tokens from those of the warps, [3 (dq, dk, dv)][warps, FOURS * 32] in `parts`; those of dv without rope, phi_k
 * dS / N, from z in two parts and dS. */
template <int D, bool ROPE>
__device__ __forceinline__ void write_sums(const nl_nala_gradient &p, const float *parts,
                                           const __nv_bfloat16 *zt, const __nv_bfloat16 *dstate)
{
    using S = shape<D>;
    for (int i = threadIdx.x; i < 3 * D; i += blockDim.x) {
        const int kind = i / D, column = i % D;
        float sum = 0.f;
        if (kind < 2 || ROPE)
            for (int warp = 0; warp < S::QUERY_WARPS; warp++)
                sum += parts[(kind * S::QUERY_WARPS + warp) * S::FOURS * 32 + column];
        else
#pragma unroll 16
            for (int f = 0; f < S::F; f++)
                sum = fmaf(__bfloat162float(zt[f]) + __bfloat162float(zt[S::WIDE + f]),
                           __bfloat162float(dstate[f * S::STRIDE + column]), sum);
        p.sums[((blockIdx.y * 3ll + kind) * p.heads + blockIdx.x) * D + column] = sum;
    }
}

/* Few tokens: a block does all of a head, and dS stays in shared memory. grid (heads, batch) */
template <int D, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(32 * shape<D>::QUERY_WARPS, shape<D>::QUERY_RESIDENT)
    whole_kernel(const nl_nala_gradient given)
{
    nl_nala_gradient own;
    const nl_nala_gradient &p = nl_of_head<LEARNT>(given, &own);
    using S = shape<D>;
    constexpr int TILE = S::QUERY_TILE;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tile = (__nv_bfloat16 *)shared;   /* [TILE, WIDE]: q | o, then features */
    __nv_bfloat16 *dtile = tile + TILE * S::WIDE;    /* [TILE, STRIDE]: do, then u | -r */
    __nv_bfloat16 *state = dtile + TILE * S::STRIDE; /* [F, STRIDE]: S, then dS */
    __nv_bfloat16 *zt = state + S::STATE;
    float *total = (float *)(zt + 2 * S::WIDE);            /* [F]: z, then dz */
    __nv_bfloat16 *keys = (__nv_bfloat16 *)(total + S::F); /* [(k, v), TILE, STRIDE] */
    const int warp = threadIdx.x / 32;
    const place at(p, D);

    load_queries<D>(p, at, 0, p.tokens, tile, dtile);
    load_keys<D, TILE>(p, at, 0, p.tokens, keys);
    load_state<D>(p, at.pair, state, total, zt);
    clear_padding<D>(tile, dtile);
    float acc[S::NT][4] = {}; /* dS | dz of the warp's 16 features */
    float sums_of_dq[S::FOURS] = {};
    key_sums<D> sums_of_keys = {};
    log_exponents exponents = make_float2(0.f, 0.f);
    for (int begin = 0; begin < p.tokens; begin += TILE) {
        if (begin > 0) {
            __syncthreads(); /* the tile before is done with */
            load_queries<D>(p, at, begin, p.tokens, tile, dtile);
            cp_async_wait_group<0>();
        } else {
            cp_async_wait_group<1>();
        }
        __syncthreads();
        prefetch_queries<D>(p, at, begin + TILE, p.tokens);
        __nv_bfloat16 *to[2];
        row_pointers(p.dq + at.token * p.gradient_stride + at.column, p.gradient_stride,
                     begin + warp * 16, p.tokens, to);
        query_tile<D, CUBE, ROPE, true, LEARNT>(p, begin, tile, dtile, state, total, zt, to, acc,
                                                sums_of_dq, exponents);
    }
    put_state<D>(acc, state, total);
    for (int begin = 0, t = 0; begin < p.tokens; begin += TILE, t++) {
        __syncthreads(); /* the stage fetched next is free; dS is there */
        load_keys<D, TILE>(p, at, begin + TILE, p.tokens, t % 2 ? keys : tile);
        cp_async_wait_group<1>();
        __syncthreads();
        key_tile<D, CUBE, ROPE, TILE, true, LEARNT>(p, at, begin, p.tokens, t % 2 ? tile : keys,
                                                    state, total, sums_of_keys, exponents);
    }
    cp_async_wait_group<0>();
    if (LEARNT)
        put_exponents(p, blockIdx.y, exponents);
    if (!p.sums)
        return;
    __syncthreads(); /* the tiles are done with */
    float *parts = (float *)tile;
#pragma unroll
    for (int four = 0; four < S::FOURS; four++) {
        parts[warp * S::FOURS * 32 + summed_column(four)] = sums_of_dq[four];
        parts[(S::QUERY_WARPS + warp) * S::FOURS * 32 + summed_column(four)] = sums_of_keys.k[four];
        if (ROPE)
            parts[(2 * S::QUERY_WARPS + warp) * S::FOURS * 32 + summed_column(four)] =
                sums_of_keys.v[four];
    }
    __syncthreads();
    write_sums<D, ROPE>(p, parts, zt, state);
}

/* grid (heads, batch, chunks of queries) */
template <int D, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(32 * shape<D>::QUERY_WARPS, shape<D>::QUERY_RESIDENT)
    query_kernel(const nl_nala_gradient given)
{
    nl_nala_gradient own;
    const nl_nala_gradient &p = nl_of_head<LEARNT>(given, &own);
    using S = shape<D>;
    constexpr int TILE = S::QUERY_TILE;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tile = (__nv_bfloat16 *)shared; /* as whole_kernel */
    __nv_bfloat16 *dtile = tile + TILE * S::WIDE;
    __nv_bfloat16 *state = dtile + TILE * S::STRIDE;
    __nv_bfloat16 *zt = state + S::STATE;
    float *total = (float *)(zt + 2 * S::WIDE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const place at(p, D);
    const int first = blockIdx.z * p.query_chunk, last = min(first + p.query_chunk, p.tokens);

    float acc[S::NT][4] = {}, no_sums[S::FOURS];
    log_exponents exponents = make_float2(0.f, 0.f);
    for (int begin = first; begin < last; begin += TILE) {
        __syncthreads(); /* the tile before is done with */
        load_queries<D>(p, at, begin, last, tile, dtile);
        if (begin == first) {
            load_state<D>(p, at.pair, state, total, zt);
            clear_padding<D>(tile, dtile);
        }
        cp_async_wait_group<0>();
        __syncthreads();
        prefetch_queries<D>(p, at, begin + TILE, last);
        __nv_bfloat16 *to[2];
        row_pointers(p.dq + at.token * p.gradient_stride + at.column, p.gradient_stride,
                     begin + warp * 16, last, to);
        query_tile<D, CUBE, ROPE, false, LEARNT>(p, begin, tile, dtile, state, total, zt, to, acc,
                                                 no_sums, exponents);
    }
    if (LEARNT)
        put_exponents(p, blockIdx.z * (int64_t)gridDim.y + blockIdx.y, exponents);
#pragma unroll
    for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t f = warp * 16 + lane / 4 + i * 8;
            *(float2 *)(p.partial + ((blockIdx.z * at.pairs + at.pair) * S::F + f) * S::NT * 8 +
                        n * 8 + lane % 4 * 2) = make_float2(acc[n][2 * i], acc[n][2 * i + 1]);
        }
}

/* Adds the chunks in order; a thread for two neighbouring columns. grid (F * NT * 4 / 256, B h) */
template <int D> __global__ void reduce_kernel(const nl_nala_gradient p, int chunks)
{
    using S = shape<D>;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= S::F * S::NT * 4)
        return;
    const int f = i / (S::NT * 4), column = i % (S::NT * 4) * 2;
    const int64_t pair = blockIdx.y, step = gridDim.y * (int64_t)S::F * S::NT * 8;
    const float *from = p.partial + (pair * S::F + f) * S::NT * 8 + column;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
    for (int chunk = 0; chunk < chunks; chunk++) {
        const float2 x = *(const float2 *)(from + chunk * step);
        sum.x += x.x, sum.y += x.y;
    }
    if (column < D)
        *(uint32_t *)(p.dstate + (pair * S::F + f) * S::STRIDE + column) =
            pack_bf16x2(sum.x, sum.y);
    else if (column == D)
        p.dtotal[pair * S::F + f] = sum.x + sum.y;
}

/* grid (heads, batch, chunks of keys) */
template <int D, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(32 * shape<D>::KEY_WARPS, shape<D>::KEY_RESIDENT)
    key_kernel(const nl_nala_gradient given)
{
    nl_nala_gradient own;
    const nl_nala_gradient &p = nl_of_head<LEARNT>(given, &own);
    using S = shape<D>;
    constexpr int TILE = S::KEY_TILE, STAGE = 2 * TILE * S::STRIDE;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *tiles = (__nv_bfloat16 *)shared; /* [2, (k, v), TILE, STRIDE] */
    __nv_bfloat16 *dstate = tiles + 2 * STAGE;      /* [F, STRIDE] */
    float *dtotal = (float *)(dstate + S::STATE);
    const place at(p, D);
    const int first = blockIdx.z * p.key_chunk, last = min(first + p.key_chunk, p.tokens);

    /* Columns beyond the head are read as columns of dv or meet zeros of v: they must be finite. */
    constexpr int PIECES = S::STRIDE / 8;
    for (int i = threadIdx.x; i < S::F * PIECES; i += blockDim.x)
        cp_async(shared_address(dstate + i * 8), p.dstate + at.pair * S::STATE + i * 8,
                 i % PIECES < D / 8);
    load_keys<D, TILE>(p, at, first, last, tiles);
    for (int i = threadIdx.x; i < S::F; i += blockDim.x)
        dtotal[i] = p.dtotal[at.pair * S::F + i];

    key_sums<D> no_sums;
    log_exponents exponents = make_float2(0.f, 0.f);
    for (int begin = first, t = 0; begin < last; begin += TILE, t++) {
        __syncthreads(); /* the stage fetched next is free; dstate is there */
        load_keys<D, TILE>(p, at, begin + TILE, last, tiles + (t + 1) % 2 * STAGE);
        cp_async_wait_group<1>();
        __syncthreads();
        key_tile<D, CUBE, ROPE, TILE, false, LEARNT>(p, at, begin, last, tiles + t % 2 * STAGE,
                                                     dstate, dtotal, no_sums, exponents);
    }
    cp_async_wait_group<0>();
    if (LEARNT) { /* behind the parts of the queries */
        const int chunks = (p.tokens + p.query_chunk - 1) / p.query_chunk;
        put_exponents(p, (chunks + blockIdx.z) * (int64_t)gridDim.y + blockIdx.y, exponents);
    }
}

} // namespace

/* Tokens that one block takes, at most. By the length and the card alone, so that a result does not depend on the batch. */
static const int64_t WHOLE = 512, QUERY_CHUNK = 512, KEY_CHUNK = 256;

static int64_t blocks_of(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Tokens of a chunk: whole tiles, spread evenly. */
static int chunk_of(int64_t tokens, int64_t most, int64_t tile)
{
    return (int)(blocks_of(blocks_of(tokens, tile), blocks_of(tokens, most)) * tile);
}

template <int D> struct launcher {
    using S = shape<D>;

    static bool whole(int64_t tokens)
    {
        return tokens <= WHOLE && S::WHOLE_BYTES <= nl_shared_limit();
    }
    static int64_t query_chunks(int64_t tokens)
    {
        return blocks_of(tokens, chunk_of(tokens, QUERY_CHUNK, S::QUERY_TILE));
    }
    static int64_t partial_bytes(int64_t pairs, int64_t tokens)
    {
        return 4 * query_chunks(tokens) * pairs * S::F * S::NT * 8;
    }
    static int64_t workspace(int64_t pairs, int64_t tokens)
    {
        return whole(tokens) ? 16
                             : partial_bytes(pairs, tokens) + pairs * (2 * S::STATE + 4 * S::F);
    }
    static int64_t parts(int64_t tokens)
    {
        return whole(tokens) ? 1
                             : query_chunks(tokens) +
                                   blocks_of(tokens, chunk_of(tokens, KEY_CHUNK, S::KEY_TILE));
    }
    template <bool CUBE, bool ROPE, bool LEARNT>
    static cudaError_t run_whole(const nl_nala_gradient &p, dim3 grid, cudaStream_t stream)
    {
        constexpr auto kernel = whole_kernel<D, CUBE, ROPE, LEARNT>;
        const cudaError_t error = nl_allow_shared(kernel, S::WHOLE_BYTES);
        if (error != cudaSuccess)
            return error;
        kernel<<<grid, 32 * S::QUERY_WARPS, S::WHOLE_BYTES, stream>>>(p);
        return cudaGetLastError();
    }
    template <bool CUBE, bool ROPE, bool LEARNT>
    static cudaError_t run_as(nl_nala_gradient p, int64_t batch, void *workspace,
                              cudaStream_t stream)
    {
        const int64_t pairs = batch * p.heads;
        dim3 grid(p.heads, (unsigned)batch);
        cudaError_t error;
        if (whole(p.tokens))
            return run_whole<CUBE, ROPE, LEARNT>(p, grid, stream);
        constexpr auto queries = query_kernel<D, CUBE, ROPE, LEARNT>;
        constexpr auto keys = key_kernel<D, CUBE, ROPE, LEARNT>;
        if ((error = nl_allow_shared(queries, S::QUERY_BYTES)) != cudaSuccess ||
            (error = nl_allow_shared(keys, S::KEY_BYTES)) != cudaSuccess)
            return error;
        p.query_chunk = chunk_of(p.tokens, QUERY_CHUNK, S::QUERY_TILE);
        p.key_chunk = chunk_of(p.tokens, KEY_CHUNK, S::KEY_TILE);
        const int chunks = (int)query_chunks(p.tokens);
        char *space = (char *)workspace;
        p.partial = (float *)space;
        p.dstate = (__nv_bfloat16 *)(space + partial_bytes(pairs, p.tokens));
        p.dtotal = (float *)(p.dstate + pairs * S::STATE);
        grid.z = chunks;
        queries<<<grid, 32 * S::QUERY_WARPS, S::QUERY_BYTES, stream>>>(p);
        reduce_kernel<D>
            <<<dim3((unsigned)blocks_of(S::F * S::NT * 4, 256), (unsigned)pairs), 256, 0, stream>>>(
                p, chunks);
        grid.z = (unsigned)blocks_of(p.tokens, p.key_chunk);
        keys<<<grid, 32 * S::KEY_WARPS, S::KEY_BYTES, stream>>>(p);
        return cudaGetLastError();
    }
    static cudaError_t run(const nl_nala_gradient &p, int64_t batch, void *workspace,
                           cudaStream_t stream)
    {
        const bool cube = p.lambda == 3.f && p.tau > 0.f; /* then every power is positive too */
        if (p.rope.table)
            return cube && !p.log_lambda ? run_as<true, true, false>(p, batch, workspace, stream)
                                         : cudaErrorInvalidValue;
        if (p.log_lambda)
            return run_as<false, false, true>(p, batch, workspace, stream);
        return cube ? run_as<true, false, false>(p, batch, workspace, stream)
                    : run_as<false, false, false>(p, batch, workspace, stream);
    }
};

#define HEAD(D, ...)                                                                               \
    case D: {                                                                                      \
        using launch = launcher<D>;                                                                \
        __VA_ARGS__;                                                                               \
    }
#define FOR_HEAD_SIZE(...)                                                                         \
    switch (head_size) {                                                                           \
        HEAD(32, __VA_ARGS__)                                                                      \
        HEAD(48, __VA_ARGS__)                                                                      \
        HEAD(64, __VA_ARGS__)                                                                      \
        HEAD(72, __VA_ARGS__)                                                                      \
        HEAD(80, __VA_ARGS__)                                                                      \
        HEAD(96, __VA_ARGS__)                                                                      \
    }

int64_t nl_nala_backward_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size)
{
    FOR_HEAD_SIZE(return launch::workspace(batch * heads, tokens))
    return 0;
}

bool nl_nala_backward_leaves_sums(int64_t tokens, int64_t head_size)
{
    FOR_HEAD_SIZE(return launch::whole(tokens))
    return false;
}

int64_t nl_nala_backward_parts(int64_t tokens, int64_t head_size)
{
    FOR_HEAD_SIZE(return launch::parts(tokens))
    return 0;
}

cudaError_t nl_nala_backward(nl_nala_gradient p, int64_t batch, int64_t head_size, void *workspace,
                             cudaStream_t stream)
{
    FOR_HEAD_SIZE(return launch::run(p, batch, workspace, stream))
    return cudaErrorInvalidValue;
}
