/* SPDX-License-Identifier: MIT */
/*
 * The back end that does nothing. What an operation leaves on the host, where control flow can depend on
 * it, gets the value of an undisturbed run.
 */
#include <string.h>

#include "ops.h"

static nl_status measure_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    (void)what;
    /* Where nothing is, and far from the arena: addresses that are compared and never looked at. */
    *pointer = (void *)((uintptr_t)(INT64_C(1) << 46) + (uintptr_t)device->allocated);
    device->allocated += (bytes + 255) / 256 * 256;
    return NL_OK;
}

static void measure_free(nl_device *device, void *pointer, int64_t bytes)
{
    (void)device, (void)pointer, (void)bytes;
}

static nl_status measure_copy(nl_device *device, void *to, const void *from, int64_t bytes)
{
    (void)device, (void)to, (void)from, (void)bytes;
    return NL_OK;
}

static nl_status measure_download(nl_device *device, void *to, const void *from, int64_t bytes)
{
    (void)device, (void)from;
    if (bytes > 0)
        memset(to, 0, (size_t)bytes);
    return NL_OK;
}

static nl_status measure_sync(nl_device *device)
{
    (void)device;
    return NL_OK;
}

static void measure_destroy(nl_device *device)
{
    (void)device;
}

static void leave_norms(const nl_scaled_norm_args *args)
{
    for (int64_t i = 0; i < args->x.shape[0]; i++)
        args->rms[i] = 0;
}

static void leave_nothing(const void *args)
{
    (void)args;
}

/* clang-format off */
#define LEAVE_ON_HOST(args)                                                                        \
    _Generic(args,                                                                                 \
             const nl_scaled_norm_args *: leave_norms,                                             \
             default: leave_nothing)(args)
#define NL_OPERATION(operation)                                                                    \
    static nl_status measure_##operation(nl_device *device, const nl_##operation##_args *args)     \
    {                                                                                              \
        (void)device;                                                                              \
        LEAVE_ON_HOST(args);                                                                       \
        return NL_OK;                                                                              \
    }
/* clang-format on */
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

static const nl_ops measuring_ops = {.name = "measuring",
                                     .alloc = measure_alloc,
                                     .free = measure_free,
                                     .upload = measure_copy,
                                     .download = measure_download,
                                     .copy = measure_copy,
                                     .sync = measure_sync,
                                     .destroy = measure_destroy,
#define NL_OPERATION(operation) .operation = measure_##operation,
                                     NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
};

void nl_device_measuring(const nl_device *like, nl_device *measuring)
{
    *measuring = (nl_device){.ops = &measuring_ops,
                             .context = like->context,
                             .threads = like->threads,
                             .dtype = like->dtype,
                             .fp8 = like->fp8,
                             .activation = like->activation,
                             .feature_maps = like->feature_maps,
                             .measuring = true};
    memcpy(measuring->name, like->name, sizeof(measuring->name));
}
