/* SPDX-License-Identifier: MIT */
/* Collectives between GPUs. Sums run on a stream of their own, so that those of one layer's gradients travel while
 * the layer before is at work. NCCL is loaded when the first group is made: it is large, and one GPU does without. */
#include <cstdlib>
#include <cstring>

#include "cuda_common.cuh"
#include "nl_nccl.h"

#ifdef NL_NCCL
#include <dlfcn.h>
#include <nccl.h>

#define FUNCTIONS(X)                                                                               \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRank)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclAllReduce)                                                                               \
    X(ncclBroadcast)

namespace
{
struct functions {
#define POINTER(name) decltype(&::name) name;
    FUNCTIONS(POINTER)
#undef POINTER
} nccl_library;
} // namespace

static void *open_library()
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen(NL_NCCL, RTLD_NOW | RTLD_LOCAL);
}

static nl_status load(nl_context *context)
{
    if (nccl_library.ncclAllReduce)
        return NL_OK;
    void *library = open_library();
    if (!library)
        return nl_fail(context, NL_ERROR_DEVICE,
                       "several GPUs talk through NCCL, which is not there: %s", dlerror());
    functions found;
#define FIND(name)                                                                                 \
    found.name = (decltype(&::name))dlsym(library, #name);                                         \
    if (!found.name)                                                                               \
        return nl_fail(context, NL_ERROR_DEVICE, "libnccl.so.2 is without " #name);
    FUNCTIONS(FIND)
#undef FIND
    nccl_library = found;
    return NL_OK;
}

extern "C" int nl_nccl_version(void)
{
    int version = 0;
    void *library = open_library();
    const auto get = library ? (decltype(&ncclGetVersion))dlsym(library, "ncclGetVersion") : NULL;
    return get && get(&version) == ncclSuccess ? version : 0;
}

static_assert(sizeof(ncclUniqueId) == NL_NCCL_ID, "NCCL's id");

enum { PIECE = 16 << 20 /* bytes of a broadcast */ };

struct nl_nccl {
    nl_device *device;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t before, after;
    int rank;
    int64_t *value; /* on the device */
    void *piece;    /* on the device: what a broadcast sends at a time, once there was one */
};

static nl_status check(nl_context *context, ncclResult_t result, const char *what)
{
    return result == ncclSuccess || result == ncclInProgress
               ? NL_OK
               : nl_fail(context, NL_ERROR_DEVICE, "NCCL: %s: %s", what,
                         nccl_library.ncclGetErrorString(result));
}

extern "C" nl_status nl_nccl_id(nl_context *context, uint8_t id[NL_NCCL_ID])
{
    ncclUniqueId made;
    nl_status status = load(context);
    if (status == NL_OK)
        status = check(context, nccl_library.ncclGetUniqueId(&made), "making a group");
    if (status == NL_OK)
        memcpy(id, &made, NL_NCCL_ID);
    return status;
}

extern "C" nl_status nl_nccl_create(nl_device *device, const uint8_t id[NL_NCCL_ID], int rank,
                                    int size, nl_nccl **nccl)
{
    nl_nccl *made = (nl_nccl *)calloc(1, sizeof(*made));
    ncclUniqueId group;
    *nccl = NULL;
    if (!made)
        return nl_fail(device->context, NL_ERROR_MEMORY, "no memory for a group of GPUs");
    made->device = device;
    made->rank = rank;
    memcpy(&group, id, NL_NCCL_ID);
    nl_status status = load(device->context);
    if (status == NL_OK)
        status =
            nl_cuda_check(device, cudaSetDevice(nl_cuda_of(device)->index), "choosing the GPU");
    /* Before the blocks of the pass that they run beside: the sums are few blocks, and late where they wait. */
    int priority = 0;
    if (status == NL_OK)
        status = nl_cuda_check(device, cudaDeviceGetStreamPriorityRange(NULL, &priority),
                               "asking for priorities");
    if (status == NL_OK)
        status = nl_cuda_check(
            device, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, priority),
            "a stream");
    if (status == NL_OK)
        status = nl_cuda_check(
            device, cudaEventCreateWithFlags(&made->before, cudaEventDisableTiming), "an event");
    if (status == NL_OK)
        status = nl_cuda_check(
            device, cudaEventCreateWithFlags(&made->after, cudaEventDisableTiming), "an event");
    if (status == NL_OK)
        status = nl_cuda_check(device, cudaMalloc((void **)&made->value, sizeof(*made->value)),
                               "a number on the device");
    if (status == NL_OK)
        status =
            check(device->context, nccl_library.ncclCommInitRank(&made->comm, size, group, rank),
                  "joining the group (each process needs a GPU of its own)");
    if (status == NL_OK)
        *nccl = made;
    else
        nl_nccl_destroy(made);
    return status;
}

extern "C" void nl_nccl_destroy(nl_nccl *nccl)
{
    if (!nccl)
        return;
    if (nccl->comm) {
        nl_cuda_forget_records(nl_cuda_of(nccl->device)); /* NCCL waits for those with its sums */
        nccl_library.ncclCommDestroy(nccl->comm);
    }
    if (nccl->piece)
        nccl->device->ops->free(nccl->device, nccl->piece, PIECE);
    if (nccl->value)
        cudaFree(nccl->value);
    if (nccl->before)
        cudaEventDestroy(nccl->before);
    if (nccl->after)
        cudaEventDestroy(nccl->after);
    if (nccl->stream)
        cudaStreamDestroy(nccl->stream);
    free(nccl);
}

extern "C" nl_status nl_nccl_sum(nl_nccl *nccl, void *x, int64_t count)
{
    nl_device *device = nccl->device;
    cudaError_t error = cudaEventRecord(nccl->before, nl_cuda_of(device)->stream);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(nccl->stream, nccl->before, 0);
    nl_status status = nl_cuda_check(device, error, "ordering a sum over GPUs");
    return status != NL_OK ? status
                           : check(device->context,
                                   nccl_library.ncclAllReduce(x, x, (size_t)count, ncclFloat32,
                                                              ncclSum, nccl->comm, nccl->stream),
                                   "a sum over GPUs");
}

extern "C" nl_status nl_nccl_join(nl_nccl *nccl)
{
    cudaError_t error = cudaEventRecord(nccl->after, nccl->stream);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(nl_cuda_of(nccl->device)->stream, nccl->after, 0);
    return nl_cuda_check(nccl->device, error, "ordering a sum over GPUs");
}

extern "C" nl_status nl_nccl_maximum(nl_nccl *nccl, int64_t *value)
{
    nl_device *device = nccl->device;
    nl_status status = device->ops->upload(device, nccl->value, value, sizeof(*value));
    if (status == NL_OK)
        status = check(device->context,
                       nccl_library.ncclAllReduce(nccl->value, nccl->value, 1, ncclInt64, ncclMax,
                                                  nccl->comm, nl_cuda_of(device)->stream),
                       "asking all GPUs");
    return status == NL_OK ? device->ops->download(device, value, nccl->value, sizeof(*value))
                           : status;
}

extern "C" nl_status nl_nccl_broadcast(nl_nccl *nccl, int root, void *data, int64_t bytes)
{
    nl_device *device = nccl->device;
    const nl_ops *ops = device->ops;
    nl_status status =
        nccl->piece ? NL_OK : ops->alloc(device, "a piece of a broadcast", PIECE, &nccl->piece);
    char *at = (char *)data;
    for (int64_t left = bytes, part; left > 0 && status == NL_OK; left -= part, at += part) {
        part = NL_MIN(left, (int64_t)PIECE);
        if (nccl->rank == root)
            status = ops->upload(device, nccl->piece, at, part);
        if (status == NL_OK)
            status =
                check(device->context,
                      nccl_library.ncclBroadcast(nccl->piece, nccl->piece, (size_t)part, ncclUint8,
                                                 root, nccl->comm, nl_cuda_of(device)->stream),
                      "sending to all GPUs");
        if (status == NL_OK && nccl->rank != root)
            status = ops->download(device, at, nccl->piece, part);
    }
    return status == NL_OK ? ops->sync(device) : status;
}

extern "C" void nl_nccl_abort(nl_nccl *nccl)
{
    if (!nccl->comm)
        return;
    nl_cuda_forget_records(nl_cuda_of(nccl->device)); /* those under way end with the sums */
    nccl_library.ncclCommAbort(nccl->comm);
    nccl->comm = NULL;
}

#else

extern "C" int nl_nccl_version(void)
{
    return 0;
}

static nl_status missing(nl_context *context)
{
    return nl_fail(context, NL_ERROR_DEVICE,
                   "this build has no NCCL: one GPU trains (build with NCCL installed for more)");
}

extern "C" nl_status nl_nccl_id(nl_context *context, uint8_t id[NL_NCCL_ID])
{
    (void)id;
    return missing(context);
}

extern "C" nl_status nl_nccl_create(nl_device *device, const uint8_t id[NL_NCCL_ID], int rank,
                                    int size, nl_nccl **nccl)
{
    (void)id, (void)rank, (void)size, (void)nccl;
    return missing(device->context);
}

extern "C" void nl_nccl_destroy(nl_nccl *nccl)
{
    (void)nccl;
}

extern "C" nl_status nl_nccl_sum(nl_nccl *nccl, void *x, int64_t count)
{
    (void)nccl, (void)x, (void)count;
    return NL_ERROR_DEVICE;
}

extern "C" nl_status nl_nccl_join(nl_nccl *nccl)
{
    (void)nccl;
    return NL_ERROR_DEVICE;
}

extern "C" nl_status nl_nccl_maximum(nl_nccl *nccl, int64_t *value)
{
    (void)nccl, (void)value;
    return NL_ERROR_DEVICE;
}

extern "C" nl_status nl_nccl_broadcast(nl_nccl *nccl, int root, void *data, int64_t bytes)
{
    (void)nccl, (void)root, (void)data, (void)bytes;
    return NL_ERROR_DEVICE;
}

extern "C" void nl_nccl_abort(nl_nccl *nccl)
{
    (void)nccl;
}
#endif
