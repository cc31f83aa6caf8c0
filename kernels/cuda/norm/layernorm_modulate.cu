/* SPDX-License-Identifier: MIT */
/* x += gate * branch, then y = norm(x) (1 + scale) + shift: each activation crosses memory once each way. A row lies in the
 * registers of its lanes, and with it its image's modulation for as long as rows are of that image (layernorm.cuh); nothing
 * lies in shared memory, but rows that are too wide for registers: a block has one there in fp32. */
#include "layernorm.cuh"

/* What a kernel is given; pieces of the modulation have rows gate_stride and mod_stride apart, one for an image. */
template <typename T, typename M> struct modulate_problem {
    static constexpr bool RMS = false;
    const T *x;
    T *sum;         /* may be x */
    void *y;        /* T, or E4M3 where there is y_scale */
    float *y_scale; /* [rows] */
    const T *branch;
    const M *gate, *shift, *scale;
    int64_t rows, rows_per_image, gate_stride, shift_stride, scale_stride;
    int width;
    float eps;
    /* What a normalised element is multiplied by. */
    __device__ __forceinline__ float factor(int, float scale) const
    {
        return 1.f + scale;
    }
};
template <typename T, typename M> struct modulate_rms_problem : modulate_problem<T, M> {
    static constexpr bool RMS = true;
    const float *weight;
    __device__ __forceinline__ float factor(int column, float scale) const
    {
        return weight[column] * (1.f + scale);
    }
};

/* P: one of the two. F8: of y. */
template <typename P, typename T, typename M, typename S, bool BRANCH, bool F8>
struct modulate_rows {
    static constexpr int CHUNKS = S::CHUNKS, VEC = S::VEC;
    struct Raw {
        nl_piece<T, VEC> x[CHUNKS], branch[BRANCH ? CHUNKS : 1];
    };
    const P &p;
    int64_t next_image; /* first row of it: until there the pieces below are right */
    nl_piece<M, VEC> scale[CHUNKS], shift[CHUNKS], gate[BRANCH ? CHUNKS : 1];

    __device__ __forceinline__ void enter(int64_t row)
    {
        if (row < next_image)
            return;
        const int64_t image = row / p.rows_per_image;
        next_image = (image + 1) * p.rows_per_image;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (S::there(c, p.width)) {
                scale[c] = nl_piece_at<M, VEC>(p.scale + image * p.scale_stride + S::at(c));
                shift[c] = nl_piece_at<M, VEC>(p.shift + image * p.shift_stride + S::at(c));
                if (BRANCH)
                    gate[c] = nl_piece_at<M, VEC>(p.gate + image * p.gate_stride + S::at(c));
            }
    }
    __device__ __forceinline__ void fetch(int64_t row, Raw &raw) const
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (S::there(c, p.width)) {
                raw.x[c] = nl_piece_at<T, VEC>(p.x + row * p.width + S::at(c));
                if (BRANCH)
                    raw.branch[c] = nl_piece_at<T, VEC>(p.branch + row * p.width + S::at(c));
            }
    }
    __device__ __forceinline__ void values(int64_t row, const Raw &raw,
                                           float (&v)[CHUNKS][VEC]) const
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (S::there(c, p.width)) {
                raw.x[c].unpack(v[c]);
                if (BRANCH) {
                    float b[VEC], g[VEC];
                    raw.branch[c].unpack(b);
                    gate[c].unpack(g);
#pragma unroll
                    for (int i = 0; i < VEC; i++)
                        v[c][i] = fmaf(g[i], b[i], v[c][i]);
                    nl_put_piece(p.sum + row * p.width + S::at(c), v[c]);
                }
            }
    }
    __device__ __forceinline__ void finish(int64_t row, const Raw &, const float (&v)[CHUNKS][VEC],
                                           nl_moments moments) const
    {
        nl_put_row<S, F8, T>(p.y, p.y_scale, row, p.width, [&](int c, float(&out)[VEC]) {
            float a[VEC], b[VEC];
            scale[c].unpack(a);
            shift[c].unpack(b);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                out[i] = fmaf(moments(v[c][i]), p.factor(S::at(c) + i, a[i]), b[i]);
        });
    }
};

template <typename P, typename T, typename M, typename S, bool BRANCH, bool F8>
__global__ void __launch_bounds__(S::THREADS, sizeof(T) + sizeof(M) > 4 ? 1
                                              : S::SHORT                ? 4
                                                         : 3) modulate_kernel(const P p, int count)
{
    modulate_rows<P, T, M, S, BRANCH, F8> operation = {p, 0};
    nl_normalise_rows<S, P::RMS>(operation, p.rows, count, p.width, p.eps);
}

