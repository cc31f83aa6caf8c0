/* SPDX-License-Identifier: MIT */
/* AdamW, the moving averages and the model's copy in one pass over the flat arrays. What the step's numbers come to is
 * worked out once, in double, by a kernel of one thread. */
#include "cuda_common.cuh"

enum { THREADS = 256, CHUNK = 16384 }; /* elements of a block */

struct adamw_numbers {
    float clip, beta1, rest1, beta2, rest2; /* factor of the gradient; rest: 1 - beta */
    float keep, step, root, eps;            /* p = keep p - step m / (sqrt(v) root + eps) */
    float ema[NL_MAX_EMA], rest_ema[NL_MAX_EMA];
    int apply;
};

struct adamw_arrays {
    float *master, *first, *second;
    const float *gradient;
    float *ema[NL_MAX_EMA];
    int ema_count, segment_count;
    const nl_segment *segments;
    const adamw_numbers *numbers;
};

__global__ void numbers_kernel(const float *hyper, const float *norm, int *counter,
                               adamw_numbers *n)
{
    n->apply = isfinite(*norm);
    if (!n->apply) {
        counter[1]++;
        return;
    }
    const int step = ++counter[0];
    counter[1] = 0;
    const double rate = hyper[NL_HYPER_RATE], beta1 = hyper[NL_HYPER_BETA1],
                 beta2 = hyper[NL_HYPER_BETA2], limit = hyper[NL_HYPER_CLIP];
    n->clip = limit > 0. ? (float)fmin(1., limit / (*norm + 1e-6)) : 1.f;
    n->beta1 = (float)beta1, n->rest1 = (float)(1. - beta1);
    n->beta2 = (float)beta2, n->rest2 = (float)(1. - beta2);
    n->keep = (float)(1. - rate * hyper[NL_HYPER_DECAY]);
    n->step = (float)(rate / (1. - pow(beta1, (double)step)));
    n->root = (float)(1. / sqrt(1. - pow(beta2, (double)step)));
    n->eps = hyper[NL_HYPER_EPS];
    for (int i = 0; i < NL_MAX_EMA; i++) {
        n->ema[i] = hyper[NL_HYPER_EMA + i];
        n->rest_ema[i] = (float)(1. - (double)hyper[NL_HYPER_EMA + i]);
    }
}

__device__ __forceinline__ float updated(const adamw_numbers &n, const nl_segment &segment,
                                         float gradient, float p, float *m, float *v)
{
    gradient *= n.clip;
    *m = fmaf(n.rest1, gradient - *m, *m); /* beta m + (1 - beta) g */
    *v = fmaf(n.rest2 * gradient, gradient, n.beta2 * *v);
    if (segment.decay)
        p *= n.keep;
    return p - n.step * segment.rate * *m / fmaf(sqrtf(*v), n.root, n.eps);
}

__device__ static void update_one(const adamw_arrays &a, const adamw_numbers &n,
                                  const nl_segment &segment, int64_t i)
{
    const float p = updated(n, segment, a.gradient[i], a.master[i], a.first + i, a.second + i);
    a.master[i] = p;
#pragma unroll
    for (int e = 0; e < NL_MAX_EMA; e++)
        if (e < a.ema_count)
            a.ema[e][i] = fmaf(n.rest_ema[e], p - a.ema[e][i], a.ema[e][i]);
    if (segment.dtype == NL_BF16)
        ((__nv_bfloat16 *)segment.weights)[i - segment.first] = __float2bfloat16(p);
    else
        ((float *)segment.weights)[i - segment.first] = p;
}

