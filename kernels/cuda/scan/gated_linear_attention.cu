/* SPDX-License-Identifier: MIT */
/*
 * Gated linear attention: a block for a head of an image, which walks through the tokens with the state S [e, d] in
 * registers. In a group of GROUP tokens S is divided by the decays since the group's beginning, exp(b), so that a token
 * costs two multiply-adds for an element of S: with k' = k exp(-b) and q' = q exp(b)
 *
 *     S' += k'^T v,   out = q' S',   at the end of the group S = diag(exp(b)) S'
 *
 * All sums are fp32, in the order of the tokens, so that no exponent is large: log a is taken to be at least LEAST_LOG, a at
 * least 4.5e-5. Backward, the gradient dS walks the other way, with q and dout in the places of k and v:
 *
 *     columns: dv = k' dS'                 rows, forwards: dq = exp(b) S' dout;   rows, backwards: dk = exp(b) dS' v
 *
 * A thread has some keys of one column of S where the sum goes over the keys, and some columns of one key where it goes over
 * the columns; neighbouring lanes share a column or a key, and take four numbers each in turn.
 */
#include "cuda_common.cuh"

enum {
    CHUNK = 32, /* tokens that lie in shared memory at a time */
    GROUP = 8,
    GROUPS = CHUNK / GROUP,
    MAX_KEYS = 64,
    MAX_HEAD = 128,
    KEY_LANES = 2,   /* that share a column */
    COLUMN_LANES = 4 /* that share a key */
};
#define LEAST_LOG (-10.f)

template <typename T> struct scanned {
    const T *qkv, *gate, *dout;
    int64_t stride; /* of qkv */
    int tokens, heads, keys, size;
    nl_scan scan;
    float scale, inverse; /* 1 / normalizer */
};

/* The row of a token's tensors, from its place in the walk. */
template <typename T> __device__ __forceinline__ int64_t row_at(const scanned<T> &p, int place)
{
    const int height = (int)p.scan.grid_height, width = (int)p.scan.grid_width;
    const int i = p.scan.reversed ? p.tokens - 1 - place : place;
    const int token = p.scan.transposed ? i % height * width + i / height : i;
    return (int64_t)(blockIdx.x / p.heads) * p.tokens + token;
}

/* The rows of the tokens that begin at place `first` of the walk; a walk backwards begins at the last token. */
template <typename T>
__device__ __forceinline__ void find_rows(const scanned<T> &p, bool backwards, int first,
                                          int64_t *rows)
{
    const int place = first + threadIdx.x;
    if (threadIdx.x < CHUNK && place < p.tokens)
        rows[threadIdx.x] = row_at(p, backwards ? p.tokens - 1 - place : place);
}

__device__ __forceinline__ float log_decay(float gate, float inverse)
{
    const float soft = fmaxf(-gate, 0.f) + log1pf(__expf(-fabsf(gate)));
    return fmaxf(-soft * inverse, LEAST_LOG);
}

/* What the keys of a chunk give, [CHUNK, width] each, and [GROUPS, width] decays. Forwards the factor of a token holds its
 * own decay; backwards that of the token comes behind it. */
struct key_tile {
    float *update; /* k exp(-b); backwards scale q exp(-b) */
    float *factor; /* scale exp(b); backwards exp(b) */
    float *other;  /* q; backwards k */
    float *decay;
    int width;
};

template <bool BACKWARDS, typename T>
__device__ __forceinline__ void load_keys(const scanned<T> &p, const int64_t *rows, int count,
                                          const key_tile &to)
{
    const int head = blockIdx.x % p.heads;
    for (int task = threadIdx.x; task < GROUPS * to.width; task += blockDim.x) {
        const int group = task / to.width, e = task - group * to.width;
        float b = 0.f;
        for (int t = group * GROUP; t < (group + 1) * GROUP; t++) {
            float q = 0.f, k = 0.f, log_a = 0.f;
            if (t < count && e < p.keys) {
                const T *at = p.qkv + rows[t] * p.stride + head * p.keys + e;
                q = nl_get(at), k = nl_get(at + p.heads * p.keys);
                log_a =
                    log_decay(nl_get(p.gate + (rows[t] * p.heads + head) * p.keys + e), p.inverse);
            }
            if (!BACKWARDS)
                b += log_a;
            to.update[t * to.width + e] = (BACKWARDS ? p.scale * q : k) * expf(-b);
            to.factor[t * to.width + e] = (BACKWARDS ? 1.f : p.scale) * expf(b);
            to.other[t * to.width + e] = BACKWARDS ? k : q;
            if (BACKWARDS)
                b += log_a;
        }
        to.decay[task] = expf(b);
    }
}

