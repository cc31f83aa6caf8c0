/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of the training operations at the sizes of a step of the S/2 model with 256 images: milliseconds, bytes a
 * second of what has to cross memory, and share of the card's copy rate; for products TFLOP/s. Correctness is the
 * operation tests' (tests/test_operations with NL_TEST_DEVICE=cuda).
 *
 *   nvcc -O3 -std=c++20 -gencode arch=compute_90,code=sm_90 -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/training.cu BUILD/libnalagen.a ... -o training && ./training
 */
#include "cuda_common.cuh"
#include "lab.cuh"
#include "nl_core.h"

/* As NL_OP, which is C. */
#define OP(operation, ...)                                                                         \
    ([&] {                                                                                         \
        const nl_##operation##_args args = {__VA_ARGS__};                                          \
        return nl_op_##operation(device, &args);                                                   \
    }())

static nl_device *device;
static double rate;

static void must(nl_status status)
{
    if (status == NL_OK)
        return;
    fprintf(stderr, "%s\n", nl_last_error(device->context));
    exit(1);
}

__global__ void fill_kernel(void *x, bool bf16, int64_t count, float scale)
{
    NL_GRID_LOOP(i, count)
    {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        const float v = scale * (float)(int)(h % 20001 - 10000) / 5774.f;
        if (bf16)
            ((__nv_bfloat16 *)x)[i] = __float2bfloat16(v);
        else
            ((float *)x)[i] = v;
    }
}

/* A tensor of pseudo-random numbers of variance 1 that stays until the program ends. */
static nl_tensor take(nl_dtype dtype, std::vector<int64_t> shape, float scale = 1.f)
{
    nl_tensor t = nl_tensor_of(NULL, dtype, (int)shape.size(), shape.data());
    CHECK(cudaMalloc(&t.data, (size_t)nl_tensor_bytes(&t) + 16));
    fill_kernel<<<1024, 256>>>(t.data, dtype == NL_BF16, nl_tensor_count(&t), scale);
    CHECK(cudaDeviceSynchronize());
    return t;
}

template <typename F> static float time_of(F run)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int calls = 8;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 8; i++) {
        CHECK(cudaEventRecord(begin, stream));
        for (int call = 0; call < calls; call++)
            must(run());
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 1)
            times.push_back(ms / calls);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* bytes: read and written at least; flops: of a product, or 0 */
template <typename F> static float report(const char *name, double bytes, double flops, F run)
{
    const float ms = time_of(run);
    printf("%-52s %8.4f ms %6.0f GB/s %3.0f %% of copy", name, ms, bytes / ms / 1e6,
           100 * bytes / ms / 1e6 / rate);
    if (flops > 0)
        printf(" %5.0f TFLOP/s", flops / ms / 1e9);
    printf("\n");
    fflush(stdout);
    return ms;
}

static const int64_t B = 256, T = 256, D = 384, M = B * T;

