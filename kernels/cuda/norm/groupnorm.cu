/* SPDX-License-Identifier: MIT */
/* GroupNorm on NHWC: sums of slices of pixels for each (image, group), their moments, then the map. The sums are taken in a
 * fixed order, so the result does not depend on how the card schedules blocks. What is normalised is
 * s = x + branch + addend; the pass that takes the sums keeps s where it is asked for.
 *
 * Sums are of differences from a pivot, the group's first s in the image: they cancel nothing when the mean is large beside
 * the deviation. */
#include "cuda_common.cuh"

enum { THREADS = 256, MOST_SLICES = 128, MAP_ROUNDS = 8 };

struct shape {
    int64_t pixels; /* of an image */
    int channels, groups;
};

/* What the passes read and write; branch, addend and sum may be NULL. */
template <typename T> struct operands {
    const T *x, *branch;
    const float *addend;
    T *sum;
    const float *pivots; /* [batch, groups] */
    float2 *partial;     /* [batch, slices, groups] */
};

template <typename T> __device__ __forceinline__ float rounded(float v)
{
    T stored;
    nl_put(&stored, v);
    return nl_get(&stored);
}

/* s at `at`, channel c; rounded when it is kept. */
template <typename T>
__device__ __forceinline__ float value(const operands<T> &o, int64_t at, int c)
{
    float v = nl_get(o.x + at);
    if (o.branch)
        v += nl_get(o.branch + at);
    if (o.addend)
        v += o.addend[c];
    return o.sum ? rounded<T>(v) : v;
}

/* A block an image, before anything is written: s may be kept where x was. */
template <typename T> __global__ void take_pivots(operands<T> o, shape p, float *pivots)
{
    const int per_group = p.channels / p.groups;
    for (int group = threadIdx.x; group < p.groups; group += blockDim.x)
        pivots[blockIdx.x * p.groups + group] =
            value(o, blockIdx.x * p.pixels * p.channels + group * per_group, group * per_group);
}

/* grid (slices, batch): a warp a group, lanes over its channels and neighbouring pixels. */
template <typename T> __global__ void take_sums(operands<T> o, shape p)
{
    const int64_t slice = (p.pixels + gridDim.x - 1) / gridDim.x;
    const int64_t first = blockIdx.x * slice, last = min(first + slice, p.pixels);
    const int per_group = p.channels / p.groups, lane = threadIdx.x % 32;
    const int step = per_group < 32 ? 32 / per_group : 1; /* whole pixels at a time */
    const int64_t image = blockIdx.y * p.pixels;
    for (int group = threadIdx.x / 32; group < p.groups; group += blockDim.x / 32) {
        const float pivot = o.pivots[blockIdx.y * p.groups + group];
        float s = 0.f, q = 0.f;
        if (lane < step * per_group || step == 1)
            for (int64_t pixel = first + (step > 1 ? lane / per_group : 0); pixel < last;
                 pixel += step)
                for (int i = step > 1 ? lane % per_group : lane; i < per_group; i += 32) {
                    const int c = group * per_group + i;
                    const int64_t at = (image + pixel) * p.channels + c;
                    const float v = value(o, at, c);
                    if (o.sum)
                        nl_put(o.sum + at, v);
                    s += v - pivot, q = fmaf(v - pivot, v - pivot, q);
                }
        s = nl_warp_sum(s), q = nl_warp_sum(q);
        if (lane == 0)
            o.partial[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * p.groups + group] =
                make_float2(s, q);
    }
}

/* The same where channels come in eights and groups in fours: a thread reads eight channels of every (256 / (C / 8))-th
 * pixel, whole lines of memory, and keeps sums of both fours. */
