/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of NaLa attention backward on tensor cores: gradients against fp64 on fresh random inputs (also long
 * sequences, which are cut into chunks), then time of forward and backward, bytes a second of the backward pass (q, k, v,
 * o, do read, dq, dk, dv written) and share of the card's copy rate.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/nala_backward.cu kernels/cuda/nala/backward.cu -o nala_backward && ./nala_backward
 */
#include <cmath>

#include "lab.cuh"
#include "nala/backward_kernel.cuh"

static uint32_t random_state = 12345;
static float gaussian()
{
    auto next = [] {
        return ((random_state = random_state * 1664525u + 1013904223u) >> 8) / 16777216.f;
    };
    const float radius = sqrtf(-2 * logf(next() + 1e-7f));
    return radius * cosf(6.2831853f * next());
}

/* Everything of one head, [n, d] but the state [2 d, d] and its sums [2 d], in double. */
struct head {
    int n, d;
    std::vector<double> q, k, v, out, dout, state, total, dq, dk, dv;
    head(int n_, int d_) : n(n_), d(d_)
    {
        for (auto x : {&q, &k, &v, &out, &dout, &dq, &dk, &dv})
            x->resize((size_t)n * d);
        state.resize(2 * d * d), total.resize(2 * d);
    }
};

static const double pi = 3.14159265358979323846;

struct row {
    double norm, power;
    std::vector<double> direction, magnitude, angle, f;
};

static row features(const double *x, int d, bool query)
{
    row r;
    double squares = 0;
    for (int i = 0; i < d; i++)
        squares += x[i] * x[i];
    r.norm = std::sqrt(squares);
    r.power = query ? 3 * (0.5 + std::tanh(r.norm)) : 3;
    r.f.resize(2 * d);
    for (int i = 0; i < d; i++) {
        const double a = x[i] / (r.norm + 1e-6), base = std::fabs(query ? a : x[i]);
        r.direction.push_back(a);
        r.magnitude.push_back(base > 0 ? std::pow(base, r.power) : 0);
        r.angle.push_back(pi / 4 * std::tanh(a));
        r.f[i] = r.magnitude[i] * std::cos(r.angle[i]);
        r.f[d + i] = r.magnitude[i] * std::sin(r.angle[i]);
    }
    return r;
}

/* From the gradient of the features (docs/nala-attention.md). */
static void map_gradient(const row &r, const double *x, const std::vector<double> &df, bool query,
                         double *dx)
{
    const int d = (int)r.direction.size();
    std::vector<double> by_direction(d), by_value(d);
    double by_power = 0, projection = 0;
    for (int i = 0; i < d; i++) {
        const double base = std::fabs(query ? r.direction[i] : x[i]), t = r.angle[i];
        const double g = df[i] * std::cos(t) + df[d + i] * std::sin(t);
        const double h = df[d + i] * std::cos(t) - df[i] * std::sin(t);
        const double slope = pi / 4 * (1 - std::pow(std::tanh(r.direction[i]), 2));
        const double by_base =
            base > 0 ? std::copysign(r.power * std::pow(base, r.power - 1), x[i]) * g : 0;
        by_direction[i] = r.magnitude[i] * slope * h + (query ? by_base : 0);
        by_value[i] = query ? 0 : by_base;
        by_power += base > 0 ? r.magnitude[i] * std::log(base) * g : 0;
        projection += by_direction[i] * x[i];
    }
    const double n = r.norm,
                 by_norm = (query ? 3 * by_power * (1 - std::pow(std::tanh(n), 2)) : 0) -
                           projection / ((n + 1e-6) * (n + 1e-6));
    for (int i = 0; i < d; i++)
        dx[i] = by_value[i] + by_direction[i] / (n + 1e-6) + (n > 0 ? x[i] / n * by_norm : 0);
}

static void forward(head &h)
{
    const int d = h.d;
    for (int t = 0; t < h.n; t++) {
        const row r = features(&h.k[(size_t)t * d], d, false);
        for (int f = 0; f < 2 * d; f++) {
            h.total[f] += r.f[f] / h.n;
            for (int j = 0; j < d; j++)
                h.state[f * d + j] += r.f[f] * h.v[(size_t)t * d + j] / h.n;
        }
    }
    for (int t = 0; t < h.n; t++) {
        const row r = features(&h.q[(size_t)t * d], d, true);
        double denominator = 1e-6;
        for (int f = 0; f < 2 * d; f++)
            denominator += r.f[f] * h.total[f];
        for (int f = 0; f < 2 * d; f++)
            for (int j = 0; j < d; j++)
                h.out[(size_t)t * d + j] += r.f[f] * h.state[f * d + j] / denominator;
    }
}

