/* SPDX-License-Identifier: MIT */
/* Gradients of layernorm_gate: every activation crosses memory once each way; sums over all rows in two stages, parts of
 * neighbouring rows and then the parts. */
#include "column_sums.cuh"
#include "layernorm_backward.cuh"

#include "prim/shared_limit.cuh"

template <typename T> struct gate_gradient {
    const T *x, *g, *dy;
    T *dx, *dg, *y;
    const float *weight, *bias;
    int64_t rows, part_rows, g_stride, dg_stride;
    int width, kinds; /* of sums: dweight, dbias, and with dg_sums that of dg */
    float eps;
    float *sums; /* [parts, kinds, width] */
};

template <typename T, typename S> struct raw_row {
    nl_piece<T, S::VEC> x[S::CHUNKS], g[S::CHUNKS], dy[S::CHUNKS];
};

template <typename T, typename S>
__device__ __forceinline__ void fetch(const gate_gradient<T> &p, int64_t row, raw_row<T, S> &raw)
{
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, p.width)) {
            raw.x[c] = nl_piece_at<T, S::VEC>(p.x + row * p.width + S::at(c));
            raw.dy[c] = nl_piece_at<T, S::VEC>(p.dy + row * p.width + S::at(c));
            if (p.g)
                raw.g[c] = nl_piece_at<T, S::VEC>(p.g + row * p.g_stride + S::at(c));
        }
}

/* 1 / (1 + e^-x); what becomes bf16 takes the hardware's tanh (error 2^-11). */
__device__ __forceinline__ float sigmoid_of(float x, float)
{
    return __fdividef(1.f, 1.f + __expf(fminf(-x, 80.f)));
}
__device__ __forceinline__ float sigmoid_of(float x, __nv_bfloat16)
{
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5f * x));
    return fmaf(0.5f, t, 0.5f);
}

template <typename T, typename S>
__device__ __forceinline__ void gradient_of_row(const gate_gradient<T> &p, int64_t row,
                                                const raw_row<T, S> &raw, float *sums)
{
    constexpr int CHUNKS = S::CHUNKS, VEC = S::VEC;
    float v[CHUNKS][VEC] = {}, d[CHUNKS][VEC] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width))
            raw.x[c].unpack(v[c]);
    const nl_moments moments = nl_row_moments<S>(v, p.width, p.eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width)) {
            const int at = S::at(c);
            float weight[VEC], bias[VEC], product[VEC], y[VEC], dg[VEC];
            nl_piece_at<float, VEC>(p.weight + at).unpack(weight);
            nl_piece_at<float, VEC>(p.bias + at).unpack(bias);
            raw.dy[c].unpack(d[c]);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                v[c][i] = moments(v[c][i]);
                y[i] = fmaf(v[c][i], weight[i], bias[i]);
            }
            if (p.g) {
                float g[VEC];
                raw.g[c].unpack(g);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float sigmoid = sigmoid_of(g[i], T());
                    const float silu = g[i] * sigmoid;
                    dg[i] = d[c][i] * y[i] * fmaf(silu, 1.f - sigmoid, sigmoid);
                    y[i] *= silu;
                    d[c][i] *= silu;
                }
                nl_put_piece(p.dg + row * p.dg_stride + at, dg);
                if (p.kinds == 3)
                    nl_add_to_sums<S>(sums + 2 * p.width, c, dg);
            }
            if (p.y)
                nl_put_piece(p.y + row * p.width + at, y);
            nl_add_to_sums<S>(sums + p.width, c, d[c]);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                product[i] = d[c][i] * v[c][i];
                d[c][i] *= weight[i];
            }
            nl_add_to_sums<S>(sums, c, product);
        }
    nl_normalise_gradient<S>(v, d, p.width, moments.scale);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width))
            nl_put_piece(p.dx + row * p.width + S::at(c), d[c]);
}

