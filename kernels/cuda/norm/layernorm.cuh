/* SPDX-License-Identifier: MIT */
/*
 * The row loop of the layer normalisations. A row belongs to LANES neighbouring lanes, which hold it in registers in
 * CHUNKS pieces of VEC elements; the next row is on its way while this one is worked on, so that enough loads are in
 * flight whatever the registers leave of the occupancy. What surrounds the normalisation is an operation's own:
 *
 *   struct operation {
 *       void enter(int64_t row);                     // before each row: what belongs to its image
 *       void fetch(int64_t row, Raw &raw);           // queues the loads of a row
 *       void values(int64_t row, const Raw &raw, float (&v)[CHUNKS][VEC]);
 *       void finish(int64_t row, const Raw &raw, const float (&v)[CHUNKS][VEC], nl_moments moments);
 *   };
 */
#ifndef NL_CUDA_LAYERNORM_CUH
#define NL_CUDA_LAYERNORM_CUH

#include "cuda_common.cuh"

/* (x - mean) / deviation = (x - center) scale + offset. The center is the mean rounded to a float: subtracted first, it
 * cancels exactly where x is close to it, and the offset holds the rest of the mean. */
struct nl_moments {
    float center, scale, offset;
    __device__ __forceinline__ float operator()(float x) const
    {
        return fmaf(x - center, scale, offset);
    }
};

__device__ __forceinline__ nl_moments nl_moments_of(float center, float rest, float squares,
                                                    float count, float eps)
{
    rest /= count;
    const float scale = rsqrtf(fmaxf(squares / count - rest * rest, 0.f) + eps);
    return nl_moments{center, scale, -rest * scale};
}

template <int LANES> __device__ __forceinline__ float nl_lanes_sum(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

/* How a row of `width` elements lies in the lanes: piece c of a lane begins at at(c), if there is one. EXACT: width is
 * LANES * VEC * CHUNKS, so that there always is. */
template <int LANES_, int VEC_, int CHUNKS_, bool EXACT> struct nl_row_shape {
    static constexpr int LANES = LANES_, VEC = VEC_, CHUNKS = CHUNKS_;
    static constexpr int THREADS = 128, GROUPS = THREADS / LANES; /* rows of a block at a time */
    static constexpr bool SHORT = VEC * CHUNKS <= 24;             /* for the register budget */
    __device__ __forceinline__ static int at(int c)
    {
        return (c * LANES + threadIdx.x % LANES) * VEC;
    }
    __device__ __forceinline__ static bool there(int c, int width)
    {
        return EXACT || at(c) < width;
    }
};

/* Two elements of a register of one or two words. */
__device__ __forceinline__ void nl_unpack(const uint32_t *words, int i, float *v, float)
{
    v[2 * i] = __uint_as_float(words[2 * i]), v[2 * i + 1] = __uint_as_float(words[2 * i + 1]);
}
__device__ __forceinline__ void nl_unpack(const uint32_t *words, int i, float *v, __nv_bfloat16)
{
    v[2 * i] = __uint_as_float(words[i] << 16),
          v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}
__device__ __forceinline__ void nl_pack(uint32_t *words, int i, const float *v, float)
{
    words[2 * i] = __float_as_uint(v[2 * i]), words[2 * i + 1] = __float_as_uint(v[2 * i + 1]);
}
__device__ __forceinline__ void nl_pack(uint32_t *words, int i, const float *v, __nv_bfloat16)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    words[i] = *(const uint32_t *)&pair;
}

/* A piece of a row as it lies in memory: in words, because an array of bf16 takes a register for each. */
template <typename T, int VEC>
struct alignas(VEC * sizeof(T) > 16 ? 16 : VEC * sizeof(T)) nl_piece {
    uint32_t words[VEC * sizeof(T) / 4];
    __device__ __forceinline__ void unpack(float (&v)[VEC]) const
    {
#pragma unroll
        for (int i = 0; i < VEC / 2; i++)
            nl_unpack(words, i, v, T());
    }
    __device__ __forceinline__ void pack(const float (&v)[VEC])
    {
#pragma unroll
        for (int i = 0; i < VEC / 2; i++)
            nl_pack(words, i, v, T());
    }
};
template <typename T, int VEC>
__device__ __forceinline__ nl_piece<T, VEC> nl_piece_at(const T *from)
{
    return *(const nl_piece<T, VEC> *)from;
}
template <typename T, int VEC>
__device__ __forceinline__ void nl_put_piece(T *to, const float (&v)[VEC])
{
    nl_piece<T, VEC> piece;
    piece.pack(v);
    *(nl_piece<T, VEC> *)to = piece;
}

