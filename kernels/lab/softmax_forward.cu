/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of softmax attention forward: every version against an fp64 reference on fresh random inputs, then time
 * and share of the card's matrix rate, which may be given in TFLOP/s (`nalagen info --device` measures it).
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/softmax_forward.cu -o softmax_forward && ./softmax_forward [check|bench] [VERSION] [rate]
 */
#include <cmath>
#include <cstring>

#include "lab.cuh"
#include "softmax/forward_sm90_kernel.cuh"

/* Fails with cudaErrorNotSupported where it does not serve. */
typedef cudaError_t version_run(const nl_flash_problem &problem, int batch);

template <int D, int M> static cudaError_t flash(const nl_flash_problem &p, int batch)
{
    constexpr int bytes = nl_flash::shape<D>::shared_bytes(M), queries = M * nl_flash::TILE;
    CHECK(cudaFuncSetAttribute(nl_flash::kernel<D, M>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               bytes));
    nl_flash::kernel<D, M>
        <<<dim3((p.tokens + queries - 1) / queries, p.heads, batch), nl_flash::THREADS, bytes>>>(p);
    return cudaGetLastError();
}
template <int M> static cudaError_t general(const nl_flash_problem &p, int batch)
{
    return p.head_size == 64   ? flash<64, M>(p, batch)
           : p.head_size == 72 ? flash<72, M>(p, batch)
                               : cudaErrorNotSupported;
}

using namespace nl_softmax_sm90;
template <int GROUPS, int KEYS> static cudaError_t hopper(const nl_flash_problem &p, int batch)
{
    static int multiprocessors = 0;
    if (!multiprocessors)
        CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    return p.head_size <= WIDE ? launch<shape<false, GROUPS, KEYS>>(p, batch, multiprocessors, 0)
                               : launch<shape<true, GROUPS, KEYS>>(p, batch, multiprocessors, 0);
}
static const struct {
    const char *name;
    version_run *run;
} versions[] = {
#ifdef NL_LAB_MAIN
    {"main", main_version},
#endif
    {"mma, 16 rows", general<1>},
    {"mma, 32 rows", general<2>},
    {"hopper, 3 x 128", hopper<3, 128>},
    {"hopper, 4 x 64", hopper<4, 64>},
};
enum { VERSIONS = sizeof(versions) / sizeof(versions[0]) };

static uint32_t random_state = 12345;
static float gaussian()
{
    auto next = [] {
        return ((random_state = random_state * 1664525u + 1013904223u) >> 8) / 16777216.f;
    };
    return sqrtf(-2 * logf(next() + 1e-7f)) * cosf(6.2831853f * next());
}

/* Rows of q | k | v of all heads, or one head's q, k and v each on their own, as [B, h, N, d] has them. */
static nl_flash_problem describe(__nv_bfloat16 *x, __nv_bfloat16 *y, int *batch, int heads, int n,
                                 int d, bool rows)
{
    const int64_t hidden = (int64_t)heads * d, one = *batch * n * hidden;
    nl_flash_problem p = {};
    p.q = x, p.k = x + (rows ? hidden : one), p.v = x + 2 * (rows ? hidden : one), p.out = y;
    p.tokens = n, p.head_size = d, p.heads = rows ? heads : 1;
    p.stride = rows ? 3 * hidden : d, p.out_stride = rows ? hidden : d;
    p.scale_log2 = 1.4426950408889634f / sqrtf((float)d);
    if (!rows)
        *batch *= heads;
    return p;
}

