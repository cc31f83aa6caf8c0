/* GroupNorm on NHWC in two passes: sums of slices of pixels for each (image, group), then the map. The sums are taken in
 * a fixed order, so the result does not depend on how the card schedules blocks. */
#include "cuda_common.cuh"

/* grid (slices, batch): thread t adds channel t % C of every (blockDim / C)-th pixel; then groups are folded. */
template <typename T>
__global__ void groupnorm_sums(const T *x, float2 *partial, int64_t pixels, int channels,
                               int groups)
{
    extern __shared__ float2 sums[]; /* [groups] */
    const int64_t slice = (pixels + gridDim.x - 1) / gridDim.x;
    const int64_t first = blockIdx.x * slice, last = min(first + slice, pixels);
    const int per_group = channels / groups;
    const T *image = x + blockIdx.y * pixels * channels;
    for (int group = threadIdx.x / 32; group < groups; group += blockDim.x / 32) {
        float s = 0.f, q = 0.f;
        const int lanes =
            per_group < 32 ? 32 / per_group * per_group : 32; /* whole pixels at a time */
        const int lane = threadIdx.x % 32;
        if (per_group >= 32) {
            for (int64_t pixel = first; pixel < last; pixel++)
                for (int c = lane; c < per_group; c += 32) {
                    const float v = nl_get(image + pixel * channels + group * per_group + c);
                    s += v, q = fmaf(v, v, q);
                }
        } else if (lane < lanes) {
            const int step = lanes / per_group;
            for (int64_t pixel = first + lane / per_group; pixel < last; pixel += step) {
                const float v =
                    nl_get(image + pixel * channels + group * per_group + lane % per_group);
                s += v, q = fmaf(v, v, q);
            }
        }
        s = nl_warp_sum(s), q = nl_warp_sum(q);
        if (lane == 0)
            sums[group] = make_float2(s, q);
    }
    __syncthreads();
    for (int group = threadIdx.x; group < groups; group += blockDim.x)
        partial[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * groups + group] = sums[group];
}

/* One warp for each (image, group): (mean, 1 / deviation). */
__global__ void groupnorm_moments(const float2 *partial, float2 *moments, int slices, int groups,
                                  double count, float eps)
{
    const int64_t image = blockIdx.y;
    const int group = blockIdx.x, lane = threadIdx.x;
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
        const double mean = s / count, variance = fmax(q / count - mean * mean, 0.);
        moments[image * groups + group] =
            make_float2((float)mean, (float)(1. / sqrt(variance + eps)));
    }
}

template <typename T, int V>
__global__ void groupnorm_map(const T *x, const float2 *moments, const float *weight,
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
            const float2 m = moments[image * groups + (channel + j) / per_group];
            v[j] = fmaf((v[j] - m.x) * m.y, weight[channel + j], bias[channel + j]);
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
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of groupnorm", batch * (slices + 1) * groups * 8, &scratch);
    if (status != NL_OK)
        return status;
    float2 *partial = (float2 *)scratch, *moments = partial + batch * slices * groups;
    NL_FOR_TYPE(a->x, T, {
        groupnorm_sums<T>
            <<<dim3((unsigned)slices, (unsigned)batch), 256, groups * sizeof(float2), stream>>>(
                (const T *)a->x.data, partial, pixels, (int)channels, (int)groups);
        groupnorm_moments<<<dim3((unsigned)groups, (unsigned)batch), 32, 0, stream>>>(
            partial, moments, (int)slices, (int)groups, (double)pixels * (channels / groups),
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
