/* Patches through the embedding, plus the position table. One block for a few tokens; threads over D. */
#include "cuda_common.cuh"

enum { TOKENS = 8, MAX_PATCH = 1024 };

/* x is fp32 (the sampler's state); K = C p p inputs of a token lie in shared memory. */
template <typename T, typename W>
__global__ void embed_kernel(const float *x, const W *weight, const float *bias,
                             const float *position, T *tokens, int64_t token_count, int channels,
                             int height, int width, int patch, int hidden)
{
    extern __shared__ float inputs[]; /* [TOKENS, K] */
    const int grid_width = width / patch, per_image = height / patch * grid_width,
              k_size = channels * patch * patch;
    const int64_t first = blockIdx.x * (int64_t)TOKENS;
    for (int i = threadIdx.x; i < TOKENS * k_size; i += blockDim.x) {
        const int64_t token = first + i / k_size;
        const int k = i % k_size, c = k / (patch * patch), row = k / patch % patch,
                  column = k % patch;
        float value = 0.f;
        if (token < token_count) {
            const int64_t image = token / per_image, t = token % per_image;
            value = x[((image * channels + c) * height + t / grid_width * patch + row) * width +
                      t % grid_width * patch + column];
        }
        inputs[i] = value;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < hidden; d += blockDim.x) {
        float sum[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            sum[t] = bias[d];
        for (int k = 0; k < k_size; k++) {
            const float w = nl_get(weight + (int64_t)d * k_size + k);
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                sum[t] = fmaf(w, inputs[t * k_size + k], sum[t]);
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            if (first + t < token_count)
                nl_put(tokens + (first + t) * hidden + d,
                       sum[t] + position[(first + t) % per_image * hidden + d]);
    }
}

extern "C" nl_status nl_cuda_patch_embed(nl_device *device, const nl_patch_embed_args *a)
{
    const int64_t channels = a->x.shape[1], patch = a->weight.shape[2],
                  token_count = a->tokens.shape[0];
    const int64_t hidden = a->tokens.shape[1], k_size = channels * patch * patch;
    if (k_size * TOKENS * 4 > 48 * 1024)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "patch_embed: patches of %lld numbers, at most 1536 on the GPU",
                       (long long)k_size);
    if (token_count > 0)
        NL_FOR_TYPE(a->tokens, T, NL_FOR_TYPE(a->weight, W, {
                        embed_kernel<T, W><<<nl_blocks(token_count, TOKENS), 128,
                                             k_size * TOKENS * 4, nl_cuda_of(device)->stream>>>(
                            (const float *)a->x.data, (const W *)a->weight.data,
                            (const float *)a->bias.data, (const float *)a->position.data,
                            (T *)a->tokens.data, token_count, (int)channels, (int)a->x.shape[2],
                            (int)a->x.shape[3], (int)patch, (int)hidden);
                    }));
    return NL_CUDA_LAUNCHED(device, "patch_embed");
}
