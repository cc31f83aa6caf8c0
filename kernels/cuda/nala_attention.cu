/* NaLa attention forward: the tensor core kernels where they serve (bf16, no rope), otherwise a plain kernel in fp32:
 * one block for a (image, head), features in shared memory one token at a time. The plain one is the parity mode. */
#include "nala_attention.cuh"

#include "cuda_common.cuh"

enum { THREADS = 256, MAX_HEAD = 128 };

struct plain_args {
    const void *qkvg;
    void *out;
    float *state,
        *total; /* [B h, F, d] and [B h, F] fp32; the rotated sums in state when rope is on */
    int64_t stride;
    int tokens, heads, head_size, grid_width, grid_height;
    float lambda, tau;
    bool rope;
};

/* Angle of feature index i (within one half) for a token, facts.md H.5: the first half of the head turns with the row,
 * the second with the column; pairs of neighbours share an angle; frequencies 10000^-linspace(0, 1, d/4). */
__device__ static float rope_angle(int i, int head_size, int row, int column)
{
    const int quarter = head_size / 4, side = head_size / 2, at = i % side / 2;
    const float frequency = powf(10000.f, -(quarter > 1 ? (float)at / (quarter - 1) : 0.f));
    return (i < side ? row : column) * frequency;
}

/* Sums of a row's terms over the block, and its features into f [F] (and rotated ones into r [F]). */
template <typename T, int MAP, bool QUERY>
__device__ static void features_of(const plain_args &p, const T *x, int token, float *f, float *r,
                                   float2 *sums)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    const int d = p.head_size;
    if (threadIdx.x < 32) {
        float2 sum = make_float2(0.f, 0.f);
        for (int i = threadIdx.x; i < d; i += 32) {
            const float2 terms = nl_row_terms<MAP, true, false>(nl_get(x + i), p.lambda);
            sum.x += terms.x, sum.y += terms.y;
        }
        sum.x = nl_warp_sum(sum.x), sum.y = nl_warp_sum(sum.y);
        if (threadIdx.x == 0)
            *sums = sum;
    }
    __syncthreads();
    const nl_row_scalars row = QUERY ? nl_query_scalars<MAP, true>(*sums, p.lambda, p.tau)
                                     : nl_key_scalars<MAP, true>(*sums, p.lambda);
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        const float v = nl_get(x + i);
        const float2 pair = QUERY ? nl_query_feature<MAP, true, false>(v, row)
                                  : nl_key_feature<MAP, true, false>(v, row);
        f[i] = pair.x;
        if (HALVES == 2)
            f[d + i] = pair.y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HALVES * d; i += blockDim.x) {
        float value = f[i];
        if (p.rope) {
            const float angle = rope_angle(i % d, d, token / p.grid_width, token % p.grid_width);
            value = f[i] * cosf(angle) + (i % 2 ? f[i - 1] : -f[i + 1]) * sinf(angle);
        }
        r[i] = value;
    }
    __syncthreads();
}

template <typename T, int MAP>
__global__ void __launch_bounds__(THREADS) plain_kernel(const plain_args p)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    __shared__ float f[2 * MAX_HEAD], r[2 * MAX_HEAD], z[2 * MAX_HEAD], row_v[MAX_HEAD];
    __shared__ float2 sums;
    __shared__ float denominator;
    const int d = p.head_size, width = HALVES * d, hidden = p.heads * d;
    const int64_t index = (int64_t)blockIdx.y * p.heads + blockIdx.x;
    const T *base = (const T *)p.qkvg + blockIdx.y * (int64_t)p.tokens * p.stride + blockIdx.x * d;
    float *state = p.state + index * width * d;
    for (int i = threadIdx.x; i < width * d; i += THREADS)
        state[i] = 0.f;
    for (int i = threadIdx.x; i < width; i += THREADS)
        z[i] = 0.f;
    __syncthreads();
    for (int t = 0; t < p.tokens; t++) {
        const T *x = base + t * p.stride;
        features_of<T, MAP, false>(p, x + hidden, t, f, r, &sums);
        for (int i = threadIdx.x; i < d; i += THREADS)
            row_v[i] = nl_get(x + 2 * hidden + i);
        for (int i = threadIdx.x; i < width; i += THREADS)
            z[i] += f[i];
        __syncthreads();
        for (int i = threadIdx.x; i < width * d; i += THREADS)
            state[i] = fmaf(r[i / d], row_v[i % d], state[i]);
        __syncthreads();
    }
    const float mean = 1.f / p.tokens;
    for (int i = threadIdx.x; i < width * d; i += THREADS)
        state[i] *= mean;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        z[i] *= mean;
        if (p.total)
            p.total[index * width + i] = z[i];
    }
    __syncthreads();
    for (int t = 0; t < p.tokens; t++) {
        features_of<T, MAP, true>(p, base + t * p.stride, t, f, r, &sums);
        if (threadIdx.x < 32) {
            float sum = 0.f;
            for (int i = threadIdx.x; i < width; i += 32)
                sum = fmaf(f[i], z[i], sum);
            sum = nl_warp_sum(sum);
            if (threadIdx.x == 0)
                denominator = sum + 1e-6f;
        }
        __syncthreads();
        for (int j = threadIdx.x; j < d; j += THREADS) {
            float sum = 0.f;
            for (int i = 0; i < width; i++)
                sum = fmaf(r[i], state[i * d + j], sum);
            nl_put((T *)p.out + (blockIdx.y * (int64_t)p.tokens + t) * hidden + blockIdx.x * d + j,
                   sum / denominator);
        }
        __syncthreads();
    }
}

