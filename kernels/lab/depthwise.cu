/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of depthwise convolution: forward and backward against an fp64 reference on fresh random inputs, then time,
 * bytes a second of what has to cross memory, and share of the card's copy rate.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/depthwise.cu kernels/cuda/conv/depthwise_conv.cu kernels/cuda/conv/depthwise_conv_backward.cu \
 *        kernels/cuda/column_sums.cu BUILD/libnalagen.a -o depthwise && ./depthwise
 */
#include <cmath>

#include "cuda_common.cuh"
#include "lab.cuh"

static nl_cuda cuda;
static nl_device device;

/* What the operations take from the rest of the back end. */
extern "C" nl_status nl_cuda_check(nl_device *, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
    return NL_OK;
}
extern "C" nl_status nl_cuda_scratch(nl_device *, const char *, int64_t bytes, void **scratch)
{
    if (bytes > cuda.scratch_bytes) {
        CHECK(cudaFree(cuda.scratch));
        CHECK(cudaMalloc(&cuda.scratch, bytes));
        CHECK(cudaMemset(cuda.scratch, 0xff, bytes)); /* NaN */
        cuda.scratch_bytes = bytes;
    }
    *scratch = cuda.scratch;
    return NL_OK;
}

struct shape {
    int64_t batch, height, width, channels;
};

__device__ double read(const nl_tensor &t, int64_t row, int64_t column)
{
    const int64_t at = row * t.row_stride + column;
    return t.dtype == NL_BF16 ? __bfloat162float(((const __nv_bfloat16 *)t.data)[at])
                              : ((const float *)t.data)[at];
}

/* y [rows, channels] = base + bias + x convolved with the kernel, or the turned one; a thread an element. */
__global__ void convolve(shape s, nl_tensor x, const float *weight, const float *bias,
                         nl_tensor base, bool turned, double *y)
{
    NL_GRID_LOOP(i, s.batch * s.height * s.width * s.channels)
    {
        const int64_t c = i % s.channels, token = i / s.channels;
        const int64_t image = token / (s.height * s.width), row = token / s.width % s.height,
                      column = token % s.width;
        double sum = read(base, token, c) + (bias ? bias[c] : 0);
        for (int tap = 0; tap < 25; tap++) {
            const int64_t v = row + tap / 5 - 2, z = column + tap % 5 - 2;
            if (v >= 0 && v < s.height && z >= 0 && z < s.width)
                sum += (double)weight[c * 25 + (turned ? 24 - tap : tap)] *
                       read(x, (image * s.height + v) * s.width + z, c);
        }
        y[i] = sum;
    }
}

/* sums [channels, 26]: dweight, dbias; a block a sum. grid (channels, 26) */
__global__ void correlate(shape s, nl_tensor x, nl_tensor dout, double *sums)
{
    __shared__ double shared[256];
    const int64_t c = blockIdx.x, tap = blockIdx.y;
    double sum = 0;
    for (int64_t token = threadIdx.x; token < s.batch * s.height * s.width; token += 256) {
        const int64_t image = token / (s.height * s.width);
        const int64_t v = token / s.width % s.height + tap / 5 - 2,
                      z = token % s.width + tap % 5 - 2;
        if (tap == 25)
            sum += read(dout, token, c);
        else if (v >= 0 && v < s.height && z >= 0 && z < s.width)
            sum += read(dout, token, c) * read(x, (image * s.height + v) * s.width + z, c);
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < 256; i++)
        sum += shared[i];
    if (threadIdx.x == 0)
        sums[c * 26 + tap] = sum;
}

__global__ void fill(nl_tensor x, uint32_t seed)
{
    NL_GRID_LOOP(i, x.shape[0] * x.row_stride)
    {
        uint32_t h = ((uint32_t)i + seed * 7919) * 2654435761u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        const float v = (float)(int)(h % 20001 - 10000) / 5774.f; /* of variance 1 */
        if (x.dtype == NL_BF16)
            ((__nv_bfloat16 *)x.data)[i] = __float2bfloat16(v);
        else
            ((float *)x.data)[i] = v;
    }
}