/* Rows of v, or of dout, to [CHUNK, width]; what is beyond the head's `size` columns or `count` tokens is 0. */
template <typename T>
__device__ __forceinline__ void load_values(const T *from, int64_t stride, const int64_t *rows,
                                            int count, int size, int width, float *to)
{
    for (int i = threadIdx.x; i < CHUNK * width; i += blockDim.x) {
        const int t = i / width, c = i - t * width;
        to[i] = t < count && c < size ? nl_get(from + rows[t] * stride + c) : 0.f;
    }
}

__device__ __forceinline__ float product(float4 a, float4 b, float sum)
{
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

/* ---- By columns: out = q' S', or dv. block (KEY_LANES columns) */

template <typename T, bool BACKWARDS, int KEYS>
__global__ void __launch_bounds__(KEY_LANES *MAX_HEAD)
    column_kernel(const scanned<T> p, T *out, int64_t out_stride)
{
    constexpr int WIDTH = KEY_LANES * KEYS;
    extern __shared__ float4 shared4[];
    __shared__ int64_t rows[CHUNK];
    float *shared = (float *)shared4;
    const int columns = blockDim.x / KEY_LANES, head = blockIdx.x % p.heads;
    const int column = threadIdx.x / KEY_LANES, lane = threadIdx.x % KEY_LANES;
    const key_tile keys = {shared, shared + CHUNK * WIDTH, shared + 2 * CHUNK * WIDTH,
                           shared + 3 * CHUNK * WIDTH, WIDTH};
    float *values = keys.decay + GROUPS * WIDTH; /* [CHUNK, columns] */
    const int64_t hidden = (int64_t)p.heads * p.size;
    const T *from =
        BACKWARDS ? p.dout + head * p.size : p.qkv + 2 * (int64_t)p.heads * p.keys + head * p.size;
    float state[KEYS] = {};
    find_rows(p, BACKWARDS, 0, rows);
    __syncthreads();
    for (int first = 0; first < p.tokens; first += CHUNK) {
        const int count = min((int)CHUNK, p.tokens - first);
        load_keys<BACKWARDS>(p, rows, count, keys);
        load_values(from, BACKWARDS ? hidden : p.stride, rows, count, p.size, columns, values);
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * WIDTH; i += blockDim.x)
            keys.other[i] *= keys.factor[i]; /* q' */
        __syncthreads();
        for (int t = 0; t < count; t++) {
            const float v = values[t * columns + column];
            const float4 *k = (const float4 *)(keys.update + t * WIDTH) + lane;
            const float4 *q = (const float4 *)(keys.other + t * WIDTH) + lane;
            float sums[2] = {};
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
                const float4 kv = k[KEY_LANES * i];
                state[4 * i] = fmaf(kv.x, v, state[4 * i]);
                state[4 * i + 1] = fmaf(kv.y, v, state[4 * i + 1]);
                state[4 * i + 2] = fmaf(kv.z, v, state[4 * i + 2]);
                state[4 * i + 3] = fmaf(kv.w, v, state[4 * i + 3]);
                sums[i % 2] = product(
                    q[KEY_LANES * i],
                    make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]),
                    sums[i % 2]);
            }
            float sum = sums[0] + sums[1];
            sum += __shfl_xor_sync(~0u, sum, 1);
            if (lane == 0 && column < p.size)
                nl_put(out + rows[t] * out_stride + head * p.size + column, sum);
            if (t % GROUP == GROUP - 1) {
                const float4 *decay = (const float4 *)(keys.decay + t / GROUP * WIDTH) + lane;
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    const float4 a = decay[KEY_LANES * i];
                    state[4 * i] *= a.x, state[4 * i + 1] *= a.y;
                    state[4 * i + 2] *= a.z, state[4 * i + 3] *= a.w;
                }
            }
        }
        __syncthreads();
        find_rows(p, BACKWARDS, first + CHUNK, rows);
        __syncthreads();
    }
}

/* ---- By rows: dq, dk and from both dgate. block (COLUMN_LANES keys) */

template <typename T> struct key_gradients {
    T *dqkv, *dgate;
    int64_t stride;  /* of dqkv */
    float *products; /* [B T, h e]: q dq */
};

/* What a chunk gives: dq or dk, and the sums of q dq - k dk. [CHUNK, width] each. */
struct gradient_tile {
    float *gradient, *sums;
};

