/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of the FID network's convolutions, batch 128: every engine that cuDNN's heuristics name and the rules allow, in
 * their order, with bias and ReLU, and beside them what nl_op_conv2d does and, in strict fp32, gathered patches through
 * cuBLASLt and the kernel that reads x itself (ms; engine, knobs and notes). Then the sums over the network, each shape as
 * often as it is there.
 *
 *   cmake --build build --target nalagen && nvcc -O3 -std=c++17 -arch=sm_90 -DNL_CUDNN -Ikernels -Ikernels/cuda -Icore \
 *        -Iinclude kernels/lab/convolutions.cu build/libnalagen.a $LIBRARIES -lcudnn -o convolutions
 *   ./convolutions fp32 tf32 fp16        LIBRARIES: those of bench/nl_bench_images
 */
#include "../cuda/conv_plan.cu"

#include <cmath>
#include <cstring>
#include <string>

#include "lab.cuh"

extern "C" {
#include "nalagen.h"
}
#include "conv/direct.cuh"
#include "cuda_common.cuh"
#include "nl_core.h"

enum { BATCH = 128, ALL_PLANS = 64 };
static const int64_t MOST = (int64_t)3 << 29; /* bytes of workspace */

static const struct shape {
    int times, channels, side, outputs, height, width, stride, pad_height, pad_width;
} shapes[] = {
    {1, 3, 299, 32, 3, 3, 2, 0, 0},   {1, 32, 149, 32, 3, 3, 1, 0, 0},
    {1, 32, 147, 64, 3, 3, 1, 1, 1},  {1, 80, 73, 192, 3, 3, 1, 0, 0},
    {3, 48, 35, 64, 5, 5, 1, 2, 2},   {4, 64, 35, 96, 3, 3, 1, 1, 1},
    {3, 96, 35, 96, 3, 3, 1, 1, 1},   {1, 288, 35, 384, 3, 3, 2, 0, 0},
    {1, 96, 35, 96, 3, 3, 2, 0, 0},   {2, 128, 17, 128, 1, 7, 1, 0, 3},
    {2, 128, 17, 128, 7, 1, 1, 3, 0}, {1, 128, 17, 192, 1, 7, 1, 0, 3},
    {1, 128, 17, 192, 7, 1, 1, 3, 0}, {4, 160, 17, 160, 1, 7, 1, 0, 3},
    {4, 160, 17, 160, 7, 1, 1, 3, 0}, {2, 160, 17, 192, 1, 7, 1, 0, 3},
    {2, 160, 17, 192, 7, 1, 1, 3, 0}, {4, 192, 17, 192, 1, 7, 1, 0, 3},
    {4, 192, 17, 192, 7, 1, 1, 3, 0}, {1, 192, 17, 320, 3, 3, 2, 0, 0},
    {1, 192, 17, 192, 3, 3, 2, 0, 0}, {4, 384, 8, 384, 1, 3, 1, 0, 1},
    {4, 384, 8, 384, 3, 1, 1, 1, 0},  {2, 448, 8, 384, 3, 3, 1, 1, 1},
    {1, 64, 73, 80, 1, 1, 1, 0, 0},   {7, 288, 35, 64, 1, 1, 1, 0, 0},
    {3, 256, 35, 48, 1, 1, 1, 0, 0},  {10, 768, 17, 192, 1, 1, 1, 0, 0},
    {4, 768, 17, 160, 1, 1, 1, 0, 0}, {2, 1280, 8, 384, 1, 1, 1, 0, 0},
    {4, 2048, 8, 384, 1, 1, 1, 0, 0},
};

/* Numbers in [-1, 1): zeros would take less power, and time. */
template <typename T> __global__ void fill(T *to, int64_t count)
{
    NL_GRID_LOOP(i, count)
    nl_put(to + i, (float)((uint32_t)i * 2654435761u >> 8) / 8388608.f - 1.f);
}

static cudnnHandle_t handle;
static nl_device *device;
static void *x, *y, *bias, *weight, *weight_f32, *workspace; /* weight: of the type */

static const char *const number_notes[] = {"tensor-core", "down-convert", "reduced",   "fft",
                                           "varies",      "winograd",     "winograd4", "winograd6",
                                           "winograd13",  "nan"};

static std::string describe(const nl_conv_plan *plan)
{
    char text[64];
    int64_t count, number = -1;
    graph g;
    descriptor configuration, engine, choices[32];
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    g.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configuration);
    g.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    for (descriptor &choice : choices)
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choice);
    cudnnBackendGetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &configuration);
    cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                             &number);
    std::string all = "engine " + std::to_string(number);
    count = 0;
    cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 32, &count, choices);
    for (int64_t i = 0; i < count; i++) {
        cudnnBackendKnobType_t type;
        int64_t value = 0, one;
        cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                                 1, &one, &type);
        cudnnBackendGetAttribute(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                                 &one, &value);
        snprintf(text, sizeof(text), " k%d=%lld", (int)type, (long long)value);
        all += text;
    }
    count = 0;
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                             CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes);
    for (int64_t i = 0; i < count; i++)
        all += std::string(" ") + number_notes[notes[i]];
    for (descriptor choice : choices)
        cudnnBackendDestroyDescriptor(choice);
    snprintf(text, sizeof(text), " %.0f MiB", (double)plan->workspace / 1048576);
    return all + text;
}

