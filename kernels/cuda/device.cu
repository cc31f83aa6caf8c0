/* SPDX-License-Identifier: MIT */
/* The CUDA device: memory, stream, handles, and the table. A build with this back end runs on machines without a GPU or
 * driver: nothing here is touched before somebody asks for the device, and then the answer is NL_ERROR_DEVICE. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "conv/weight.cuh"
#include "product/product.cuh"

extern "C" void nl_cuda_convolutions_destroy(nl_cuda *cuda);
extern "C" nl_status nl_cuda_nuclear_norm(nl_device *device, int64_t size, const double *a,
                                          int64_t m, const double *b, int64_t n, double *sum);

nl_status nl_cuda_check(nl_device *device, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return NL_OK;
    return nl_fail(device->context,
                   error == cudaErrorMemoryAllocation ? NL_ERROR_MEMORY : NL_ERROR_DEVICE,
                   "%s: %s: %s", device->name, what, cudaGetErrorString(error));
}

/* Giving back cannot fail. */
static void give_back(nl_device *device, int64_t bytes)
{
    const nl_status status = nl_account(device->context, "device memory", -bytes);
    (void)status;
}

static nl_status cuda_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    *pointer = NULL;
    nl_status status = nl_account(device->context, what, bytes);
    if (status != NL_OK)
        return status;
    const cudaError_t error = cudaMalloc(pointer, bytes > 0 ? (size_t)bytes : 1);
    if (error == cudaSuccess)
        return NL_OK;
    give_back(device, bytes);
    (void)cudaGetLastError();
    size_t left = 0, total = 0;
    (void)cudaMemGetInfo(&left, &total);
    *pointer = NULL;
    return nl_fail(device->context,
                   error == cudaErrorMemoryAllocation ? NL_ERROR_MEMORY : NL_ERROR_DEVICE,
                   "%s: %s: need %.1f MiB, have %.1f of %.1f MiB (%s)", device->name, what,
                   bytes / 1048576., left / 1048576., total / 1048576., cudaGetErrorString(error));
}

static int64_t cuda_memory_left(nl_device *device)
{
    size_t left = 0, total = 0;
    (void)device;
    return cudaMemGetInfo(&left, &total) == cudaSuccess ? (int64_t)left : INT64_MAX;
}

static void cuda_free(nl_device *device, void *pointer, int64_t bytes)
{
    if (!pointer)
        return;
    nl_cuda_weights_changed(device, pointer, bytes, true);
    nl_cuda_forget_records(nl_cuda_of(device));
    (void)cudaStreamSynchronize(nl_cuda_of(device)->stream);
    (void)cudaFree(pointer);
    give_back(device, bytes);
}

static nl_status cuda_host_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    *pointer = NULL;
    nl_status status = nl_account(device->context, what, bytes);
    if (status != NL_OK)
        return status;
    const cudaError_t error = cudaHostAlloc(pointer, bytes > 0 ? (size_t)bytes : 1, 0);
    if (error == cudaSuccess)
        return NL_OK;
    give_back(device, bytes);
    (void)cudaGetLastError();
    *pointer = NULL;
    return nl_fail(device->context, NL_ERROR_MEMORY, "%s: need %.1f MiB of pinned memory (%s)",
                   what, bytes / 1048576., cudaGetErrorString(error));
}

static void cuda_host_free(nl_device *device, void *pointer, int64_t bytes)
{
    if (!pointer)
        return;
    (void)cudaStreamSynchronize(nl_cuda_of(device)->stream);
    (void)cudaFreeHost(pointer);
    give_back(device, bytes);
}

static nl_status cuda_upload(nl_device *device, void *to, const void *from, int64_t bytes)
{
    nl_cuda_weights_changed(device, to, bytes, false);
    return nl_cuda_check(device,
                         cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice,
                                         nl_cuda_of(device)->stream),
                         "upload");
}