/* A row of y, T or (F8) E4M3 with its factor in scale[row]; value(c, i) is its element i of piece c, which F8 asks for twice. */
template <typename S, bool F8, typename T, typename Value>
__device__ __forceinline__ void nl_put_row(void *y, float *scale, int64_t row, int width,
                                           const Value &value)
{
    float inverse = 1.f;
    if (F8) {
        uint32_t largest = 0;
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++)
            if (S::there(c, width)) {
                float out[S::VEC];
                value(c, out);
#pragma unroll
                for (int i = 0; i < S::VEC; i++)
                    largest = max(largest, nl_prim::magnitude_of(out[i]));
            }
        largest = nl_prim::lanes_max<S::LANES>(largest);
        const float factor = nl_prim::e4m3_scale(largest, &inverse);
        if (threadIdx.x % S::LANES == 0)
            scale[row] = factor;
    }
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, width)) {
            float out[S::VEC];
            value(c, out);
            if (F8)
                nl_prim::store_e4m3((uint8_t *)y + row * width + S::at(c), out, inverse);
            else
                nl_put_piece((T *)y + row * width + S::at(c), out);
        }
}

/* RMS: about 0 instead of the mean. */
template <typename S, bool RMS = false>
__device__ __forceinline__ nl_moments nl_row_moments(const float (&v)[S::CHUNKS][S::VEC], int width,
                                                     float eps)
{
    if constexpr (RMS) {
        float sum = 0.f;
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++)
            if (S::there(c, width))
#pragma unroll
                for (int i = 0; i < S::VEC; i++)
                    sum = fmaf(v[c][i], v[c][i], sum);
        return nl_moments_of(0.f, 0.f, nl_lanes_sum<S::LANES>(sum), (float)width, eps);
    }
    float sum = 0.f, rest = 0.f, squares = 0.f;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, width))
#pragma unroll
            for (int i = 0; i < S::VEC; i++)
                sum += v[c][i];
    const float center = nl_lanes_sum<S::LANES>(sum) / width;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, width))
#pragma unroll
            for (int i = 0; i < S::VEC; i++) {
                const float difference = v[c][i] - center;
                rest += difference;
                squares = fmaf(difference, difference, squares);
            }
    return nl_moments_of(center, nl_lanes_sum<S::LANES>(rest), nl_lanes_sum<S::LANES>(squares),
                         (float)width, eps);
}

/* Rows [group * count, + count) of this thread's group, as far as there are `rows`. */
template <typename S, bool RMS = false, typename Operation>
__device__ __forceinline__ void nl_normalise_rows(Operation &operation, int64_t rows, int count,
                                                  int width, float eps)
{
    const int64_t first = (blockIdx.x * (int64_t)S::GROUPS + threadIdx.x / S::LANES) * count;
    typename Operation::Raw next;
    if (first < rows)
        operation.fetch(first, next);
    for (int64_t row = first; row < first + count; row++) {
        /* Groups of one warp go through the loop together, for the sums across lanes. */
        const bool valid = row < rows;
        const typename Operation::Raw raw = next;
        if (row + 1 < first + count && row + 1 < rows)
            operation.fetch(row + 1, next);
        float v[S::CHUNKS][S::VEC] = {};
        if (valid) {
            operation.enter(row);
            operation.values(row, raw, v);
        }
        const nl_moments moments = nl_row_moments<S, RMS>(v, width, eps);
        if (valid)
            operation.finish(row, raw, v, moments);
    }
}

/* Rows that a group takes one after the other: few enough that all of the card has work. */
static inline int nl_rows_of_group(int64_t rows, int groups_of_block, int multiprocessors)
{
    int count = 8;
    while (count > 1 && rows / groups_of_block / count < 8 * multiprocessors)
        count /= 2;
    return count;
}

/* Calls BODY with S the shape of rows of `width` elements in vectors; a width that is not a multiple of 4 or passes
 * 1280 has none. The exact ones are the widths of the S, B, L and XL models. */
#define NL_FOR_ROW_SHAPE(width, S, ...)                                                            \
    do {                                                                                           \
        if ((width) == 384) {                                                                      \
            using S = nl_row_shape<16, 8, 3, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) == 768) {                                                               \
            using S = nl_row_shape<32, 8, 3, true>;                                                \
            __VA_ARGS__;                                                                           \
        } else if ((width) == 1024) {                                                              \
            using S = nl_row_shape<32, 8, 4, true>;                                                \
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

static inline bool nl_row_vectors(int64_t width)
{
    return width % 4 == 0 && width <= 1280;
}

#endif
