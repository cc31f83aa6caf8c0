/* SPDX-License-Identifier: MIT */
/* Records of nl_replay: CUDA graphs. The first run of a key makes what cannot be made while recording (plans of
 * products and convolutions, scratch memory). What turns out not to be recordable runs as it is. */
#include <cstdlib>
#include <cstring>

#include "cuda_common.cuh"

enum { MOST_RECORDS = 16 };

struct nl_cuda_record {
    nl_cuda_record *next;
    void *key;
    size_t size;
    const uint8_t *arena; /* where its intermediate results lie */
    int64_t mark;
    cudaGraphExec_t graph; /* NULL: ran once */
    bool direct;           /* cannot be recorded */
};

static void forget(nl_cuda_record *record)
{
    if (record->graph)
        cudaGraphExecDestroy(record->graph);
    free(record->key);
    free(record);
}

extern "C" void nl_cuda_forget_records(nl_cuda *cuda)
{
    while (cuda->records) {
        nl_cuda_record *next = cuda->records->next;
        forget(cuda->records);
        cuda->records = next;
    }
}

static nl_cuda_record *make(const nl_device *device, const void *key, size_t size)
{
    nl_cuda_record *record = (nl_cuda_record *)calloc(1, sizeof(*record));
    void *copy = malloc(size ? size : 1);
    if (!record || !copy) {
        free(record);
        free(copy);
        return NULL;
    }
    memcpy(copy, key, size);
    record->key = copy;
    record->size = size;
    record->arena = device->arena;
    record->mark = device->arena_used;
    return record;
}

/* The record of that key, moved to the front; a new one drops the least recently used. NULL: no host memory. */
static nl_cuda_record *find(nl_device *device, const void *key, size_t size, bool *found)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_cuda_record **at = &cuda->records, *record;
    int count = 0;
    for (; *at; at = &(*at)->next, count++) {
        record = *at;
        *found = record->size == size && record->arena == device->arena &&
                 record->mark == device->arena_used && !memcmp(record->key, key, size);
        if (*found || (count == MOST_RECORDS - 1 && !record->next))
            break;
    }
    record = *at;
    if (record)
        *at = record->next;
    if (record && !*found) {
        forget(record);
        record = NULL;
    }
    if (!record)
        record = make(device, key, size);
    if (record) {
        record->next = cuda->records;
        cuda->records = record;
    }
    return record;
}

/* NULL when it cannot be recorded; nothing has run then. */
static cudaGraphExec_t record_run(nl_cuda *cuda, nl_status (*run)(void *user), void *user)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t instance = NULL;
    if (cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
        cuda->recording = true;
        const nl_status status = run(user);
        cuda->recording = false;
        if (cudaStreamEndCapture(cuda->stream, &graph) != cudaSuccess || status != NL_OK ||
            cudaGraphInstantiate(&instance, graph, 0) != cudaSuccess)
            instance = NULL;
        if (graph)
            cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
    return instance;
}

extern "C" nl_status nl_cuda_replay(nl_device *device, const void *key, size_t size,
                                    nl_status (*run)(void *user), void *user)
{
    nl_cuda *cuda = nl_cuda_of(device);
    bool found = false;
    if (cuda->recording)
        return run(user);
    nl_cuda_record *record = find(device, key, size, &found);
    if (!record || !found || record->direct)
        return run(user);
    if (!record->graph)
        record->graph = record_run(cuda, run, user);
    if (!record->graph) {
        record->direct = true;
        nl_log(device->context, NL_LOG_DEBUG, "%s: a part that cannot be recorded: %s",
               device->name, nl_last_error(device->context));
        return run(user);
    }
    return nl_cuda_check(device, cudaGraphLaunch(record->graph, cuda->stream), "a recorded part");
}