static int check(int batch, int heads, int n, int d, bool rows, int version)
{
    const int hidden = heads * d, pairs = batch * heads;
    const int64_t one = (int64_t)batch * n * hidden;
    std::vector<__nv_bfloat16> host(3 * one), result(one + 8);
    std::vector<float> lse((size_t)pairs * n);
    for (auto &value : host)
        value = __float2bfloat16(gaussian());
    for (int64_t i = 0; i < 3 * one; i++) { /* one long query, or keys that grow */
        const int64_t token = rows ? i / hidden / 3 : i % one / d % n;
        const bool key = rows ? i / hidden % 3 == 1 : i / one == 1;
        const float larger = rows ? (i < d ? 50.f : 1.f) : key ? 1.f + 40.f * token / n : 1.f;
        host[i] = __float2bfloat16(larger * __bfloat162float(host[i]));
    }
    __nv_bfloat16 *x, *y;
    float *saved;
    CHECK(cudaMalloc(&x, host.size() * 2));
    CHECK(cudaMalloc(&y, result.size() * 2));
    CHECK(cudaMalloc(&saved, lse.size() * 4));
    CHECK(cudaMemcpy(x, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(y, 0xff, result.size() * 2)); /* NaN */
    CHECK(cudaMemset(saved, 0xff, lse.size() * 4));
    int items = batch;
    nl_flash_problem p = describe(x, y, &items, heads, n, d, rows);
    p.lse = saved;
    const cudaError_t run = versions[version].run(p, items);
    if (run != cudaErrorNotSupported) {
        CHECK(run);
        CHECK(cudaMemcpy(result.data(), y, result.size() * 2, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(lse.data(), saved, lse.size() * 4, cudaMemcpyDeviceToHost));
    }
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    CHECK(cudaFree(saved));
    if (run == cudaErrorNotSupported)
        return 0;

    double difference = 0, norm = 0, worst = 0;
    std::vector<double> weight(n);
    std::vector<float> q((size_t)n * d), k(q), v(q);
    std::vector<int64_t> at((size_t)n * d); /* in the result */
    const int step = n > 256 ? n / 64 : 1;
    for (int pair = 0; pair < pairs; pair++) {
        for (int token = 0; token < n; token++)
            for (int j = 0; j < d; j++) {
                const int64_t i = (int64_t)token * d + j, row = (int64_t)(pair / heads) * n + token,
                              x = rows ? row * 3 * hidden + pair % heads * d + j
                                       : pair * (int64_t)n * d + i,
                              part = rows ? hidden : one;
                q[i] = __bfloat162float(host[x]), k[i] = __bfloat162float(host[x + part]);
                v[i] = __bfloat162float(host[x + 2 * part]);
                at[i] = rows ? row * hidden + pair % heads * d + j : x;
            }
        for (int token = 0; token < n; token++) {
            if (token % step && token != n - 1)
                continue;
            double most = -INFINITY, sum = 0, o[128] = {};
            for (int i = 0; i < n; i++) {
                double s = 0;
                for (int j = 0; j < d; j++)
                    s += (double)q[token * d + j] * k[i * d + j];
                weight[i] = s / std::sqrt((double)d), most = std::fmax(most, weight[i]);
            }
            for (int i = 0; i < n; i++) {
                sum += weight[i] = std::exp(weight[i] - most);
                for (int j = 0; j < d; j++)
                    o[j] += weight[i] * v[i * d + j];
            }
            worst =
                std::fmax(worst, std::fabs(lse[(size_t)pair * n + token] - most - std::log(sum)) /
                                     std::fmax(1, std::fabs(most)));
            for (int j = 0; j < d; j++) {
                const double e = __bfloat162float(result[at[token * d + j]]) - o[j] / sum;
                difference += e * e, norm += o[j] / sum * o[j] / sum;
            }
        }
    }
    bool guard = true; /* nothing behind the end */
    for (int i = 0; i < 8; i++)
        guard = guard && std::isnan(__bfloat162float(result[one + i]));
    const double relative = std::sqrt(difference / norm);
    const bool good = relative <= 5e-3 && worst <= 1e-4 && guard;
    if (!good || n == 1000)
        printf("check %-20s %d x %d heads x %5d x %3d %-9s: relative error %.2e, log-sum-exp %.1e "
               "%s\n",
               versions[version].name, batch, heads, n, d, rows ? "rows" : "[B,h,N,d]", relative,
               worst, good ? "ok" : "WRONG");
    return !good;
}

static void bench(int batch, int heads, int n, int d, bool rows, double rate, int version)
{
    const size_t one = (size_t)batch * n * heads * d;
    const int sets = 3;
    __nv_bfloat16 *x;
    CHECK(cudaMalloc(&x, sets * 4 * one * 2));
    static std::vector<__nv_bfloat16> host;
    while (host.size() < 1 << 20)
        host.push_back(__float2bfloat16(gaussian()));
    CHECK(cudaMemcpy(x, host.data(), 2 * host.size(), cudaMemcpyHostToDevice));
    for (size_t at = host.size(); at < sets * 4 * one; at += host.size())
        CHECK(cudaMemcpy(x + at, x, 2 * std::min(host.size(), sets * 4 * one - at),
                         cudaMemcpyDeviceToDevice));
    bool served = true;
    const float ms = median_ms(
        [&](int i) {
            __nv_bfloat16 *base = x + i % sets * 4 * one;
            int items = batch;
            const nl_flash_problem p = describe(base, base + 3 * one, &items, heads, n, d, rows);
            const cudaError_t run = versions[version].run(p, items);
            served = run != cudaErrorNotSupported;
            CHECK(served ? run : cudaSuccess);
        },
        n > 10000 ? 10 : 30);
    const double tflops = 4.0 * batch * heads * n * (double)n * d / ms / 1e9;
    if (served)
        printf("%-20s %4d x %5d x %2d %-9s %8.4f ms %6.1f TFLOP/s %3.0f %% of the matrix rate\n",
               versions[version].name, batch * heads, n, d, rows ? "rows" : "[B,h,N,d]", ms, tflops,
               100 * tflops / rate);
    CHECK(cudaFree(x));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *name = argc > 2 ? argv[2] : "";
    const double rate = argc > 3 ? atof(argv[3]) : 989; /* data sheet of H100 and H200 SXM */
    int failures = 0;
    auto wanted = [&](int v) { return !*name || !strcmp(name, versions[v].name); };
    for (int v = 0; v < VERSIONS && strcmp(what, "bench"); v++) {
        int failed = 0;
        if (!wanted(v))
            continue;
        for (int d : {64, 72, 56, 80})
            for (int n : {1, 7, 63, 64, 65, 128, 200, 256, 257, 300, 1000})
                for (int rows = 0; rows < 2; rows++)
                    failed += check(2, 3, n, d, rows, v);
        failed += check(1, 2, 4096, 64, true, v);
        failed += check(1, 1, 4096, 72, false, v);
        failed += check(100, 3, 70, 64, true, v); /* several units a block */
        printf("check %-20s %d wrong\n", versions[v].name, failed);
        fflush(stdout);
        failures += failed;
    }
    if (strcmp(what, "check")) {
        static const int shapes[][4] = {{256, 6, 256, 64},  {64, 16, 256, 72}, {64, 6, 1024, 64},
                                        {16, 16, 1024, 72}, {16, 6, 4096, 64}, {1, 6, 65536, 64}};
        for (const auto &s : shapes)
            for (int rows = 1; rows >= (s[2] > 10000 || *name); rows--)
                for (int v = 0; v < VERSIONS; v++)
                    if (wanted(v))
                        bench(s[0], s[1], s[2], s[3], rows, rate, v), fflush(stdout);
    }
    printf(failures ? "%d FAILED\n" : "done\n", failures);
    return failures != 0;
}