/* grid (parts) */
template <typename T, typename S>
__global__ void __launch_bounds__(32 * NL_PART_WARPS) gate_gradient_kernel(const gate_gradient<T> p)
{
    extern __shared__ __align__(16) float shared[];
    const int warp = threadIdx.x / 32;
    float *sums = shared + warp * p.kinds * p.width;
    for (int i = threadIdx.x % 32; i < p.kinds * p.width; i += 32)
        sums[i] = 0.f;
    __syncwarp();
    const int64_t first = blockIdx.x * p.part_rows + warp;
    const int64_t last = min((blockIdx.x + 1) * p.part_rows, p.rows);
    raw_row<T, S> next;
    if (nl_row_ahead<S>::value && first < last)
        fetch<T, S>(p, first, next);
    for (int64_t row = first; row < last; row += NL_PART_WARPS) {
        raw_row<T, S> raw;
        if (nl_row_ahead<S>::value) {
            raw = next;
            if (row + NL_PART_WARPS < last)
                fetch<T, S>(p, row + NL_PART_WARPS, next);
        } else {
            fetch<T, S>(p, row, raw);
        }
        gradient_of_row<T, S>(p, row, raw, sums);
    }
    nl_store_part(shared, p.kinds * p.width, p.sums + (int64_t)blockIdx.x * p.kinds * p.width);
}

/* Any width: the sums first, because dx may be dy and y may be x. grid (width / 64, parts) */
template <typename T> __global__ void any_moments_kernel(const gate_gradient<T> p, float *moments)
{
    const int64_t row = blockIdx.x;
    const nl_moments m = nl_block_moments(p.x + row * p.width, p.width, p.eps);
    if (threadIdx.x == 0)
        moments[3 * row] = m.center, moments[3 * row + 1] = m.scale,
                    moments[3 * row + 2] = m.offset;
}

template <typename T>
__global__ void any_column_kernel(const gate_gradient<T> p, const float *moments)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.width)
        return;
    float weight = 0.f, bias = 0.f;
    const int64_t last = min((blockIdx.y + 1) * p.part_rows, p.rows);
    for (int64_t row = blockIdx.y * p.part_rows; row < last; row++) {
        const nl_moments m = {moments[3 * row], moments[3 * row + 1], moments[3 * row + 2]};
        float d = nl_get(p.dy + row * p.width + i);
        if (p.g)
            d *= nl_silu(nl_get(p.g + row * p.g_stride + i));
        bias += d, weight = fmaf(d, m(nl_get(p.x + row * p.width + i)), weight);
    }
    p.sums[(int64_t)blockIdx.y * p.kinds * p.width + i] = weight;
    p.sums[(int64_t)blockIdx.y * p.kinds * p.width + p.width + i] = bias;
}

/* A block for a row. */
template <typename T> __global__ void any_row_kernel(const gate_gradient<T> p, const float *moments)
{
    const int64_t row = blockIdx.x, at = row * p.width;
    const nl_moments m = {moments[3 * row], moments[3 * row + 1], moments[3 * row + 2]};
    auto by_affine = [&](int i) {
        const float d = nl_get(p.dy + at + i);
        return p.g ? d * nl_silu(nl_get(p.g + row * p.g_stride + i)) : d;
    };
    float sum = 0.f, product = 0.f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float d = by_affine(i) * p.weight[i];
        sum += d, product = fmaf(d, m(nl_get(p.x + at + i)), product);
    }
    sum = nl_block_sum(sum) / p.width, product = nl_block_sum(product) / p.width;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float n = m(nl_get(p.x + at + i)), dy = nl_get(p.dy + at + i), d = by_affine(i);
        const float affine = fmaf(n, p.weight[i], p.bias[i]);
        const float g = p.g ? nl_get(p.g + row * p.g_stride + i) : 0.f;
        if (p.g)
            nl_put(p.dg + row * p.dg_stride + i, dy * affine * nl_silu_derivative(g));
        if (p.y)
            nl_put(p.y + at + i, p.g ? affine * nl_silu(g) : affine);
        nl_put(p.dx + at + i, m.scale * (d * p.weight[i] - sum - n * product));
    }
}

static int shared_bytes(int kinds, int width)
{
    return NL_PART_WARPS * kinds * width * 4;
}

