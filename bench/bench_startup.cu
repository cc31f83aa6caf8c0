/* SPDX-License-Identifier: MIT */
/* What a CUDA program costs before it has done anything: the least that the first picture can take.
 *
 *   nl_bench_startup [LIBRARY...]
 *
 * Prints milliseconds of the first call of the runtime (driver and context), of a first kernel, of a first
 * allocation of 1 GiB and of 16 MiB that the card can read, and of loading each library. */
#include <cstdio>
#include <ctime>
#include <dlfcn.h>

#include <cuda_runtime.h>

__global__ void nothing() {}

static double now_ms()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static double last;

static void lap(const char *what)
{
    const double now = now_ms();
    printf("%9.1f ms  %s\n", now - last, what);
    last = now_ms();
}

int main(int argc, char **argv)
{
    last = now_ms();
    if (cudaFree(NULL) != cudaSuccess) {
        fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 5;
    }
    lap("driver and context");
    nothing<<<1, 1>>>();
    cudaError_t error = cudaDeviceSynchronize();
    lap("first kernel");
    if (argc > 1) {
        void *device = NULL, *host = NULL;
        error = error == cudaSuccess ? cudaMalloc(&device, (size_t)1 << 30) : error;
        lap("1 GiB on the card");
        error = error == cudaSuccess ? cudaHostAlloc(&host, (size_t)16 << 20, 0) : error;
        lap("16 MiB of pinned memory");
    }
    for (int i = 1; i < argc; i++) {
        if (!dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL))
            fprintf(stderr, "%s\n", dlerror());
        lap(argv[i]);
    }
    if (error != cudaSuccess)
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
