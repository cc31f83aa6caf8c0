/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of NaLa attention forward: every version against an fp64 reference on fresh random inputs, then time,
 * bytes a second and share of the card's copy rate.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/nala_forward.cu kernels/cuda/nala/forward.cu kernels/cuda/nala/rope.cu \
 *        kernels/cuda/sm90/nala_forward.cu -o nala_forward && ./nala_forward
 */
#include <cmath>

#include "lab.cuh"
#include "nala/forward.cuh"
#include "nala/forward_sm90.cuh"

/* Fails with cudaErrorNotSupported where it does not serve. */
typedef cudaError_t version_run(const nl_nala_problem &problem, int batch, int head_size,
                                void *workspace);
static cudaError_t general(const nl_nala_problem &p, int batch, int d, void *workspace)
{
    return nl_nala_forward(p, batch, d, NL_FEATURES_COSINE, 0, workspace, 0);
}
static cudaError_t hopper(const nl_nala_problem &problem, int batch, int d, void *workspace)
{
    nl_nala_problem p = problem;
    p.head_size = d;
    return nl_nala_sm90_serves(&p, NL_FEATURES_COSINE)
               ? nl_nala_sm90_forward(&p, batch, workspace, 0)
               : cudaErrorNotSupported;
}
static const struct {
    const char *name;
    version_run *run;
} versions[] = {{"general", general}, {"hopper", hopper}};

static uint32_t random_state = 12345;
static float gaussian()
{
    auto next = [] {
        return ((random_state = random_state * 1664525u + 1013904223u) >> 8) / 16777216.f;
    };
    return sqrtf(-2 * logf(next() + 1e-7f)) * cosf(6.2831853f * next());
}

