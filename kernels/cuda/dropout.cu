/* SPDX-License-Identifier: MIT */
/* dropout by cuRAND's Philox4x32-10: eight neighbouring elements a thread, those of two blocks of words, where sizes and
 * addresses allow it. Bound by memory: each element crosses it twice. */
#include <curand_kernel.h>

#include "cuda_common.cuh"

namespace
{

/* What is the same for every image. */
struct mask {
    uint64_t block; /* of the stream's words, that of element 0 */
    uint2 key;
    uint32_t limit;
    float scale;
};

/* x: elements j, j + 1, ... of an image; j a multiple of COUNT */
template <int COUNT>
__device__ __forceinline__ void drop(const mask &m, uint64_t sample, uint64_t j, float (&x)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const uint64_t block = m.block + (j + i) / 4;
        const uint4 words =
            curand_Philox4x32_10(make_uint4((uint32_t)block, (uint32_t)(block >> 32),
                                            (uint32_t)sample, (uint32_t)(sample >> 32)),
                                 m.key);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int e = i; e < i + 4 && e < COUNT; e++)
            x[e] = word[(j + e) % 4] < m.limit ? 0.f : x[e] * m.scale;
    }
}

/* x [images, pieces, COUNT] */
template <typename T, int COUNT>
__global__ void dropout_kernel(T *x, const int64_t *samples, int64_t pieces, mask m)
{
    const int64_t piece = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (piece >= pieces)
        return;
    T *at = x + (blockIdx.y * pieces + piece) * COUNT;
    float v[COUNT];
    nl_load(at, v);
    drop(m, (uint64_t)samples[blockIdx.y], (uint64_t)piece * COUNT, v);
    nl_store(at, v);
}

} // namespace

extern "C" nl_status nl_cuda_dropout(nl_device *device, const nl_dropout_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t images = a->samples.shape[0], per_image = a->rows_per_image * a->x.shape[1];
    const bool wide = per_image % 8 == 0 && (uintptr_t)a->x.data % 16 == 0;
    const int64_t pieces = wide ? per_image / 8 : per_image;
    const mask m = {(a->stream << 34 | a->first) / 4,
                    make_uint2((uint32_t)a->seed, (uint32_t)(a->seed >> 32)),
                    nl_dropout_limit(a->probability), 1.f / (1.f - a->probability)};
    enum { MOST = 32768, THREADS = 256 }; /* images of a grid */
    for (int64_t first = 0; first < images; first += MOST) {
        const dim3 grid(nl_blocks(pieces, THREADS),
                        (unsigned)(images - first < MOST ? images - first : MOST));
        const int64_t *samples = (const int64_t *)a->samples.data + first;
        NL_FOR_TYPE(a->x, T, {
            T *x = (T *)a->x.data + first * per_image;
            if (wide)
                dropout_kernel<T, 8><<<grid, THREADS, 0, stream>>>(x, samples, pieces, m);
            else
                dropout_kernel<T, 1><<<grid, THREADS, 0, stream>>>(x, samples, pieces, m);
        });
    }
    return NL_CUDA_LAUNCHED(device, "dropout");
}
