/* SPDX-License-Identifier: MIT */
/*
 * Attention through mediators: a block for a head of an image. Mediators, their values and, backward, the gradients of both
 * lie in shared memory; tokens pass in tiles of TILE. All sums are fp32 in a fixed order. A thread makes four or sixteen
 * neighbouring results of a product at a time:
 *
 *   scores      [TILE, M] = tile mediators^T
 *   accumulate  [M, d] += weights^T tile
 *   apply       [TILE, d] = weights matrix
 */
#include "cuda_common.cuh"

enum { TILE = 32, THREADS = 128, MAX_HEAD = 128, MAX_SIDE = 8, PAD = 4 };

struct mediated {
    const void *qkv, *dout;
    void *dqkv;
    int64_t stride, gradient_stride;
    int tokens, heads, size, side, width; /* width: of the grid */
    int height;
    float scale;
    float *mediators, *values, *lse; /* [B h, M, d], [B h, M] */
    float *dq;                       /* [B T, D]: without its part in mediators */
};

/* Sizes with padding: rows of d and of M are multiples of four and begin in other banks. */
struct layout {
    int count, mediators, columns, row, weights; /* M, M and d to multiples of four; strides */
    __host__ __device__ layout(int side, int size)
        : count(side * side), mediators((side * side + 3) / 4 * 4), columns((size + 3) / 4 * 4),
          row(columns + PAD), weights(mediators + PAD)
    {
    }
    __host__ __device__ int matrix() const
    {
        return mediators * row;
    }
    __host__ __device__ int tile() const
    {
        return TILE * row;
    }
    __host__ __device__ int scores() const
    {
        return TILE * weights;
    }
};

struct cell {
    int top, bottom, left, right;
};

__device__ __forceinline__ cell cell_of(const mediated &p, int a)
{
    const int y = a / p.side, x = a % p.side;
    cell c = {y * p.height / p.side, ((y + 1) * p.height + p.side - 1) / p.side,
              x * p.width / p.side, ((x + 1) * p.width + p.side - 1) / p.side};
    return c;
}

__device__ __forceinline__ void clear(float *to, int count)
{
    for (int i = threadIdx.x; i < count; i += THREADS)
        to[i] = 0.f;
}

/* Rows of a head to a tile; what is beyond `count` tokens and the head is 0. from: at the head's first column. */
template <typename T>
__device__ __forceinline__ void load_tile(const T *from, int64_t stride, int count, int size,
                                          const layout &l, float *to)
{
    for (int i = threadIdx.x; i < TILE * l.columns; i += THREADS) {
        const int t = i / l.columns, c = i - t * l.columns;
        to[t * l.row + c] = t < count && c < size ? nl_get(from + t * stride + c) : 0.f;
    }
}

template <typename T>
__device__ __forceinline__ void store_tile(const float *from, int count, int size, const layout &l,
                                           T *to, int64_t stride)
{
    for (int i = threadIdx.x; i < TILE * l.columns; i += THREADS) {
        const int t = i / l.columns, c = i - t * l.columns;
        if (t < count && c < size)
            nl_put(to + t * stride + c, from[t * l.row + c]);
    }
}

/* A matrix of a head [M, d] in global memory to and from its padded place. */
__device__ __forceinline__ void load_matrix(const float *from, int size, const layout &l, float *to)
{
    for (int i = threadIdx.x; i < l.matrix(); i += THREADS) {
        const int a = i / l.row, c = i - a * l.row;
        to[i] = a < l.count && c < size ? from[a * size + c] : 0.f;
    }
}

