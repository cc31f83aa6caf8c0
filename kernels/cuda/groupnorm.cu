/* GroupNorm on NHWC in two passes: sums of slices of pixels for each (image, group), then the map. The sums are taken in
 * a fixed order, so the result does not depend on how the card schedules blocks. */
#include "cuda_common.cuh"

/* Sums are of the differences from the group's first element in the image, which cancel nothing when the mean is large
 * beside the deviation. */
template <typename T>
__device__ __forceinline__ float pivot(const T *image, int per_group, int group)
{
    return nl_get(image + group * per_group);
}

/* grid (slices, batch): a warp a group, lanes over its channels and neighbouring pixels. */
template <typename T>
__global__ void groupnorm_sums(const T *x, float2 *partial, int64_t pixels, int channels,
                               int groups)
{
    const int64_t slice = (pixels + gridDim.x - 1) / gridDim.x;
    const int64_t first = blockIdx.x * slice, last = min(first + slice, pixels);
    const int per_group = channels / groups, lane = threadIdx.x % 32;
    const int step = per_group < 32 ? 32 / per_group : 1; /* whole pixels at a time */
    const T *image = x + blockIdx.y * pixels * channels;
    for (int group = threadIdx.x / 32; group < groups; group += blockDim.x / 32) {
        const float shift = pivot(image, per_group, group);
        float s = 0.f, q = 0.f;
        if (lane < step * per_group || step == 1)
            for (int64_t pixel = first + (step > 1 ? lane / per_group : 0); pixel < last;
                 pixel += step)
                for (int c = step > 1 ? lane % per_group : lane; c < per_group; c += 32) {
                    const float v =
                        nl_get(image + pixel * channels + group * per_group + c) - shift;
                    s += v, q = fmaf(v, v, q);
                }
        s = nl_warp_sum(s), q = nl_warp_sum(q);
        if (lane == 0)
            partial[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * groups + group] =
                make_float2(s, q);
    }
}

/* The same where channels come in eights and groups in fours: a thread reads eight channels of every (256 / (C / 8))-th
 * pixel, whole lines of memory, and keeps sums of both fours. */
enum { FAST_THREADS = 256 };
template <typename T>
__global__ void __launch_bounds__(FAST_THREADS)
    groupnorm_sums_fast(const T *x, float2 *partial, int64_t pixels, int channels, int groups)
{
    __shared__ float2 fours[FAST_THREADS][2];
    const int64_t slice = (pixels + gridDim.x - 1) / gridDim.x;
    const int64_t first = blockIdx.x * slice, last = min(first + slice, pixels);
    const int eights = channels / 8, at_once = FAST_THREADS / eights, per_group = channels / groups;
    const int eight = threadIdx.x % eights, c = eight * 8;
    const T *image = x + blockIdx.y * pixels * channels;
    const float shift[2] = {pivot(image, per_group, c / per_group),
                            pivot(image, per_group, (c + 4) / per_group)};
    float s[2] = {}, q[2] = {};
    if (threadIdx.x < at_once * eights)
#pragma unroll 4
        for (int64_t pixel = first + threadIdx.x / eights; pixel < last; pixel += at_once) {
            float v[8];
            nl_load8(image + pixel * channels + c, v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float difference = v[i] - shift[i / 4];
                s[i / 4] += difference, q[i / 4] = fmaf(difference, difference, q[i / 4]);
            }
        }
    for (int i = 0; i < 2; i++)
        fours[threadIdx.x][i] = make_float2(s[i], q[i]);
    __syncthreads();
    for (int group = threadIdx.x / 32; group < groups; group += FAST_THREADS / 32) {
        const int wide = per_group / 4; /* fours of the group in one pixel */
        float2 sum = make_float2(0.f, 0.f);
        for (int i = threadIdx.x % 32; i < at_once * wide; i += 32) {
            const int four = group * wide + i % wide;
            const float2 term = fours[i / wide * eights + four / 2][four % 2];
            sum.x += term.x, sum.y += term.y;
        }
        sum.x = nl_warp_sum(sum.x), sum.y = nl_warp_sum(sum.y);
        if (threadIdx.x % 32 == 0)
            partial[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * groups + group] = sum;
    }
}