static nl_tensor take(nl_dtype dtype, int64_t rows, int64_t columns, int64_t stride)
{
    static uint32_t seed;
    const int64_t dims[] = {rows, columns};
    nl_tensor t = nl_tensor_of(NULL, dtype, 2, dims);
    t.row_stride = stride;
    CHECK(cudaMalloc(&t.data, rows * stride * (dtype == NL_BF16 ? 2 : 4)));
    fill<<<1024, 256>>>(t, ++seed);
    return t;
}

/* All that both directions take: x and dx lie as v among q k v g. */
struct tensors {
    shape s;
    nl_tensor qkvg, dqkvg, x, dx, weight, bias, addend, out, dout, dweight, dbias;
    nl_depthwise_conv_args forward;
    nl_depthwise_conv_backward_args backward;

    tensors(shape s, nl_dtype dtype) : s(s)
    {
        const int64_t rows = s.batch * s.height * s.width, d = s.channels;
        qkvg = take(dtype, rows, 4 * d, 4 * d), dqkvg = take(dtype, rows, 4 * d, 4 * d);
        x = nl_tensor_columns(&qkvg, 2 * d, d), dx = nl_tensor_columns(&dqkvg, 2 * d, d);
        weight = take(NL_F32, d, 25, 25), dweight = take(NL_F32, d, 25, 25);
        bias = take(NL_F32, 1, d, d), dbias = take(NL_F32, 1, d, d);
        addend = take(dtype, rows, d, d), out = take(dtype, rows, d, d);
        dout = take(dtype, rows, d, d);
        for (nl_tensor *w : {&weight, &dweight})
            w->ndim = 4, w->shape[1] = 1, w->shape[2] = w->shape[3] = 5;
        CHECK(cudaMemset(dweight.data, 0, d * 25 * 4));
        CHECK(cudaMemset(dbias.data, 0, d * 4));
        forward = {x, weight, bias, addend, out, s.batch, s.height, s.width};
        backward = {x, weight, dout, dx, dweight, dbias, s.batch, s.height, s.width};
    }
    ~tensors()
    {
        for (nl_tensor *t : {&qkvg, &dqkvg, &weight, &bias, &addend, &out, &dout, &dweight, &dbias})
            CHECK(cudaFree(t->data));
    }
};

__global__ void differences(nl_tensor got, const double *want, int64_t want_stride, double *sums)
{
    double difference = 0, norm = 0;
    NL_GRID_LOOP(i, got.shape[0] * got.shape[1])
    {
        const int64_t row = i / got.shape[1], column = i % got.shape[1];
        const double e = want[row * want_stride + column], d = read(got, row, column) - e;
        difference += d * d, norm += e * e;
    }
    atomicAdd(sums, difference);
    atomicAdd(sums + 1, norm);
}