static void products(void)
{
    struct {
        const char *name;
        int64_t n, k;
        nl_epilogue epilogue; /* of what made x */
    } layers[] = {{"qkvg", 1536, 384, NL_EPILOGUE_NONE},
                  {"out", 384, 384, NL_EPILOGUE_NONE},
                  {"fc1", 1536, 384, NL_EPILOGUE_NONE},
                  {"fc2", 384, 1536, NL_EPILOGUE_GELU_TANH}};
    double total = 0;
    for (const auto &l : layers) {
        char name[64];
        nl_tensor x = take(NL_BF16, {M, l.k}), dy = take(NL_BF16, {M, l.n}),
                  w = take(NL_BF16, {l.n, l.k}, .05f), pre = take(NL_BF16, {M, l.k}),
                  dx = take(NL_BF16, {M, l.k}), dw = take(NL_F32, {l.n, l.k}),
                  db = take(NL_F32, {l.n}), dbpre = take(NL_F32, {l.k}), bias = take(NL_F32, {l.n}),
                  y = take(NL_BF16, {M, l.n}), ypre = take(NL_BF16, {M, l.n});
        const double flops = 2. * M * l.n * l.k, bytes = 2. * M * (l.n + l.k);
        const bool gelu = l.epilogue == NL_EPILOGUE_GELU_TANH;
        snprintf(name, sizeof(name), "%s forward", l.name);
        report(name, bytes, flops,
               [&] { return OP(linear, .x = x, .weight = w, .bias = bias, .y = y); });
        if (l.n == 1536) {
            snprintf(name, sizeof(name), "%s forward, GELU", l.name);
            report(name, bytes, flops, [&] {
                return OP(linear, .x = x, .weight = w, .bias = bias, .y = y,
                          .epilogue = NL_EPILOGUE_GELU_TANH);
            });
            snprintf(name, sizeof(name), "%s forward, GELU, pre", l.name);
            report(name, bytes + 2. * M * l.n, flops, [&] {
                return OP(linear, .x = x, .weight = w, .bias = bias, .y = y,
                          .epilogue = NL_EPILOGUE_GELU_TANH, .pre = ypre);
            });
        }
        snprintf(name, sizeof(name), "%s backward data%s", l.name, gelu ? ", GELU" : "");
        total += report(name, bytes + (gelu ? 2. * M * l.k : 0), flops, [&] {
            return OP(linear_backward_data, .dy = dy, .weight = w, .pre = gelu ? pre : nl_tensor{},
                      .epilogue = l.epilogue, .dx = dx);
        });
        if (gelu) {
            report("fc2 backward data, GELU, its output, sums", bytes + 4. * M * l.k, flops, [&] {
                return OP(linear_backward_data, .dy = dy, .weight = w, .pre = pre,
                          .epilogue = l.epilogue, .dx = dx, .x = pre, .dbias = dbpre);
            });
            snprintf(name, sizeof(name), "%s backward data, no GELU", l.name);
            report(name, bytes, flops,
                   [&] { return OP(linear_backward_data, .dy = dy, .weight = w, .dx = dx); });
            report("GELU of its input", 4. * M * l.k, 0,
                   [&] { return OP(activate, .x = pre, .y = x, .activation = NL_ACT_GELU_TANH); });
        }
        snprintf(name, sizeof(name), "%s backward weight", l.name);
        report(name, bytes, flops,
               [&] { return OP(linear_backward_weight, .dy = dy, .x = x, .dweight = dw); });
        snprintf(name, sizeof(name), "%s backward weight and bias", l.name);
        total += report(name, bytes, flops, [&] {
            return OP(linear_backward_weight, .dy = dy, .x = x, .dweight = dw, .dbias = db);
        });
        for (nl_tensor *t : {&x, &dy, &w, &pre, &dx, &dw, &db, &dbpre, &bias, &y, &ypre})
            CHECK(cudaFree(t->data));
    }
    printf("backward products of a block: %.3f ms, of twelve %.2f ms\n", total, 12 * total);
    nl_tensor x = take(NL_BF16, {B, D}), dy = take(NL_BF16, {B, 28416}),
              w = take(NL_BF16, {28416, D}, .05f), dx = take(NL_BF16, {B, D}),
              dw = take(NL_F32, {28416, D}), db = take(NL_F32, {28416});
    report("modulation backward data", 2. * 28416 * (D + B), 2. * B * 28416 * D,
           [&] { return OP(linear_backward_data, .dy = dy, .weight = w, .dx = dx); });
    report("modulation backward weight and bias", 8. * 28416 * D, 2. * B * 28416 * D, [&] {
        return OP(linear_backward_weight, .dy = dy, .x = x, .dweight = dw, .dbias = db);
    });
    nl_tensor head = take(NL_BF16, {M, 32}), tokens = take(NL_BF16, {M, D}),
              hw = take(NL_BF16, {32, D}, .05f), hdw = take(NL_F32, {32, D}),
              hdb = take(NL_F32, {32}), hdx = take(NL_BF16, {M, D});
    report("head backward data", 2. * M * (32 + D), 0,
           [&] { return OP(linear_backward_data, .dy = head, .weight = hw, .dx = hdx); });
    report("head backward weight and bias", 2. * M * (32 + D), 0, [&] {
        return OP(linear_backward_weight, .dy = head, .x = tokens, .dweight = hdw, .dbias = hdb);
    });
}

