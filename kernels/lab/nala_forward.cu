/*
 * Laboratory of NaLa attention forward: every version against an fp64 reference on fresh random inputs, then time,
 * bytes a second and share of the card's copy rate.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -Iinclude -Isrc/core -Ikernels -Ikernels/cuda \
 *        kernels/lab/nala_forward.cu kernels/cuda/nala_attention_tc.cu -o nala_forward && ./nala_forward
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "nala_attention.cuh"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t check_error = (call);                                                          \
        if (check_error != cudaSuccess) {                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(check_error));   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

template <typename F> static float median_ms(F run, int repeats = 30)
{
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 5; i++)
        run(i);
    std::vector<float> times;
    for (int i = 0; i < repeats; i++) {
        CHECK(cudaEventRecord(begin));
        run(i);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static uint32_t random_state = 12345;
static float gaussian()
{
    auto next = [] {
        return ((random_state = random_state * 1664525u + 1013904223u) >> 8) / 16777216.f;
    };
    return sqrtf(-2 * logf(next() + 1e-7f)) * cosf(6.2831853f * next());
}

/* One head in double: q, k, v, out [n, d] with the given row stride. */
static void reference(const std::vector<float> &q, const std::vector<float> &k,
                      const std::vector<float> &v, int n, int d, std::vector<double> &out)
{
    std::vector<double> state(2 * d * d), total(2 * d), f(2 * d);
    const double pi = 3.14159265358979323846;
    auto features = [&](const float *x, bool query) {
        double norm = 0;
        for (int j = 0; j < d; j++)
            norm += (double)x[j] * x[j];
        norm = std::sqrt(norm);
        for (int j = 0; j < d; j++) {
            const double a = x[j] / (norm + 1e-6),
                         base = query ? std::fabs(a) : std::fabs((double)x[j]);
            const double p = query ? 3 * (0.5 + std::tanh(norm)) : 3,
                         m = base > 0 ? std::pow(base, p) : 0;
            f[j] = m * std::cos(pi / 4 * std::tanh(a)),
            f[d + j] = m * std::sin(pi / 4 * std::tanh(a));
        }
    };
    for (int i = 0; i < n; i++) {
        features(&k[(size_t)i * d], false);
        for (int a = 0; a < 2 * d; a++) {
            total[a] += f[a] / n;
            for (int b = 0; b < d; b++)
                state[a * d + b] += f[a] * v[(size_t)i * d + b] / n;
        }
    }
    for (int i = 0; i < n; i++) {
        features(&q[(size_t)i * d], true);
        double denominator = 1e-6;
        for (int a = 0; a < 2 * d; a++)
            denominator += f[a] * total[a];
        for (int b = 0; b < d; b++) {
            double sum = 0;
            for (int a = 0; a < 2 * d; a++)
                sum += f[a] * state[a * d + b];
            out[(size_t)i * d + b] = sum / denominator;
        }
    }
}

static int check(int batch, int heads, int n, int d)
{
    const int D = heads * d, stride = 4 * D;
    std::vector<__nv_bfloat16> host((size_t)batch * n * stride), result((size_t)batch * n * D);
    for (auto &x : host)
        x = __float2bfloat16(gaussian());
    for (int j = 0; j < d; j++) { /* a zero query, a long query, a zero key */
        host[3 * stride + j] = __float2bfloat16(0);
        host[5 * stride + j] = __float2bfloat16(50 * __bfloat162float(host[5 * stride + j]));
        host[7 * stride + D + j] = __float2bfloat16(0);
    }
    __nv_bfloat16 *x, *y;
    void *workspace;
    const int64_t bytes = nl_nala_workspace(batch, heads, n, d, NL_FEATURES_COSINE);
    CHECK(cudaMalloc(&x, host.size() * 2));
    CHECK(cudaMalloc(&y, result.size() * 2));
    CHECK(cudaMalloc(&workspace, bytes + 16));
    CHECK(cudaMemcpy(x, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(y, 0xff, result.size() * 2)); /* NaN */
    nl_nala_problem p = {};
    p.q = x, p.k = x + D, p.v = x + 2 * D, p.out = y;
    p.image_stride = (int64_t)n * stride, p.head_stride = d, p.stride = stride;
    p.out_image_stride = (int64_t)n * D, p.out_head_stride = d, p.out_stride = D;
    p.tokens = n, p.heads = heads, p.lambda = 3, p.tau = 0.5;
    CHECK(nl_nala_forward(p, batch, d, NL_FEATURES_COSINE, workspace, 0));
    CHECK(cudaMemcpy(result.data(), y, result.size() * 2, cudaMemcpyDeviceToHost));
    double difference = 0, norm = 0;
    std::vector<float> q((size_t)n * d), k(q), v(q);
    std::vector<double> out((size_t)n * d);
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++) {
            for (int i = 0; i < n; i++)
                for (int j = 0; j < d; j++) {
                    const size_t at = ((size_t)b * n + i) * stride + h * d + j;
                    q[(size_t)i * d + j] = __bfloat162float(host[at]);
                    k[(size_t)i * d + j] = __bfloat162float(host[at + D]);
                    v[(size_t)i * d + j] = __bfloat162float(host[at + 2 * D]);
                }
            reference(q, k, v, n, d, out);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < d; j++) {
                    const double a = __bfloat162float(result[((size_t)b * n + i) * D + h * d + j]);
                    const double e = out[(size_t)i * d + j];
                    difference += (a - e) * (a - e), norm += e * e;
                }
        }
    const double error = std::sqrt(difference / norm);
    const bool good = error <= 1e-2;
    printf("check %d x %d heads x %5d x %3d: relative error %.2e %s\n", batch, heads, n, d, error,
           good ? "ok" : "WRONG");
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    CHECK(cudaFree(workspace));
    return !good;
}