/* Plans of all engines of the heuristics that the rules allow. */
static int list_plans(const nl_conv_problem *p, nl_conv_plan *plans)
{
    graph g;
    descriptor operations, engines[ALL_PLANS];
    int64_t offered = ALL_PLANS;
    int count = 0;
    for (descriptor &engine : engines)
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engine);
    if (build(&g, handle, p, &operations) != CUDNN_STATUS_SUCCESS ||
        list_engines(operations, CUDNN_HEUR_MODE_A, engines, &offered) != CUDNN_STATUS_SUCCESS)
        offered = 0;
    for (int64_t i = 0; i < offered; i++) {
        nl_conv_plan plan = {NULL, 0, p->bias != 0, p->residual != 0};
        if (allowed(p, engines[i]))
            plan.plan = make_plan(handle, engines[i], MOST, &plan.workspace);
        if (plan.plan)
            plans[count++] = plan;
    }
    for (descriptor engine : engines)
        cudnnBackendDestroyDescriptor(engine);
    return count;
}

static nl_conv_problem problem_of(const shape *s, nl_dtype type, bool tf32)
{
    nl_conv_problem p = {};
    const int unit = type == NL_F16 ? 8 : tf32 ? 4 : 1;
    p.type = type, p.tf32 = tf32, p.batch = BATCH, p.bias = 1, p.activation = NL_ACT_RELU;
    p.channels = (s->channels + unit - 1) / unit * unit;
    p.height = p.width = s->side, p.outputs = s->outputs, p.y_pixel = s->outputs;
    p.out_height = (s->side + 2 * s->pad_height - s->height) / s->stride + 1;
    p.out_width = (s->side + 2 * s->pad_width - s->width) / s->stride + 1;
    p.kernel_height = s->height, p.kernel_width = s->width, p.stride = s->stride;
    p.pad_top = p.pad_bottom = s->pad_height, p.pad_left = p.pad_right = s->pad_width;
    return p;
}

static nl_conv2d_args args_of(const nl_conv_problem *p, const nl_tensor *w)
{
    const int64_t x_shape[] = {BATCH, p->height, p->width, p->channels};
    const int64_t y_shape[] = {BATCH, p->out_height, p->out_width, p->outputs};
    const int64_t b_shape[] = {p->outputs};
    nl_conv2d_args a = {};
    a.x = nl_tensor_of(x, p->type, 4, x_shape), a.weight = *w;
    a.bias = nl_tensor_of(bias, NL_F32, 1, b_shape), a.y = nl_tensor_of(y, p->type, 4, y_shape);
    a.stride = p->stride, a.pad_top = p->pad_top, a.pad_bottom = p->pad_bottom;
    a.pad_left = p->pad_left, a.pad_right = p->pad_right, a.activation = NL_ACT_RELU;
    a.tf32 = p->tf32;
    return a;
}

/* Median of five, on the device's stream; infinite where it fails. */
template <typename F> static float time_of(F run)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    cudaEvent_t events[2];
    float ms[6];
    bool good = true;
    for (cudaEvent_t &event : events)
        CHECK(cudaEventCreate(&event));
    for (int i = 0; good && i < 6; i++) {
        CHECK(cudaEventRecord(events[0], stream));
        good = run();
        CHECK(cudaEventRecord(events[1], stream));
        CHECK(cudaEventSynchronize(events[1]));
        CHECK(cudaEventElapsedTime(&ms[i], events[0], events[1]));
    }
    for (cudaEvent_t event : events)
        CHECK(cudaEventDestroy(event));
    std::sort(ms + 1, ms + 6);
    return good ? ms[3] : INFINITY;
}

__global__ void compare(const float *a, const float *b, int64_t count, unsigned *worst)
{
    NL_GRID_LOOP(i, count)
    {
        const float difference = fabsf(a[i] - b[i]);
        const unsigned bits = __float_as_uint(isnan(difference) ? INFINITY : difference);
        if (bits > *(volatile unsigned *)worst)
            atomicMax(worst, bits);
    }
}

/* The largest difference of direct to gathered, every output being NaN before. */
static float difference(const nl_conv_problem *p, const nl_tensor *w, const nl_conv_operands *o)
{
    const int64_t count = p->batch * p->out_height * p->out_width * p->outputs;
    nl_conv_operands other = *o;
    unsigned *bits = (unsigned *)workspace;
    float worst = INFINITY;
    other.y = (float *)workspace + 64;
    CHECK(cudaMemset(workspace, 0, 256));
    CHECK(cudaMemset(o->y, 255, count * sizeof(float)));
    CHECK(cudaDeviceSynchronize());
    if (nl_conv_gather(device, p, w, &other) == NL_OK && nl_conv_direct(device, p, w, o) == NL_OK) {
        compare<<<1024, 256, 0, nl_cuda_of(device)->stream>>>((const float *)o->y,
                                                              (const float *)other.y, count, bits);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(&worst, bits, sizeof(worst), cudaMemcpyDeviceToHost));
    }
    return worst;
}