/* One walk. sum: of q dq - k dk over the tokens behind, of the thread's key. */
template <bool BACKWARDS, typename T, int COLUMNS>
__device__ __forceinline__ void walk(const scanned<T> &p, const key_gradients<T> &g,
                                     const key_tile &keys, const gradient_tile &to, float *updates,
                                     float *reads, int64_t *rows)
{
    constexpr int WIDTH = COLUMN_LANES * COLUMNS; /* of updates and reads */
    const int head = blockIdx.x % p.heads, key = threadIdx.x / COLUMN_LANES;
    const int lane = threadIdx.x % COLUMN_LANES;
    const int64_t hidden = (int64_t)p.heads * p.size, all_keys = (int64_t)p.heads * p.keys;
    const T *v = p.qkv + 2 * all_keys + head * p.size, *dout = p.dout + head * p.size;
    float state[COLUMNS] = {}, sum = 0.f;
    find_rows(p, BACKWARDS, 0, rows);
    __syncthreads();
    for (int first = 0; first < p.tokens; first += CHUNK) {
        const int count = min((int)CHUNK, p.tokens - first);
        load_keys<BACKWARDS>(p, rows, count, keys);
        load_values(v, p.stride, rows, count, p.size, WIDTH, BACKWARDS ? reads : updates);
        load_values(dout, hidden, rows, count, p.size, WIDTH, BACKWARDS ? updates : reads);
        if (BACKWARDS)
            for (int i = threadIdx.x; i < count * keys.width; i += blockDim.x) {
                const int t = i / keys.width, e = i - t * keys.width;
                to.sums[i] = e < p.keys ? g.products[rows[t] * all_keys + head * p.keys + e] : 0.f;
            }
        __syncthreads();
        for (int t = 0; t < count; t++) {
            const int at = t * keys.width + key;
            const float k = keys.update[at];
            const float4 *u = (const float4 *)(updates + t * WIDTH) + lane;
            const float4 *r = (const float4 *)(reads + t * WIDTH) + lane;
            float sums[2] = {};
#pragma unroll
            for (int i = 0; i < COLUMNS / 4; i++) {
                const float4 value = u[COLUMN_LANES * i];
                state[4 * i] = fmaf(k, value.x, state[4 * i]);
                state[4 * i + 1] = fmaf(k, value.y, state[4 * i + 1]);
                state[4 * i + 2] = fmaf(k, value.z, state[4 * i + 2]);
                state[4 * i + 3] = fmaf(k, value.w, state[4 * i + 3]);
                sums[i % 2] = product(
                    r[COLUMN_LANES * i],
                    make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]),
                    sums[i % 2]);
            }
            const float gradient = keys.factor[at] * nl_quad_sum(sums[0] + sums[1]);
            if (lane == 0) {
                to.gradient[at] = gradient;
                if (BACKWARDS) {
                    sum += to.sums[at] - keys.other[at] * gradient;
                    to.sums[at] = sum;
                }
            }
            if (t % GROUP == GROUP - 1) {
                const float a = keys.decay[t / GROUP * keys.width + key];
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    state[i] *= a;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count * keys.width; i += blockDim.x) {
            const int t = i / keys.width, e = i - t * keys.width;
            if (e >= p.keys)
                continue;
            const int64_t column = head * p.keys + e, row = rows[t];
            nl_put(g.dqkv + row * g.stride + (BACKWARDS ? all_keys : 0) + column, to.gradient[i]);
            if (BACKWARDS) {
                const float gate = nl_get(p.gate + row * all_keys + column);
                nl_put(g.dgate + row * all_keys + column,
                       to.sums[i] * p.inverse / (1.f + expf(gate)));
            } else {
                g.products[row * all_keys + column] = keys.other[i] * to.gradient[i];
            }
        }
        __syncthreads();
        find_rows(p, BACKWARDS, first + CHUNK, rows);
        __syncthreads();
    }
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(COLUMN_LANES *MAX_KEYS)
    row_kernel(const scanned<T> p, const key_gradients<T> g)
{
    extern __shared__ float4 shared4[];
    __shared__ int64_t rows[CHUNK];
    float *shared = (float *)shared4;
    const int width = blockDim.x / COLUMN_LANES, tile = CHUNK * width;
    float *updates = shared, *reads = updates + CHUNK * COLUMN_LANES * COLUMNS;
    float *first = reads + CHUNK * COLUMN_LANES * COLUMNS;
    const gradient_tile to = {first, first + tile};
    const key_tile keys = {first + 2 * tile, first + 3 * tile, first + 4 * tile, first + 5 * tile,
                           width};
    walk<false, T, COLUMNS>(p, g, keys, to, updates, reads, rows);
    walk<true, T, COLUMNS>(p, g, keys, to, updates, reads, rows);
}

/* ---- Launches */

static nl_status check_sizes(nl_device *device, int64_t keys, int64_t size)
{
    if (keys <= MAX_KEYS && size <= MAX_HEAD)
        return NL_OK;
    return nl_fail(device->context, NL_ERROR_DEVICE,
                   "gated linear attention: heads of %lld keys and %lld values, at most %d and %d "
                   "on the GPU",
                   (long long)keys, (long long)size, MAX_KEYS, MAX_HEAD);
}

