/* SPDX-License-Identifier: MIT */
/* Softmax attention backward: flash-style on tensor cores for the backbone's heads in bf16, on Hopper by
 * backward_sm90_kernel.cuh where that serves; otherwise plain kernels in fp32, a block for a query (dq) and a block for
 * a key (dk, dv). */
#include "backward_kernel.cuh"
#include "backward_sm90.cuh"
#include "cuda_common.cuh"

#include "prim/shared_limit.cuh"

enum { THREADS = 128, MAX_HEAD = 512 };

struct plain_args {
    const void *qkv, *out, *dout;
    void *dqkv;
    const float *lse;
    float *delta; /* [B h, T] */
    int64_t stride, gradient_stride;
    int tokens, heads, head_size;
    float scale;
};

template <typename T> __device__ __forceinline__ float dot(const float *shared, const T *row, int d)
{
    float sum = 0.f;
    for (int i = 0; i < d; i++)
        sum = fmaf(shared[i], nl_get(row + i), sum);
    return sum;
}

/* grid (T, heads, batch): a thread for a key, then a thread for a dimension. */
template <typename T> __global__ void plain_query_kernel(const plain_args p)
{
    __shared__ float q[MAX_HEAD], d[MAX_HEAD], acc[MAX_HEAD], ds[THREADS], partial[THREADS / 32];
    const int size = p.head_size, hidden = p.heads * size, query = blockIdx.x;
    const int64_t image = blockIdx.z * (int64_t)p.tokens, head = blockIdx.y * size;
    const int64_t row = ((int64_t)blockIdx.z * p.heads + blockIdx.y) * p.tokens + query;
    const T *base = (const T *)p.qkv + image * p.stride + head;
    const int64_t at = (image + query) * hidden + head;
    float sum = 0.f;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        q[i] = nl_get(base + query * p.stride + i);
        d[i] = nl_get((const T *)p.dout + at + i);
        acc[i] = 0.f;
        sum = fmaf(d[i], nl_get((const T *)p.out + at + i), sum);
    }
    sum = nl_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    float delta = 0.f;
    for (int i = 0; i < THREADS / 32; i++)
        delta += partial[i];
    if (threadIdx.x == 0)
        p.delta[row] = delta;
    const float lse = p.lse[row];
    for (int first = 0; first < p.tokens; first += THREADS) {
        const int key = first + threadIdx.x;
        if (key < p.tokens) {
            const T *k = base + hidden + key * p.stride;
            ds[threadIdx.x] =
                expf(dot(q, k, size) * p.scale - lse) * (dot(d, k + hidden, size) - delta);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += THREADS) {
            float part = 0.f;
            for (int j = 0; j < min(THREADS, p.tokens - first); j++)
                part = fmaf(ds[j], nl_get(base + hidden + (first + j) * p.stride + i), part);
            acc[i] += part;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < size; i += THREADS)
        nl_put((T *)p.dqkv + (image + query) * p.gradient_stride + head + i, p.scale * acc[i]);
}

/* grid (T, heads, batch): a thread for a query, then a thread for a dimension. */
template <typename T> __global__ void plain_key_kernel(const plain_args p)
{
    __shared__ float k[MAX_HEAD], v[MAX_HEAD], dk[MAX_HEAD], dv[MAX_HEAD], s[THREADS], ds[THREADS];
    const int size = p.head_size, hidden = p.heads * size, key = blockIdx.x;
    const int64_t image = blockIdx.z * (int64_t)p.tokens, head = blockIdx.y * size;
    const int64_t rows = ((int64_t)blockIdx.z * p.heads + blockIdx.y) * p.tokens;
    const T *base = (const T *)p.qkv + image * p.stride + head;
    const T *dout = (const T *)p.dout + image * hidden + head;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        k[i] = nl_get(base + key * p.stride + hidden + i);
        v[i] = nl_get(base + key * p.stride + 2 * hidden + i);
        dk[i] = dv[i] = 0.f;
    }
    __syncthreads();
    for (int first = 0; first < p.tokens; first += THREADS) {
        const int query = first + threadIdx.x;
        if (query < p.tokens) {
            s[threadIdx.x] =
                expf(dot(k, base + query * p.stride, size) * p.scale - p.lse[rows + query]);
            ds[threadIdx.x] = s[threadIdx.x] * (dot(v, dout + (int64_t)query * hidden, size) -
                                                p.delta[rows + query]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += THREADS) {
            float a = 0.f, b = 0.f;
            for (int j = 0; j < min(THREADS, p.tokens - first); j++) {
                a = fmaf(ds[j], nl_get(base + (first + j) * p.stride + i), a);
                b = fmaf(s[j], nl_get(dout + (int64_t)(first + j) * hidden + i), b);
            }
            dk[i] += a, dv[i] += b;
        }
        __syncthreads();
    }
    T *to = (T *)p.dqkv + (image + key) * p.gradient_stride + head;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        nl_put(to + hidden + i, p.scale * dk[i]);
        nl_put(to + 2 * hidden + i, dv[i]);
    }
}

