/* SPDX-License-Identifier: MIT */
/* NaLa attention forward: the tensor core kernels where they serve (bf16), otherwise tiles in fp32 (tiles.cuh), one block for a
 * (image, head): first S and z, then the queries. The latter is the parity mode. S and a tile's features and values lie in
 * shared memory; a lane has two or four elements of a token's row in registers, and 4 x 4 sums of a product between tiles. */
#include "forward.cuh"
#include "forward_sm90.cuh"
#include "tiles.cuh"

struct tile_args {
    const void *qkvg;
    void *out;
    float *state, *total; /* [B h, F, d] and [B h, F], or NULL */
    int64_t stride;
    int tokens, heads;
    nl_nala_map map;
    nl_nala_layout layout;
    const float *log_lambda, *log_tau; /* [h], or NULL */
};

/* S of all tokens, rotated with rope, and z, both divided by their number; written where they are wanted. */
template <typename T, int MAP, int E>
__device__ static void make_state(const tile_args &p, const nl_nala_tile &m, const T *k, const T *v)
{
    const nl_nala_layout &l = p.layout;
    const int d = p.map.head_size;
    const int64_t pair = (int64_t)blockIdx.y * p.heads + blockIdx.x;
    float total[2][E] = {};
    nl_clear_matrix(l, m.matrix);
    for (int first = 0; first < p.tokens; first += l.tile) {
        const int count = min(l.tile, p.tokens - first);
        __syncthreads();
        nl_load_keys<T, MAP>(l, p.map, m, k, v, p.stride, first, count, total);
        __syncthreads();
        nl_add_outer(l, m, count);
    }
    nl_sum_warps<MAP>(l, m, total, m.totals[0]);
    const float mean = 1.f / p.tokens;
    for (int i = threadIdx.x; i < l.width * l.padded; i += NL_TILE_THREADS) {
        const int f = i / l.padded, column = i % l.padded, half = f / l.padded, dim = f % l.padded;
        const float x = m.matrix[f * l.stride + column] *= mean;
        if (p.state && dim < d && column < d)
            p.state[((pair * nl_halves<MAP> + half) * d + dim) * d + column] = x;
    }
    for (int f = threadIdx.x; f < l.width; f += NL_TILE_THREADS) {
        const int half = f / l.padded, dim = f % l.padded;
        const float x = m.totals[0][f] *= mean;
        if (p.total && dim < d)
            p.total[(pair * nl_halves<MAP> + half) * d + dim] = x;
    }
    __syncthreads();
}

/* grid (heads, batch) */
template <typename T, int MAP, int E, bool LEARNT, bool FAR>
__global__ void __launch_bounds__(NL_TILE_THREADS, NL_TILE_RESIDENT(E))
    tile_kernel(const tile_args given)
{
    extern __shared__ __align__(16) float shared[];
    tile_args own;
    const tile_args &p = nl_tiles_of_head<LEARNT>(given, &own);
    const nl_nala_layout &l = p.layout;
    const int d = p.map.head_size, hidden = p.heads * d;
    const nl_nala_tile m = nl_nala_place<FAR>(l, shared);
    const int64_t image = blockIdx.y * (int64_t)p.tokens;
    const T *q = (const T *)p.qkvg + image * p.stride + blockIdx.x * d;
    T *out = (T *)p.out + image * hidden + blockIdx.x * d;
    make_state<T, MAP, E>(p, m, q + hidden, q + 2 * hidden);

    float z[2][E];
    nl_load_halves<MAP>(l, m.totals[0], z);
    for (int first = 0; first < p.tokens; first += l.tile) {
        const int count = min(l.tile, p.tokens - first);
        NL_FOR_TOKENS(t, count)
        {
            float x[E], f[2][E];
            nl_load_row(q + (first + t) * p.stride, d, x);
            nl_row_features<MAP, true>(p.map, x, f);
            const float denominator = nl_row_product(f, z) + NL_NORM_EPS;
            if (threadIdx.x % 32 == 0)
                m.numbers[t] = denominator;
            nl_turn_row(p.map, first + t, 1.f, f);
            nl_store_halves<MAP>(l, m.features + t * l.feature_stride, f);
        }
        __syncthreads();
        nl_times_matrix(l, m, count, d, [&](int t, int column, float x) {
            nl_put(out + (int64_t)(first + t) * hidden + column, x / m.numbers[t]);
        });
        __syncthreads();
    }
}

