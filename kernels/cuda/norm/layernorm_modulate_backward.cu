/* SPDX-License-Identifier: MIT */
/* Gradients of layernorm_modulate: every activation crosses memory once each way; sums over the rows of an image in two
 * stages, parts of NL_PART_ROWS rows and then the parts. */
#include "column_sums.cuh"
#include "layernorm_backward.cuh"

#include "prim/shared_limit.cuh"

enum { KINDS = 4 /* sums: dshift, dscale, dgate, and of dbranch */ };

template <typename T, typename M> struct modulate_gradient {
    static constexpr bool RMS = false;
    const T *x, *dy, *branch;
    T *dx, *dbranch, *y;
    const M *scale, *shift, *gate;
    int64_t rows_per_image, scale_stride, shift_stride, gate_stride;
    int width, parts; /* parts of an image */
    float eps;
    float *sums; /* [images, parts, KINDS, width] */
    /* What a normalised element is multiplied by. */
    __device__ __forceinline__ float factor(int, float scale) const
    {
        return 1.f + scale;
    }
};
template <typename T, typename M> struct modulate_rms_gradient : modulate_gradient<T, M> {
    static constexpr bool RMS = true;
    const float *weight;
    __device__ __forceinline__ float factor(int column, float scale) const
    {
        return weight[column] * (1.f + scale);
    }
};

template <typename T, typename S, bool BRANCH> struct raw_row {
    nl_piece<T, S::VEC> x[S::CHUNKS], dy[S::CHUNKS], dx[S::CHUNKS], branch[BRANCH ? S::CHUNKS : 1];
};

/* P: one of the two. */
template <typename P, typename T, typename S, bool BRANCH>
__device__ __forceinline__ void fetch(const P &p, int64_t row, raw_row<T, S, BRANCH> &raw)
{
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, p.width)) {
            const int64_t at = row * p.width + S::at(c);
            raw.x[c] = nl_piece_at<T, S::VEC>(p.x + at);
            raw.dy[c] = nl_piece_at<T, S::VEC>(p.dy + at);
            raw.dx[c] = nl_piece_at<T, S::VEC>(p.dx + at);
            if (BRANCH)
                raw.branch[c] = nl_piece_at<T, S::VEC>(p.branch + at);
        }
}

/* The modulation of an image, as it lies in memory. */
template <typename M, typename S, bool BRANCH> struct modulation {
    nl_piece<M, S::VEC> scale[S::CHUNKS], shift[S::CHUNKS], gate[BRANCH ? S::CHUNKS : 1];
};

template <typename P, typename T, typename M, typename S, bool BRANCH>
__device__ __forceinline__ void gradient_of_row(const P &p, int64_t row,
                                                const raw_row<T, S, BRANCH> &raw,
                                                const modulation<M, S, BRANCH> &m, float *sums)
{
    constexpr int CHUNKS = S::CHUNKS, VEC = S::VEC;
    float v[CHUNKS][VEC] = {}, d[CHUNKS][VEC] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width))
            raw.x[c].unpack(v[c]);
    const nl_moments moments = nl_row_moments<S, P::RMS>(v, p.width, p.eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width)) {
            float scale[VEC], shift[VEC], y[VEC], product[VEC];
            m.scale[c].unpack(scale);
            raw.dy[c].unpack(d[c]);
            nl_add_to_sums<S>(sums, c, d[c]);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                v[c][i] = moments(v[c][i]);
                product[i] = d[c][i] * v[c][i];
                d[c][i] *= p.factor(S::at(c) + i, scale[i]);
            }
            nl_add_to_sums<S>(sums + p.width, c, product);
            if (p.y) {
                m.shift[c].unpack(shift);
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    y[i] = fmaf(v[c][i], p.factor(S::at(c) + i, scale[i]), shift[i]);
                nl_put_piece(p.y + row * p.width + S::at(c), y);
            }
        }
    nl_normalise_gradient<S, P::RMS>(v, d, p.width, moments.scale);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (S::there(c, p.width)) {
            const int64_t at = row * p.width + S::at(c);
            float dx[VEC];
            raw.dx[c].unpack(dx);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                dx[i] += d[c][i];
            nl_put_piece(p.dx + at, dx);
            if (BRANCH) {
                float gate[VEC], branch[VEC];
                m.gate[c].unpack(gate);
                raw.branch[c].unpack(branch);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    branch[i] *= dx[i];
                    gate[i] *= dx[i];
                }
                nl_add_to_sums<S>(sums + 2 * p.width, c, branch);
                nl_add_to_sums<S>(sums + 3 * p.width, c, gate);
                nl_put_piece(p.dbranch + at, gate);
            }
        }
}