static nl_status cuda_upload_beside(nl_device *device, void *to, const void *from, int64_t bytes)
{
    nl_cuda *cuda = nl_cuda_of(device);
    cudaError_t error = cudaSuccess;
    nl_cuda_weights_changed(device, to, bytes, false);
    if (!cuda->uploads)
        error = cudaStreamCreateWithFlags(&cuda->uploads, cudaStreamNonBlocking);
    if (error == cudaSuccess && !cuda->uploaded)
        error = cudaEventCreateWithFlags(&cuda->uploaded, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, cuda->uploads);
    if (error == cudaSuccess)
        error = cudaEventRecord(cuda->uploaded, cuda->uploads);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(cuda->stream, cuda->uploaded, 0);
    return nl_cuda_check(device, error, "upload");
}

static nl_status cuda_sync(nl_device *device)
{
    return nl_cuda_check(device, cudaStreamSynchronize(nl_cuda_of(device)->stream),
                         "waiting for the device");
}

static nl_status cuda_download(nl_device *device, void *to, const void *from, int64_t bytes)
{
    nl_status status =
        nl_cuda_check(device,
                      cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost,
                                      nl_cuda_of(device)->stream),
                      "download");
    return status == NL_OK ? cuda_sync(device) : status;
}

static nl_status cuda_copy(nl_device *device, void *to, const void *from, int64_t bytes)
{
    nl_cuda_weights_changed(device, to, bytes, false);
    return nl_cuda_check(device,
                         cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                         nl_cuda_of(device)->stream),
                         "copy");
}

static nl_status prepare_slot(nl_device *device, int slot)
{
    nl_cuda *cuda = nl_cuda_of(device);
    if (!cuda->small) {
        void *small = NULL;
        nl_status status = nl_cuda_check(
            device, cudaHostAlloc(&small, NL_DOWNLOAD_SLOTS * sizeof(*cuda->small), 0),
            "memory for downloads");
        if (status != NL_OK)
            return status;
        cuda->small = (char(*)[NL_DOWNLOAD_SMALL])small;
    }
    cudaEvent_t *event = &cuda->downloads[slot].event;
    return *event ? NL_OK
                  : nl_cuda_check(device, cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                                  "an event");
}

static nl_status cuda_download_start(nl_device *device, int slot, void *to, const void *from,
                                     int64_t bytes)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const bool small = bytes <= NL_DOWNLOAD_SMALL;
    nl_status status = prepare_slot(device, slot);
    if (status != NL_OK)
        return status;
    cuda->downloads[slot].to = small ? to : NULL;
    cuda->downloads[slot].bytes = bytes;
    cudaError_t error = cudaMemcpyAsync(small ? cuda->small[slot] : to, from, (size_t)bytes,
                                        cudaMemcpyDeviceToHost, cuda->stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(cuda->downloads[slot].event, cuda->stream);
    return nl_cuda_check(device, error, "download");
}

static nl_status cuda_download_wait(nl_device *device, int slot)
{
    nl_cuda *cuda = nl_cuda_of(device);
    if (!cuda->downloads[slot].event)
        return NL_OK;
    nl_status status = nl_cuda_check(device, cudaEventSynchronize(cuda->downloads[slot].event),
                                     "waiting for a download");
    if (status == NL_OK && cuda->downloads[slot].to)
        memcpy(cuda->downloads[slot].to, cuda->small[slot], (size_t)cuda->downloads[slot].bytes);
    cuda->downloads[slot].to = NULL;
    return status;
}

nl_status nl_cuda_scratch(nl_device *device, const char *what, int64_t bytes, void **scratch)
{
    nl_cuda *cuda = nl_cuda_of(device);
    if (bytes > cuda->scratch_bytes && cuda->recording)
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "%s: %s: the first run of what is recorded took less memory", device->name,
                       what);
    if (bytes > cuda->scratch_bytes) {
        cuda_free(device, cuda->scratch, cuda->scratch_bytes);
        cuda->scratch = NULL;
        cuda->scratch_bytes = 0;
        nl_status status = cuda_alloc(device, what, bytes, &cuda->scratch);
        if (status != NL_OK)
            return status;
        cuda->scratch_bytes = bytes;
    }
    *scratch = cuda->scratch;
    /* For tests: what an operation reads of it and has not written there becomes NaN. */
    static const bool poisoned = getenv("NL_CUDA_POISON") != NULL;
    return poisoned
               ? nl_cuda_check(device,
                               cudaMemsetAsync(cuda->scratch, 0xff, (size_t)bytes, cuda->stream),
                               "poisoning scratch memory")
               : NL_OK;
}