static void normalisations(int64_t batch, int64_t width)
{
    const int64_t rows = batch * T;
    nl_tensor x = take(NL_BF16, {rows, width}), dy = take(NL_BF16, {rows, width}),
              dx = take(NL_BF16, {rows, width}), branch = take(NL_BF16, {rows, width}),
              dbranch = take(NL_BF16, {rows, width}), y = take(NL_BF16, {rows, width});
    nl_tensor all = take(NL_BF16, {batch, 6 * width}), dall = take(NL_BF16, {batch, 6 * width});
    nl_tensor shift = nl_tensor_columns(&all, 0, width),
              scale = nl_tensor_columns(&all, width, width),
              gate = nl_tensor_columns(&all, 2 * width, width);
    nl_tensor dshift = nl_tensor_columns(&dall, 0, width),
              dscale = nl_tensor_columns(&dall, width, width),
              dgate = nl_tensor_columns(&dall, 2 * width, width);
    const double unit = 2. * rows * width;
    printf("%lld images of width %lld\n", (long long)batch, (long long)width);
    report("layernorm_modulate, sum kept", 5 * unit, 0, [&] {
        return OP(layernorm_modulate, .x = x, .branch = branch, .gate = gate, .shift = shift,
                  .scale = scale, .y = y, .sum = dbranch, .rows_per_image = T, .eps = 1e-6f);
    });
    nl_tensor branch_bias = take(NL_F32, {width});
    report("layernorm_modulate_backward", 7 * unit, 0, [&] {
        return OP(layernorm_modulate_backward, .x = x, .scale = scale, .shift = shift, .dy = dy,
                  .dx = dx, .branch = branch, .gate = gate, .dbranch = dbranch,
                  .dbias = branch_bias, .dshift = dshift, .dscale = dscale, .dgate = dgate, .y = y,
                  .rows_per_image = T, .eps = 1e-6f);
    });
    report("layernorm_modulate_backward, no branch", 5 * unit, 0, [&] {
        return OP(layernorm_modulate_backward, .x = x, .scale = scale, .shift = shift, .dy = dy,
                  .dx = dx, .dshift = dshift, .dscale = dscale, .y = y, .rows_per_image = T,
                  .eps = 1e-6f);
    });
    nl_tensor qkvg = take(NL_BF16, {rows, 4 * width}), dqkvg = take(NL_BF16, {rows, 4 * width});
    nl_tensor g = nl_tensor_columns(&qkvg, 3 * width, width),
              dg = nl_tensor_columns(&dqkvg, 3 * width, width);
    nl_tensor weight = take(NL_F32, {width}), bias = take(NL_F32, {width}),
              dweight = take(NL_F32, {width}), dbias = take(NL_F32, {width});
    report("layernorm_gate_backward", 6 * unit, 0, [&] {
        return OP(layernorm_gate_backward, .x = x, .weight = weight, .bias = bias, .g = g, .dy = dy,
                  .dx = dx, .dg = dg, .dweight = dweight, .dbias = dbias, .y = y, .eps = 1e-5f);
    });
    for (nl_tensor *t : {&x, &dy, &dx, &branch, &dbranch, &y, &all, &dall, &qkvg, &dqkvg})
        CHECK(cudaFree(t->data));
}