/* grid (parts, images) */
template <typename P, typename T, typename M, typename S, bool BRANCH>
__global__ void __launch_bounds__(32 * NL_PART_WARPS,
                                  nl_row_ahead<S>::value && sizeof(T) == 2 ? 4 : 1)
    modulate_gradient_kernel(const P p)
{
    extern __shared__ __align__(16) float shared[];
    constexpr int kinds = BRANCH ? KINDS : 2;
    const int warp = threadIdx.x / 32;
    float *sums = shared + warp * kinds * p.width;
    for (int i = threadIdx.x % 32; i < kinds * p.width; i += 32)
        sums[i] = 0.f;
    __syncwarp();
    const int64_t image = blockIdx.y, begin = image * p.rows_per_image;
    const int64_t first = begin + blockIdx.x * NL_PART_ROWS + warp;
    const int64_t last = begin + min((blockIdx.x + 1) * (int64_t)NL_PART_ROWS, p.rows_per_image);
    modulation<M, S, BRANCH> m;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++)
        if (S::there(c, p.width)) {
            m.scale[c] = nl_piece_at<M, S::VEC>(p.scale + image * p.scale_stride + S::at(c));
            if (p.y)
                m.shift[c] = nl_piece_at<M, S::VEC>(p.shift + image * p.shift_stride + S::at(c));
            if (BRANCH)
                m.gate[c] = nl_piece_at<M, S::VEC>(p.gate + image * p.gate_stride + S::at(c));
        }
    raw_row<T, S, BRANCH> next;
    if (nl_row_ahead<S>::value && first < last)
        fetch<P, T, S, BRANCH>(p, first, next);
    for (int64_t row = first; row < last; row += NL_PART_WARPS) {
        raw_row<T, S, BRANCH> raw;
        if (nl_row_ahead<S>::value) {
            raw = next;
            if (row + NL_PART_WARPS < last)
                fetch<P, T, S, BRANCH>(p, row + NL_PART_WARPS, next);
        } else {
            fetch<P, T, S, BRANCH>(p, row, raw);
        }
        gradient_of_row<P, T, M, S, BRANCH>(p, row, raw, m, sums);
    }
    nl_store_part(shared, kinds * p.width,
                  p.sums + (image * p.parts + blockIdx.x) * KINDS * p.width);
}

template <typename M> struct modulation_gradient {
    static constexpr bool RMS = false;
    M *dshift, *dscale, *dgate; /* dgate may be NULL */
    float *branch_sums;         /* [images, width], with dgate */
    int64_t dshift_stride, dscale_stride, dgate_stride;
};
template <typename M> struct modulation_rms_gradient : modulation_gradient<M> {
    static constexpr bool RMS = true;
    const float *weight;
    const M *scale;
    int64_t scale_stride;
    float *weight_sums; /* [images, width] */
};

/* sum: of dy n over the rows of an image. Becomes dscale; the image's part of dweight is left. */
template <typename G>
__device__ __forceinline__ float weighed(const G &to, int64_t image, int width, int column,
                                         float sum)
{
    if constexpr (G::RMS) {
        to.weight_sums[image * width + column] =
            (1.f + nl_get(to.scale + image * to.scale_stride + column)) * sum;
        return to.weight[column] * sum;
    } else {
        return sum;
    }
}

/* grid (KINDS width / 256, images) */
template <typename G>
__global__ void add_parts_kernel(const float *sums, int parts, int width, G to)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, column = i % width;
    const int64_t image = blockIdx.y;
    if (i >= (to.dgate ? KINDS : 2) * width)
        return;
    float sum = 0.f;
