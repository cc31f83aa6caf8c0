/* NaLa attention backward: the tensor core kernels where they serve (bf16, cosine map, no rope), otherwise a plain kernel
 * in fp32: one block for a (image, head), one token at a time, dS in workspace. */
#include "column_sums.cuh"
#include "nala_backward.cuh"
#include "nala_plain.cuh"

enum { THREADS = 256, MAX_HEAD = 128 };

struct plain_args {
    const void *qkvg, *out, *dout;
    void *dqkv;
    const float *state, *total;
    float *dstate; /* workspace [B h, F, d], of rotated queries when rope is on */
    int64_t stride, gradient_stride;
    int tokens, heads;
    nl_nala_map map;
};

/* One row's shared memory, [F] or [d]. */
struct plain_memory {
    float f[2 * MAX_HEAD], r[2 * MAX_HEAD]; /* features, rotated features */
    float g[2 * MAX_HEAD];                  /* gradient of the features */
    float t[2 * MAX_HEAD];                  /* the same, still rotated; own parts of dx */
    float z[2 * MAX_HEAD], dz[2 * MAX_HEAD];
    float a[MAX_HEAD]; /* do or v */
    float2 sums, shared;
    float first, second; /* numbers that the first warp shares */
};

/* y = M x for M [rows, d] and x [d] times scale; a warp a row. */
__device__ static void matrix_vector(const float *matrix, const float *x, int rows, int d,
                                     float scale, float *y)
{
    for (int i = threadIdx.x / 32; i < rows; i += THREADS / 32) {
        float sum = 0.f;
        for (int j = threadIdx.x % 32; j < d; j += 32)
            sum = fmaf(matrix[i * d + j], x[j], sum);
        sum = nl_warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            y[i] = scale * sum;
    }
}

/* m.t, the gradient of the rotated features, turned back, plus factor * vector: into m.g. */
__device__ static void turn_back(const nl_nala_map &map, int token, int width, float factor,
                                 const float *vector, plain_memory &m)
{
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float value = m.t[i];
        if (map.rope) {
            const float angle = nl_rope_angle(i % map.head_size, map.head_size,
                                              token / map.grid_width, token % map.grid_width);
            value = m.t[i] * cosf(angle) + (i % 2 ? -m.t[i - 1] : m.t[i + 1]) * sinf(angle);
        }
        m.g[i] = fmaf(factor, vector[i], value);
    }
    __syncthreads();
}

/* dx [d] of a row x from the gradient of its features in m.g; m.sums are the row's. */
template <typename T, int MAP, bool QUERY>
__device__ static void map_gradient(const nl_nala_map &map, const T *x, T *dx, plain_memory &m)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    const int d = map.head_size;
    nl_row_gradient row;
    row.row = QUERY ? nl_query_scalars<MAP, true>(m.sums, map.lambda, map.tau)
                    : nl_key_scalars<MAP, true>(m.sums, map.lambda);
    row.norm = sqrtf(m.sums.x), row.power_norm = sqrtf(m.sums.y), row.lambda = map.lambda;
    if (threadIdx.x < 32) {
        float2 sums = make_float2(0.f, 0.f);
        for (int i = threadIdx.x; i < d; i += 32)
            m.t[i] = nl_feature_gradient<MAP, QUERY>(
                nl_get(x + i), make_float2(m.g[i], HALVES == 2 ? m.g[d + i] : 0.f), row, &sums);
        sums.x = nl_warp_sum(sums.x), sums.y = nl_warp_sum(sums.y);
        if (threadIdx.x == 0)
            m.shared = sums;
    }
    __syncthreads();
    const float factor = nl_shared_factor<MAP, QUERY>(row, m.shared);
    for (int i = threadIdx.x; i < d; i += THREADS)
        nl_put(dx + i, nl_shared_gradient<MAP>(nl_get(x + i), m.t[i], factor, row, m.shared));
    __syncthreads();
}