static void backward(head &h)
{
    const int d = h.d;
    std::vector<double> dstate(2 * d * d), dtotal(2 * d), df(2 * d), u(d);
    for (int t = 0; t < h.n; t++) {
        const double *x = &h.q[(size_t)t * d];
        const row r = features(x, d, true);
        double denominator = 1e-6, product = 0;
        for (int f = 0; f < 2 * d; f++)
            denominator += r.f[f] * h.total[f];
        for (int j = 0; j < d; j++) {
            u[j] = h.dout[(size_t)t * d + j] / denominator;
            product += u[j] * h.out[(size_t)t * d + j];
        }
        for (int f = 0; f < 2 * d; f++) {
            dtotal[f] -= r.f[f] * product;
            df[f] = -product * h.total[f];
            for (int j = 0; j < d; j++) {
                dstate[f * d + j] += r.f[f] * u[j];
                df[f] += u[j] * h.state[f * d + j];
            }
        }
        map_gradient(r, x, df, true, &h.dq[(size_t)t * d]);
    }
    for (int t = 0; t < h.n; t++) {
        const double *x = &h.k[(size_t)t * d], *v = &h.v[(size_t)t * d];
        const row r = features(x, d, false);
        for (int f = 0; f < 2 * d; f++) {
            df[f] = dtotal[f] / h.n;
            for (int j = 0; j < d; j++) {
                df[f] += v[j] * dstate[f * d + j] / h.n;
                h.dv[(size_t)t * d + j] += r.f[f] * dstate[f * d + j] / h.n;
            }
        }
        map_gradient(r, x, df, false, &h.dk[(size_t)t * d]);
    }
}

/* Device memory of one problem: rows of q | k | v | g, of o, of do, and of dq | dk | dv. */
struct memory {
    __nv_bfloat16 *qkvg, *out, *dout, *dqkv;
    float *state, *total;
    void *workspace;
    nl_nala_gradient p = {};
    memory(int batch, int heads, int n, int d)
    {
        const size_t rows = (size_t)batch * n, width = (size_t)heads * d;
        CHECK(cudaMalloc(&qkvg, rows * 4 * width * 2));
        CHECK(cudaMalloc(&out, rows * width * 2));
        CHECK(cudaMalloc(&dout, rows * width * 2));
        CHECK(cudaMalloc(&dqkv, rows * 4 * width * 2));
        CHECK(cudaMemset(dqkv, 0xff, rows * 4 * width * 2)); /* NaN */
        CHECK(cudaMalloc(&state, (size_t)batch * heads * 2 * d * d * 4));
        CHECK(cudaMalloc(&total, (size_t)batch * heads * 2 * d * 4));
        CHECK(cudaMalloc(&workspace, nl_nala_backward_workspace(batch, heads, n, d)));
        p.q = qkvg, p.k = qkvg + width, p.v = qkvg + 2 * width, p.out = out, p.dout = dout;
        p.dq = dqkv, p.dk = dqkv + width, p.dv = dqkv + 2 * width;
        p.stride = p.gradient_stride = 4 * width, p.out_stride = width;
        p.state = state, p.total = total, p.tokens = n, p.heads = heads;
        p.lambda = 3, p.tau = .5f;
    }
    ~memory()
    {
        for (void *x : {(void *)qkvg, (void *)out, (void *)dout, (void *)dqkv, (void *)state,
                        (void *)total, workspace})
            CHECK(cudaFree(x));
    }
};

static double difference(const std::vector<double> &expected,
                         const std::vector<__nv_bfloat16> &rows, size_t stride, size_t column,
                         int d)
{
    double off = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        const double a = __bfloat162float(rows[i / d * stride + column + i % d]);
        off += (a - expected[i]) * (a - expected[i]), norm += expected[i] * expected[i];
    }
    return std::sqrt(off / norm);
}