#pragma unroll 8
    for (int part = 0; part < parts; part++)
        sum += sums[(image * parts + part) * KINDS * width + i];
    if constexpr (G::RMS)
        if (i >= width && i < 2 * width)
            sum = weighed(to, image, width, column, sum);
    if (i >= 3 * width)
        to.branch_sums[image * width + column] = sum;
    else
        nl_put(i < width       ? to.dshift + image * to.dshift_stride + column
               : i < 2 * width ? to.dscale + image * to.dscale_stride + column
                               : to.dgate + image * to.dgate_stride + column,
               sum);
}

/* Any width: a block for a row; then a thread for a column of an image. */
template <typename P, typename T, typename M>
__global__ void any_row_kernel(const P p, float *moments)
{
    const int64_t row = blockIdx.x, image = row / p.rows_per_image, at = row * p.width;
    const nl_moments m = nl_block_moments<T, P::RMS>(p.x + at, p.width, p.eps);
    const M *scale = p.scale + image * p.scale_stride;
    float sum = 0.f, product = 0.f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float d = nl_get(p.dy + at + i) * p.factor(i, nl_get(scale + i));
        sum += d, product = fmaf(d, m(nl_get(p.x + at + i)), product);
    }
    sum = P::RMS ? 0.f : nl_block_sum(sum) / p.width, product = nl_block_sum(product) / p.width;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float n = m(nl_get(p.x + at + i)), a = p.factor(i, nl_get(scale + i));
        const float dx =
            nl_get(p.dx + at + i) + m.scale * (nl_get(p.dy + at + i) * a - sum - n * product);
        nl_put(p.dx + at + i, dx);
        if (p.branch)
            nl_put(p.dbranch + at + i, nl_get(p.gate + image * p.gate_stride + i) * dx);
        if (p.y)
            nl_put(p.y + at + i, fmaf(n, a, nl_get(p.shift + image * p.shift_stride + i)));
    }
    if (threadIdx.x == 0)
        moments[3 * row] = m.center, moments[3 * row + 1] = m.scale,
                    moments[3 * row + 2] = m.offset;
}

template <typename P, typename G>
__global__ void any_column_kernel(const P p, const float *moments, G to)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t image = blockIdx.y;
    if (i >= p.width)
        return;
    float shift = 0.f, scale = 0.f, gate = 0.f, bias = 0.f;
    for (int64_t row = image * p.rows_per_image; row < (image + 1) * p.rows_per_image; row++) {
        const int64_t at = row * p.width + i;
        const nl_moments m = {moments[3 * row], moments[3 * row + 1], moments[3 * row + 2]};
        const float dy = nl_get(p.dy + at);
        shift += dy, scale = fmaf(dy, m(nl_get(p.x + at)), scale);
        if (p.branch) {
            gate = fmaf(nl_get(p.dx + at), nl_get(p.branch + at), gate);
            bias += nl_get(p.dbranch + at);
        }
    }
    nl_put(to.dshift + image * to.dshift_stride + i, shift);
    nl_put(to.dscale + image * to.dscale_stride + i, weighed(to, image, p.width, i, scale));
    if (to.dgate) {
        nl_put(to.dgate + image * to.dgate_stride + i, gate);
        to.branch_sums[image * p.width + i] = bias;
    }
}

template <typename P, typename T, typename M, typename S, bool BRANCH>
static cudaError_t launch_rows(const P &p, int64_t images, cudaStream_t stream)
{
    const int bytes = NL_PART_WARPS * (BRANCH ? KINDS : 2) * p.width * 4;
    auto kernel = modulate_gradient_kernel<P, T, M, S, BRANCH>;
    const cudaError_t error = nl_allow_shared(kernel, bytes);
    if (error == cudaSuccess)
        kernel<<<dim3((unsigned)p.parts, (unsigned)images), 32 * NL_PART_WARPS, bytes, stream>>>(p);
    return error;
}

