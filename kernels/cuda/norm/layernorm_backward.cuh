/* SPDX-License-Identifier: MIT */
/*
 * What the gradients of the layer normalisations share. A warp owns a row at a time and holds it in registers, as in
 * layernorm.cuh; sums over rows are kept in shared memory, a set for each warp, because registers would not do for wide
 * rows. A block leaves the sums of its rows as one part; the parts are added in order.
 */
#ifndef NL_CUDA_LAYERNORM_BACKWARD_CUH
#define NL_CUDA_LAYERNORM_BACKWARD_CUH

#include "layernorm.cuh"

enum { NL_PART_WARPS = 4, NL_PART_ROWS = 64 }; /* of a block */

/* A row with the next one on its way needs twice the registers. */
template <typename S> struct nl_row_ahead {
    static constexpr bool value = S::VEC * S::CHUNKS <= 16;
};

/* Adds v to the sums [width] of this warp. */
template <typename S>
__device__ __forceinline__ void nl_add_to_sums(float *sums, int c, const float (&v)[S::VEC])
{
    static_assert(S::VEC == 4, "one vector of floats");
    float4 *at = (float4 *)(sums + S::at(c));
    float4 sum = *at;
    sum.x += v[0], sum.y += v[1], sum.z += v[2], sum.w += v[3];
    *at = sum;
}

/* shared: sums [NL_PART_WARPS, count]; to the part [count] in memory. */
__device__ __forceinline__ void nl_store_part(const float *shared, int count, float *part)
{
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += 32 * NL_PART_WARPS) {
        float sum = shared[i];
#pragma unroll
        for (int warp = 1; warp < NL_PART_WARPS; warp++)
            sum += shared[warp * count + i];
        part[i] = sum;
    }
}

/* Gradient by x of a normalised row, from that by the normalised row: scale (d - mean(d) - n mean(d n)); RMS has no
 * mean(d). */
template <typename S, bool RMS = false>
__device__ __forceinline__ void nl_normalise_gradient(const float (&normalised)[S::CHUNKS][S::VEC],
                                                      float (&d)[S::CHUNKS][S::VEC], int width,
                                                      float scale)
{
    float sum = 0.f, product = 0.f;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, width))
#pragma unroll
            for (int i = 0; i < S::VEC; i++) {
                sum += d[c][i];
                product = fmaf(d[c][i], normalised[c][i], product);
            }
    const float share = 1.f / width;
    sum = RMS ? 0.f : nl_warp_sum(sum) * share, product = nl_warp_sum(product) * share;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < S::VEC; i++)
            d[c][i] = scale * (d[c][i] - sum - normalised[c][i] * product);
}

/* For any width: a block for a row. */
template <typename T, bool RMS = false>
__device__ __forceinline__ nl_moments nl_block_moments(const T *row, int width, float eps)
{
    float sum = 0.f, rest = 0.f, squares = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        sum += nl_get(row + i);
    const float center = RMS ? 0.f : nl_block_sum(sum) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float difference = nl_get(row + i) - center;
        rest += difference;
        squares = fmaf(difference, difference, squares);
    }
    rest = RMS ? 0.f : nl_block_sum(rest);
    return nl_moments_of(center, rest, nl_block_sum(squares), (float)width, eps);
}

/* Calls BODY with S the shape of rows of `width` elements; the exact ones are the widths of the models. */
#define NL_FOR_GRADIENT_SHAPE(width, S, ...)                                                       \
    do {                                                                                           \
        if ((width) == 384) {                                                                      \
            using S = nl_row_shape<32, 4, 3, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) == 768) {                                                               \
            using S = nl_row_shape<32, 4, 6, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) == 1024) {                                                              \
            using S = nl_row_shape<32, 4, 8, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) == 1152) {                                                              \
            using S = nl_row_shape<32, 4, 9, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) <= 512) {                                                               \
            using S = nl_row_shape<32, 4, 4, false>;                                               \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using S = nl_row_shape<32, 4, 10, false>;                                              \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
