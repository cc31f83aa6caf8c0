/* SPDX-License-Identifier: MIT */
/* Softmax attention: flash-style on tensor cores for the backbone's heads in bf16, on Hopper by softmax/forward_sm90_kernel.cuh where
 * that serves; otherwise (fp32, or the wide single head of the VAE) scores of some rows at a time through cuBLASLt and a
 * softmax between the two products. */
#include "forward_kernel.cuh"
#include "forward_sm90.cuh"
#include "product/product.cuh"

#include "prim/shared_limit.cuh"

/* Rows of scores [rows, tokens] to probabilities in place, one block a row. lse may be NULL. */
template <typename T>
__global__ void softmax_rows(const float *scores, T *probabilities, float *lse, int tokens,
                             int64_t score_stride)
{
    __shared__ float partial[32];
    const float *row = scores + blockIdx.x * score_stride;
    auto across = [&](float value, bool sum) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(~0u, value, offset);
            value = sum ? value + other : fmaxf(value, other);
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            partial[threadIdx.x / 32] = value;
        __syncthreads();
        value = partial[0];
        for (int i = 1; i < blockDim.x / 32; i++)
            value = sum ? value + partial[i] : fmaxf(value, partial[i]);
        return value;
    };
    float row_max = -INFINITY, sum = 0.f;
    for (int i = threadIdx.x; i < tokens; i += blockDim.x)
        row_max = fmaxf(row_max, row[i]);
    row_max = across(row_max, false);
    for (int i = threadIdx.x; i < tokens; i += blockDim.x)
        sum += expf(row[i] - row_max);
    sum = across(sum, true);
    for (int i = threadIdx.x; i < tokens; i += blockDim.x)
        nl_put(probabilities + blockIdx.x * score_stride + i, expf(row[i] - row_max) / sum);
    if (lse && threadIdx.x == 0)
        lse[blockIdx.x] = row_max + logf(sum);
}

/* Products by rows of queries, at most 512 MiB of scores at once: 1,024 rows of 65,536 tokens, less leaves multiprocessors idle. */
static nl_status by_products(nl_device *device, const nl_softmax_attention_args *a)
{
    const int64_t size = nl_dtype_size(a->qkv.dtype), hidden = a->heads * a->head_size;
    const int64_t score_stride = (a->tokens + 7) / 8 * 8;
    int64_t rows = (INT64_C(512) << 20) / (score_stride * 8);
    rows = rows < 1 ? 1 : rows > a->tokens ? a->tokens : rows;
    const bool bf16 = a->qkv.dtype == NL_BF16;
    void *scratch;
    nl_status status = nl_cuda_scratch(device, "attention scores",
                                       rows * score_stride * (4 + (bf16 ? 2 : 0)), &scratch);
    float *scores = (float *)scratch;
    void *probabilities = bf16 ? (void *)(scores + rows * score_stride) : scores;
    for (int64_t pair = 0; pair < a->batch * a->heads && status == NL_OK; pair++) {
        const int64_t image = pair / a->heads, head = pair % a->heads;
        const char *q = (const char *)a->qkv.data +
                        (image * a->tokens * a->qkv.row_stride + head * a->head_size) * size;
        const char *k = q + hidden * size, *v = k + hidden * size;
        for (int64_t first = 0; first < a->tokens && status == NL_OK; first += rows) {
            const int64_t count = a->tokens - first < rows ? a->tokens - first : rows;
            nl_product p = {};
            p.rows = count, p.columns = a->tokens, p.depth = a->head_size;
            p.x_stride = p.w_stride = a->qkv.row_stride, p.y_stride = score_stride;
            p.x_type = p.w_type = a->qkv.dtype, p.y_type = NL_F32, p.alpha = a->scale;
            status =
                nl_cuda_product(device, &p, q + first * a->qkv.row_stride * size, k, NULL, scores);
            if (status != NL_OK)
                break;
            float *lse = a->lse.data ? (float *)a->lse.data + pair * a->tokens + first : NULL;
            NL_FOR_TYPE(a->qkv, T, {
                softmax_rows<T><<<(unsigned)count, 256, 0, nl_cuda_of(device)->stream>>>(
                    scores, (T *)probabilities, lse, (int)a->tokens, score_stride);
            });
            nl_product o = {};
            o.rows = count, o.columns = a->head_size, o.depth = a->tokens, o.w_by_depth = true;
            o.x_stride = score_stride, o.w_stride = a->qkv.row_stride, o.y_stride = hidden;
            o.x_type = o.w_type = a->qkv.dtype, o.y_type = a->out.dtype, o.alpha = 1.f;
            status = nl_cuda_product(
                device, &o, probabilities, v, NULL,
                (char *)a->out.data + ((image * a->tokens + first) * hidden + head * a->head_size) *
                                          nl_dtype_size(a->out.dtype));
        }
    }
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "softmax_attention") : status;
}

template <int D, int M>
static cudaError_t launch(const nl_flash_problem &p, int64_t batch, cudaStream_t stream)
{
    constexpr int bytes = nl_flash::shape<D>::shared_bytes(M), queries = M * nl_flash::TILE;
    cudaError_t error = nl_allow_shared(nl_flash::kernel<D, M>, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((p.tokens + queries - 1) / queries, p.heads, (unsigned)batch);
    nl_flash::kernel<D, M><<<grid, nl_flash::THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

template <int D>
static cudaError_t flash(const nl_flash_problem &p, int64_t batch, cudaStream_t stream)
{
    if constexpr (D <= 72) /* more would not fit the registers */
        if (p.tokens > nl_flash::TILE)
            return launch<D, 2>(p, batch, stream);
    return launch<D, 1>(p, batch, stream);
}

extern "C" nl_status nl_cuda_softmax_attention(nl_device *device,
                                               const nl_softmax_attention_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t hidden = a->heads * a->head_size;
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    nl_flash_problem p = {};
    p.q = (const __nv_bfloat16 *)a->qkv.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (__nv_bfloat16 *)a->out.data, p.lse = (float *)a->lse.data;
    p.stride = a->qkv.row_stride, p.out_stride = hidden;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.head_size = (int)a->head_size;
    p.scale_log2 = a->scale * 1.4426950408889634f;
    const bool bf16 = a->qkv.dtype == NL_BF16 && a->out.dtype == NL_BF16;
    if (bf16 && nl_softmax_sm90_serves(&p, a->batch, nl_cuda_of(device)->index)) {
        const cudaError_t error =
            nl_softmax_sm90_forward(&p, a->batch, nl_cuda_of(device)->multiprocessors, stream);
        if (error != cudaErrorNotSupported)
            return nl_cuda_check(device, error, "softmax_attention");
    }
    cudaError_t error = cudaSuccess;
    if (bf16 && a->qkv.row_stride % 8 == 0 && nl_flash::for_head_size(a->head_size, [&](auto size) {
            error = flash<size.value>(p, a->batch, stream);
        }))
        return nl_cuda_check(device, error, "softmax_attention");
    return by_products(device, a);
}
