/* SPDX-License-Identifier: MIT */
/* The table nl_cpu_ops: each entry goes on to the level that suits the processor. */
#include "frozen.h"
#include "host_memory.h"
#include "nl_arranged.h"
#include "nl_thread.h"

#include <stdlib.h>
#include <string.h>

#if defined(NL_CPU_HAS_LEVELS) && defined(__GNUC__)
extern const nl_ops nl_cpu_ops_v3, nl_cpu_ops_v4;

static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

const nl_ops *nl_cpu_level(const char *name)
{
    if ((!name || strcmp(name, "v4") == 0) && has_v4())
        return &nl_cpu_ops_v4;
    if ((!name || strcmp(name, "v3") == 0) && has_v3())
        return &nl_cpu_ops_v3;
    return !name || strcmp(name, "base") == 0 ? &NL_CPU(ops) : NULL;
}
#else
const nl_ops *nl_cpu_level(const char *name)
{
    return !name || strcmp(name, "base") == 0 ? &NL_CPU(ops) : NULL;
}
#endif

nl_status nl_cpu_scratch(nl_device *device, int64_t bytes, void **scratch)
{
    nl_cpu_state *state = device->state;
    if (bytes > state->scratch_bytes) {
        nl_free(device->context, state->scratch);
        state->scratch_bytes = 0;
        NL_CHECK(NL_NEW_SIZED(device->context, "working memory", bytes, 1, &state->scratch));
        state->scratch_bytes = bytes;
    }
    *scratch = state->scratch;
    return NL_OK;
}

/* Copies of weights give way to what is needed. */
static nl_status cpu_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    nl_status status = nl_host_alloc(device, what, bytes, pointer);
    if (status == NL_ERROR_MEMORY && nl_cpu_drop_arranged(device))
        status = nl_host_alloc(device, what, bytes, pointer);
    return status;
}

static void cpu_free(nl_device *device, void *pointer, int64_t bytes)
{
    nl_cpu_thaw(device, pointer, bytes);
    nl_host_free(device, pointer, bytes);
}

static nl_status cpu_copy(nl_device *device, void *to, const void *from, int64_t bytes)
{
    if (nl_frozen(device, to, bytes))
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "%lld bytes are written to weights that were frozen", (long long)bytes);
    return nl_host_copy(device, to, from, bytes);
}

static void cpu_destroy(nl_device *device)
{
    nl_cpu_state *state = device->state;
    if (!state)
        return;
    nl_dnnl_destroy(state->dnnl);
    nl_free(device->context, state->scratch);
    nl_free(device->context, state);
    device->state = NULL;
}

static nl_status cpu_create(nl_device *device, int index)
{
    nl_status status = NL_OK;
    (void)index;
    nl_cpu_state *state;
    NL_TRY(NL_NEW(device->context, "CPU back end", &state));
    device->state = state;
    const char *level = getenv("NL_CPU_LEVEL"); /* for tests: a level below the best */
    state->level = nl_cpu_level(level);
    if (!state->level)
        NL_TRY(nl_fail(
            device->context, NL_ERROR_USAGE,
            "NL_CPU_LEVEL: expected base, v3 or v4 as this processor has it, found \"%s\"", level));
    NL_TRY(nl_dnnl_create(device, &state->dnnl));
    device->threads = nl_team(device->context, device->threads);
    if (device->dtype == NL_BF16 && nl_dnnl_has_bf16())
        device->feature_maps = NL_BF16;
cleanup:
    if (status != NL_OK)
        cpu_destroy(device);
    return status;
}

static void cpu_describe(nl_device *device,
                         void (*fact)(void *user, const char *name, const char *text), void *user)
{
    const nl_cpu_state *state = device->state;
    const char *names[] = {"base", "v3", "v4"};
    const char *texts[] = {"the least of its kind", "AVX2 and FMA", "AVX-512"};
    for (int i = 0; i < NL_COUNT(names); i++)
        if (state->level == nl_cpu_level(names[i]))
            fact(user, "instructions", texts[i]);
}

/* The thread that computes may be another than the one that made the device (`nalagen serve`, a program with the library):
 * its team is its own. Results do not depend on the number of threads. */
#define NL_OPERATION(operation)                                                                    \
    static nl_status cpu_##operation(nl_device *device, const nl_##operation##_args *args)         \
    {                                                                                              \
        int threads = device->threads;                                                             \
        device->threads = nl_team(device->context, threads);                                       \
        nl_status status = ((nl_cpu_state *)device->state)->level->operation(device, args);        \
        device->threads = threads;                                                                 \
        return status;                                                                             \
    }
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

const nl_ops nl_cpu_ops = {.name = "cpu",
                           .create = cpu_create,
                           .alloc = cpu_alloc,
                           .free = cpu_free,
                           .upload = cpu_copy,
                           .download = nl_host_download,
                           .copy = cpu_copy,
                           .sync = nl_host_sync,
                           .destroy = cpu_destroy,
                           .describe = cpu_describe,
#define NL_OPERATION(operation) .operation = NL_ENTRY(NL_CPU_LACKS_##operation, cpu_##operation),
                           NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
};
