/* SPDX-License-Identifier: MIT */
/* y = (LN(x) weight + bias) SiLU(g) over all heads: each activation crosses memory once each way. A row lies in the registers
 * of its lanes (layernorm.cuh), or where it is too wide is walked over three times by a warp; nothing lies in shared memory. */
#include "layernorm.cuh"

template <typename T, typename S> struct gate_rows {
    static constexpr int CHUNKS = S::CHUNKS, VEC = S::VEC;
    static constexpr int RESIDENT = sizeof(T) > 2 ? 1 : S::SHORT ? 5 : 4; /* blocks */
    struct Raw {
        nl_piece<T, VEC> x[CHUNKS], g[CHUNKS];
    };
    const T *x, *g;
    const float *weight,
        *bias; /* read for each row: they stay in L1, and leave registers for rows */
    T *y;
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
        nl_put_row<S, false, T>(y, NULL, row, width, [&](int c, float(&out)[VEC]) {
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
template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, gate_rows<T, S>::RESIDENT)
    gate_kernel(const T *x, const float *weight, const float *bias, const T *g, T *y, int64_t rows,
                int count, int width, int64_t g_stride, float eps)
{
    gate_rows<T, S> operation = {x, g, weight, bias, y, width, g_stride};
    nl_normalise_rows<S>(operation, rows, count, width, eps);
}

/* Any width: a warp a row, which is read three times. */
template <typename T>
__global__ void gate_any_kernel(const T *x, const float *weight, const float *bias, const T *g,
                                T *y, int64_t rows, int width, int64_t g_stride, float eps)
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
    for (int i = lane; i < width; i += 32) {
        const float normal = fmaf(moments(nl_get(x + row * width + i)), weight[i], bias[i]);
        nl_put(y + row * width + i, g ? normal * nl_silu(nl_get(g + row * g_stride + i)) : normal);
    }
}

template <typename T> static void choose(nl_cuda *cuda, const nl_layernorm_gate_args *a)
{
    const int64_t rows = a->x.shape[0], stride = a->g.data ? a->g.row_stride : 0;
    const int width = (int)a->x.shape[1];
    const T *x = (const T *)a->x.data, *g = (const T *)a->g.data;
    const float *weight = (const float *)a->weight.data, *bias = (const float *)a->bias.data;
    T *y = (T *)a->y.data;
    if (!nl_row_vectors(width) || stride % 8 || (uintptr_t)g % 16) {
        gate_any_kernel<T><<<nl_blocks(rows, 8), 256, 0, cuda->stream>>>(
            x, weight, bias, g, y, rows, width, stride, a->eps);
        return;
    }
    NL_FOR_ROW_SHAPE(width, S, {
        const int count = nl_rows_of_group(rows, S::GROUPS, cuda->multiprocessors);
        gate_kernel<T, S><<<nl_blocks(rows, S::GROUPS * count), S::THREADS, 0, cuda->stream>>>(
            x, weight, bias, g, y, rows, count, width, stride, a->eps);
    });
}

extern "C" nl_status nl_cuda_layernorm_gate(nl_device *device, const nl_layernorm_gate_args *args)
{
    if (args->x.shape[0] > 0)
        NL_FOR_TYPE(args->x, T, (choose<T>(nl_cuda_of(device), args)));
    return NL_CUDA_LAUNCHED(device, "layernorm_gate");
}