static nl_status run_tiles(nl_device *device, const nl_nala_attention_args *a)
{
    tile_args p = {};
    p.qkvg = a->qkvg.data, p.out = a->out.data, p.stride = a->qkvg.row_stride;
    p.state = (float *)a->state.data, p.total = (float *)a->total.data;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.log_lambda = (const float *)a->log_lambda.data, p.log_tau = (const float *)a->log_tau.data;
    nl_status status = nl_nala_make_map(device, a, &p);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->out, T, {
        status = nl_for_feature_map(a->feature_map, [&](auto map) {
            constexpr int MAP = map.value;
            return nl_for_elements(a->head_size, [&](auto elements) {
                constexpr int E = elements.value;
                constexpr bool FAR = E > 2; /* smaller heads always have room */
                auto near = tile_kernel<T, MAP, E, false, false>;
                auto far = tile_kernel<T, MAP, E, false, FAR>;
                if constexpr (nl_norm_aware[MAP])
                    if (p.log_lambda) {
                        near = tile_kernel<T, MAP, E, true, false>;
                        far = tile_kernel<T, MAP, E, true, FAR>;
                    }
                return nl_nala_launch_tiles(device, near, far, a->batch, p);
            });
        });
    });
    return status;
}

extern "C" nl_status nl_cuda_nala_attention(nl_device *device, const nl_nala_attention_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t hidden = a->heads * a->head_size;
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    const int64_t d = a->head_size;
    if (a->out.dtype != NL_BF16 ||
        !nl_nala_serves(d, a->feature_map, a->rope, a->log_lambda.data) || a->qkvg.row_stride % 8)
        return run_tiles(device, a);

    nl_nala_problem p = {};
    p.q = (const __nv_bfloat16 *)a->qkvg.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (__nv_bfloat16 *)a->out.data;
    p.stride = a->qkvg.row_stride, p.image_stride = a->tokens * p.stride, p.head_stride = d;
    p.out_stride = hidden, p.out_image_stride = a->tokens * hidden, p.out_head_stride = d;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.lambda = a->lambda, p.tau = a->tau, p.norm_scale = a->norm_scale;
    p.log_lambda = (const float *)a->log_lambda.data, p.log_tau = (const float *)a->log_tau.data;
    p.saved_state = (float *)a->state.data, p.saved_total = (float *)a->total.data;
    p.head_size = (int)d;
    const int64_t angles =
        !a->rope ? 0 : nl_nala_rope_bytes(NL_MAX(a->grid_height, a->grid_width), d);
    const int64_t bytes =
        angles + nl_nala_workspace(a->batch, a->heads, a->tokens, d, a->feature_map);
    void *workspace = NULL;
    if (bytes > 0) {
        nl_status status =
            nl_cuda_scratch(device, "partial states of NaLa attention", bytes, &workspace);
        if (status != NL_OK)
            return status;
    }
    if (a->rope) {
        const cudaError_t error =
            nl_nala_rope_place(&p.rope, a->grid_height, a->grid_width, d, workspace, cuda->stream);
        if (error != cudaSuccess)
            return nl_cuda_check(device, error, "nala_attention");
        workspace = (char *)workspace + angles;
    }
    if (nl_nala_sm90_serves(&p, a->feature_map)) {
        const cudaError_t error = nl_nala_sm90_forward(&p, a->batch, workspace, cuda->stream);
        if (error != cudaErrorNotSupported)
            return nl_cuda_check(device, error, "nala_attention");
    }
    const cudaError_t error =
        nl_nala_forward(p, a->batch, d, a->feature_map, workspace, cuda->stream);
    if (error == cudaErrorInvalidValue) { /* a card with too little shared memory */
        (void)cudaGetLastError();
        return run_tiles(device, a);
    }
    return nl_cuda_check(device, error, "nala_attention");
}