template <typename P, typename G, typename T, typename M>
static cudaError_t launch(const P &p, const G &to, int64_t images, bool vectors,
                          cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    if (vectors) {
        NL_FOR_GRADIENT_SHAPE(p.width, S, {
            error = p.branch ? launch_rows<P, T, M, S, true>(p, images, stream)
                             : launch_rows<P, T, M, S, false>(p, images, stream);
        });
        add_parts_kernel<G>
            <<<dim3(nl_blocks(KINDS * p.width, 256), (unsigned)images), 256, 0, stream>>>(
                p.sums, p.parts, p.width, to);
    } else {
        any_row_kernel<P, T, M>
            <<<(unsigned)(images * p.rows_per_image), 128, 0, stream>>>(p, p.sums);
        any_column_kernel<P, G>
            <<<dim3(nl_blocks(p.width, 64), (unsigned)images), 64, 0, stream>>>(p, p.sums, to);
    }
    return error;
}

template <typename T, typename M>
static nl_status run(nl_device *device, const nl_layernorm_modulate_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->x.shape[0];
    if (rows == 0)
        return NL_OK;
    const int64_t images = rows / a->rows_per_image;
    modulate_gradient<T, M> p = {};
    p.x = (const T *)a->x.data, p.dy = (const T *)a->dy.data;
    p.branch = (const T *)a->branch.data;
    p.dx = (T *)a->dx.data, p.dbranch = (T *)a->dbranch.data, p.y = (T *)a->y.data;
    p.scale = (const M *)a->scale.data, p.shift = (const M *)a->shift.data;
    p.gate = (const M *)a->gate.data;
    p.scale_stride = a->scale.row_stride, p.shift_stride = p.y ? a->shift.row_stride : 0;
    p.gate_stride = p.branch ? a->gate.row_stride : 0;
    p.rows_per_image = a->rows_per_image, p.width = (int)a->x.shape[1], p.eps = a->eps;
    p.parts = (int)((a->rows_per_image + NL_PART_ROWS - 1) / NL_PART_ROWS);
    modulation_gradient<M> to = {};
    to.dshift = (M *)a->dshift.data, to.dshift_stride = a->dshift.row_stride;
    to.dscale = (M *)a->dscale.data, to.dscale_stride = a->dscale.row_stride;
    to.dgate = (M *)a->dgate.data, to.dgate_stride = a->dgate.row_stride;
    const bool vectors = nl_row_vectors(p.width) &&
                         (p.scale_stride | p.shift_stride | p.gate_stride) % 4 == 0 &&
                         ((uintptr_t)p.scale | (uintptr_t)p.shift | (uintptr_t)p.gate) % 16 == 0;
    void *scratch;
    const bool rms = a->norm == NL_NORM_RMS;
    const int64_t image_sums = images * p.width; /* of dbranch, and of dweight */
    const int64_t sums = vectors ? images * p.parts * KINDS * p.width : rows * 3;
    nl_status status = nl_cuda_scratch(device, "sums of a normalisation",
                                       ((rms ? 2 : 1) * image_sums + sums) * 4, &scratch);
    if (status != NL_OK)
        return status;
    to.branch_sums = (float *)scratch;
    p.sums = to.branch_sums + (rms ? 2 : 1) * image_sums; /* or moments of rows */
    cudaError_t error;
    if (rms) {
        modulate_rms_gradient<T, M> q = {p, (const float *)a->weight.data};
        modulation_rms_gradient<M> rms_to = {to, q.weight, p.scale, p.scale_stride,
                                             to.branch_sums + image_sums};
        error = launch<decltype(q), decltype(rms_to), T, M>(q, rms_to, images, vectors, stream);
        nl_cuda_add_parts(stream, rms_to.weight_sums, images,
                          {{(float *)a->dweight.data, p.width}});
    } else {
        error = launch<decltype(p), decltype(to), T, M>(p, to, images, vectors, stream);
    }
    if (a->dbias.data)
        nl_cuda_add_parts(stream, to.branch_sums, images, {{(float *)a->dbias.data, p.width}});
    return error == cudaSuccess ? NL_CUDA_LAUNCHED(device, "layernorm_modulate_backward")
                                : nl_cuda_check(device, error, "layernorm_modulate_backward");
}

extern "C" nl_status
nl_cuda_layernorm_modulate_backward(nl_device *device,
                                    const nl_layernorm_modulate_backward_args *args)
{
    nl_status status = NL_OK;
    NL_FOR_TYPE(args->x, T, NL_FOR_TYPE(args->scale, M, status = (run<T, M>(device, args))));
    return status;
}
