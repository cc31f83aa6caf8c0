/* SPDX-License-Identifier: MIT */
/* y = (LN(x) weight + bias) SiLU(g) over all heads: each activation crosses memory once each way. A row lies in the registers
 * of its lanes (layernorm.cuh), or where it is too wide is walked over three times by a warp; nothing lies in shared memory. */
#include "layernorm.cuh"

/* F8: of y. */
template <typename T, typename S, bool F8> struct gate_rows {
    static constexpr int CHUNKS = S::CHUNKS, VEC = S::VEC;
    static constexpr int RESIDENT = sizeof(T) > 2 ? 1 : S::SHORT ? 5 : 4; /* blocks */
    struct Raw {
        nl_piece<T, VEC> x[CHUNKS], g[CHUNKS];
    };
    const T *x, *g;
    const float *weight,
        *bias; /* read for each row: they stay in L1, and leave registers for rows */
    void *y;
    float *y_scale; /* of F8 */
    int width;
    int64_t g_stride;

    __device__ __forceinline__ void enter(int64_t) {}
    __device__ __forceinline__ void fetch(int64_t row, Raw &raw) const
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (S::there(c, width)) {
                raw.x[c] = nl_piece_at<T, VEC>(x + row * width + S::at(c));
                if (g)
                    raw.g[c] = nl_piece_at<T, VEC>(g + row * g_stride + S::at(c));
            }
    }
    __device__ __forceinline__ void values(int64_t, const Raw &raw, float (&v)[CHUNKS][VEC]) const
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (S::there(c, width))
                raw.x[c].unpack(v[c]);
    }
    __device__ __forceinline__ void finish(int64_t row, const Raw &raw,
                                           const float (&v)[CHUNKS][VEC], nl_moments moments) const
    {
        nl_put_row<S, F8, T>(y, y_scale, row, width, [&](int c, float(&out)[VEC]) {
            float gate[VEC], w[VEC], b[VEC];
            nl_piece_at<float, VEC>(weight + S::at(c)).unpack(w);
            nl_piece_at<float, VEC>(bias + S::at(c)).unpack(b);
            if (g)
                raw.g[c].unpack(gate);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                out[i] = fmaf(moments(v[c][i]), w[i], b[i]);
                if (g)
                    out[i] *= nl_silu(gate[i]);
            }
        });
    }
};

/* x may be y: a row is read whole before it is written. */
template <typename T, typename S, bool F8>
__global__ void __launch_bounds__(S::THREADS, gate_rows<T, S, F8>::RESIDENT)
    gate_kernel(const T *x, const float *weight, const float *bias, const T *g, void *y,
                float *y_scale, int64_t rows, int count, int width, int64_t g_stride, float eps)
{
    gate_rows<T, S, F8> operation = {x, g, weight, bias, y, y_scale, width, g_stride};
    nl_normalise_rows<S>(operation, rows, count, width, eps);
}

/* Any width: a warp a row, which is read three times. */
template <typename T>
__global__ void gate_any_kernel(const T *x, const float *weight, const float *bias, const T *g,
                                void *y, float *y_scale, int64_t rows, int width, int64_t g_stride,
                                float eps)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    if (row >= rows)
        return;
    float sum = 0.f, rest = 0.f, squares = 0.f;
    for (int i = lane; i < width; i += 32)
        sum += nl_get(x + row * width + i);
    const float center = nl_warp_sum(sum) / width;
    for (int i = lane; i < width; i += 32) {
        const float difference = nl_get(x + row * width + i) - center;
        rest += difference;
        squares = fmaf(difference, difference, squares);
    }
    const nl_moments moments =
        nl_moments_of(center, nl_warp_sum(rest), nl_warp_sum(squares), (float)width, eps);
    const auto out = [&](int i) {
        const float normal = fmaf(moments(nl_get(x + row * width + i)), weight[i], bias[i]);
        return g ? normal * nl_silu(nl_get(g + row * g_stride + i)) : normal;
    };
    if (!y_scale) {
        for (int i = lane; i < width; i += 32)
            nl_put((T *)y + row * width + i, out(i));
        return;
    }
    uint32_t largest = 0;
    float inverse;
    for (int i = lane; i < width; i += 32)
        largest = max(largest, nl_prim::magnitude_of(out(i)));
    const float factor = nl_prim::e4m3_scale(nl_prim::lanes_max<32>(largest), &inverse);
    if (lane == 0)
        y_scale[row] = factor;
    for (int i = lane; i < width; i += 32)
        nl_put((__nv_fp8_e4m3 *)y + row * width + i, out(i) * inverse);
}

template <typename T> static void choose(nl_cuda *cuda, const nl_layernorm_gate_args *a)
{
    const int64_t rows = a->x.shape[0], stride = a->g.data ? a->g.row_stride : 0;
    const int width = (int)a->x.shape[1];
    const T *x = (const T *)a->x.data, *g = (const T *)a->g.data;
    const float *weight = (const float *)a->weight.data, *bias = (const float *)a->bias.data;
    constexpr bool HALF = sizeof(T) == 2; /* F8 of others is rare */
    if (!nl_row_vectors(width) || stride % 8 || (uintptr_t)g % 16 || (!HALF && a->y.scale)) {
        gate_any_kernel<T><<<nl_blocks(rows, 8), 256, 0, cuda->stream>>>(
            x, weight, bias, g, a->y.data, a->y.scale, rows, width, stride, a->eps);
        return;
    }
    NL_FOR_ROW_SHAPE(width, S, {
        const int count = nl_rows_of_group(rows, S::GROUPS, cuda->multiprocessors);
        auto kernel = HALF && a->y.scale ? gate_kernel<T, S, HALF> : gate_kernel<T, S, false>;
        kernel<<<nl_blocks(rows, S::GROUPS * count), S::THREADS, 0, cuda->stream>>>(
            x, weight, bias, g, a->y.data, a->y.scale, rows, count, width, stride, a->eps);
    });
}

extern "C" nl_status nl_cuda_layernorm_gate(nl_device *device, const nl_layernorm_gate_args *args)
{
    if (args->x.shape[0] > 0)
        NL_FOR_TYPE(args->x, T, (choose<T>(nl_cuda_of(device), args)));
    return NL_CUDA_LAUNCHED(device, "layernorm_gate");
}