template <typename T, bool BRANCH, bool KEEP>
__global__ void __launch_bounds__(THREADS) take_sums_fast(operands<T> o, shape p)
{
    __shared__ float2 fours[THREADS][2];
    const int64_t slice = (p.pixels + gridDim.x - 1) / gridDim.x;
    const int64_t first = blockIdx.x * slice, last = min(first + slice, p.pixels);
    const int eights = p.channels / 8, at_once = THREADS / eights,
              per_group = p.channels / p.groups;
    const int c = threadIdx.x % eights * 8;
    const int64_t start = blockIdx.y * p.pixels * p.channels + c;
    const float *pivots = o.pivots + blockIdx.y * p.groups;
    const float pivot[2] = {pivots[c / per_group], pivots[(c + 4) / per_group]};
    float s[2] = {}, q[2] = {}, addend[8] = {};
    if (o.addend)
        nl_load8(o.addend + c, addend);
    if (threadIdx.x < at_once * eights)
#pragma unroll 4
        for (int64_t pixel = first + threadIdx.x / eights; pixel < last; pixel += at_once) {
            float v[8], b[8];
            nl_load8(o.x + start + pixel * p.channels, v);
            if (BRANCH)
                nl_load8(o.branch + start + pixel * p.channels, b);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] += (BRANCH ? b[i] : 0.f) + addend[i];
                if (KEEP)
                    v[i] = rounded<T>(v[i]);
                const float difference = v[i] - pivot[i / 4];
                s[i / 4] += difference, q[i / 4] = fmaf(difference, difference, q[i / 4]);
            }
            if (KEEP)
                nl_store8(o.sum + start + pixel * p.channels, v);
        }
    for (int i = 0; i < 2; i++)
        fours[threadIdx.x][i] = make_float2(s[i], q[i]);
    __syncthreads();
    for (int group = threadIdx.x / 32; group < p.groups; group += THREADS / 32) {
        const int wide = per_group / 4; /* fours of the group in one pixel */
        float2 sum = make_float2(0.f, 0.f);
        for (int i = threadIdx.x % 32; i < at_once * wide; i += 32) {
            const int four = group * wide + i % wide;
            const float2 term = fours[i / wide * eights + four / 2][four % 2];
            sum.x += term.x, sum.y += term.y;
        }
        sum.x = nl_warp_sum(sum.x), sum.y = nl_warp_sum(sum.y);
        if (threadIdx.x % 32 == 0)
            o.partial[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * p.groups + group] = sum;
    }
}

/* (s - mean) / deviation = (s - center) scale + offset: the center is the mean rounded, the offset holds its rest. */
struct group_moments {
    float center, scale, offset, unused;
};

/* One warp for each (image, group). */
__global__ void take_moments(const float2 *partial, const float *pivots, group_moments *moments,
                             int slices, shape p, float eps)
{
    const int64_t image = blockIdx.y;
    const int group = blockIdx.x, lane = threadIdx.x;
    const double count = (double)p.pixels * (p.channels / p.groups);
    double s = 0, q = 0;
    for (int i = lane; i < slices; i += 32) {
        const float2 part = partial[(image * slices + i) * p.groups + group];
        s += part.x, q += part.y;
    }
    s = nl_warp_sum(s), q = nl_warp_sum(q);
    if (lane == 0) {
        const double difference = s / count,
                     variance = fmax(q / count - difference * difference, 0.);
        const double mean = pivots[image * p.groups + group] + difference;
        const double scale = 1. / sqrt(variance + eps);
        const float center = (float)mean;
        moments[image * p.groups + group] =
            group_moments{center, (float)scale, (float)((center - mean) * scale), 0.f};
    }
}

struct affine {
    const float *weight, *bias, *addend; /* addend: what s still lacks, or NULL */
    bool silu;
};

template <typename T>
__global__ void map_one(const T *s, const group_moments *moments, affine a, T *y, int64_t count,
                        shape p)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % p.channels;
        const group_moments m =
            moments[i / (p.pixels * p.channels) * p.groups + c / (p.channels / p.groups)];
        const float x = nl_get(s + i) + (a.addend ? a.addend[c] : 0.f);
        const float v = fmaf(fmaf(x - m.center, m.scale, m.offset), a.weight[c], a.bias[c]);
        nl_put(y + i, a.silu ? nl_silu(v) : v);
    }
}