/* Rows of a part: as many as give every block that the card holds at a time one part. */
template <typename T, typename S> static cudaError_t choose_part(gate_gradient<T> *p, nl_cuda *cuda)
{
    int resident = 1;
    const int bytes = shared_bytes(p->kinds, p->width);
    auto kernel = gate_gradient_kernel<T, S>;
    cudaError_t error = nl_allow_shared(kernel, bytes);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, 32 * NL_PART_WARPS,
                                                              bytes);
    const int64_t blocks = (int64_t)cuda->multiprocessors * (resident > 0 ? resident : 1);
    const int64_t rounds = (p->rows + blocks * NL_PART_WARPS - 1) / (blocks * NL_PART_WARPS);
    p->part_rows = rounds * NL_PART_WARPS;
    return error;
}

template <typename T>
static nl_status run(nl_device *device, const nl_layernorm_gate_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    cudaError_t error = cudaSuccess;
    gate_gradient<T> p = {};
    p.x = (const T *)a->x.data, p.g = (const T *)a->g.data, p.dy = (const T *)a->dy.data;
    p.dx = (T *)a->dx.data, p.dg = (T *)a->dg.data, p.y = (T *)a->y.data;
    p.weight = (const float *)a->weight.data, p.bias = (const float *)a->bias.data;
    p.rows = a->x.shape[0], p.width = (int)a->x.shape[1], p.eps = a->eps;
    p.g_stride = p.g ? a->g.row_stride : 0, p.dg_stride = p.g ? a->dg.row_stride : 0;
    if (p.rows == 0)
        return NL_OK;
    const bool vectors =
        nl_row_vectors(p.width) && (p.g_stride | p.dg_stride) % 4 == 0 &&
        ((uintptr_t)p.g | (uintptr_t)p.dg | (uintptr_t)p.weight | (uintptr_t)p.bias) % 16 == 0;
    void *scratch;
    p.part_rows = 64;
    p.kinds = vectors && a->dg_sums.data ? 3 : 2;
    if (vectors)
        NL_FOR_GRADIENT_SHAPE(p.width, S, error = (choose_part<T, S>(&p, nl_cuda_of(device))););
    if (error != cudaSuccess)
        return nl_cuda_check(device, error, "layernorm_gate_backward");
    const int64_t parts = (p.rows + p.part_rows - 1) / p.part_rows;
    const int64_t sums = parts * p.kinds * p.width;
    nl_status status = nl_cuda_scratch(device, "sums of a normalisation",
                                       (sums + (vectors ? 0 : 3 * p.rows)) * 4, &scratch);
    if (status != NL_OK)
        return status;
    p.sums = (float *)scratch;
    if (vectors) {
        NL_FOR_GRADIENT_SHAPE(p.width, S, {
            gate_gradient_kernel<T, S>
                <<<(unsigned)parts, 32 * NL_PART_WARPS, shared_bytes(p.kinds, p.width), stream>>>(
                    p);
        });
    } else {
        float *moments = p.sums + sums;
        any_moments_kernel<T><<<(unsigned)p.rows, 128, 0, stream>>>(p, moments);
        any_column_kernel<T>
            <<<dim3(nl_blocks(p.width, 64), (unsigned)parts), 64, 0, stream>>>(p, moments);
        any_row_kernel<T><<<(unsigned)p.rows, 128, 0, stream>>>(p, moments);
    }
    nl_cuda_add_parts(stream, p.sums, parts,
                      {{(float *)a->dweight.data, p.width},
                       {(float *)a->dbias.data, p.width},
                       {(float *)a->dg_sums.data, (p.kinds - 2) * p.width}});
    if (a->dg_sums.data && p.kinds == 2)
        status = nl_cuda_column_sums(device, &a->dg, (float *)a->dg_sums.data);
    if (status != NL_OK)
        return status;
    return NL_CUDA_LAUNCHED(device, "layernorm_gate_backward");
}

extern "C" nl_status nl_cuda_layernorm_gate_backward(nl_device *device,
                                                     const nl_layernorm_gate_backward_args *args)
{
    nl_status status = NL_OK;
    NL_FOR_TYPE(args->x, T, status = run<T>(device, args));
    return status;
}
