/* SPDX-License-Identifier: MIT */
/* What the programs of the laboratory share: checked calls, medians of event timings, the card's copy rate. */
#ifndef NL_LAB_CUH
#define NL_LAB_CUH

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

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

/* Bytes read and written a second, in GB/s, of a copy on the device; prints the card. */
static double copy_rate()
{
    cudaDeviceProp card;
    CHECK(cudaGetDeviceProperties(&card, 0));
    char *a, *b;
    const size_t bytes = 1ull << 30;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMemset(a, 1, bytes));
    const float ms =
        median_ms([&](int) { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    const double rate = 2.0 * bytes / ms / 1e6;
    printf("%s, %d multiprocessors, copy %.0f GB/s\n", card.name, card.multiProcessorCount, rate);
    return rate;
}

#endif