/* dq of one query; its share of dS and dz. */
template <typename T, int MAP>
__device__ static void query_row(const plain_args &p, const float *state, float *dstate, const T *x,
                                 const T *out, const T *dout, T *dx, int token, plain_memory &m)
{
    const int d = p.map.head_size, width = nl_map_halves<MAP>::value * d;
    nl_plain_features<T, MAP, true>(p.map, x, token, m.f, m.r, &m.sums);
    if (threadIdx.x < 32) {
        float denominator = 0.f, product = 0.f;
        for (int i = threadIdx.x; i < width; i += 32)
            denominator = fmaf(m.f[i], m.z[i], denominator);
        for (int i = threadIdx.x; i < d; i += 32)
            product = fmaf(nl_get(out + i), nl_get(dout + i), product);
        denominator = nl_warp_sum(denominator), product = nl_warp_sum(product);
        if (threadIdx.x == 0)
            m.first = 1.f / (denominator + 1e-6f), m.second = product;
    }
    __syncthreads();
    const float inverse = m.first, product = m.second * inverse;
    for (int i = threadIdx.x; i < d; i += THREADS)
        m.a[i] = nl_get(dout + i) * inverse;
    __syncthreads();
    for (int i = threadIdx.x; i < width * d; i += THREADS)
        dstate[i] = fmaf(m.r[i / d], m.a[i % d], dstate[i]);
    for (int i = threadIdx.x; i < width; i += THREADS)
        m.dz[i] = fmaf(m.f[i], -product, m.dz[i]);
    matrix_vector(state, m.a, width, d, 1.f, m.t);
    turn_back(p.map, token, width, -product, m.z, m);
    map_gradient<T, MAP, true>(p.map, x, dx, m);
}

/* dk and dv of one key. */
template <typename T, int MAP>
__device__ static void key_row(const plain_args &p, const float *dstate, const T *x, const T *v,
                               T *dx, T *dv, int token, plain_memory &m)
{
    const int d = p.map.head_size, width = nl_map_halves<MAP>::value * d;
    const float mean = 1.f / p.tokens;
    for (int i = threadIdx.x; i < d; i += THREADS)
        m.a[i] = nl_get(v + i);
    nl_plain_features<T, MAP, false>(p.map, x, token, m.f, m.r, &m.sums);
    for (int j = threadIdx.x; j < d; j += THREADS) {
        float sum = 0.f;
        for (int i = 0; i < width; i++)
            sum = fmaf(m.r[i], dstate[i * d + j], sum);
        nl_put(dv + j, mean * sum);
    }
    matrix_vector(dstate, m.a, width, d, mean, m.t);
    turn_back(p.map, token, width, mean, m.dz, m);
    map_gradient<T, MAP, false>(p.map, x, dx, m);
}

/* grid (heads, batch) */
template <typename T, int MAP>
__global__ void __launch_bounds__(THREADS) plain_kernel(const plain_args p)
{
    __shared__ plain_memory m;
    const int d = p.map.head_size, width = nl_map_halves<MAP>::value * d, hidden = p.heads * d;
    const int64_t pair = (int64_t)blockIdx.y * p.heads + blockIdx.x;
    const int64_t image = blockIdx.y * (int64_t)p.tokens;
    const T *base = (const T *)p.qkvg + image * p.stride + blockIdx.x * d;
    const T *out = (const T *)p.out + image * hidden + blockIdx.x * d;
    const T *dout = (const T *)p.dout + image * hidden + blockIdx.x * d;
    T *dbase = (T *)p.dqkv + image * p.gradient_stride + blockIdx.x * d;
    const float *state = p.state + pair * width * d;
    float *dstate = p.dstate + pair * width * d;
    for (int i = threadIdx.x; i < width * d; i += THREADS)
        dstate[i] = 0.f;
    for (int i = threadIdx.x; i < width; i += THREADS)
        m.z[i] = p.total[pair * width + i], m.dz[i] = 0.f;
    __syncthreads();
    for (int t = 0; t < p.tokens; t++)
        query_row<T, MAP>(p, state, dstate, base + t * p.stride, out + (int64_t)t * hidden,
                          dout + (int64_t)t * hidden, dbase + t * p.gradient_stride, t, m);
    for (int t = 0; t < p.tokens; t++) {
        const T *x = base + t * p.stride;
        T *dx = dbase + t * p.gradient_stride;
        key_row<T, MAP>(p, dstate, x + hidden, x + 2 * hidden, dx + hidden, dx + 2 * hidden, t, m);
    }
}

