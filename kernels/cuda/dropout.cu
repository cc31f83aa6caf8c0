/* SPDX-License-Identifier: MIT */
/* dropout by cuRAND's Philox4x32-10: a thread has the four elements of one block of words. */
#include <curand_kernel.h>

#include "cuda_common.cuh"

/* x [images, per_image] */
template <typename T>
__global__ void dropout_kernel(T *x, const int64_t *samples, int64_t per_image,
                               unsigned long long seed, unsigned long long offset, uint32_t limit,
                               float scale)
{
    const int64_t j = 4 * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x);
    if (j >= per_image)
        return;
    curandStatePhilox4_32_10_t state;
    curand_init(seed, samples[blockIdx.y], offset + (unsigned long long)j, &state);
    const uint4 words = curand4(&state);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    T *at = x + blockIdx.y * per_image + j;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (j + i < per_image)
            nl_put(at + i, word[i] < limit ? 0.f : nl_get(at + i) * scale);
}

extern "C" nl_status nl_cuda_dropout(nl_device *device, const nl_dropout_args *a)
{
    const int64_t images = a->samples.shape[0], per_image = a->rows_per_image * a->x.shape[1];
    enum { MOST = 32768 }; /* images of a grid */
    for (int64_t first = 0; first < images; first += MOST) {
        const unsigned count = (unsigned)(images - first < MOST ? images - first : MOST);
        NL_FOR_TYPE(a->x, T, {
            dropout_kernel<T><<<dim3(nl_blocks((per_image + 3) / 4, 128), count), 128, 0,
                                nl_cuda_of(device)->stream>>>(
                (T *)a->x.data + first * per_image, (const int64_t *)a->samples.data + first,
                per_image, a->seed, (unsigned long long)a->stream << 34 | a->first,
                nl_dropout_limit(a->probability), 1.f / (1.f - a->probability));
        });
    }
    return NL_CUDA_LAUNCHED(device, "dropout");
}