template <typename T>
static void launch_plain(const plain_args &p, nl_feature_map map, dim3 grid, cudaStream_t stream)
{
    switch (map) {
    case NL_FEATURES_COSINE:
        plain_kernel<T, NL_FEATURES_COSINE><<<grid, THREADS, 0, stream>>>(p);
        break;
    case NL_FEATURES_SPLIT:
        plain_kernel<T, NL_FEATURES_SPLIT><<<grid, THREADS, 0, stream>>>(p);
        break;
    case NL_FEATURES_RELU:
        plain_kernel<T, NL_FEATURES_RELU><<<grid, THREADS, 0, stream>>>(p);
        break;
    case NL_FEATURES_ELU1:
        plain_kernel<T, NL_FEATURES_ELU1><<<grid, THREADS, 0, stream>>>(p);
        break;
    case NL_FEATURES_POWER:
        plain_kernel<T, NL_FEATURES_POWER><<<grid, THREADS, 0, stream>>>(p);
        break;
    case NL_FEATURES_COSINE_CONSTANT:
        plain_kernel<T, NL_FEATURES_COSINE_CONSTANT><<<grid, THREADS, 0, stream>>>(p);
        break;
    }
}

static nl_status run_plain(nl_device *device, const nl_nala_attention_args *a)
{
    nl_status status = NL_OK;
    plain_args p = {};
    p.qkvg = a->qkvg.data, p.out = a->out.data, p.stride = a->qkvg.row_stride;
    p.state = (float *)a->state.data, p.total = (float *)a->total.data;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads, p.head_size = (int)a->head_size;
    p.grid_width = (int)a->grid_width, p.grid_height = (int)a->grid_height;
    p.lambda = a->lambda, p.tau = a->tau, p.rope = a->rope;
    if (!p.state) {
        void *scratch;
        const int64_t width = nl_feature_width(a->feature_map, a->head_size);
        status = nl_cuda_scratch(device, "the state of NaLa attention",
                                 a->batch * a->heads * width * a->head_size * 4, &scratch);
        p.state = (float *)scratch;
    }
    if (status == NL_OK)
        NL_FOR_TYPE(a->out, T, {
            launch_plain<T>(p, a->feature_map, dim3((unsigned)a->heads, (unsigned)a->batch),
                            nl_cuda_of(device)->stream);
        });
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "nala_attention") : status;
}

extern "C" nl_status nl_cuda_nala_attention(nl_device *device, const nl_nala_attention_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t hidden = a->heads * a->head_size;
    if (a->batch == 0 || a->tokens == 0)
        return NL_OK;
    if (a->head_size > MAX_HEAD)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "NaLa attention: head size %lld, at most %d on the GPU",
                       (long long)a->head_size, MAX_HEAD);
    const int64_t d = a->head_size;
    const bool known = d == 32 || d == 48 || d == 64 || d == 72 || d == 80 || d == 96 || d == 128;
    if (a->out.dtype != NL_BF16 || a->rope || !known || a->qkvg.row_stride % 8)
        return run_plain(device, a);

    nl_nala_problem p = {};
    p.q = (const __nv_bfloat16 *)a->qkvg.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (__nv_bfloat16 *)a->out.data;
    p.stride = a->qkvg.row_stride, p.image_stride = a->tokens * p.stride, p.head_stride = d;
    p.out_stride = hidden, p.out_image_stride = a->tokens * hidden, p.out_head_stride = d;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.lambda = a->lambda, p.tau = a->tau;
    p.saved_state = (float *)a->state.data, p.saved_total = (float *)a->total.data;
    const int64_t bytes = nl_nala_workspace(a->batch, a->heads, a->tokens, d, a->feature_map);
    void *workspace = NULL;
    if (bytes > 0) {
        nl_status status =
            nl_cuda_scratch(device, "partial states of NaLa attention", bytes, &workspace);
        if (status != NL_OK)
            return status;
    }
    return nl_cuda_check(device,
                         nl_nala_forward(p, a->batch, d, a->feature_map, workspace, cuda->stream),
                         "nala_attention");
}