static int expect(const char *what, nl_tensor got, const double *want, int64_t want_stride,
                  double allowed)
{
    double *sums, host[2];
    CHECK(cudaMalloc(&sums, sizeof(host)));
    CHECK(cudaMemset(sums, 0, sizeof(host)));
    differences<<<256, 256>>>(got, want, want_stride, sums);
    CHECK(cudaMemcpy(host, sums, sizeof(host), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(sums));
    const double error = std::sqrt(host[0] / host[1]);
    const bool good = error <= allowed; /* NaN is not */
    printf("  %s %.1e%s", what, error, good ? "" : " WRONG");
    return !good;
}

static int check(shape s, nl_dtype dtype)
{
    const int64_t rows = s.batch * s.height * s.width;
    const double allowed = dtype == NL_BF16 ? 4e-3 : 1e-6;
    tensors t(s, dtype);
    double *y, *dx, *sums;
    CHECK(cudaMalloc(&y, rows * s.channels * 8));
    CHECK(cudaMalloc(&dx, rows * s.channels * 8));
    CHECK(cudaMalloc(&sums, s.channels * 26 * 8));
    const float *weight = (const float *)t.weight.data;
    convolve<<<1024, 256>>>(s, t.x, weight, (const float *)t.bias.data, t.addend, false, y);
    convolve<<<1024, 256>>>(s, t.dout, weight, NULL, t.dx, true, dx);
    correlate<<<dim3((unsigned)s.channels, 26), 256>>>(s, t.x, t.dout, sums);
    nl_cuda_depthwise_conv(&device, &t.forward);
    nl_cuda_depthwise_conv_backward(&device, &t.backward);
    CHECK(cudaDeviceSynchronize());
    printf("%s %lld x %lld x %lld x %lld:", dtype == NL_BF16 ? "bf16" : "fp32", (long long)s.batch,
           (long long)s.height, (long long)s.width, (long long)s.channels);
    nl_tensor dweight = t.dweight, dbias = t.dbias;
    dweight.ndim = 2, dweight.shape[1] = 25, dweight.row_stride = 25;
    dbias.shape[0] = s.channels, dbias.shape[1] = 1, dbias.row_stride = 1;
    int wrong =
        expect("out", t.out, y, s.channels, allowed) + expect("dx", t.dx, dx, s.channels, allowed) +
        expect("dweight", dweight, sums, 26, 3e-6) + expect("dbias", dbias, sums + 25, 26, 3e-6);
    printf("\n");
    for (double *p : {y, dx, sums})
        CHECK(cudaFree(p));
    return wrong;
}

static void measure(shape s, nl_dtype dtype, double rate)
{
    tensors t(s, dtype);
    const double unit =
        (double)s.batch * s.height * s.width * s.channels * (dtype == NL_BF16 ? 2 : 4);
    auto report = [&](const char *name, double units, auto run) {
        const float ms = median_ms([&](int) { run(); });
        printf("%s %lld x %lld x %lld x %lld %-18s %8.4f ms %6.0f GB/s %3.0f %% of copy\n",
               dtype == NL_BF16 ? "bf16" : "fp32", (long long)s.batch, (long long)s.height,
               (long long)s.width, (long long)s.channels, name, ms, units * unit / ms / 1e6,
               100 * units * unit / ms / 1e6 / rate);
    };
    nl_depthwise_conv_args in_place = t.forward;
    in_place.addend = {};
    report("forward", 3, [&] { nl_cuda_depthwise_conv(&device, &t.forward); });
    report("forward, in place", 3, [&] { nl_cuda_depthwise_conv(&device, &in_place); });
    report("backward", 4, [&] { nl_cuda_depthwise_conv_backward(&device, &t.backward); });
}

int main()
{
    const double rate = copy_rate();
    cudaDeviceProp card;
    CHECK(cudaGetDeviceProperties(&card, 0));
    cuda.multiprocessors = card.multiProcessorCount;
    device.state = &cuda;
    const shape shapes[] = {{2, 16, 16, 384}, {3, 7, 7, 72},    {1, 1, 1, 64},  {2, 1, 35, 64},
                            {2, 33, 5, 66},   {1, 64, 64, 128}, {2, 37, 18, 8}, {3, 40, 1, 200}};
    int wrong = 0;
    for (nl_dtype dtype : {NL_BF16, NL_F32})
        for (const shape &s : shapes)
            wrong += check(s, dtype);
    const shape sizes[] = {{256, 16, 16, 384}, {256, 16, 16, 1152}, {256, 8, 8, 384},
                           {16, 64, 64, 384},  {1, 16, 16, 384},    {1, 64, 64, 384}};
    for (const shape &s : sizes)
        measure(s, NL_BF16, rate);
    measure(sizes[0], NL_F32, rate);
    printf(wrong ? "%d WRONG\n" : "all right\n", wrong);
    return wrong != 0;
}
