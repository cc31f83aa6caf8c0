/* SPDX-License-Identifier: MIT */
/*
 * Which back ends this build has, and how a name becomes a device. A back end is its nl_ops and nothing
 * more; one that was not built is not in the table.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "arena.h"

enum { MAX_THREADS = 1024 }; /* OpenMP ends the process when it cannot start its threads */

#ifdef NL_CUDA
extern const nl_ops nl_cuda_ops;
extern int nl_cuda_count(void);
static const nl_ops *const cuda_ops = &nl_cuda_ops;
#else
static const nl_ops *const cuda_ops = NULL;
static int nl_cuda_count(void)
{
    return 0;
}
#endif

int nl_cuda_device_count(void)
{
    return nl_cuda_count();
}

bool nl_cuda_is_likely(void)
{
    return cuda_ops && access("/dev/nvidiactl", F_OK) == 0;
}

int nl_default_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    long asked = text ? strtol(text, NULL, 10) : 0;
    if (asked > 0)
        return asked < MAX_THREADS ? (int)asked : 1;
    return NL_MIN(nl_processors_available(), MAX_THREADS);
}

/* "cuda" or "cuda:N" with N from 0 to 999. */
static bool parse_cuda(const char *name, int *index)
{
    *index = 0;
    if (strcmp(name, "cuda") == 0)
        return true;
    if (strncmp(name, "cuda:", 5) != 0)
        return false;
    const char *digits = name + 5;
    size_t length = strlen(digits);
    if (length < 1 || length > 3 || strspn(digits, "0123456789") != length)
        return false;
    *index = atoi(digits);
    return true;
}

static nl_status parse_dtype(nl_context *context, const char *text, nl_dtype automatic,
                             nl_device *device)
{
    device->dtype = automatic;
    device->fp8 = text && strcasecmp(text, "fp8") == 0;
    if (device->fp8)
        device->dtype = NL_BF16;
    if (device->fp8 || !text || strcmp(text, "auto") == 0)
        return NL_OK;
    if (nl_dtype_parse(text, &device->dtype) &&
        (device->dtype == NL_F32 || device->dtype == NL_BF16))
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE, "dtype: expected auto, f32, bf16 or fp8, found \"%s\"",
                   text);
}

const char *nl_device_dtype_name(const nl_device *device)
{
    return nl_dtype_name(device->fp8 ? NL_F8 : device->dtype);
}

static nl_status create_with(nl_context *context, const nl_ops *ops, int index, const char *dtype,
                             int threads, nl_device **device)
{
    nl_device *created = NULL;
    nl_status status = NL_OK;
    NL_TRY(NL_NEW(context, "a device", &created));
    created->ops = ops;
    created->context = context;
    created->threads = threads > 0 ? threads : nl_default_threads();
    snprintf(created->name, sizeof(created->name), "%s", ops->name);
    NL_TRY(parse_dtype(context, dtype, ops == cuda_ops ? NL_BF16 : NL_F32, created));
    created->activation = ops == cuda_ops ? created->dtype : NL_F32;
    created->feature_maps = created->activation;
    created->cancellable = !nl_device_queues(created);
    if (ops->create)
        NL_TRY(ops->create(created, index));
    nl_log(context, NL_LOG_DEBUG, "%s is ready", created->name);
    *device = created;
    return NL_OK;
cleanup:
    nl_free(context, created);
    return status;
}