/* Any width: one block a row, which stays in shared memory in fp32. */
template <typename P, typename T> __global__ void modulate_any_kernel(const P p)
{
    extern __shared__ float values[];
    const int64_t row = blockIdx.x, image = row / p.rows_per_image;
    float sum = 0.f, rest = 0.f, squares = 0.f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = nl_get(p.x + row * p.width + i);
        if (p.branch) {
            v = fmaf(nl_get(p.gate + image * p.gate_stride + i),
                     nl_get(p.branch + row * p.width + i), v);
            nl_put(p.sum + row * p.width + i, v);
        }
        values[i] = v;
        sum += v;
    }
    const float center = P::RMS ? 0.f : nl_block_sum(sum) / p.width;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float difference = values[i] - center;
        rest += difference;
        squares = fmaf(difference, difference, squares);
    }
    rest = P::RMS ? 0.f : nl_block_sum(rest);
    const nl_moments moments =
        nl_moments_of(center, rest, nl_block_sum(squares), (float)p.width, p.eps);
    const auto out = [&](int i) {
        return fmaf(moments(values[i]), p.factor(i, nl_get(p.scale + image * p.scale_stride + i)),
                    nl_get(p.shift + image * p.shift_stride + i));
    };
    if (!p.y_scale) {
        for (int i = threadIdx.x; i < p.width; i += blockDim.x)
            nl_put((T *)p.y + row * p.width + i, out(i));
        return;
    }
    uint32_t largest = 0;
    float inverse;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x)
        largest = max(largest, nl_prim::magnitude_of(out(i)));
    const float factor = nl_prim::e4m3_scale(nl_prim::block_max(largest), &inverse);
    if (threadIdx.x == 0)
        p.y_scale[row] = factor;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x)
        nl_put((__nv_fp8_e4m3 *)p.y + row * p.width + i, out(i) * inverse);
}

template <typename P, typename T, typename M> static nl_status launch(nl_device *device, const P &p)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const bool aligned = ((p.gate_stride | p.shift_stride | p.scale_stride) % 8 == 0) &&
                         ((uintptr_t)p.scale | (uintptr_t)p.shift | (uintptr_t)p.gate) % 16 == 0;
    if (p.rows == 0)
        return NL_OK;
    constexpr bool HALF = sizeof(T) + sizeof(M) == 4; /* both bf16: F8 of others is rare */
    if (nl_row_vectors(p.width) && aligned && (HALF || !p.y_scale)) {
        NL_FOR_ROW_SHAPE(p.width, S, {
            const int count = nl_rows_of_group(p.rows, S::GROUPS, cuda->multiprocessors);
            auto kernel = p.branch ? modulate_kernel<P, T, M, S, true, false>
                                   : modulate_kernel<P, T, M, S, false, false>;
            if (HALF && p.y_scale)
                kernel = p.branch ? modulate_kernel<P, T, M, S, true, HALF>
                                  : modulate_kernel<P, T, M, S, false, HALF>;
            kernel<<<nl_blocks(p.rows, S::GROUPS * count), S::THREADS, 0, cuda->stream>>>(p, count);
        });
    } else if (p.width > 12000) {
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "layernorm: rows of %d elements, at most 12000 on the GPU", p.width);
    } else {
        modulate_any_kernel<P, T>
            <<<(unsigned)p.rows, 256, p.width * sizeof(float), cuda->stream>>>(p);
    }
    return NL_CUDA_LAUNCHED(device, "layernorm_modulate");
}

template <typename T, typename M>
static nl_status choose(nl_device *device, const nl_layernorm_modulate_args *a)
{
    const modulate_problem<T, M> p = {(const T *)a->x.data,
                                      (T *)(a->sum.data ? a->sum.data : a->x.data),
                                      a->y.data,
                                      a->y.scale,
                                      (const T *)a->branch.data,
                                      (const M *)a->gate.data,
                                      (const M *)a->shift.data,
                                      (const M *)a->scale.data,
                                      a->x.shape[0],
                                      a->rows_per_image,
                                      a->gate.row_stride,
                                      a->shift.row_stride,
                                      a->scale.row_stride,
                                      (int)a->x.shape[1],
                                      a->eps};
    if (a->norm != NL_NORM_RMS)
        return launch<modulate_problem<T, M>, T, M>(device, p);
    const modulate_rms_problem<T, M> rms = {p, (const float *)a->weight.data};
    return launch<modulate_rms_problem<T, M>, T, M>(device, rms);
}

extern "C" nl_status nl_cuda_layernorm_modulate(nl_device *device,
                                                const nl_layernorm_modulate_args *args)
{
    nl_status status = NL_OK;
    NL_FOR_TYPE(args->x, T, NL_FOR_TYPE(args->scale, M, status = (choose<T, M>(device, args))));
    return status;
}
