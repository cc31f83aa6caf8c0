/* SPDX-License-Identifier: MIT */
/* Pictures on the host, batch by batch through the FID network. */
#include "inception.h"
#include "nl_thread.h"

#include <string.h>

/* One more, whose features are being read. */
enum { SLOTS = NL_INCEPTION_WAYS + 1 };

/* A batch under way, or its features where they were downloaded to. */
typedef struct slot {
    void *features; /* of all pictures, one kind after the other */
    int64_t features_bytes;
    int64_t count;
} slot;

/* Pictures of one piece of a batch under way. On a GPU they are uploaded while the network has those before. */
typedef struct pictures {
    void *staged; /* on a GPU's host: a copy from which uploads do not wait */
    void *rgb;    /* on the device, beside the arena, which the batch before still uses */
    int64_t staged_bytes, rgb_bytes;
} pictures;

struct nl_inception_queue {
    nl_inception *net;
    const nl_preprocessing *preprocessing;
    bool wanted[NL_FEATURES];                /* on the host */
    bool made[NL_FEATURES];                  /* for the host or for moments */
    nl_device_moments *moments[NL_FEATURES]; /* NULL: none */
    int64_t numbers;                         /* of a picture's features on the host */
    int64_t count, height, width;            /* of the batch before */
    int64_t most;                            /* pictures of those that go at once */
    int64_t measured, bytes; /* pictures of a piece of this shape; what it takes of the arena */
    slot slots[SLOTS];
    pictures pictures[NL_INCEPTION_WAYS];
    int64_t begun, ended; /* batches; n is in slot n % SLOTS and pictures n % NL_INCEPTION_WAYS */
};

/* ---- Memory on the device */

static nl_status take_features(nl_device *device, int64_t count, const bool *made,
                               nl_tensor features[NL_FEATURES])
{
    for (int f = 0; f < NL_FEATURES; f++) {
        features[f] = (nl_tensor){0};
        if (made[f])
            NL_CHECK(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){count, nl_feature_size(f)},
                                     &features[f]));
    }
    return NL_OK;
}

/* Bytes of the arena that a piece takes. */
static nl_status measure(const nl_inception *net, int64_t count, int64_t height, int64_t width,
                         const bool *made, int64_t *bytes)
{
    nl_device device;
    nl_tensor features[NL_FEATURES];
    /* some address: nothing is read */
    nl_tensor rgb = nl_tensor_of(bytes, NL_U8, 4, (int64_t[]){count, height, width, 3});
    nl_device_measuring(net->device, &device);
    NL_CHECK(take_features(&device, count, made, features));
    NL_CHECK(nl_inception_forward(net, &device, &nl_preprocessings[0], &rgb, features));
    *bytes = device.arena_peak;
    return NL_OK;
}

/* 16 pictures hide the reordering of the weights on a CPU, 128 keep a GPU busy. Half of a budget is left for
 * what a back end needs beside the arena and for the caller. */
nl_status nl_inception_batch(const nl_inception *net, int64_t height, int64_t width, int64_t *batch)
{
    bool all[NL_FEATURES];
    int64_t bytes = 0, room = nl_memory_left(net->device->context) / 2 + net->device->arena_size;
    for (int f = 0; f < NL_FEATURES; f++)
        all[f] = nl_inception_has(net, f);
    NL_CHECK(measure(net, 1, height, width, all, &bytes));
    int64_t most = nl_device_queues(net->device) ? 128 : 16;
    bytes += NL_INCEPTION_WAYS * height * width * 3;
    *batch = NL_MAX(1, NL_MIN(most, room / bytes));
    return NL_OK;
}

/* ---- The queue */

nl_status nl_inception_queue_create(nl_inception *net, const nl_preprocessing *preprocessing,
                                    const bool wanted[NL_FEATURES], nl_inception_queue **queue)
{
    NL_CHECK(NL_NEW(net->device->context, "pictures under way", queue));
    (*queue)->net = net;
    (*queue)->preprocessing = preprocessing;
    memcpy((*queue)->wanted, wanted, sizeof((*queue)->wanted));
    memcpy((*queue)->made, wanted, sizeof((*queue)->made));
    for (int f = 0; f < NL_FEATURES; f++)
        (*queue)->numbers += wanted[f] ? nl_feature_size(f) : 0;
    return NL_OK;
}