static void attention(int64_t batch, int64_t tokens, int64_t heads, int64_t d)
{
    const int64_t rows = batch * tokens, width = heads * d;
    nl_tensor qkvg = take(NL_BF16, {rows, 4 * width}), out = take(NL_BF16, {rows, width}),
              dout = take(NL_BF16, {rows, width}), dqkvg = take(NL_BF16, {rows, 4 * width}),
              state = take(NL_F32, {batch * heads, 2 * d, d}),
              total = take(NL_F32, {batch * heads, 2 * d}),
              lse = take(NL_F32, {batch * heads, tokens});
    const double unit = 2. * rows * width;
    printf("%lld heads x %lld x %lld\n", (long long)(batch * heads), (long long)tokens,
           (long long)d);
    float ms = report("nala_attention, state kept", 4 * unit, 0, [&] {
        return OP(nala_attention, .qkvg = qkvg, .out = out, .state = state, .total = total,
                  .batch = batch, .tokens = tokens, .heads = heads, .head_size = d, .lambda = 3,
                  .tau = .5f);
    });
    ms += report("nala_attention_backward", 8 * unit, 0, [&] {
        return OP(nala_attention_backward, .qkvg = qkvg, .out = out, .dout = dout, .state = state,
                  .total = total, .dqkv = dqkvg, .batch = batch, .tokens = tokens, .heads = heads,
                  .head_size = d, .lambda = 3, .tau = .5f);
    });
    printf("NaLa forward + backward %.4f ms\n", ms);
    if (tokens <= 1024) {
        const float scale = 1 / sqrtf((float)d);
        ms = report("softmax_attention, lse kept", 4 * unit, 4. * rows * tokens * width, [&] {
            return OP(softmax_attention, .qkv = qkvg, .out = out, .lse = lse, .batch = batch,
                      .tokens = tokens, .heads = heads, .head_size = d, .scale = scale);
        });
        ms += report("softmax_attention_backward", 8 * unit, 10. * rows * tokens * width, [&] {
            return OP(softmax_attention_backward, .qkv = qkvg, .out = out, .dout = dout, .lse = lse,
                      .dqkv = dqkvg, .batch = batch, .tokens = tokens, .heads = heads,
                      .head_size = d, .scale = scale);
        });
        printf("softmax forward + backward %.4f ms\n", ms);
    }
    for (nl_tensor *t : {&qkvg, &out, &dout, &dqkvg, &state, &total, &lse})
        CHECK(cudaFree(t->data));
}

static void others(void)
{
    nl_tensor x = take(NL_F32, {B, 4, 32, 32}), noise = take(NL_F32, {B, 4, 32, 32}),
              y = take(NL_F32, {B, 4, 32, 32}), moments = take(NL_F32, {B, 8, 32, 32}, .1f),
              prediction = take(NL_F32, {B, 8, 32, 32}), dprediction = take(NL_F32, {B, 8, 32, 32}),
              coefficients = take(NL_F32, {B, NL_LOSS_COLUMNS}), loss = take(NL_F32, {B}),
              mean = take(NL_F32, {1}), vb = take(NL_F32, {B, NL_VB_COLUMNS});
    nl_tensor tokens = take(NL_BF16, {M, D}), head = take(NL_BF16, {M, 32}),
              dweight = take(NL_F32, {D, 4, 2, 2}), dbias = take(NL_F32, {D});
    report("latents from moments", 4. * 4 * B * 4096, 0,
           [&] { return OP(latents, .x = moments, .noise = noise, .y = y, .scale = .18f); });
    report("diffuse", 3. * 4 * B * 4096, 0, [&] {
        return OP(diffuse, .data = x, .noise = noise, .coefficients = coefficients, .y = y);
    });
    report("regression_loss", 6. * 4 * B * 4096, 0, [&] {
        return OP(regression_loss, .prediction = prediction, .data = x, .noise = noise,
                  .coefficients = coefficients, .loss = loss, .dprediction = dprediction,
                  .gradient_scale = 1.f / B);
    });
    report("variational_loss", 5. * 4 * B * 4096, 0, [&] {
        return OP(variational_loss, .prediction = prediction, .x = y, .data = x, .coefficients = vb,
                  .loss = loss, .dprediction = dprediction, .gradient_scale = 1.f / B);
    });
    report("mean", 4. * B, 0, [&] { return OP(mean, .x = loss, .y = mean); });
    report("unpatchify_backward", 6. * M * 32, 0, [&] {
        return OP(unpatchify_backward, .dx = prediction, .dtokens = head, .patch = 2,
                  .head_channels = 8);
    });
    report("patch_embed_backward", 2. * M * D, 0, [&] {
        return OP(patch_embed_backward, .x = x, .dtokens = tokens, .dweight = dweight,
                  .dbias = dbias);
    });
    nl_tensor conv = take(NL_F32, {D, 1, 5, 5}), dconv = take(NL_F32, {D, 1, 5, 5}),
              dx = take(NL_BF16, {M, D}), dout = take(NL_BF16, {M, D});
    report("depthwise_conv_backward, 5 x 5", 2. * M * D * 5, 0, [&] {
        return OP(depthwise_conv_backward, .x = tokens, .weight = conv, .dout = dout, .dx = dx,
                  .dweight = dconv, .dbias = dbias, .batch = B, .grid_height = 16,
                  .grid_width = 16);
    });
    nl_tensor c = take(NL_BF16, {B, D}), dc = take(NL_BF16, {B, D}), dtime = take(NL_BF16, {B, D}),
              dtable = take(NL_F32, {1001, D});
    nl_tensor labels = take(NL_F32, {B});
    labels.dtype = NL_I32;
    CHECK(cudaMemset(labels.data, 0, B * 4));
    report("add_label_backward", 6. * B * D, 0, [&] {
        return OP(add_label_backward, .c = c, .labels = labels, .dy = dc, .dtime = dtime,
                  .dtable = dtable);
    });
}

