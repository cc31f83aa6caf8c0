/* SPDX-License-Identifier: MIT */
/* Gradients of patch_embed: dW += dtokens^T patches, db += column sums of dtokens, in parts of PART tokens and then the
 * parts; dx = dtokens W laid out as pixels. */
#include "column_sums.cuh"

enum { PART = 256, AT_ONCE = 32, TAPS = 16, THREADS = 128 };

struct embed_shape {
    int channels, height, width, patch, hidden, taps; /* taps: C p p */
    int64_t tokens;                                   /* of all images */
    __device__ __forceinline__ int64_t pixel(int64_t token, int tap) const
    {
        const int grid_width = width / patch, places = height / patch * grid_width;
        const int place = token % places, c = tap / (patch * patch), row = tap / patch % patch;
        return ((token / places * channels + c) * height + place / grid_width * patch + row) *
                   width +
               place % grid_width * patch + tap % patch;
    }
};

/* A thread has one channel of the tokens and TAPS of the taps; parts [parts, hidden (taps + 1)]: dW, then db.
 * grid (parts, channels / THREADS, taps / TAPS) */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    part_kernel(const embed_shape s, const float *x, const T *dtokens, float *parts)
{
    __shared__ __align__(16) float patches[AT_ONCE][TAPS];
    const int d = blockIdx.y * THREADS + threadIdx.x, first_tap = blockIdx.z * TAPS;
    const int64_t begin = blockIdx.x * (int64_t)PART, end = min(begin + PART, s.tokens);
    float sum[TAPS] = {}, bias = 0.f;
    for (int64_t first = begin; first < end; first += AT_ONCE) {
        __syncthreads();
        for (int i = threadIdx.x; i < AT_ONCE * TAPS; i += THREADS) {
            const int64_t token = first + i / TAPS;
            const int tap = first_tap + i % TAPS;
            patches[i / TAPS][i % TAPS] =
                token < end && tap < s.taps ? x[s.pixel(token, tap)] : 0.f;
        }
        __syncthreads();
        if (d < s.hidden)
#pragma unroll 8
            for (int i = 0; i < AT_ONCE; i++) {
                const int64_t token = min(first + i, end - 1);
                const float g = first + i < end ? nl_get(dtokens + token * s.hidden + d) : 0.f;
                bias += g;
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++)
                    sum[tap] = fmaf(g, patches[i][tap], sum[tap]);
            }
    }
    if (d >= s.hidden)
        return;
    float *part = parts + blockIdx.x * (int64_t)s.hidden * (s.taps + 1);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
        if (first_tap + tap < s.taps)
            part[(int64_t)d * s.taps + first_tap + tap] = sum[tap];
    if (first_tap == 0)
        part[(int64_t)s.hidden * s.taps + d] = bias;
}

/* A warp for each pixel. */
template <typename T, typename W>
__global__ void pixel_kernel(const embed_shape s, const T *dtokens, const W *weight, float *dx)
{
    const int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32, token = i / s.taps;
    const int tap = i % s.taps;
    if (token >= s.tokens)
        return;
    float sum = 0.f;
    for (int d = threadIdx.x % 32; d < s.hidden; d += 32)
        sum = fmaf(nl_get(dtokens + token * s.hidden + d),
                   nl_get(weight + (int64_t)d * s.taps + tap), sum);
    sum = nl_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        dx[s.pixel(token, tap)] = sum;
}

extern "C" nl_status nl_cuda_patch_embed_backward(nl_device *device,
                                                  const nl_patch_embed_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    embed_shape s = {};
    s.channels = (int)a->x.shape[1], s.height = (int)a->x.shape[2], s.width = (int)a->x.shape[3];
    s.patch = (int)a->dweight.shape[2], s.hidden = (int)a->dtokens.shape[1];
    s.taps = s.channels * s.patch * s.patch, s.tokens = a->dtokens.shape[0];
    const int64_t parts = (s.tokens + PART - 1) / PART, columns = s.hidden * (s.taps + 1ll);
    if (s.tokens == 0)
        return NL_OK;
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "sums of the embedding", parts * columns * 4, &scratch);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->dtokens, T, {
        part_kernel<T>
            <<<dim3((unsigned)parts, nl_blocks(s.hidden, THREADS), nl_blocks(s.taps, TAPS)),
               THREADS, 0, stream>>>(s, (const float *)a->x.data, (const T *)a->dtokens.data,
                                     (float *)scratch);
    });
    const float *sums = (const float *)scratch;
    const int64_t weights = (int64_t)s.hidden * s.taps;
    nl_cuda_add_parts(stream, sums, parts,
                      {{(float *)a->dweight.data, weights}, {(float *)a->dbias.data, s.hidden}});
    if (a->dx.data)
        NL_FOR_TYPE(a->dtokens, T, NL_FOR_TYPE(a->weight, W, {
                        pixel_kernel<T, W><<<nl_blocks(s.tokens * s.taps, 8), 256, 0, stream>>>(
                            s, (const T *)a->dtokens.data, (const W *)a->weight.data,
                            (float *)a->dx.data);
                    }));
    return NL_CUDA_LAUNCHED(device, "patch_embed_backward");
}