/* Elements i .. i + 3, i a multiple of four as the segment's first. */
__device__ __forceinline__ void update_four(const adamw_arrays &a, const adamw_numbers &n,
                                            const nl_segment &segment, int64_t i)
{
    float4 p = *(const float4 *)(a.master + i), m = *(const float4 *)(a.first + i),
           v = *(const float4 *)(a.second + i);
    const float4 g = *(const float4 *)(a.gradient + i);
    float4 ema[NL_MAX_EMA];
#pragma unroll
    for (int e = 0; e < NL_MAX_EMA; e++)
        if (e < a.ema_count)
            ema[e] = *(const float4 *)(a.ema[e] + i);
    p.x = updated(n, segment, g.x, p.x, &m.x, &v.x);
    p.y = updated(n, segment, g.y, p.y, &m.y, &v.y);
    p.z = updated(n, segment, g.z, p.z, &m.z, &v.z);
    p.w = updated(n, segment, g.w, p.w, &m.w, &v.w);
    *(float4 *)(a.master + i) = p, *(float4 *)(a.first + i) = m, *(float4 *)(a.second + i) = v;
#pragma unroll
    for (int e = 0; e < NL_MAX_EMA; e++)
        if (e < a.ema_count) {
            const float rest = n.rest_ema[e];
            const float4 old = ema[e];
            *(float4 *)(a.ema[e] + i) =
                make_float4(fmaf(rest, p.x - old.x, old.x), fmaf(rest, p.y - old.y, old.y),
                            fmaf(rest, p.z - old.z, old.z), fmaf(rest, p.w - old.w, old.w));
        }
    if (segment.dtype == NL_BF16) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(p.x, p.y),
                             high = __floats2bfloat162_rn(p.z, p.w);
        *(uint2 *)((__nv_bfloat16 *)segment.weights + (i - segment.first)) =
            make_uint2(*(const uint32_t *)&low, *(const uint32_t *)&high);
    } else {
        *(float4 *)((float *)segment.weights + (i - segment.first)) = p;
    }
}

/* A block has CHUNK elements of the flat arrays, and walks through the segments that they belong to. */
__global__ void __launch_bounds__(THREADS) adamw_kernel(const adamw_arrays a, int64_t count)
{
    const adamw_numbers n = *a.numbers;
    if (!n.apply)
        return;
    const int64_t begin = blockIdx.x * (int64_t)CHUNK, end = min(begin + CHUNK, count);
    int at = 0; /* segments that end before this chunk begins */
    for (int first = 0; first < a.segment_count; first += THREADS) {
        const int i = first + threadIdx.x;
        at += __syncthreads_count(i < a.segment_count &&
                                  a.segments[i].first + a.segments[i].count <= begin);
    }
    for (; at < a.segment_count && a.segments[at].first < end; at++) {
        const nl_segment segment = a.segments[at];
        const int64_t low = max(begin, segment.first),
                      high = min(end, segment.first + segment.count);
        const bool vectors = segment.first % 4 == 0 && (uintptr_t)segment.weights % 16 == 0;
        const int64_t fours = vectors ? (high - low) / 4 : 0;
#pragma unroll 2
        for (int64_t i = threadIdx.x; i < fours; i += THREADS)
            update_four(a, n, segment, low + 4 * i);
        for (int64_t i = low + 4 * fours + threadIdx.x; i < high; i += THREADS)
            update_one(a, n, segment, i);
    }
}

extern "C" nl_status nl_cuda_adamw(nl_device *device, const nl_adamw_args *args)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t count = nl_tensor_count(&args->master);
    void *numbers;
    nl_status status =
        nl_cuda_scratch(device, "numbers of a step", sizeof(adamw_numbers), &numbers);
    if (status != NL_OK)
        return status;
    adamw_arrays a = {};
    a.master = (float *)args->master.data, a.first = (float *)args->first.data;
    a.second = (float *)args->second.data, a.gradient = (const float *)args->gradient.data;
    for (int i = 0; i < args->ema_count; i++)
        a.ema[i] = (float *)args->ema[i].data;
    a.ema_count = args->ema_count, a.segment_count = args->segment_count;
    a.segments = (const nl_segment *)args->segment_table.data;
    a.numbers = (const adamw_numbers *)numbers;
    numbers_kernel<<<1, 1, 0, stream>>>((const float *)args->hyper.data,
                                        (const float *)args->norm.data, (int *)args->counter.data,
                                        (adamw_numbers *)numbers);
    if (count > 0)
        adamw_kernel<<<nl_blocks(count, CHUNK), THREADS, 0, stream>>>(a, count);
    return NL_CUDA_LAUNCHED(device, "adamw");
}