static void optimiser(void)
{
    const int64_t n = 33 << 20, pieces = 132;
    nl_tensor master = take(NL_F32, {n}), first = take(NL_F32, {n}, 0),
              second = take(NL_F32, {n}, 0), gradient = take(NL_F32, {n}), ema = take(NL_F32, {n}),
              norm = take(NL_F32, {1}), hyper = take(NL_F32, {NL_HYPER_COLUMNS}),
              weights = take(NL_BF16, {n});
    nl_tensor counter = take(NL_F32, {2}, 0);
    counter.dtype = NL_I32;
    const float numbers[NL_HYPER_COLUMNS] = {1e-4f, .9f, .999f, 1e-8f, 0, 1, .9999f};
    CHECK(cudaMemcpy(hyper.data, numbers, sizeof(numbers), cudaMemcpyHostToDevice));
    std::vector<nl_segment> segments;
    for (int64_t i = 0; i < pieces; i++)
        segments.push_back({n / pieces * i, n / pieces,
                            (__nv_bfloat16 *)weights.data + n / pieces * i, NL_BF16, false, 1.f});
    nl_tensor table = take(NL_F32, {(int64_t)sizeof(nl_segment) * pieces / 4});
    const int64_t table_bytes = (int64_t)sizeof(nl_segment) * pieces;
    table = nl_tensor_of(table.data, NL_U8, 1, &table_bytes);
    CHECK(cudaMemcpy(table.data, segments.data(), sizeof(nl_segment) * pieces,
                     cudaMemcpyHostToDevice));
    report("zero, 33 M", 4. * n, 0, [&] { return OP(zero, .x = gradient); });
    report("gradient_norm, 33 M", 4. * n, 0,
           [&] { return OP(gradient_norm, .x = gradient, .norm = norm); });
    nl_adamw_args args = {};
    args.master = master, args.first = first, args.second = second, args.gradient = gradient;
    args.ema_count = 1, args.ema[0] = ema, args.hyper = hyper, args.norm = norm;
    args.counter = counter, args.segment_count = (int)pieces, args.segments = segments.data();
    args.segment_table = table;
    report("adamw, 33 M, one average", 38. * n, 0, [&] { return nl_op_adamw(device, &args); });
}

int main()
{
    nl_context *context;
    nl_context_options options = {};
    options.device = "cpu";
    rate = copy_rate();
    if (nl_context_create(&options, &context) != NL_OK ||
        nl_device_create(context, "cuda", "bf16", 0, &device) != NL_OK)
        return 1;
    products();
    normalisations(256, 384);
    normalisations(64, 1152);
    attention(256, 256, 6, 64);
    attention(1, 65536, 6, 64);
    attention(64, 256, 16, 72);
    others();
    optimiser();
    must(device->ops->sync(device));
    return 0;
}
