#include "blas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

nl_sgemm nl_blas_load(int threads)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!library)
        library = dlopen("libopenblas.so", RTLD_NOW);
    if (!library)
        return NULL;
    void *symbol = dlsym(library, "openblas_set_num_threads");
    void (*set_threads)(int);
    memcpy(&set_threads, &symbol, sizeof(symbol));
    if (symbol)
        set_threads(threads);
    nl_sgemm sgemm;
    symbol = dlsym(library, "cblas_sgemm");
    memcpy(&sgemm, &symbol, sizeof(symbol));
    return sgemm;
}