void nl_inception_queue_sum(nl_inception_queue *q, nl_feature feature, nl_device_moments *moments)
{
    q->moments[feature] = moments;
    q->made[feature] = moments || q->wanted[feature];
}

void nl_inception_queue_destroy(nl_inception_queue *q)
{
    if (!q)
        return;
    nl_device *device = q->net->device;
    for (int i = 0; i < SLOTS; i++)
        nl_host_memory_free(device, q->slots[i].features, q->slots[i].features_bytes);
    for (int i = 0; i < NL_INCEPTION_WAYS; i++) {
        nl_host_memory_free(device, q->pictures[i].staged, q->pictures[i].staged_bytes);
        device->ops->free(device, q->pictures[i].rgb, q->pictures[i].rgb_bytes);
    }
    nl_free(device->context, q);
}

static nl_status grow(nl_device *device, const char *what, int64_t bytes, void **memory,
                      int64_t *have)
{
    if (bytes <= *have)
        return NL_OK;
    nl_host_memory_free(device, *memory, *have);
    *memory = NULL;
    *have = 0;
    nl_status status = nl_host_memory_alloc(device, what, bytes, memory);
    if (status == NL_OK)
        *have = bytes;
    return status;
}

/* Where the features of a slot's picture `first` lie. */
static float *features_at(const nl_inception_queue *q, const slot *s, nl_feature feature,
                          int64_t first)
{
    float *at = s->features;
    for (int f = 0; f < (int)feature; f++)
        at += q->wanted[f] ? s->count * nl_feature_size(f) : 0;
    return at + first * nl_feature_size(feature);
}

/* The memory of a GPU's host from which an upload does not wait is filled by several threads: one would take half as long
 * as the network. */
static nl_status stage(nl_device *device, pictures *p, const uint8_t **rgb, int64_t bytes)
{
    enum { PART = 1 << 20, THREADS = 4 };
    NL_CHECK(grow(device, "pictures under way", bytes, &p->staged, &p->staged_bytes));
    uint8_t *to = p->staged;
    const uint8_t *from = *rgb;
    int team = nl_team(device->context, NL_MIN(THREADS, device->threads));
#pragma omp parallel for num_threads(team)
    for (int64_t at = 0; at < bytes; at += PART)
        memcpy(to + at, from + at, (size_t)NL_MIN(PART, bytes - at));
    *rgb = to;
    return NL_OK;
}

/* Nothing under way uses `p`. */
static nl_status upload(nl_device *device, pictures *p, const uint8_t *rgb, int64_t bytes)
{
    if (bytes > p->rgb_bytes) {
        device->ops->free(device, p->rgb, p->rgb_bytes);
        p->rgb = NULL;
        p->rgb_bytes = 0;
        NL_CHECK(device->ops->alloc(device, "pictures", bytes, &p->rgb));
        p->rgb_bytes = bytes;
    }
    if (nl_device_queues(device))
        NL_CHECK(stage(device, p, &rgb, bytes));
    return nl_upload_beside(device, p->rgb, rgb, bytes);
}