static void bench(int batch, int heads, int n, int d, bool interleaved, double copy_rate)
{
    const int D = heads * d, stride = interleaved ? 4 * D : d;
    const size_t elements = (size_t)batch * n * (interleaved ? 4 : 3) * D,
                 set = elements + (size_t)batch * n * D;
    const int sets = 3;
    __nv_bfloat16 *x;
    void *workspace;
    CHECK(cudaMalloc(&x, sets * set * 2));
    CHECK(cudaMalloc(&workspace, nl_nala_workspace(batch, heads, n, d, NL_FEATURES_COSINE) + 16));
    std::vector<__nv_bfloat16> host(1 << 22);
    for (auto &value : host)
        value = __float2bfloat16(gaussian());
    for (size_t at = 0; at < sets * set; at += host.size())
        CHECK(cudaMemcpy(x + at, host.data(), 2 * std::min(host.size(), sets * set - at),
                         cudaMemcpyHostToDevice));
    nl_nala_problem p = {};
    p.tokens = n, p.heads = heads, p.lambda = 3, p.tau = 0.5;
    const int64_t one = (int64_t)batch * n * D;
    if (interleaved) {
        p.image_stride = (int64_t)n * stride, p.head_stride = d, p.stride = stride;
        p.out_image_stride = (int64_t)n * D, p.out_head_stride = d, p.out_stride = D;
    } else {
        p.image_stride = (int64_t)n * D, p.head_stride = (int64_t)n * d, p.stride = d;
        p.out_image_stride = p.image_stride, p.out_head_stride = p.head_stride, p.out_stride = d;
    }
    const float ms = median_ms([&](int i) {
        __nv_bfloat16 *base = x + (i % sets) * set;
        p.q = base, p.k = base + (interleaved ? D : one), p.v = base + 2 * (interleaved ? D : one);
        p.out = base + elements;
        CHECK(nl_nala_forward(p, batch, d, NL_FEATURES_COSINE, workspace, 0));
    });
    const double rate = 8.0 * batch * n * D / ms / 1e6;
    printf("%4d heads x %5d x %3d %-11s %8.4f ms %7.0f GB/s  %3.0f %% of copy\n", batch * heads, n,
           d, interleaved ? "qkvg rows" : "[B,h,N,d]", ms, rate, 100 * rate / copy_rate);
    CHECK(cudaFree(x));
    CHECK(cudaFree(workspace));
}

int main()
{
    cudaDeviceProp card;
    CHECK(cudaGetDeviceProperties(&card, 0));
    int failures = 0;
    for (int d : {32, 48, 64, 72, 80, 96, 128})
        for (int n : {1, 49, 64, 256, 300})
            failures += n > 7 ? check(2, 3, n, d) : 0;
    failures += check(1, 2, 4096, 64);
    failures += check(1, 2, 5000, 72);
    char *a, *b;
    const size_t bytes = 1ull << 30;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMemset(a, 1, bytes));
    const float copy_ms =
        median_ms([&](int) { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
    const double copy_rate = 2.0 * bytes / copy_ms / 1e6;
    printf("%s, %d multiprocessors, copy %.0f GB/s\n", card.name, card.multiProcessorCount,
           copy_rate);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        bench(256, 6, 256, 64, interleaved, copy_rate);
        bench(64, 6, 1024, 64, interleaved, copy_rate);
        bench(16, 6, 4096, 64, interleaved, copy_rate);
        bench(4, 6, 16384, 64, interleaved, copy_rate);
        bench(1, 6, 65536, 64, interleaved, copy_rate);
        bench(64, 16, 256, 72, interleaved, copy_rate);
    }
    printf(failures ? "%d FAILED\n" : "all right\n", failures);
    return failures != 0;
}
