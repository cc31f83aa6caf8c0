/* Features of one token at a time in shared memory: the plain kernels of NaLa attention. */
#ifndef NL_CUDA_NALA_PLAIN_CUH
#define NL_CUDA_NALA_PLAIN_CUH

#include "cuda_common.cuh"
#include "nala_features.cuh"

/* Calls BODY with MAP the feature map as a constant. */
#define NL_FOR_FEATURE_MAP(map, MAP, ...)                                                          \
    do {                                                                                           \
        switch (map) {                                                                             \
            NL_FEATURE_MAP_CASE(NL_FEATURES_COSINE, MAP, __VA_ARGS__)                              \
            NL_FEATURE_MAP_CASE(NL_FEATURES_SPLIT, MAP, __VA_ARGS__)                               \
            NL_FEATURE_MAP_CASE(NL_FEATURES_RELU, MAP, __VA_ARGS__)                                \
            NL_FEATURE_MAP_CASE(NL_FEATURES_ELU1, MAP, __VA_ARGS__)                                \
            NL_FEATURE_MAP_CASE(NL_FEATURES_POWER, MAP, __VA_ARGS__)                               \
            NL_FEATURE_MAP_CASE(NL_FEATURES_COSINE_CONSTANT, MAP, __VA_ARGS__)                     \
        }                                                                                          \
    } while (0)
#define NL_FEATURE_MAP_CASE(value, MAP, ...)                                                       \
    case value: {                                                                                  \
        constexpr int MAP = value;                                                                 \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }

struct nl_nala_map {
    int head_size, grid_width;
    float lambda, tau;
    bool rope;
};

/* Angle of feature index i (within one half) for a token, facts.md H.5: the first half of the head turns with the row,
 * the second with the column; pairs of neighbours share an angle; frequencies 10000^-linspace(0, 1, d/4). */
__device__ __forceinline__ float nl_rope_angle(int i, int head_size, int row, int column)
{
    const int quarter = head_size / 4, side = head_size / 2, at = i % side / 2;
    const float frequency = powf(10000.f, -(quarter > 1 ? (float)at / (quarter - 1) : 0.f));
    return (i < side ? row : column) * frequency;
}

/* Sums of a row's terms over the block, and its features into f [F] (and rotated ones into r [F]). */
template <typename T, int MAP, bool QUERY>
__device__ __forceinline__ void nl_plain_features(const nl_nala_map &p, const T *x, int token,
                                                  float *f, float *r, float2 *sums)
{
    constexpr int HALVES = nl_map_halves<MAP>::value;
    const int d = p.head_size;
    if (threadIdx.x < 32) {
        float2 sum = make_float2(0.f, 0.f);
        for (int i = threadIdx.x; i < d; i += 32) {
            const float2 terms = nl_row_terms<MAP, true, false>(nl_get(x + i), p.lambda);
            sum.x += terms.x, sum.y += terms.y;
        }
        sum.x = nl_warp_sum(sum.x), sum.y = nl_warp_sum(sum.y);
        if (threadIdx.x == 0)
            *sums = sum;
    }
    __syncthreads();
    const nl_row_scalars row = QUERY ? nl_query_scalars<MAP, true>(*sums, p.lambda, p.tau)
                                     : nl_key_scalars<MAP, true>(*sums, p.lambda);
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        const float v = nl_get(x + i);
        const float2 pair = QUERY ? nl_query_feature<MAP, true, false>(v, row)
                                  : nl_key_feature<MAP, true, false>(v, row);
        f[i] = pair.x;
        if (HALVES == 2)
            f[d + i] = pair.y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HALVES * d; i += blockDim.x) {
        float value = f[i];
        if (p.rope) {
            const float angle = nl_rope_angle(i % d, d, token / p.grid_width, token % p.grid_width);
            value = f[i] * cosf(angle) + (i % 2 ? f[i - 1] : -f[i + 1]) * sinf(angle);
        }
        r[i] = value;
    }
    __syncthreads();
}

#endif