/* Sums over the network, in ms. */
static struct sums {
    double first, all, operation, gathered, direct, with_ours, products;
} sum;

static void measure(const shape *s, nl_dtype type, bool tf32)
{
    nl_conv_problem p = problem_of(s, type, tf32);
    nl_conv_plan plans[ALL_PLANS];
    const int64_t w_shape[] = {p.outputs, p.channels, p.kernel_height, p.kernel_width};
    const nl_tensor w = nl_tensor_of(weight_f32, NL_F32, 4, w_shape);
    const nl_conv2d_args a = args_of(&p, &w);
    const nl_conv_operands o = {x, weight, bias, NULL, y};
    const float operation = time_of([&] { return nl_op_conv2d(device, &a) == NL_OK; });
    const double flops = 2. * BATCH * p.out_height * p.out_width * p.outputs * p.channels *
                         p.kernel_height * p.kernel_width;
    const bool strict = type == NL_F32 && !tf32;
    float gathered = INFINITY, first = INFINITY, all = INFINITY;
    if (strict)
        gathered = time_of([&] { return nl_conv_gather(device, &p, &w, &o) == NL_OK; });
    printf("\n%d x [%d, %d -> %d, %d x %d / %d]: conv2d %.3f ms (%.1f TFLOP/s)", s->times,
           p.channels, s->side, p.outputs, s->height, s->width, s->stride, operation,
           flops / operation / 1e9);
    if (strict)
        printf(", gathered %.3f (%.1f)", gathered, flops / gathered / 1e9);
    float direct = INFINITY;
    if (nl_conv_direct_serves(&p, x)) {
        direct = time_of([&] { return nl_conv_direct(device, &p, &w, &o) == NL_OK; });
        printf(", direct %.3f (%.1f), off by %.1e", direct, flops / direct / 1e9,
               difference(&p, &w, &o));
    }
    printf("\n");
    const int count = list_plans(&p, plans);
    for (int i = 0; i < count; i++) {
        const float ms = time_of([&] {
            return nl_conv_plan_run(handle, &plans[i], &o, workspace) == CUDNN_STATUS_SUCCESS;
        });
        printf("  %2d %.3f %s\n", i, ms, describe(&plans[i]).c_str());
        first = i == 0 ? ms : first;
        all = NL_MIN(all, ms);
        cudnnBackendDestroyDescriptor(plans[i].plan);
    }
    sum.operation += s->times * operation;
    if (s->height * s->width == 1) {
        sum.products += s->times * operation;
        return;
    }
    sum.first += s->times * first, sum.all += s->times * all;
    sum.gathered += s->times * gathered;
    sum.direct += s->times * NL_MIN(direct, gathered);
    sum.with_ours += s->times * NL_MIN(all, NL_MIN(direct, gathered));
}

int main(int argc, char **argv)
{
    nl_context_options options = {};
    nl_context *context;
    if (nl_core_context_create(&options, &context) != NL_OK ||
        nl_device_create(context, "cuda", "f32", 1, &device) != NL_OK ||
        cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS)
        return 1;
    cudnnSetStream(handle, nl_cuda_of(device)->stream);
    copy_rate();
    const size_t bytes = (size_t)1 << 30;
    CHECK(cudaMalloc(&x, bytes));
    CHECK(cudaMalloc(&y, bytes));
    CHECK(cudaMalloc(&workspace, MOST));
    CHECK(cudaMalloc(&weight, 16 << 20));
    CHECK(cudaMalloc(&weight_f32, 16 << 20));
    CHECK(cudaMalloc(&bias, 1 << 16));
    fill<<<1024, 256>>>((float *)bias, 1 << 14);
    fill<<<1024, 256>>>((float *)weight_f32, 4 << 20);
    for (int i = 1; i < argc; i++) {
        const bool tf32 = !strcmp(argv[i], "tf32");
        const nl_dtype type = !strcmp(argv[i], "fp16") ? NL_F16 : NL_F32;
        printf("\n#### %s\n", argv[i]);
        if (type == NL_F16) {
            fill<<<1024, 256>>>((__half *)x, bytes / 2);
            fill<<<1024, 256>>>((__half *)weight, 8 << 20);
        } else {
            fill<<<1024, 256>>>((float *)x, bytes / 4);
            fill<<<1024, 256>>>((float *)weight, 4 << 20);
        }
        CHECK(cudaDeviceSynchronize());
        sum = {};
        for (const shape &s : shapes)
            measure(&s, type, tf32);
        printf("\n#### %s, ms of the network: conv2d %.2f, of these 1 x 1 %.2f; engines of more "
               "than 1 x 1: the heuristics' first %.2f, best of all %.2f",
               argv[i], sum.operation, sum.products, sum.first, sum.all);
        if (type == NL_F32 && !tf32)
            printf("; gathered %.2f, direct or gathered %.2f, best of all %.2f", sum.gathered,
                   sum.direct, sum.with_ours);
        printf("\n");
    }
    return 0;
}