nl_status nl_device_create(nl_context *context, const char *name, const char *dtype, int threads,
                           nl_device **device)
{
    int index;
    *device = NULL;
    if (!name)
        name = "auto";
    if (threads < 0 || threads > MAX_THREADS)
        return nl_fail(context, NL_ERROR_USAGE, "threads: expected 0 (all) to %d, found %d",
                       MAX_THREADS, threads);
    if (strcmp(name, "auto") == 0) {
        if (cuda_ops && create_with(context, cuda_ops, 0, dtype, threads, device) == NL_OK)
            return NL_OK;
        if (dtype &&
            strcasecmp(dtype, "fp8") == 0) /* the CPU is asked for by name, or not at all */
            return nl_fail(context, NL_ERROR_DEVICE,
                           "%s; dtype fp8 is for a GPU that has FP8: take bf16, or the device cpu, "
                           "which computes the same roundings and is no faster for them",
                           cuda_ops ? nl_last_error(context) : "this build has no CUDA");
        if (cuda_ops)
            nl_log(context, NL_LOG_INFO, "%s; using the CPU", nl_last_error(context));
        return create_with(context, &nl_cpu_ops, 0, dtype, threads, device);
    }
    if (strcmp(name, "cpu") == 0)
        return create_with(context, &nl_cpu_ops, 0, dtype, threads, device);
    if (strcmp(name, "reference") == 0)
        return create_with(context, &nl_reference_ops, 0, dtype, threads, device);
    if (!parse_cuda(name, &index))
        return nl_fail(context, NL_ERROR_USAGE,
                       "device: expected auto, cpu, reference, cuda or cuda:N, found \"%s\"", name);
    if (!cuda_ops)
        return nl_fail(context, NL_ERROR_DEVICE,
                       "device %s: this build has no CUDA; configure it with the preset \"cuda\" "
                       "(-DNL_CUDA=ON), or use the device cpu",
                       name);
    return create_with(context, cuda_ops, index, dtype, threads, device);
}

void nl_device_destroy(nl_device *device)
{
    if (!device)
        return;
    device->arena_used = 0;
    nl_arena_free(device);
    if (device->ops->destroy)
        device->ops->destroy(device);
    nl_free(device->context, device);
}

bool nl_device_queues(const nl_device *device)
{
    return device->ops->download_start != NULL;
}

int64_t nl_device_memory_left(nl_device *device)
{
    int64_t left =
        device->ops->memory_left ? device->ops->memory_left(device) : nl_memory_available();
    return NL_MIN(left, nl_memory_left(device->context));
}

nl_status nl_upload_beside(nl_device *device, void *to, const void *from, int64_t bytes)
{
    return device->ops->upload_beside ? device->ops->upload_beside(device, to, from, bytes)
                                      : device->ops->upload(device, to, from, bytes);
}

bool nl_nuclear_norm(nl_device *device, int64_t size, const double *a, int64_t m, const double *b,
                     int64_t n, double *sum)
{
    if (!device || !device->ops->nuclear_norm)
        return false;
    nl_status status = device->ops->nuclear_norm(device, size, a, m, b, n, sum);
    if (status != NL_OK)
        nl_log(device->context, NL_LOG_DEBUG, "%s; the host does it",
               nl_last_error(device->context));
    return status == NL_OK;
}

nl_status nl_download_start(nl_device *device, int slot, void *to, const void *from, int64_t bytes)
{
    if (slot < 0 || slot >= NL_DOWNLOAD_SLOTS)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "download: there is no slot %d", slot);
    return device->ops->download_start ? device->ops->download_start(device, slot, to, from, bytes)
                                       : device->ops->download(device, to, from, bytes);
}

nl_status nl_download_wait(nl_device *device, int slot)
{
    return device->ops->download_wait ? device->ops->download_wait(device, slot) : NL_OK;
}

nl_status nl_host_memory_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    return device->ops->host_alloc ? device->ops->host_alloc(device, what, bytes, pointer)
                                   : NL_NEW_SIZED(device->context, what, bytes, 1, pointer);
}

void nl_host_memory_free(nl_device *device, void *pointer, int64_t bytes)
{
    if (device->ops->host_free)
        device->ops->host_free(device, pointer, bytes);
    else
        nl_free(device->context, pointer);
}

nl_status nl_replay(nl_device *device, const void *key, size_t size, nl_status (*run)(void *user),
                    void *user)
{
    return device->ops->replay ? device->ops->replay(device, key, size, run, user) : run(user);
}

nl_status nl_context_create(const nl_context_options *options, nl_context **context)
{
    nl_status status = nl_core_context_create(options, context);
    if (status != NL_OK)
        return status;
    nl_context_options o = {0};
    if (options)
        status = nl_take_options(*context, "options", options, sizeof(o), &o, sizeof(o));
    if (status == NL_OK)
        status = nl_device_create(*context, o.device, o.dtype, o.threads, &(*context)->device);
    if (status != NL_OK) {
        nl_tell_failure(&o, nl_last_error(*context)); /* which goes with the context */
        nl_core_context_destroy(*context);
        *context = NULL;
    }
    return status;
}

void nl_context_destroy(nl_context *context)
{
    if (!context)
        return;
    nl_device_destroy(context->device);
    nl_core_context_destroy(context);
}
