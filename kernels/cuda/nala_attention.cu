/* NaLa attention forward: the tensor core kernels where they serve (bf16), otherwise a plain kernel in fp32:
 * one block for a (image, head), features in shared memory one token at a time. The plain one is the parity mode. */
#include "nala_attention.cuh"
#include "nala_plain.cuh"
#include "sm90/nala_forward.cuh"

enum { THREADS = 256, MAX_HEAD = 128 };

struct plain_args {
    const void *qkvg;
    void *out;
    float *state,
        *total; /* [B h, F, d] and [B h, F] fp32; the rotated sums in state when rope is on */
    int64_t stride;
    int tokens, heads;
    nl_nala_map map;
};

template <typename T, int MAP>
__global__ void __launch_bounds__(THREADS) plain_kernel(const plain_args p)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    __shared__ float f[2 * MAX_HEAD], r[2 * MAX_HEAD], z[2 * MAX_HEAD], row_v[MAX_HEAD];
    __shared__ float2 sums;
    __shared__ float denominator;
    const int d = p.map.head_size, width = HALVES * d, hidden = p.heads * d;
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
        nl_plain_features<T, MAP, false>(p.map, x + hidden, t, f, r, &sums);
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
        nl_plain_features<T, MAP, true>(p.map, base + t * p.stride, t, f, r, &sums);
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

static nl_status run_plain(nl_device *device, const nl_nala_attention_args *a)
{
    nl_status status = NL_OK;
    plain_args p = {};
    p.qkvg = a->qkvg.data, p.out = a->out.data, p.stride = a->qkvg.row_stride;
    p.state = (float *)a->state.data, p.total = (float *)a->total.data;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.map = nl_nala_map{(int)a->head_size, (int)a->grid_width, a->lambda, a->tau, a->rope};
    if (!p.state) {
        void *scratch;
        const int64_t width = nl_feature_width(a->feature_map, a->head_size);
        status = nl_cuda_scratch(device, "the state of NaLa attention",
                                 a->batch * a->heads * width * a->head_size * 4, &scratch);
        p.state = (float *)scratch;
    }
    if (status == NL_OK)
        NL_FOR_TYPE(a->out, T, {
            NL_FOR_FEATURE_MAP(a->feature_map, MAP, {
                plain_kernel<T, MAP><<<dim3((unsigned)a->heads, (unsigned)a->batch), THREADS, 0,
                                       nl_cuda_of(device)->stream>>>(p);
            });
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
    if (a->out.dtype != NL_BF16 || !nl_nala_serves(d, a->feature_map, a->rope) ||
        a->qkvg.row_stride % 8)
        return run_plain(device, a);

    nl_nala_problem p = {};
    p.q = (const __nv_bfloat16 *)a->qkvg.data, p.k = p.q + hidden, p.v = p.k + hidden;
    p.out = (__nv_bfloat16 *)a->out.data;
    p.stride = a->qkvg.row_stride, p.image_stride = a->tokens * p.stride, p.head_stride = d;
    p.out_stride = hidden, p.out_image_stride = a->tokens * hidden, p.out_head_stride = d;
    p.tokens = (int)a->tokens, p.heads = (int)a->heads;
    p.lambda = a->lambda, p.tau = a->tau;
    p.saved_state = (float *)a->state.data, p.saved_total = (float *)a->total.data;
    p.grid_width = (int)a->grid_width;
    p.head_size = (int)d;
    const int64_t positions = !a->rope ? 0 : NL_MAX(a->grid_height, a->grid_width);
    const int64_t bytes =
        nl_nala_workspace(a->batch, a->heads, a->tokens, d, a->feature_map, positions);
    void *workspace = NULL;
    if (bytes > 0) {
        nl_status status =
            nl_cuda_scratch(device, "partial states of NaLa attention", bytes, &workspace);
        if (status != NL_OK)
            return status;
    }
    if (!a->rope && nl_nala_sm90_serves(&p, a->feature_map)) {
        const cudaError_t error = nl_nala_sm90_forward(&p, a->batch, workspace, cuda->stream);
        if (error != cudaErrorNotSupported)
            return nl_cuda_check(device, error, "nala_attention");
    }
    return nl_cuda_check(
        device, nl_nala_forward(p, a->batch, d, a->feature_map, positions, workspace, cuda->stream),
        "nala_attention");
}