/* Pictures from `first` on of the batch that begins, as many as fit the device at once. */
static nl_status begin_piece(nl_inception_queue *q, const uint8_t *rgb, int64_t first,
                             int64_t count, int64_t height, int64_t width)
{
    nl_device *device = q->net->device;
    int turn = (int)(q->begun % SLOTS);
    pictures *p = &q->pictures[q->begun % NL_INCEPTION_WAYS];
    int64_t mark = nl_arena_mark(device);
    nl_tensor features[NL_FEATURES], batch;
    nl_status status;
    if (count != q->measured)
        NL_TRY(measure(q->net, count, height, width, q->made, &q->bytes));
    q->measured = count;
    NL_TRY(nl_arena_reserve(device, q->bytes));
    NL_TRY(upload(device, p, rgb, count * height * width * 3));
    batch = nl_tensor_of(p->rgb, NL_U8, 4, (int64_t[]){count, height, width, 3});
    NL_TRY(take_features(device, count, q->made, features));
    NL_TRY(nl_inception_forward(q->net, device, q->preprocessing, &batch, features));
    for (int f = 0; f < NL_FEATURES; f++) {
        if (q->moments[f])
            NL_TRY(nl_device_moments_add(q->moments[f], &features[f]));
        if (q->wanted[f])
            NL_TRY(nl_download_start(device, turn, features_at(q, &q->slots[turn], f, first),
                                     features[f].data, nl_tensor_bytes(&features[f])));
    }
    if (q->numbers == 0) /* a wait that says when the pictures have been taken */
        NL_TRY(nl_download_start(device, turn, NULL, p->rgb, 0));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* How many pictures of such a batch go at once: found out when the shape is another than before. */
static nl_status choose_piece(nl_inception_queue *q, int64_t count, int64_t height, int64_t width)
{
    if (count == q->count && height == q->height && width == q->width)
        return NL_OK;
    q->count = q->measured = 0;
    NL_CHECK(nl_inception_batch(q->net, height, width, &q->most));
    q->count = count;
    q->height = height;
    q->width = width;
    return NL_OK;
}

nl_status nl_inception_begin(nl_inception_queue *q, const uint8_t *rgb, int64_t count,
                             int64_t height, int64_t width)
{
    nl_device *device = q->net->device;
    int turn = (int)(q->begun % SLOTS);
    slot *s = &q->slots[turn];
    if (q->begun - q->ended == NL_INCEPTION_WAYS)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "too many batches under way");
    NL_CHECK(nl_check_cancelled(device->context));
    s->count = count;
    NL_CHECK(grow(device, "features under way", count * q->numbers * (int64_t)sizeof(float),
                  &s->features, &s->features_bytes));
    NL_CHECK(choose_piece(q, count, height, width));
    for (int64_t first = 0; first < count; first += q->most) {
        if (first) /* its pictures lie where those of this piece will */
            NL_CHECK(nl_download_wait(device, turn));
        NL_CHECK(begin_piece(q, rgb + first * height * width * 3, first,
                             NL_MIN(q->most, count - first), height, width));
    }
    q->begun++;
    return NL_OK;
}

int64_t nl_inception_under_way(const nl_inception_queue *q)
{
    return q->begun - q->ended;
}

nl_status nl_inception_end(nl_inception_queue *q, int64_t *count,
                           const float *features[NL_FEATURES])
{
    nl_device *device = q->net->device;
    int turn = (int)(q->ended % SLOTS);
    if (q->begun == q->ended)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "no batch is under way");
    NL_CHECK(nl_download_wait(device, turn));
    *count = q->slots[turn].count;
    for (int f = 0; f < NL_FEATURES; f++)
        features[f] = q->wanted[f] ? features_at(q, &q->slots[turn], f, 0) : NULL;
    q->ended++;
    return NL_OK;
}

/* Copies the features of the batch that ends out, to picture *done on. */
static nl_status collect(nl_inception_queue *q, float *const *to, int64_t *done)
{
    const float *features[NL_FEATURES];
    int64_t count;
    NL_CHECK(nl_inception_end(q, &count, features));
    for (int f = 0; f < NL_FEATURES; f++)
        if (to[f])
            memcpy(to[f] + *done * nl_feature_size(f), features[f],
                   (size_t)(count * nl_feature_size(f)) * sizeof(float));
    *done += count;
    return NL_OK;
}

nl_status nl_inception_run(nl_inception *net, const nl_preprocessing *preprocessing,
                           const uint8_t *rgb, int64_t count, int64_t height, int64_t width,
                           float *const features[NL_FEATURES])
{
    nl_inception_queue *q = NULL;
    bool wanted[NL_FEATURES];
    int64_t batch, done = 0;
    nl_status status;
    for (int f = 0; f < NL_FEATURES; f++)
        wanted[f] = features[f] != NULL;
    NL_TRY(nl_inception_queue_create(net, preprocessing, wanted, &q));
    NL_TRY(nl_inception_batch(net, height, width, &batch));
    for (int64_t first = 0; first < count; first += batch) {
        NL_TRY(nl_inception_begin(q, rgb + first * height * width * 3, NL_MIN(batch, count - first),
                                  height, width));
        if (nl_inception_under_way(q) == NL_INCEPTION_WAYS)
            NL_TRY(collect(q, features, &done));
    }
    while (nl_inception_under_way(q) > 0)
        NL_TRY(collect(q, features, &done));
cleanup:
    nl_inception_queue_destroy(q);
    return status;
}
