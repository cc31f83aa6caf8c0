/* Patches through the embedding, plus the position table. */
#include "cuda_common.cuh"

/*
 * A thread computes eight neighbouring channels of the tokens at one place in IMAGES images: the position table and the
 * weights are read once for all of them. A block owns 8 LANES channels, whose weights it turns to [K, channels] in
 * shared memory, and walks over places. grid (groups of places, groups of channels, groups of images).
 */
enum { LANES = 16, PLACES = 16, IMAGES = 4, ROUNDS = 4 };

template <typename T, typename W>
__global__ void __launch_bounds__(LANES *PLACES)
    embed_kernel(const float *x, const W *weight, const float *bias, const float *position,
                 T *tokens, int batch, int channels, int height, int width, int patch, int hidden)
{
    extern __shared__ float shared[]; /* weights [K, 8 LANES] */
    const int k_size = channels * patch * patch, grid_width = width / patch;
    const int places = height / patch * grid_width, first_channel = blockIdx.y * 8 * LANES;
    for (int i = threadIdx.x; i < 8 * LANES * k_size; i += LANES * PLACES) {
        const int d = i / k_size, k = i % k_size;
        shared[k * 8 * LANES + d] = first_channel + d < hidden
                                        ? nl_get(weight + (int64_t)(first_channel + d) * k_size + k)
                                        : 0.f;
    }
    __syncthreads();
    const int lane = threadIdx.x % LANES, d = first_channel + lane * 8;
    const int64_t first_image = blockIdx.z * (int64_t)IMAGES, plane = (int64_t)height * width;
    if (d >= hidden)
        return;
    float b[8];
    nl_load8(bias + d, b);
    for (int round = 0; round < ROUNDS; round++) {
        const int place = (blockIdx.x * ROUNDS + round) * PLACES + threadIdx.x / LANES;
        if (place >= places)
            return;
        float sum[IMAGES][8];
        nl_load8(position + (int64_t)place * hidden + d, sum[0]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[0][i] += b[i];
#pragma unroll
        for (int image = 1; image < IMAGES; image++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[image][i] = sum[0][i];
        const float *corner = x + first_image * channels * plane +
                              place / grid_width * patch * width + place % grid_width * patch;
        for (int k = 0; k < k_size; k++) {
            const int c = k / (patch * patch), row = k / patch % patch, column = k % patch;
            const float *at = corner + c * plane + row * width + column;
            float w[8];
            nl_load8(shared + k * 8 * LANES + lane * 8, w);
#pragma unroll
            for (int image = 0; image < IMAGES; image++) {
                const float value =
                    first_image + image < batch ? at[image * channels * plane] : 0.f;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[image][i] = fmaf(w[i], value, sum[image][i]);
            }
        }
#pragma unroll
        for (int image = 0; image < IMAGES; image++)
            if (first_image + image < batch)
                nl_store8(tokens + ((first_image + image) * places + place) * hidden + d,
                          sum[image]);
    }
}

/* Any width: a thread for each element. */
template <typename T, typename W>
__global__ void embed_any_kernel(const float *x, const W *weight, const float *bias,
                                 const float *position, T *tokens, int64_t count, int channels,
                                 int height, int width, int patch, int hidden)
{
    const int k_size = channels * patch * patch, grid_width = width / patch;
    const int places = height / patch * grid_width;
    NL_GRID_LOOP(i, count)
    {
        const int d = i % hidden, place = i / hidden % places;
        const int64_t image = i / hidden / places;
        float sum = bias[d] + position[(int64_t)place * hidden + d];
        for (int k = 0; k < k_size; k++) {
            const int c = k / (patch * patch), row = k / patch % patch, column = k % patch;
            sum = fmaf(
                nl_get(weight + (int64_t)d * k_size + k),
                x[((image * channels + c) * height + place / grid_width * patch + row) * width +
                  place % grid_width * patch + column],
                sum);
        }
        nl_put(tokens + i, sum);
    }
}

extern "C" nl_status nl_cuda_patch_embed(nl_device *device, const nl_patch_embed_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int batch = (int)a->x.shape[0], channels = (int)a->x.shape[1];
    const int height = (int)a->x.shape[2], width = (int)a->x.shape[3],
              patch = (int)a->weight.shape[2];
    const int hidden = (int)a->tokens.shape[1], k_size = channels * patch * patch;
    const int places = height / patch * (width / patch);
    const size_t bytes = sizeof(float) * 8 * LANES * k_size;
    NL_FOR_TYPE(a->tokens, T, NL_FOR_TYPE(a->weight, W, {
                    if (hidden % 8 == 0 && bytes <= 48 * 1024) {
                        const dim3 grid(nl_blocks(places, PLACES * ROUNDS),
                                        nl_blocks(hidden, 8 * LANES), nl_blocks(batch, IMAGES));
                        embed_kernel<T, W><<<grid, LANES * PLACES, bytes, stream>>>(
                            (const float *)a->x.data, (const W *)a->weight.data,
                            (const float *)a->bias.data, (const float *)a->position.data,
                            (T *)a->tokens.data, batch, channels, height, width, patch, hidden);
                    } else {
                        const int64_t count = nl_tensor_count(&a->tokens);
                        embed_any_kernel<T, W><<<nl_blocks(count, 256), 256, 0, stream>>>(
                            (const float *)a->x.data, (const W *)a->weight.data,
                            (const float *)a->bias.data, (const float *)a->position.data,
                            (T *)a->tokens.data, count, channels, height, width, patch, hidden);
                    }
                }));
    return NL_CUDA_LAUNCHED(device, "patch_embed");
}
