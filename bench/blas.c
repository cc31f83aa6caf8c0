/* SPDX-License-Identifier: MIT */
/* Loads cblas_sgemm of OpenBLAS at run time, so that oneDNN's products can be timed against it. */
#include "blas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* dlsym's data pointer as a function pointer, which C has no conversion for. */
static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
}

nl_sgemm nl_blas_load(int threads, const char **core)
{
    *core = "unknown";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!library)
        library = dlopen("libopenblas.so", RTLD_NOW);
    if (!library)
        return NULL;
    void (*set_threads)(int);
    char *(*get_core)(void);
    nl_sgemm sgemm;
    find(library, "openblas_set_num_threads", &set_threads);
    find(library, "openblas_get_corename", &get_core);
    find(library, "cblas_sgemm", &sgemm);
    if (set_threads)
        set_threads(threads);
    if (get_core)
        *core = get_core();
    return sgemm;
}