static int check(int heads, int n, int d)
{
    const size_t width = (size_t)heads * d, stride = 4 * width;
    memory m(1, heads, n, d);
    std::vector<__nv_bfloat16> qkvg(n * stride), out(n * width), dout(n * width), dqkv(n * stride);
    std::vector<float> state, total;
    std::vector<head> all;
    for (auto &x : qkvg)
        x = __float2bfloat16(gaussian());
    for (auto &x : dout)
        x = __float2bfloat16(gaussian());
    for (int j = 0; j < d && n > 7; j++) { /* a zero query, a long query, a zero key */
        qkvg[3 * stride + j] = __float2bfloat16(0);
        qkvg[5 * stride + j] = __float2bfloat16(50 * __bfloat162float(qkvg[5 * stride + j]));
        qkvg[7 * stride + width + j] = __float2bfloat16(0);
    }
    for (int i = 0; i < heads; i++) {
        head h(n, d);
        for (int t = 0; t < n; t++)
            for (int j = 0; j < d; j++) {
                const size_t at = t * stride + i * d + j, to = (size_t)t * d + j;
                h.q[to] = __bfloat162float(qkvg[at]);
                h.k[to] = __bfloat162float(qkvg[at + width]);
                h.v[to] = __bfloat162float(qkvg[at + 2 * width]);
                h.dout[to] = __bfloat162float(dout[t * width + i * d + j]);
            }
        forward(h);
        backward(h);
        for (int t = 0; t < n; t++)
            for (int j = 0; j < d; j++)
                out[t * width + i * d + j] = __float2bfloat16((float)h.out[(size_t)t * d + j]);
        state.insert(state.end(), h.state.begin(), h.state.end());
        total.insert(total.end(), h.total.begin(), h.total.end());
        all.push_back(h);
    }
    CHECK(cudaMemcpy(m.qkvg, qkvg.data(), qkvg.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.out, out.data(), out.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.dout, dout.data(), dout.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.state, state.data(), state.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.total, total.data(), total.size() * 4, cudaMemcpyHostToDevice));
    CHECK(nl_nala_backward(m.p, 1, d, m.workspace, 0));
    CHECK(cudaMemcpy(dqkv.data(), m.dqkv, dqkv.size() * 2, cudaMemcpyDeviceToHost));
    double worst[3] = {};
    for (int i = 0; i < heads; i++) {
        const head &h = all[i];
        worst[0] = std::max(worst[0], difference(h.dq, dqkv, stride, i * d, d));
        worst[1] = std::max(worst[1], difference(h.dk, dqkv, stride, width + i * d, d));
        worst[2] = std::max(worst[2], difference(h.dv, dqkv, stride, 2 * width + i * d, d));
    }
    const bool good = worst[0] <= 2e-2 && worst[1] <= 2e-2 && worst[2] <= 1e-2;
    printf("check %d heads x %5d x %3d: dq %.2e, dk %.2e, dv %.2e %s\n", heads, n, d, worst[0],
           worst[1], worst[2], good ? "ok" : "WRONG");
    return !good;
}

static void bench(int batch, int heads, int n, int d, double rate)
{
    memory m(batch, heads, n, d);
    std::vector<__nv_bfloat16> host((size_t)batch * n * heads * d * 4);
    std::vector<float> state((size_t)batch * heads * 2 * d * d),
        total((size_t)batch * heads * 2 * d);
    for (size_t i = 0; i < host.size(); i++)
        host[i] = i < 1 << 20 ? __float2bfloat16(gaussian()) : host[i - (1 << 20)];
    for (auto &x : state)
        x = .01f * gaussian();
    for (auto &x : total)
        x = std::fabs(gaussian()) + 1;
    const size_t bytes = host.size() * 2;
    CHECK(cudaMemcpy(m.qkvg, host.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.out, host.data(), bytes / 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.dout, host.data(), bytes / 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.state, state.data(), state.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(m.total, total.data(), total.size() * 4, cudaMemcpyHostToDevice));
    const float ms =
        median_ms([&](int) { CHECK(nl_nala_backward(m.p, batch, d, m.workspace, 0)); });
    const double gb = 2. * bytes / ms / 1e6;
    printf("%4d heads x %5d x %3d: backward %8.4f ms %6.0f GB/s %3.0f %% of copy\n", batch * heads,
           n, d, ms, gb, 100 * gb / rate);
}

int main()
{
    int failures = 0;
    const double rate = copy_rate();
    for (int d : {32, 48, 64, 72, 80, 96})
        for (int n : {49, 256, 300}) /* of one token the gradients by q and k are 0 */
            failures += check(2, n, d);
    failures += check(2, 2500, 64);
    failures += check(1, 2500, 72);
    bench(256, 6, 256, 64, rate);
    bench(64, 6, 1024, 64, rate);
    bench(16, 6, 4096, 64, rate);
    bench(1, 6, 65536, 64, rate);
    bench(64, 16, 256, 72, rate);
    printf(failures ? "%d FAILED\n" : "all right\n", failures);
    return failures != 0;
}