static nl_status run_plain(nl_device *device, const nl_nala_attention_backward_args *a)
{
    plain_args p = {};
    p.qkvg = a->qkvg.data, p.out = a->out.data, p.dout = a->dout.data, p.dqkv = a->dqkv.data;
    p.state = (const float *)a->state.data, p.total = (const float *)a->total.data;
    p.stride = a->qkvg.row_stride, p.gradient_stride = a->dqkv.row_stride;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.map = nl_nala_map{(int)a->head_size, (int)a->grid_width, a->lambda, a->tau, a->rope};
    void *scratch;
    const int64_t width = nl_feature_width(a->feature_map, a->head_size);
    nl_status status = nl_cuda_scratch(device, "the state's gradient of NaLa attention",
                                       a->batch * a->heads * width * a->head_size * 4, &scratch);
    if (status != NL_OK)
        return status;
    p.dstate = (float *)scratch;
    NL_FOR_TYPE(a->out, T, {
        NL_FOR_FEATURE_MAP(a->feature_map, MAP, {
            plain_kernel<T, MAP><<<dim3((unsigned)a->heads, (unsigned)a->batch), THREADS, 0,
                                   nl_cuda_of(device)->stream>>>(p);
        });
    });
    return NL_CUDA_LAUNCHED(device, "nala_attention_backward");
}

/* *summed: a->sums, too, is done. */
static nl_status run(nl_device *device, const nl_nala_attention_backward_args *a, bool *summed)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t hidden = a->heads * a->head_size;
    *summed = false;
    const int64_t bytes = nl_nala_backward_workspace(a->batch, a->heads, a->tokens, a->head_size);
    if (a->out.dtype != NL_BF16 || a->rope || a->feature_map != NL_FEATURES_COSINE || bytes == 0 ||
        a->qkvg.row_stride % 8 || a->dqkv.row_stride % 8 || (uintptr_t)a->dqkv.data % 16)
        return run_plain(device, a);

    const bool sums = a->sums.data && nl_nala_backward_leaves_sums(a->tokens, a->head_size);
    void *workspace;
    nl_status status = nl_cuda_scratch(device, "the state's gradient of NaLa attention",
                                       bytes + (sums ? a->batch * 3 * hidden * 4 : 0), &workspace);
    if (status != NL_OK)
        return status;
    nl_nala_gradient p = {};
    p.q = (const __nv_bfloat16 *)a->qkvg.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (const __nv_bfloat16 *)a->out.data, p.dout = (const __nv_bfloat16 *)a->dout.data;
    p.dq = (__nv_bfloat16 *)a->dqkv.data, p.dk = p.dq + hidden, p.dv = p.dk + hidden;
    p.stride = a->qkvg.row_stride, p.out_stride = hidden, p.gradient_stride = a->dqkv.row_stride;
    p.state = (const float *)a->state.data, p.total = (const float *)a->total.data;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.lambda = a->lambda, p.tau = a->tau;
    p.sums = sums ? (float *)((char *)workspace + bytes) : NULL;
    const cudaError_t error = nl_nala_backward(p, a->batch, a->head_size, workspace, stream);
    if (error == cudaErrorInvalidValue) { /* a card with too little shared memory */
        (void)cudaGetLastError();
        return run_plain(device, a);
    }
    *summed = sums;
    if (error == cudaSuccess && sums)
        nl_cuda_add_parts(stream, p.sums, a->batch, {{(float *)a->sums.data, 3 * hidden}});
    return nl_cuda_check(device, error, "nala_attention_backward");
}

extern "C" nl_status nl_cuda_nala_attention_backward(nl_device *device,
                                                     const nl_nala_attention_backward_args *a)
{
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    if (a->head_size > MAX_HEAD)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "NaLa attention: head size %lld, at most %d on the GPU",
                       (long long)a->head_size, MAX_HEAD);
    bool summed;
    const nl_status status = run(device, a, &summed);
    if (status != NL_OK || summed || !a->sums.data)
        return status;
    const nl_tensor columns = nl_tensor_columns(&a->dqkv, 0, a->sums.shape[0]);
    return nl_cuda_column_sums(device, &columns, (float *)a->sums.data);
}
