/* SPDX-License-Identifier: MIT */
/* Patches through the embedding, plus the position table. */
#include "cuda_common.cuh"

/*
 * A thread computes eight neighbouring channels of the tokens at one place in IMAGES images: the position table and the
 * weights are read once for all of them. A block owns 8 LANES channels, whose weights it turns to [K, channels] in
 * shared memory, and walks over places; the patches of a round lie beside them as [place, K, image], so that the
 * inner loop knows shared memory only. grid (groups of places, groups of channels, groups of images).
 */
enum { LANES = 16, PLACES = 16, IMAGES = 8, ROUNDS = 2, THREADS = LANES * PLACES };

/* Shared memory: weights and the patches of a round, whose places are padded to fall into different banks. */
__host__ __device__ static inline int patch_floats(int k_size)
{
    return k_size * IMAGES + 4;
}
static size_t shared_bytes(int k_size)
{
    return sizeof(float) * (8 * LANES * k_size + PLACES * patch_floats(k_size));
}

template <typename T, typename W>
__global__ void __launch_bounds__(THREADS, 2)
    embed_kernel(const float *x, const W *weight, const float *bias, const float *position,
                 T *tokens, int batch, int channels, int height, int width, int patch, int hidden)
{
    extern __shared__ __align__(16) float shared[];
    const int k_size = channels * patch * patch, grid_width = width / patch;
    const int places = height / patch * grid_width, first_channel = blockIdx.y * 8 * LANES;
    const int first_image = blockIdx.z * IMAGES, images = min(IMAGES, batch - first_image);
    const int64_t plane = (int64_t)height * width;
    float *patches = shared + 8 * LANES * k_size;
#pragma unroll 8
    for (int i = threadIdx.x; i < 8 * LANES * k_size; i += THREADS) {
        const int d = i / k_size, k = i % k_size;
        shared[k * 8 * LANES + d] = first_channel + d < hidden
                                        ? nl_get(weight + (int64_t)(first_channel + d) * k_size + k)
                                        : 0.f;
    }
    const int lane = threadIdx.x % LANES, d = first_channel + lane * 8;
    float b[8] = {};
    if (d < hidden)
        nl_load8(bias + d, b);
    for (int round = 0; round < ROUNDS; round++) {
        const int first_place = (blockIdx.x * ROUNDS + round) * PLACES;
        __syncthreads(); /* the patches before these are done with */
#pragma unroll 8
        for (int i = threadIdx.x; i < PLACES * k_size * IMAGES; i += THREADS) {
            const int at = i % PLACES, k = i / PLACES % k_size, image = i / (PLACES * k_size);
            const int place = first_place + at, c = k / (patch * patch);
            const int row = place / grid_width * patch + k / patch % patch;
            const int column = place % grid_width * patch + k % patch;
            patches[at * patch_floats(k_size) + k * IMAGES + image] =
                place < places && image < images
                    ? x[((int64_t)(first_image + image) * channels + c) * plane + row * width +
                        column]
                    : 0.f;
        }
        __syncthreads();
        const int place = first_place + threadIdx.x / LANES;
        if (place >= places || d >= hidden)
            continue;
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
        const float *values = patches + threadIdx.x / LANES * patch_floats(k_size);
        for (int k = 0; k < k_size; k++) {
            float w[8], value[IMAGES];
            nl_load8(shared + k * 8 * LANES + lane * 8, w);
            nl_load8(values + k * IMAGES, value);
#pragma unroll
            for (int image = 0; image < IMAGES; image++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[image][i] = fmaf(w[i], value[image], sum[image][i]);
        }
#pragma unroll
        for (int image = 0; image < IMAGES; image++)
            if (image < images)
                nl_store8(tokens + ((int64_t)(first_image + image) * places + place) * hidden + d,
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
    const size_t bytes = shared_bytes(k_size);
    NL_FOR_TYPE(a->tokens, T, NL_FOR_TYPE(a->weight, W, {
                    if (hidden % 8 == 0 && bytes <= 48 * 1024) {
                        const dim3 grid(nl_blocks(places, PLACES * ROUNDS),
                                        nl_blocks(hidden, 8 * LANES), nl_blocks(batch, IMAGES));
                        embed_kernel<T, W><<<grid, THREADS, bytes, stream>>>(
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
