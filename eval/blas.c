/* SPDX-License-Identifier: MIT */
/*
 * OpenBLAS, loaded at run time. Linked, it would be in every process of the program: it starts threads before main,
 * and where a limit of addresses stops them it waits for them for ever when the process ends.
 */
#include "nl_blas.h"
#include "nl_thread.h"
#include "ops.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIAL_SECONDS = 2, TRIAL_PATIENCE = 30 }; /* of a processor; by the clock */

static struct {
    pthread_mutex_t lock;
    bool loaded, too_large;
    nl_blas blas;
    char reason[256]; /* why it cannot be loaded */
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* OpenBLAS asks for the buffers of a product again and again where it gets none, for ever: they are taken now, while
 * there is room, and kept by it. */
static void take_buffers(const nl_blas *blas)
{
    enum { N = 256 };
    double *x = calloc(2 * N * N, sizeof(double));
    if (x)
        blas->dgemm(CblasColMajor, CblasTrans, CblasNoTrans, N, N, N, 1, x, N, x, N, 0, x + N * N,
                    N);
    free(x);
}

/* By a thread of its own: OpenBLAS's threads are born of it and leave signals to the first one, as it does, and
 * run on any processor. */
static void *load(void *unused)
{
    nl_blas *b = &library.blas;
    const struct {
        void *function;
        const char *name;
    } functions[] = {{&b->dsyr, "cblas_dsyr"},
                     {&b->dsyrk, "cblas_dsyrk"},
                     {&b->dgemm, "cblas_dgemm"},
                     {&b->dpstrf, "dpstrf_"},
                     {&b->dgesdd, "dgesdd_"},
                     {&b->set_threads, "openblas_set_num_threads"},
                     {&b->core_name, "openblas_get_corename"}};
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        handle = dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
    bool whole = handle != NULL;
    for (int i = 0; whole && i < NL_COUNT(functions); i++) {
        void *address = dlsym(handle, functions[i].name);
        memcpy(functions[i].function, &address, sizeof(address));
        whole = address != NULL;
    }
    if (!whole)
        snprintf(library.reason, sizeof(library.reason), "%s", dlerror());
    else if (!getenv("OPENBLAS_NUM_THREADS"))
        b->set_threads(nl_default_threads());
    if (whole)
        take_buffers(b);
    library.loaded = whole;
    return unused;
}

/* Leaves less room than the parent will have: glibc gives a thread that meets another in malloc an arena of its own, 64 MiB
 * of addresses, and which do meet is chance. */
static void narrow_room(void)
{
    struct rlimit room;
    rlim_t arenas = ((rlim_t)nl_default_threads() + 1) << 26;
    if (getrlimit(RLIMIT_AS, &room) != 0 || room.rlim_cur == RLIM_INFINITY)
        return;
    room.rlim_cur -= NL_MIN(room.rlim_cur, arenas);
    setrlimit(RLIMIT_AS, &room);
}

/* The child of the trial: loads the library as its parent would, and ends by a signal where that does not come to an end. */
static void try_to_load(void)
{
    const int ends[] = {SIGALRM, SIGXCPU,
                        SIGINT}; /* the last is how it says that a thread could not be started */
    struct rlimit limit = {TRIAL_SECONDS, TRIAL_SECONDS};
    sigset_t none;
    pthread_t thread;
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    for (int i = 0; i < NL_COUNT(ends); i++)
        signal(ends[i], SIG_DFL);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CPU, &limit);
    alarm(TRIAL_PATIENCE);
    narrow_room();
    int failed = nl_start_thread(&thread, load, NULL);
    if (!failed)
        pthread_join(thread, NULL);
    _exit(failed);
}

/* Where addresses are limited (ulimit -v), what OpenBLAS takes is not known, a hundred MiB a thread and more, and where it
 * does not get it, it asks for ever: a process of its own tries. */
static bool has_room(void)
{
    int result;
    pid_t child = fork();
    if (child == 0)
        try_to_load();
    if (child < 0)
        return false;
    while (waitpid(child, &result, 0) < 0)
        if (errno != EINTR)
            return false;
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

static nl_status load_once(nl_context *context)
{
    pthread_t thread;
    int64_t have = nl_addresses_left();
    library.too_large = library.too_large || (have < INT64_MAX && !has_room());
    if (library.too_large)
        return nl_fail(context, NL_ERROR_MEMORY,
                       "OpenBLAS takes more memory than the %lld MiB of addresses that the limit "
                       "(ulimit -v) leaves: allow more, or set OMP_NUM_THREADS lower",
                       (long long)(have >> 20));
    int failed = nl_start_thread(&thread, load, NULL);
    if (failed)
        return nl_fail(context, NL_ERROR_MEMORY, "OpenBLAS: no thread to load it: %s",
                       strerror(failed));
    pthread_join(thread, NULL);
    if (!library.loaded)
        return nl_fail(context, NL_ERROR_DEVICE,
                       "OpenBLAS, which statistics of features need, cannot be loaded: %s",
                       library.reason);
    return NL_OK;
}

nl_status nl_blas_load(nl_context *context, const nl_blas **blas)
{
    pthread_mutex_lock(&library.lock);
    nl_status status = library.loaded ? NL_OK : load_once(context);
    pthread_mutex_unlock(&library.lock);
    *blas = status == NL_OK ? &library.blas : NULL;
    return status;
}

/* Prescott is what OpenBLAS takes a processor for that it does not know. */
const char *nl_blas_better_kernels(void)
{
    const nl_blas *blas;
#ifdef __x86_64__
    if (nl_blas_load(NULL, &blas) != NL_OK || strcmp(blas->core_name(), "Prescott"))
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}