template <int D>
static cudaError_t flash(const nl_flash_gradient &p, int64_t batch, cudaStream_t stream)
{
    using namespace nl_flash_gradients;
    constexpr int bytes = shared_bytes<D>();
    cudaError_t error;
    if ((error = nl_allow_shared(query_kernel<D>, bytes)) != cudaSuccess ||
        (error = nl_allow_shared(key_kernel<D>, bytes)) != cudaSuccess)
        return error;
    const dim3 grid((p.tokens + TILE - 1) / TILE, p.heads, (unsigned)batch);
    query_kernel<D><<<grid, nl_flash::THREADS, bytes, stream>>>(p);
    key_kernel<D><<<grid, nl_flash::THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

static nl_status run_plain(nl_device *device, const nl_softmax_attention_backward_args *a,
                           float *delta)
{
    if (a->head_size > MAX_HEAD)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "softmax attention backward: head size %lld, at most %d on the GPU",
                       (long long)a->head_size, MAX_HEAD);
    plain_args p = {};
    p.qkv = a->qkv.data, p.out = a->out.data, p.dout = a->dout.data, p.dqkv = a->dqkv.data;
    p.lse = (const float *)a->lse.data, p.delta = delta;
    p.stride = a->qkv.row_stride, p.gradient_stride = a->dqkv.row_stride;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.head_size = (int)a->head_size;
    p.scale = a->scale;
    const dim3 grid((unsigned)a->tokens, (unsigned)a->heads, (unsigned)a->batch);
    NL_FOR_TYPE(a->qkv, T, {
        plain_query_kernel<T><<<grid, THREADS, 0, nl_cuda_of(device)->stream>>>(p);
        plain_key_kernel<T><<<grid, THREADS, 0, nl_cuda_of(device)->stream>>>(p);
    });
    return NL_CUDA_LAUNCHED(device, "softmax_attention_backward");
}

extern "C" nl_status nl_cuda_softmax_attention_backward(nl_device *device,
                                                        const nl_softmax_attention_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t hidden = a->heads * a->head_size;
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    nl_flash_gradient p = {};
    p.q = (const __nv_bfloat16 *)a->qkv.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (const __nv_bfloat16 *)a->out.data, p.dout = (const __nv_bfloat16 *)a->dout.data;
    p.dq = (__nv_bfloat16 *)a->dqkv.data, p.dk = p.dq + hidden, p.dv = p.dk + hidden;
    p.lse = (const float *)a->lse.data;
    p.stride = a->qkv.row_stride, p.out_stride = hidden, p.gradient_stride = a->dqkv.row_stride;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.head_size = (int)a->head_size;
    p.scale = a->scale;
    const char *what = "softmax_attention_backward";
    const int index = nl_cuda_of(device)->index, blocks = nl_cuda_of(device)->multiprocessors;
    if (a->qkv.dtype == NL_BF16 && nl_softmax_sm90_serves_backward(&p, a->batch, index)) {
        void *memory;
        nl_status status =
            nl_cuda_scratch(device, "sums of attention's gradient",
                            nl_softmax_sm90_backward_bytes(&p, a->batch, blocks), &memory);
        if (status != NL_OK)
            return status;
        const cudaError_t error = nl_softmax_sm90_backward(&p, a->batch, memory, blocks, stream);
        if (error != cudaErrorNotSupported)
            return nl_cuda_check(device, error, what);
    }
    void *delta;
    nl_status status = nl_cuda_scratch(device, "row products of attention",
                                       a->batch * a->heads * a->tokens * 4, &delta);
    if (status != NL_OK)
        return status;
    p.delta = (float *)delta;
    cudaError_t error = cudaSuccess;
    if (a->qkv.dtype == NL_BF16 && a->qkv.row_stride % 8 == 0 && a->dqkv.row_stride % 2 == 0 &&
        nl_flash::for_head_size(
            a->head_size, [&](auto size) { error = flash<size.value>(p, a->batch, stream); }) &&
        error != cudaErrorInvalidValue)
        return nl_cuda_check(device, error, what);
    (void)cudaGetLastError(); /* a card with too little shared memory */
    return run_plain(device, a, (float *)delta);
}
