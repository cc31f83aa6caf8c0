/* SPDX-License-Identifier: MIT */
/* Standard normals by (seed, image, stream, element): cuRAND's Philox4x32-10, element 4 j .. 4 j + 3 from one block. */
#include <curand_kernel.h>

#include "cuda_common.cuh"

enum { IMAGES = 512 };

struct image_indices {
    int64_t index[IMAGES];
};

/* grid (elements, images); the precise logf, sinf and cosf, so that CPU and GPU agree to a few ulp. */
__global__ void normal_kernel(float *y, const __grid_constant__ image_indices images,
                              int64_t per_image, unsigned long long seed, unsigned long long stream)
{
    const int64_t j = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (4 * j >= per_image)
        return;
    curandStatePhilox4_32_10_t state;
    curand_init(seed, images.index[blockIdx.y], stream << 34 | (unsigned long long)(4 * j), &state);
    const uint4 words = curand4(&state);
    const float u[2] = {words.x * 2.3283064365386963e-10f + 1.1641532182693481e-10f,
                        words.z * 2.3283064365386963e-10f + 1.1641532182693481e-10f};
    const float v[2] = {words.y * 1.4629180792671596e-9f + 7.314590396335798e-10f,
                        words.w * 1.4629180792671596e-9f + 7.314590396335798e-10f};
    float *out = y + blockIdx.y * per_image + 4 * j;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float radius = sqrtf(-2.f * logf(u[k]));
        if (4 * j + 2 * k < per_image)
            out[2 * k] = radius * sinf(v[k]);
        if (4 * j + 2 * k + 1 < per_image)
            out[2 * k + 1] = radius * cosf(v[k]);
    }
}

extern "C" nl_status nl_cuda_normal(nl_device *device, const nl_normal_args *a)
{
    const int64_t batch = a->y.shape[0], per_image = batch ? nl_tensor_count(&a->y) / batch : 0;
    image_indices images;
    for (int64_t first = 0; first < batch && per_image > 0; first += IMAGES) {
        const int64_t count = batch - first < IMAGES ? batch - first : IMAGES;
        for (int64_t i = 0; i < count; i++)
            images.index[i] = a->images[first + i];
        normal_kernel<<<dim3(nl_blocks((per_image + 3) / 4, 128), (unsigned)count), 128, 0,
                        nl_cuda_of(device)->stream>>>((float *)a->y.data + first * per_image,
                                                      images, per_image, a->seed, a->stream);
    }
    return NL_CUDA_LAUNCHED(device, "normal");
}
