/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of the layer normalisations: time and share of the copy rate for shapes of rows and numbers of rows that a
 * group of lanes takes one after the other. Values are checked by the operation tests.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -Iinclude -Icore -Ikernels -Ikernels/cuda \
 *        kernels/lab/normalise.cu -o normalise && ./normalise
 */
#include "lab.cuh"

#include "layernorm_gate.cu"
#include "layernorm_modulate.cu"

/* The kernels alone are linked. */
nl_status nl_cuda_check(nl_device *, cudaError_t, const char *)
{
    return NL_OK;
}
nl_status nl_fail(nl_context *, nl_status code, const char *, ...)
{
    return code;
}

using half_t = __nv_bfloat16;

static half_t *memory(int64_t elements)
{
    half_t *p;
    CHECK(cudaMalloc(&p, elements * 2));
    CHECK(cudaMemset(p, 0x3c, elements * 2));
    return p;
}

template <typename S> static void measure(const char *text, int64_t rows, int width, double rate)
{
    const int64_t images = rows / 256, wide = 12 * width;
    half_t *x = memory(rows * width), *branch = memory(rows * width), *y = memory(rows * width);
    half_t *modulation = memory(images * wide), *g = memory(rows * width * 4);
    float *affine;
    CHECK(cudaMalloc(&affine, 8 * width));
    CHECK(cudaMemset(affine, 0, 8 * width));
    modulate_problem<half_t, half_t> p = {
        x,    x,    y,    branch, modulation, modulation + width, modulation + 2 * width, rows, 256,
        wide, wide, wide, width,  1e-6f};
    for (int count = 2; count <= 16; count *= 2) {
        const unsigned blocks = nl_blocks(rows, S::GROUPS * count);
        const float a = median_ms([&](int) {
            modulate_kernel<half_t, half_t, S, true><<<blocks, S::THREADS>>>(p, count);
        });
        const float b = median_ms([&](int) {
            gate_kernel<half_t, S><<<blocks, S::THREADS>>>(y, affine, affine + width, g + 3 * width,
                                                           x, rows, count, width, 4 * width, 1e-5f);
        });
        CHECK(cudaDeviceSynchronize());
        const double megabytes = rows * width * 2 / 1e6;
        printf("%-24s %d rows: modulate %.4f ms (%3.0f %% of copy), gate %.4f ms (%3.0f %%)\n",
               text, count, a, 100 * 4 * megabytes / a / rate, b, 100 * 3 * megabytes / b / rate);
    }
    for (void *at :
         {(void *)x, (void *)branch, (void *)y, (void *)modulation, (void *)g, (void *)affine})
        CHECK(cudaFree(at));
}

int main()
{
    const double rate = copy_rate();
#define MEASURE(rows, width, ...)                                                                  \
    measure<nl_row_shape<__VA_ARGS__, true>>(#rows " x " #width " " #__VA_ARGS__, rows, width, rate)
    MEASURE(65536, 384, 16, 8, 3);
    MEASURE(65536, 384, 32, 4, 3);
    MEASURE(65536, 384, 8, 8, 6);
    MEASURE(16384, 1152, 32, 4, 9);
    MEASURE(16384, 1152, 16, 8, 9);
    return 0;
}