__device__ __forceinline__ void store_matrix(const float *from, int size, const layout &l,
                                             float *to)
{
    for (int i = threadIdx.x; i < l.count * size; i += THREADS)
        to[i] = from[i / size * l.row + i % size];
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

__device__ __forceinline__ float4 add4(float factor, float4 x, float4 sum)
{
    return make_float4(fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
                       fmaf(factor, x.w, sum.w));
}

__device__ __forceinline__ const float4 &four(const float *p)
{
    return *(const float4 *)p;
}

/* to [TILE, M] = scale tile matrix^T; lanes take neighbouring tokens. */
__device__ __forceinline__ void scores(const layout &l, const float *tile, const float *matrix,
                                       float scale, float *to)
{
    for (int i = threadIdx.x; i < TILE * l.mediators / 4; i += THREADS) {
        const int t = i % TILE, a = i / TILE * 4;
        float sums[4] = {};
        for (int c = 0; c < l.columns; c += 4) {
            const float4 x = four(tile + t * l.row + c);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[j] = dot4(x, four(matrix + (a + j) * l.row + c), sums[j]);
        }
        *(float4 *)(to + t * l.weights + a) =
            make_float4(scale * sums[0], scale * sums[1], scale * sums[2], scale * sums[3]);
    }
}

/* to [M, d] = factor[a] to + weights^T tile; factor NULL: 1. */
__device__ __forceinline__ void accumulate(const layout &l, const float *weights, const float *tile,
                                           const float *factor, float *to)
{
    const int across = l.columns / 4;
    for (int i = threadIdx.x; i < l.mediators / 4 * across; i += THREADS) {
        const int a = i / across * 4, c = i % across * 4;
        float4 sums[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 old = four(to + (a + j) * l.row + c);
            sums[j] = factor ? add4(factor[a + j], old, make_float4(0.f, 0.f, 0.f, 0.f)) : old;
        }
        for (int t = 0; t < TILE; t++) {
            const float4 w = four(weights + t * l.weights + a), x = four(tile + t * l.row + c);
            sums[0] = add4(w.x, x, sums[0]), sums[1] = add4(w.y, x, sums[1]);
            sums[2] = add4(w.z, x, sums[2]), sums[3] = add4(w.w, x, sums[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float4 *)(to + (a + j) * l.row + c) = sums[j];
    }
}

/* to [TILE, d] = weights matrix */
__device__ __forceinline__ void apply(const layout &l, const float *weights, const float *matrix,
                                      float *to)
{
    const int across = l.columns / 4;
    for (int i = threadIdx.x; i < TILE * across; i += THREADS) {
        const int t = i / across, c = i % across * 4;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int a = 0; a < l.mediators; a += 4) {
            const float4 w = four(weights + t * l.weights + a);
            sum = add4(w.x, four(matrix + a * l.row + c), sum);
            sum = add4(w.y, four(matrix + (a + 1) * l.row + c), sum);
            sum = add4(w.z, four(matrix + (a + 2) * l.row + c), sum);
            sum = add4(w.w, four(matrix + (a + 3) * l.row + c), sum);
        }
        *(float4 *)(to + t * l.row + c) = sum;
    }
}

/* Scores of a tile become weights over the mediators, a token for each of the first threads; what is padding becomes 0. */
__device__ __forceinline__ void weigh(const layout &l, float *weights)
{
    if (threadIdx.x < TILE) {
        float *row = weights + threadIdx.x * l.weights, maximum = -INFINITY, sum = 0.f;
        for (int a = 0; a < l.count; a++)
            maximum = fmaxf(maximum, row[a]);
        for (int a = 0; a < l.count; a++)
            sum += row[a] = __expf(row[a] - maximum);
        for (int a = 0; a < l.mediators; a++)
            row[a] = a < l.count ? row[a] / sum : 0.f;
    }
}

/* ---- Forward */

/* Means of the queries over the cells. */
template <typename T>
__device__ __forceinline__ void pool(const mediated &p, const T *q, const layout &l, float *to)
{
    for (int i = threadIdx.x; i < l.matrix(); i += THREADS) {
        const int a = i / l.row, c = i - a * l.row;
        float sum = 0.f;
        if (a < l.count && c < p.size) {
            const cell at = cell_of(p, a);
            for (int y = at.top; y < at.bottom; y++)
                for (int x = at.left; x < at.right; x++)
                    sum += nl_get(q + (int64_t)(y * p.width + x) * p.stride + c);
            sum /= (at.bottom - at.top) * (at.right - at.left);
        }
        to[i] = sum;
    }
}

/* The tile's weights for the mediators, one for each of the first threads: exponentials by the maximum so far; factor: of
 * what was summed before. */
__device__ __forceinline__ void gather_weights(const layout &l, int count, float *weights,
                                               float *maxima, float *sums, float *factor)
{
    const int a = threadIdx.x;
    if (a >= l.mediators)
        return;
    float maximum = maxima[a], sum = 0.f;
    for (int t = 0; t < count; t++)
        maximum = fmaxf(maximum, weights[t * l.weights + a]);
    for (int t = 0; t < TILE; t++) {
        const float w = t < count ? __expf(weights[t * l.weights + a] - maximum) : 0.f;
        weights[t * l.weights + a] = w;
        sum += w;
    }
    factor[a] = __expf(maxima[a] - maximum); /* 0 of the first tile */
    sums[a] = fmaf(sums[a], factor[a], sum);
    maxima[a] = maximum;
}

template <typename T> __global__ void __launch_bounds__(THREADS) mediator_kernel(mediated p, T *out)
{
    extern __shared__ float4 shared4[];
    __shared__ float maxima[MAX_SIDE * MAX_SIDE], sums[MAX_SIDE * MAX_SIDE],
        factor[MAX_SIDE * MAX_SIDE];
    const layout l(p.side, p.size);
    float *mediators = (float *)shared4, *values = mediators + l.matrix();
    float *x = values + l.matrix(), *y = x + l.tile(), *weights = y + l.tile();
    const int64_t hidden = (int64_t)p.heads * p.size,
                  first = blockIdx.x / p.heads * (int64_t)p.tokens;
    const int column = blockIdx.x % p.heads * p.size;
    const T *q = (const T *)p.qkv + first * p.stride + column, *k = q + hidden, *v = k + hidden;
    pool(p, q, l, mediators);
    clear(values, l.matrix());
    if (threadIdx.x < l.mediators)
        maxima[threadIdx.x] = -INFINITY, sums[threadIdx.x] = 0.f;
    __syncthreads();
    for (int t = 0; t < p.tokens; t += TILE) {
        const int count = min((int)TILE, p.tokens - t);
        load_tile(k + t * p.stride, p.stride, count, p.size, l, x);
        load_tile(v + t * p.stride, p.stride, count, p.size, l, y);
        __syncthreads();
        scores(l, x, mediators, p.scale, weights);
        __syncthreads();
        gather_weights(l, count, weights, maxima, sums, factor);
        __syncthreads();
        accumulate(l, weights, y, factor, values);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < l.matrix(); i += THREADS)
        values[i] /= sums[i / l.row];
    if (threadIdx.x < l.count)
        p.lse[(int64_t)blockIdx.x * l.count + threadIdx.x] =
            maxima[threadIdx.x] + logf(sums[threadIdx.x]);
    __syncthreads();
    store_matrix(mediators, p.size, l, p.mediators + (int64_t)blockIdx.x * l.count * p.size);
    store_matrix(values, p.size, l, p.values + (int64_t)blockIdx.x * l.count * p.size);
    for (int t = 0; t < p.tokens; t += TILE) {
        const int count = min((int)TILE, p.tokens - t);
        load_tile(q + t * p.stride, p.stride, count, p.size, l, x);
        __syncthreads();
        scores(l, x, mediators, p.scale, weights);
        __syncthreads();
        weigh(l, weights);
        __syncthreads();
        apply(l, weights, values, y);
        __syncthreads();
        store_tile(y, count, p.size, l, out + (first + t) * hidden + column, hidden);
    }
}

/* ---- Backward */

/* changes [TILE, M], the gradients of weights, become those of scores, times scale. */
__device__ __forceinline__ void weigh_backward(const layout &l, const float *weights, float scale,
                                               float *changes)
{
    if (threadIdx.x < TILE) {
        const float *row = weights + threadIdx.x * l.weights;
        float *change = changes + threadIdx.x * l.weights, mean = 0.f;
        for (int a = 0; a < l.mediators; a++)
            mean = fmaf(row[a], change[a], mean);
        for (int a = 0; a < l.mediators; a++)
            change[a] = scale * row[a] * (change[a] - mean);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) mediator_gradient_kernel(mediated p)
{
    extern __shared__ float4 shared4[];
    __shared__ float lse[MAX_SIDE * MAX_SIDE], means[MAX_SIDE * MAX_SIDE];
    const layout l(p.side, p.size);
    float *mediators = (float *)shared4, *values = mediators + l.matrix();
    float *dmediators = values + l.matrix(), *dvalues = dmediators + l.matrix();
    float *x = dvalues + l.matrix(), *y = x + l.tile(), *z = y + l.tile();
    float *weights = z + l.tile(), *changes = weights + l.scores();
    const int64_t hidden = (int64_t)p.heads * p.size,
                  first = blockIdx.x / p.heads * (int64_t)p.tokens;
    const int column = blockIdx.x % p.heads * p.size;
    const T *q = (const T *)p.qkv + first * p.stride + column, *k = q + hidden, *v = k + hidden;
    const T *dout = (const T *)p.dout + first * hidden + column;
    T *dqkv = (T *)p.dqkv + first * p.gradient_stride + column;
    float *dq = p.dq + first * hidden + column;
    load_matrix(p.mediators + (int64_t)blockIdx.x * l.count * p.size, p.size, l, mediators);
    load_matrix(p.values + (int64_t)blockIdx.x * l.count * p.size, p.size, l, values);
    clear(dmediators, 2 * l.matrix());
    if (threadIdx.x < l.mediators)
        lse[threadIdx.x] = threadIdx.x < l.count
                               ? p.lse[(int64_t)blockIdx.x * l.count + threadIdx.x]
                               : INFINITY; /* of padding the weights are 0 */
    __syncthreads();
    for (int t = 0; t < p.tokens; t += TILE) { /* tokens as queries */
        const int count = min((int)TILE, p.tokens - t);
        load_tile(q + t * p.stride, p.stride, count, p.size, l, x);
        load_tile(dout + t * hidden, hidden, count, p.size, l, y);
        __syncthreads();
        scores(l, x, mediators, p.scale, weights);
        scores(l, y, values, 1.f, changes);
        __syncthreads();
        weigh(l, weights);
        __syncthreads();
        weigh_backward(l, weights, p.scale, changes);
        __syncthreads();
        accumulate(l, weights, y, NULL,
                   dvalues); /* rows of y beyond the tokens are 0, and so their changes */
        accumulate(l, changes, x, NULL, dmediators);
        apply(l, changes, mediators, z);
        __syncthreads();
        store_tile(z, count, p.size, l, dq + t * hidden, hidden);
        __syncthreads();
    }
    if (threadIdx.x < l.mediators) {
        float sum = 0.f;
        for (int c = 0; c < l.columns; c++)
            sum = fmaf(dvalues[threadIdx.x * l.row + c], values[threadIdx.x * l.row + c], sum);
        means[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int t = 0; t < p.tokens; t += TILE) { /* tokens as keys and values */
        const int count = min((int)TILE, p.tokens - t);
        load_tile(k + t * p.stride, p.stride, count, p.size, l, x);
        load_tile(v + t * p.stride, p.stride, count, p.size, l, y);
        __syncthreads();
        scores(l, x, mediators, p.scale, weights);
        scores(l, y, dvalues, 1.f, changes);
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * l.mediators; i += THREADS) {
            const int row = i / l.mediators, a = i - row * l.mediators;
            const float w = row < count ? __expf(weights[row * l.weights + a] - lse[a]) : 0.f;
            weights[row * l.weights + a] = w;
            changes[row * l.weights + a] = p.scale * w * (changes[row * l.weights + a] - means[a]);
        }
        __syncthreads();
        accumulate(l, changes, x, NULL, dmediators);
        apply(l, weights, dvalues, z);
        apply(l, changes, mediators, y); /* v is used up */
        __syncthreads();
        store_tile(y, count, p.size, l, dqkv + t * p.gradient_stride + hidden, p.gradient_stride);
        store_tile(z, count, p.size, l, dqkv + t * p.gradient_stride + 2 * hidden,
                   p.gradient_stride);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < p.tokens * p.size; i += THREADS) {
        const int t = i / p.size, c = i - t * p.size, row = t / p.width, col = t % p.width;
        float sum = dq[t * hidden + c];
        for (int a = 0; a < l.count; a++) {
            const cell at = cell_of(p, a);
            if (row >= at.top && row < at.bottom && col >= at.left && col < at.right)
                sum += dmediators[a * l.row + c] / ((at.bottom - at.top) * (at.right - at.left));
        }
        nl_put(dqkv + t * p.gradient_stride + c, sum);
    }
}

/* ---- Launches */

static nl_status check_sizes(nl_device *device, const nl_mediators *sizes)
{
    if (sizes->head_size <= MAX_HEAD && sizes->side <= MAX_SIDE)
        return NL_OK;
    return nl_fail(device->context, NL_ERROR_DEVICE,
                   "mediator attention: head size %lld and %lld mediators, at most %d and %d on "
                   "the GPU",
                   (long long)sizes->head_size, (long long)(sizes->side * sizes->side), MAX_HEAD,
                   MAX_SIDE * MAX_SIDE);
}

static mediated mediated_of(const nl_mediators *sizes, const nl_tensor *qkv, float scale,
                            const nl_tensor *mediators, const nl_tensor *values,
                            const nl_tensor *lse)
{
    mediated p = {};
    p.qkv = qkv->data, p.stride = qkv->row_stride, p.scale = scale;
    p.tokens = (int)(sizes->grid_height * sizes->grid_width), p.heads = (int)sizes->heads;
    p.size = (int)sizes->head_size, p.side = (int)sizes->side;
    p.height = (int)sizes->grid_height, p.width = (int)sizes->grid_width;
    p.mediators = (float *)mediators->data, p.values = (float *)values->data;
    p.lse = (float *)lse->data;
    return p;
}

template <typename T>
static cudaError_t forward(cudaStream_t stream, int64_t batch, const mediated &p, T *out)
{
    const layout l(p.side, p.size);
    const int bytes = (2 * l.matrix() + 2 * l.tile() + l.scores()) * 4;
    cudaError_t error = cudaFuncSetAttribute(mediator_kernel<T>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        mediator_kernel<T><<<(unsigned)(batch * p.heads), THREADS, bytes, stream>>>(p, out);
    return error;
}

template <typename T>
static cudaError_t backward(cudaStream_t stream, int64_t batch, const mediated &p)
{
    const layout l(p.side, p.size);
    const int bytes = (4 * l.matrix() + 3 * l.tile() + 2 * l.scores()) * 4;
    cudaError_t error = cudaFuncSetAttribute(mediator_gradient_kernel<T>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        mediator_gradient_kernel<T><<<(unsigned)(batch * p.heads), THREADS, bytes, stream>>>(p);
    return error;
}

extern "C" nl_status nl_cuda_mediator_attention(nl_device *device,
                                                const nl_mediator_attention_args *a)
{
    cudaError_t error = cudaSuccess;
    nl_status status = check_sizes(device, &a->sizes);
    if (status != NL_OK)
        return status;
    const mediated p =
        mediated_of(&a->sizes, &a->qkv, a->scale, &a->mediators, &a->values, &a->lse);
    NL_FOR_TYPE(a->qkv, T, {
        error = forward<T>(nl_cuda_of(device)->stream, a->sizes.batch, p, (T *)a->out.data);
    });
    return error != cudaSuccess ? nl_cuda_check(device, error, "mediator_attention")
                                : NL_CUDA_LAUNCHED(device, "mediator_attention");
}

extern "C" nl_status
nl_cuda_mediator_attention_backward(nl_device *device, const nl_mediator_attention_backward_args *a)
{
    cudaError_t error = cudaSuccess;
    void *dq;
    nl_status status = check_sizes(device, &a->sizes);
    if (status == NL_OK)
        status = nl_cuda_scratch(device, "gradients of queries",
                                 a->dout.shape[0] * a->dout.shape[1] * 4, &dq);
    if (status != NL_OK)
        return status;
    mediated p = mediated_of(&a->sizes, &a->qkv, a->scale, &a->mediators, &a->values, &a->lse);
    p.dout = a->dout.data, p.dqkv = a->dqkv.data, p.gradient_stride = a->dqkv.row_stride;
    p.dq = (float *)dq;
    NL_FOR_TYPE(a->qkv, T, error = backward<T>(nl_cuda_of(device)->stream, a->sizes.batch, p););
    return error != cudaSuccess ? nl_cuda_check(device, error, "mediator_attention_backward")
                                : NL_CUDA_LAUNCHED(device, "mediator_attention_backward");
}