template <typename T, typename Args>
static scanned<T> scanned_of(const Args *a, const nl_tensor *dout)
{
    scanned<T> p;
    p.qkv = (const T *)a->qkv.data, p.gate = (const T *)a->gate.data;
    p.dout = (const T *)dout->data, p.stride = a->qkv.row_stride;
    p.tokens = (int)(a->scan.grid_height * a->scan.grid_width), p.heads = (int)a->heads;
    p.keys = (int)a->key_size, p.size = (int)a->head_size, p.scan = a->scan;
    p.scale = a->scale, p.inverse = 1.f / a->normalizer;
    return p;
}

/* A multiple of what makes whole warps. */
static int padded(int64_t count, int unit)
{
    return (int)((count + unit - 1) / unit * unit);
}

template <typename T, bool BACKWARDS, int KEYS>
static cudaError_t launch_columns(cudaStream_t stream, int64_t batch, const scanned<T> &p, T *out,
                                  int64_t out_stride)
{
    const int columns = padded(p.size, 32 / KEY_LANES), width = KEY_LANES * KEYS;
    const int bytes = ((3 * CHUNK + GROUPS) * width + CHUNK * columns) * 4;
    auto kernel = column_kernel<T, BACKWARDS, KEYS>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        kernel<<<(unsigned)(batch * p.heads), KEY_LANES * columns, bytes, stream>>>(p, out,
                                                                                    out_stride);
    return error;
}

template <typename T, bool BACKWARDS>
static cudaError_t columns(cudaStream_t stream, int64_t batch, const scanned<T> &p, T *out,
                           int64_t out_stride)
{
    return p.keys <= MAX_KEYS / 2
               ? launch_columns<T, BACKWARDS, MAX_KEYS / 4>(stream, batch, p, out, out_stride)
               : launch_columns<T, BACKWARDS, MAX_KEYS / 2>(stream, batch, p, out, out_stride);
}

template <typename T, int COLUMNS>
static cudaError_t launch_rows(cudaStream_t stream, int64_t batch, const scanned<T> &p,
                               const key_gradients<T> &g)
{
    const int width = padded(p.keys, 32 / COLUMN_LANES);
    const int bytes = ((5 * CHUNK + GROUPS) * width + 2 * CHUNK * COLUMN_LANES * COLUMNS) * 4;
    auto kernel = row_kernel<T, COLUMNS>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        kernel<<<(unsigned)(batch * p.heads), COLUMN_LANES * width, bytes, stream>>>(p, g);
    return error;
}

template <typename T>
static cudaError_t backward(cudaStream_t stream, const nl_gated_linear_attention_backward_args *a,
                            float *products)
{
    const scanned<T> p = scanned_of<T>(a, &a->dout);
    const key_gradients<T> g = {(T *)a->dqkv.data, (T *)a->dgate.data, a->dqkv.row_stride,
                                products};
    cudaError_t error = p.size <= MAX_HEAD / 2
                            ? launch_rows<T, MAX_HEAD / 8>(stream, a->batch, p, g)
                            : launch_rows<T, MAX_HEAD / 4>(stream, a->batch, p, g);
    if (error == cudaSuccess)
        error =
            columns<T, true>(stream, a->batch, p, (T *)a->dqkv.data + 2 * (int64_t)p.heads * p.keys,
                             a->dqkv.row_stride);
    return error;
}

extern "C" nl_status nl_cuda_gated_linear_attention(nl_device *device,
                                                    const nl_gated_linear_attention_args *a)
{
    cudaError_t error = cudaSuccess;
    const nl_tensor none = {};
    nl_status status = check_sizes(device, a->key_size, a->head_size);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->qkv, T, {
        error = columns<T, false>(nl_cuda_of(device)->stream, a->batch, scanned_of<T>(a, &none),
                                  (T *)a->out.data, a->heads * a->head_size);
    });
    return error != cudaSuccess ? nl_cuda_check(device, error, "gated_linear_attention")
                                : NL_CUDA_LAUNCHED(device, "gated_linear_attention");
}

extern "C" nl_status
nl_cuda_gated_linear_attention_backward(nl_device *device,
                                        const nl_gated_linear_attention_backward_args *a)
{
    cudaError_t error = cudaSuccess;
    void *products;
    nl_status status = check_sizes(device, a->key_size, a->head_size);
    if (status == NL_OK)
        status = nl_cuda_scratch(device, "products of queries and their gradients",
                                 a->gate.shape[0] * a->gate.shape[1] * 4, &products);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->qkv, T, error = backward<T>(nl_cuda_of(device)->stream, a, (float *)products););
    return error != cudaSuccess ? nl_cuda_check(device, error, "gated_linear_attention_backward")
                                : NL_CUDA_LAUNCHED(device, "gated_linear_attention_backward");
}