/* grid (parts of an image, batch): a thread keeps to its eight channels. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    map_fast(const T *s, const group_moments *moments, affine a, T *y, shape p)
{
    const int eights = p.channels / 8, at_once = THREADS / eights,
              per_group = p.channels / p.groups;
    const int c = threadIdx.x % eights * 8;
    const int64_t start = blockIdx.y * p.pixels * p.channels + c;
    const int64_t first = blockIdx.x * (int64_t)(MAP_ROUNDS * at_once) + threadIdx.x / eights;
    const int64_t last = min((blockIdx.x + 1) * (int64_t)(MAP_ROUNDS * at_once), p.pixels);
    float weight[8], bias[8], addend[8] = {};
    nl_load8(a.weight + c, weight);
    nl_load8(a.bias + c, bias);
    if (a.addend)
        nl_load8(a.addend + c, addend);
    group_moments m[2];
    for (int i = 0; i < 2; i++)
        m[i] = moments[blockIdx.y * p.groups + (c + 4 * i) / per_group];
    if (threadIdx.x >= at_once * eights)
        return;
#pragma unroll 4
    for (int64_t pixel = first; pixel < last; pixel += at_once) {
        float v[8];
        nl_load8(s + start + pixel * p.channels, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const group_moments &g = m[i / 4];
            v[i] = fmaf(fmaf(v[i] + addend[i] - g.center, g.scale, g.offset), weight[i], bias[i]);
            if (a.silu)
                v[i] = nl_silu(v[i]);
        }
        nl_store8(y + start + pixel * p.channels, v);
    }
}

template <typename T>
static void run(const nl_groupnorm_args *a, const operands<T> &o, float *pivots,
                group_moments *moments, int slices, const shape &p, cudaStream_t stream)
{
    const int64_t batch = a->x.shape[0], count = nl_tensor_count(&a->x);
    const dim3 sliced((unsigned)slices, (unsigned)batch);
    const bool fast =
        p.channels % 8 == 0 && p.channels / p.groups % 4 == 0 && p.channels / 8 <= THREADS;
    auto sums = !fast               ? take_sums<T>
                : o.branch && o.sum ? take_sums_fast<T, true, true>
                : o.sum             ? take_sums_fast<T, false, true>
                                    : take_sums_fast<T, false, false>;
    take_pivots<T><<<(unsigned)batch, 32, 0, stream>>>(o, p, pivots);
    sums<<<sliced, THREADS, 0, stream>>>(o, p);
    take_moments<<<dim3((unsigned)p.groups, (unsigned)batch), 32, 0, stream>>>(
        o.partial, pivots, moments, slices, p, a->eps);
    const affine way = {(const float *)a->weight.data, (const float *)a->bias.data,
                        o.sum ? NULL : o.addend, a->silu};
    const T *s = o.sum ? o.sum : o.x;
    T *y = (T *)a->y.data;
    if (fast) {
        const int64_t round = MAP_ROUNDS * (THREADS / (p.channels / 8));
        const dim3 grid((unsigned)((p.pixels + round - 1) / round), (unsigned)batch);
        map_fast<T><<<grid, THREADS, 0, stream>>>(s, moments, way, y, p);
    } else {
        map_one<T><<<nl_blocks(count, 256), 256, 0, stream>>>(s, moments, way, y, count, p);
    }
}

extern "C" nl_status nl_cuda_groupnorm(nl_device *device, const nl_groupnorm_args *a)
{
    const int64_t batch = a->x.shape[0], channels = a->x.shape[3], count = nl_tensor_count(&a->x);
    if (count == 0)
        return NL_OK;
    const shape p = {count / batch / channels, (int)channels, (int)a->groups};
    /* by the picture alone: the order of sums must not depend on the batch */
    const int64_t slices = NL_MIN((p.pixels + 127) / 128, MOST_SLICES);
    const int64_t pairs = batch * a->groups, partial_bytes = (pairs * slices * 8 + 15) / 16 * 16;
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of groupnorm", partial_bytes + pairs * (16 + 4), &scratch);
    if (status != NL_OK)
        return status;
    group_moments *moments = (group_moments *)((char *)scratch + partial_bytes);
    float *pivots = (float *)(moments + pairs);
    NL_FOR_TYPE(a->x, T, {
        const operands<T> o = {(const T *)a->x.data,
                               (const T *)a->branch.data,
                               (const float *)a->addend.data,
                               (T *)a->sum.data,
                               pivots,
                               (float2 *)scratch};
        run(a, o, pivots, moments, (int)slices, p, nl_cuda_of(device)->stream);
    });
    return NL_CUDA_LAUNCHED(device, "groupnorm");
}