/* (x - mean) / deviation = (x - center) scale + offset: the center is the mean rounded, the offset holds its rest. */
struct group_moments {
    float center, scale, offset, unused;
};

/* One warp for each (image, group). */
template <typename T>
__global__ void groupnorm_moments(const T *x, const float2 *partial, group_moments *moments,
                                  int slices, int groups, int64_t pixels, int channels, float eps)
{
    const int64_t image = blockIdx.y;
    const int group = blockIdx.x, lane = threadIdx.x;
    const double count = (double)pixels * (channels / groups);
    double s = 0, q = 0;
    for (int i = lane; i < slices; i += 32) {
        const float2 p = partial[(image * slices + i) * groups + group];
        s += p.x, q += p.y;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        s += __shfl_xor_sync(~0u, s, offset);
        q += __shfl_xor_sync(~0u, q, offset);
    }
    if (lane == 0) {
        const double difference = s / count,
                     variance = fmax(q / count - difference * difference, 0.);
        const double mean =
            pivot(x + image * pixels * channels, channels / groups, group) + difference;
        const double scale = 1. / sqrt(variance + eps);
        const float center = (float)mean;
        moments[image * groups + group] =
            group_moments{center, (float)scale, (float)((center - mean) * scale), 0.f};
    }
}

template <typename T, int V>
__global__ void groupnorm_map(const T *x, const group_moments *moments, const float *weight,
                              const float *bias, T *y, int64_t count, int64_t per_image,
                              int channels, int groups, bool silu)
{
    NL_GRID_LOOP(i, count / V)
    {
        const int64_t at = i * V, image = at / per_image;
        const int channel = at % channels, per_group = channels / groups;
        float v[8];
        if (V == 8)
            nl_load8(x + at, v);
        else
            v[0] = nl_get(x + at);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const group_moments m = moments[image * groups + (channel + j) / per_group];
            v[j] = fmaf(fmaf(v[j] - m.center, m.scale, m.offset), weight[channel + j],
                        bias[channel + j]);
            if (silu)
                v[j] = nl_silu(v[j]);
        }
        if (V == 8)
            nl_store8(y + at, v);
        else
            nl_put(y + at, v[0]);
    }
}

extern "C" nl_status nl_cuda_groupnorm(nl_device *device, const nl_groupnorm_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t batch = a->x.shape[0], channels = a->x.shape[3], count = nl_tensor_count(&a->x);
    if (count == 0)
        return NL_OK;
    const int64_t pixels = count / batch / channels, groups = a->groups;
    int64_t slices = (pixels + 255) /
                     256; /* by the picture alone: the order of sums must not depend on the batch */
    slices = slices > 128 ? 128 : slices;
    const int64_t partial_bytes = (batch * slices * groups * 8 + 15) / 16 * 16;
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of groupnorm", partial_bytes + batch * groups * 16, &scratch);
    if (status != NL_OK)
        return status;
    float2 *partial = (float2 *)scratch;
    group_moments *moments = (group_moments *)((char *)scratch + partial_bytes);
    const bool fast =
        channels % 8 == 0 && channels / groups % 4 == 0 && channels / 8 <= FAST_THREADS;
    NL_FOR_TYPE(a->x, T, {
        auto sums = fast ? groupnorm_sums_fast<T> : groupnorm_sums<T>;
        sums<<<dim3((unsigned)slices, (unsigned)batch), FAST_THREADS, 0, stream>>>(
            (const T *)a->x.data, partial, pixels, (int)channels, (int)groups);
        groupnorm_moments<T><<<dim3((unsigned)groups, (unsigned)batch), 32, 0, stream>>>(
            (const T *)a->x.data, partial, moments, (int)slices, (int)groups, pixels, (int)channels,
            a->eps);
        auto map = [&](auto kernel, int v) {
            kernel<<<nl_blocks(count / v, 256), 256, 0, stream>>>(
                (const T *)a->x.data, moments, (const float *)a->weight.data,
                (const float *)a->bias.data, (T *)a->y.data, count, count / batch, (int)channels,
                (int)groups, a->silu);
        };
        if (channels % 8 == 0)
            map(groupnorm_map<T, 8>, 8);
        else
            map(groupnorm_map<T, 1>, 1);
    });
    return NL_CUDA_LAUNCHED(device, "groupnorm");
}