/* One head in double: q, k, v, out [n, d], state [2 d, d], total [2 d]. */
static void reference(const std::vector<float> &q, const std::vector<float> &k,
                      const std::vector<float> &v, int n, int d, std::vector<double> &out,
                      std::vector<double> &state, std::vector<double> &total)
{
    std::vector<double> f(2 * d);
    state.assign(2 * d * d, 0), total.assign(2 * d, 0);
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

/* |a - e| and |e|, squared and summed. */
struct distance {
    double difference = 0, norm = 0;
    void add(double a, double e)
    {
        difference += (a - e) * (a - e), norm += e * e;
    }
    double relative() const
    {
        return std::sqrt(difference / norm);
    }
};

static int check(int batch, int heads, int n, int d, int version)
{
    const int D = heads * d, stride = 4 * D, state_size = 2 * d * d;
    std::vector<__nv_bfloat16> host((size_t)batch * n * stride), result((size_t)batch * n * D);
    std::vector<float> states((size_t)batch * heads * (state_size + 2 * d));
    for (auto &x : host)
        x = __float2bfloat16(gaussian());
    for (int j = 0; j < d && n > 7; j++) { /* a zero query, a long query, a zero key */
        host[3 * stride + j] = __float2bfloat16(0);
        host[5 * stride + j] = __float2bfloat16(50 * __bfloat162float(host[5 * stride + j]));
        host[7 * stride + D + j] = __float2bfloat16(0);
    }
    __nv_bfloat16 *x, *y;
    float *saved;
    void *workspace;
    const int64_t bytes = nl_nala_workspace(batch, heads, n, d, NL_FEATURES_COSINE, 0);
    CHECK(cudaMalloc(&x, host.size() * 2));
    CHECK(cudaMalloc(&y, result.size() * 2));
    CHECK(cudaMalloc(&saved, states.size() * 4));
    CHECK(cudaMalloc(&workspace, bytes + 16));
    CHECK(cudaMemcpy(x, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(y, 0xff, result.size() * 2)); /* NaN */
    CHECK(cudaMemset(saved, 0xff, states.size() * 4));
    nl_nala_problem p = {};
    p.q = x, p.k = x + D, p.v = x + 2 * D, p.out = y;
    p.image_stride = (int64_t)n * stride, p.head_stride = d, p.stride = stride;
    p.out_image_stride = (int64_t)n * D, p.out_head_stride = d, p.out_stride = D;
    p.tokens = n, p.heads = heads, p.lambda = 3, p.tau = 0.5;
    p.saved_state = saved, p.saved_total = saved + (size_t)batch * heads * state_size;
    const cudaError_t run = versions[version].run(p, batch, d, workspace);
    if (run != cudaErrorNotSupported) {
        CHECK(run);
        CHECK(cudaMemcpy(result.data(), y, result.size() * 2, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(states.data(), saved, states.size() * 4, cudaMemcpyDeviceToHost));
    }
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    CHECK(cudaFree(saved));
    CHECK(cudaFree(workspace));
    if (run == cudaErrorNotSupported)
        return 0;
    distance of_out, of_state, of_total;
    std::vector<float> q((size_t)n * d), k(q), v(q);
    std::vector<double> out((size_t)n * d), state, total;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++) {
            for (int i = 0; i < n; i++)
                for (int j = 0; j < d; j++) {
                    const size_t at = ((size_t)b * n + i) * stride + h * d + j;
                    q[(size_t)i * d + j] = __bfloat162float(host[at]);
                    k[(size_t)i * d + j] = __bfloat162float(host[at + D]);
                    v[(size_t)i * d + j] = __bfloat162float(host[at + 2 * D]);
                }
            reference(q, k, v, n, d, out, state, total);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < d; j++)
                    of_out.add(__bfloat162float(result[((size_t)b * n + i) * D + h * d + j]),
                               out[(size_t)i * d + j]);
            const size_t pair = (size_t)b * heads + h;
            for (int i = 0; i < state_size; i++)
                of_state.add(states[pair * state_size + i], state[i]);
            for (int i = 0; i < 2 * d; i++)
                of_total.add(states[(size_t)batch * heads * state_size + pair * 2 * d + i],
                             total[i]);
        }
    const bool good =
        of_out.relative() <= 1e-2 && of_state.relative() <= 1e-2 && of_total.relative() <= 1e-2;
    printf("check %-8s %d x %d heads x %5d x %3d: relative error %.2e, state %.2e, z %.2e %s\n",
           versions[version].name, batch, heads, n, d, of_out.relative(), of_state.relative(),
           of_total.relative(), good ? "ok" : "WRONG");
    return !good;
}

static void bench(int batch, int heads, int n, int d, bool interleaved, double rate, int version)
{
    const int D = heads * d, stride = interleaved ? 4 * D : d;
    const size_t elements = (size_t)batch * n * (interleaved ? 4 : 3) * D,
                 set = elements + (size_t)batch * n * D;
    const int sets = 3;
    __nv_bfloat16 *x;
    void *workspace;
    CHECK(cudaMalloc(&x, sets * set * 2));
    CHECK(
        cudaMalloc(&workspace, nl_nala_workspace(batch, heads, n, d, NL_FEATURES_COSINE, 0) + 16));
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
    bool served = true;
    const float ms = median_ms([&](int i) {
        __nv_bfloat16 *base = x + (i % sets) * set;
        p.q = base, p.k = base + (interleaved ? D : one), p.v = base + 2 * (interleaved ? D : one);
        p.out = base + elements;
        const cudaError_t run = versions[version].run(p, batch, d, workspace);
        served = run != cudaErrorNotSupported;
        CHECK(served ? run : cudaSuccess);
    });
    const double bytes = 8.0 * batch * n * D / ms / 1e6;
    if (served)
        printf("%-8s %4d heads x %5d x %3d %-11s %8.4f ms %7.0f GB/s  %3.0f %% of copy\n",
               versions[version].name, batch * heads, n, d, interleaved ? "qkvg rows" : "[B,h,N,d]",
               ms, bytes, 100 * bytes / rate);
    CHECK(cudaFree(x));
    CHECK(cudaFree(workspace));
}

int main()
{
    const int count = sizeof(versions) / sizeof(versions[0]);
    int failures = 0;
    for (int v = 0; v < count; v++) {
        for (int d : {8, 32, 40, 48, 56, 64, 72, 80, 96, 104, 128})
            for (int n : {1, 49, 64, 256, 300, 1000})
                failures += check(2, 3, n, d, v);
        failures += check(1, 2, 4096, 64, v);
        failures += check(1, 2, 5000, 72, v);
        failures += check(1, 2, 1500, 88, v);
    }
    const double rate = copy_rate();
    for (int interleaved = 0; interleaved < 2; interleaved++)
        for (int v = 0; v < count; v++) {
            bench(256, 6, 256, 64, interleaved, rate, v);
            bench(64, 6, 1024, 64, interleaved, rate, v);
            bench(16, 6, 4096, 64, interleaved, rate, v);
            bench(4, 6, 16384, 64, interleaved, rate, v);
            bench(1, 6, 65536, 64, interleaved, rate, v);
            bench(64, 16, 256, 72, interleaved, rate, v);
        }
    printf(failures ? "%d FAILED\n" : "all right\n", failures);
    return failures != 0;
}