static void cuda_destroy(nl_device *device)
{
    nl_cuda *cuda = nl_cuda_of(device);
    if (!cuda)
        return;
    for (int slot = 0; slot < NL_DOWNLOAD_SLOTS; slot++)
        if (cuda->downloads[slot].event)
            cudaEventDestroy(cuda->downloads[slot].event);
    if (cuda->small)
        cudaFreeHost(cuda->small);
    nl_cuda_forget_records(cuda);
    nl_cuda_weights_destroy(device);
    cuda_free(device, cuda->scratch, cuda->scratch_bytes);
    cuda_free(device, cuda->lt_workspace, (int64_t)cuda->lt_workspace_bytes);
    nl_cuda_products_destroy(cuda);
    nl_cuda_convolutions_destroy(cuda);
    if (cuda->lt)
        cublasLtDestroy(cuda->lt);
    if (cuda->uploaded)
        cudaEventDestroy(cuda->uploaded);
    if (cuda->uploads)
        cudaStreamDestroy(cuda->uploads);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
    device->state = NULL;
}

extern "C" int nl_cuda_count(void)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    return error == cudaSuccess ? count : 0;
}

static nl_status cuda_create(nl_device *device, int index)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "cuda: no GPU that CUDA can use (%s); --device cpu works anywhere",
                       error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    }
    if (index >= count)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "cuda:%d: there are %d GPUs, numbered from 0", index, count);
    cudaDeviceProp card;
    nl_status status = nl_cuda_check(device, cudaSetDevice(index), "choosing the GPU");
    if (status != NL_OK ||
        (status = nl_cuda_check(device, cudaGetDeviceProperties(&card, index), "asking the GPU")))
        return status;
    snprintf(device->name, sizeof(device->name), "cuda:%d (%.40s)", index, card.name);
    if (card.major < 8)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "%s: compute capability %d.%d, 8.0 or newer is needed", device->name,
                       card.major, card.minor);
    if (device->fp8 && card.major * 10 + card.minor < 89)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "%s: compute capability %d.%d has no FP8, which begins with 8.9; --dtype "
                       "bf16 runs here",
                       device->name, card.major, card.minor);
    nl_cuda *cuda = (nl_cuda *)calloc(1, sizeof(*cuda));
    if (!cuda)
        return nl_fail(device->context, NL_ERROR_MEMORY, "%s: out of host memory", device->name);
    device->state = cuda;
    cuda->index = index;
    cuda->multiprocessors = card.multiProcessorCount;
    if ((status = nl_cuda_check(
             device, cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "a stream")))
        cuda_destroy(device);
    return status;
}

extern "C" void nl_cuda_describe(nl_device *device,
                                 void (*fact)(void *user, const char *name, const char *text),
                                 void *user);

static constexpr nl_ops table()
{
    nl_ops ops = {};
    ops.name = "cuda";
    ops.create = cuda_create, ops.destroy = cuda_destroy;
    ops.alloc = cuda_alloc, ops.free = cuda_free;
    ops.upload = cuda_upload, ops.download = cuda_download, ops.copy = cuda_copy;
    ops.sync = cuda_sync, ops.memory_left = cuda_memory_left;
    ops.download_start = cuda_download_start, ops.download_wait = cuda_download_wait;
    ops.upload_beside = cuda_upload_beside;
    ops.replay = nl_cuda_replay;
    ops.nuclear_norm = nl_cuda_nuclear_norm;
    ops.host_alloc = cuda_host_alloc, ops.host_free = cuda_host_free;
    ops.describe = nl_cuda_describe;
#define NL_OPERATION(operation)                                                                    \
    ops.operation = NL_ENTRY(NL_CUDA_LACKS_##operation, nl_cuda_##operation);
    NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
    return ops;
}

/* Constant: whoever has an operation of the list without a function here does not link. */
extern "C" constexpr nl_ops nl_cuda_ops = table();
