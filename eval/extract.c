/* SPDX-License-Identifier: MIT */
/* One pass of pictures through the FID network: moments, Inception Score, kept features, hashes for copies. */
#include "gather.h"

#include <string.h>

#include "nl_thread.h"

/* Eight bytes through a multiplication whose halves are folded together. */
static uint64_t mix(uint64_t hash, const uint8_t *bytes, int64_t size)
{
    uint64_t word = 0;
    memcpy(&word, bytes, (size_t)size);
    unsigned __int128 product =
        (unsigned __int128)(hash ^ word) * 0xd6e8feb86659fd93u + 0x2545f4914f6cdd1du;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 64 bits of a picture's bytes, to find copies. Four chains, because each multiplication waits for
 * the one before it. */
static uint64_t hash_bytes(const uint8_t *bytes, int64_t size)
{
    enum { CHAINS = 4, STEP = 8 * CHAINS };
    uint64_t hash[CHAINS];
    int64_t i = 0;
    for (int chain = 0; chain < CHAINS; chain++)
        hash[chain] = 0x9e3779b97f4a7c15u * (uint64_t)(chain + 1) ^ (uint64_t)size;
    for (; i + STEP <= size; i += STEP)
        for (int chain = 0; chain < CHAINS; chain++)
            hash[chain] = mix(hash[chain], bytes + i + 8 * chain, 8);
    for (; i < size; i += 8)
        hash[0] = mix(hash[0], bytes + i, NL_MIN(8, size - i));
    for (int chain = 1; chain < CHAINS; chain++)
        hash[0] = mix(hash[0], (const uint8_t *)&hash[chain], 8);
    return hash[0];
}

/* A pass at work. */
typedef struct pass {
    nl_inception *net;
    const nl_metric_options *options;
    const char *what;
    nl_extraction *found;
    int64_t count;          /* pictures of all processes */
    nl_picture_range range; /* that will come to this one */
    double started;
    nl_inception_queue *queue;
    nl_device_moments *moments[NL_FEATURES]; /* on a GPU, which adds up beside the network what
                                                would hold it up here */
    /* What a thread adds up while a GPU makes the features that come next: of `adding` pictures
     * from `first` on. */
    const float *features[NL_FEATURES];
    int64_t first, adding;
    bool at_work;
    pthread_t thread;
    nl_status status;   /* how that ended */
    int64_t *positions; /* [count] in the order of the splits, or NULL: that of the pictures */
    int64_t height, width;
} pass;

static nl_status prepare_score(pass *p)
{
    nl_context *context = nl_inception_context(p->net);
    const nl_metric_options *options = p->options;
    int64_t *order = NULL;
    nl_status status = NL_OK;
    int64_t splits = options->is_shuffled ? options->is_splits
                                          : (p->count + options->is_split - 1) / options->is_split;
    NL_TRY(nl_score_create(context, nl_feature_size(NL_FEATURE_LOGITS), splits, &p->found->is));
    if (!options->is_shuffled)
        return NL_OK;
    NL_TRY(NL_NEW_ARRAY(context, "an order", p->count, &order));
    NL_TRY(NL_NEW_ARRAY(context, "an order", p->count, &p->positions));
    NL_TRY(nl_numpy_permutation(context, options->is_seed, p->count, order));
    for (int64_t i = 0; i < p->count; i++)
        p->positions[order[i]] = i;
cleanup:
    nl_free(context, order);
    return status;
}

/* Splits of is_split pictures, or split s from s count / is_splits on, rounded down. */
static int64_t split_of(const pass *p, int64_t picture)
{
    if (!p->positions)
        return picture / p->options->is_split;
    return ((p->positions[picture] + 1) * p->options->is_splits - 1) / p->count;
}

/* The queue, and everything whose size depends on the number of pictures. */
static nl_status prepare(pass *p)
{
    nl_context *context = nl_inception_context(p->net);
    nl_feature feature = p->options->feature;
    nl_extraction *e = p->found;
    bool wanted[NL_FEATURES];
    bool on_device = nl_device_queues(context->device);
    for (int f = 0; f < NL_FEATURES; f++) {
        wanted[f] = (e->moments[f] && !on_device) || (e->rows && f == (int)feature) ||
                    (e->score && f == NL_FEATURE_LOGITS);
        if (e->moments[f])
            NL_CHECK(nl_moments_create(context, nl_feature_size(f), &e->of[f]));
    }
    NL_CHECK(nl_inception_queue_create(p->net, p->options->preprocessing, wanted, &p->queue));
    for (int f = 0; on_device && f < NL_FEATURES; f++)
        if (e->moments[f]) {
            NL_CHECK(nl_device_moments_create(context->device, nl_feature_size(f), &p->moments[f]));
            nl_inception_queue_sum(p->queue, f, p->moments[f]);
        }
    if (e->rows) {
        NL_CHECK(NL_NEW_ARRAY(context, e->rows, p->count * nl_feature_size(feature), &e->kept));
    }
    if (e->hashes) {
        NL_CHECK(NL_NEW_ARRAY(context, "hashes", p->count, &e->hash));
    }
    if (e->score)
        NL_CHECK(prepare_score(p));
    return NL_OK;
}

static nl_status report(const pass *p)
{
    const nl_metric_options *options = p->options;
    if (options->progress &&
        !options->progress(options->user, p->what, p->found->count, p->range.count))
        return nl_fail(nl_inception_context(p->net), NL_CANCELLED, "interrupted");
    return NL_OK;
}

static nl_status add_features(pass *p)
{
    nl_extraction *e = p->found;
    const float *const *features = p->features;
    int64_t first = p->first, count = p->adding;
    int64_t size = nl_feature_size(p->options->feature);
    int64_t classes = nl_feature_size(NL_FEATURE_LOGITS);
    for (int f = 0; f < NL_FEATURES; f++)
        if (e->of[f] && !p->moments[f])
            nl_moments_add(e->of[f], features[f], count);
    if (e->kept)
        memcpy(e->kept + first * size, features[p->options->feature],
               (size_t)(count * size) * sizeof(float));
    for (int64_t i = 0; e->is && i < count; i++)
        NL_CHECK(nl_score_add(e->is, split_of(p, first + i),
                              features[NL_FEATURE_LOGITS] + i * classes, 1));
    return NL_OK;
}

static void *add_beside(void *user)
{
    pass *p = user;
    p->status = add_features(p);
    return NULL;
}

static nl_status finish_adding(pass *p)
{
    if (p->at_work)
        pthread_join(p->thread, NULL);
    p->at_work = false;
    p->first += p->adding;
    p->adding = 0;
    return p->status;
}

/* Begins to add the features that the queue has ready first, once those before are added. */
static nl_status begin_adding(pass *p)
{
    nl_context *context = nl_inception_context(p->net);
    nl_status status = finish_adding(p);
    if (status == NL_OK)
        status = nl_inception_end(p->queue, &p->adding, p->features);
    if (status != NL_OK)
        return status;
    p->at_work =
        nl_device_queues(context->device) && nl_start_thread(&p->thread, add_beside, p) == 0;
    return p->at_work ? NL_OK : add_features(p);
}

static void hash_pictures(const pass *p, const nl_picture_batch *batch)
{
    enum { THREADS = 4 };
    uint64_t *hash = p->found->hash;
    int64_t bytes = 3 * batch->height * batch->width;
    nl_context *context = nl_inception_context(p->net);
    if (!hash)
        return;
    int team = nl_team(context, NL_MIN(THREADS, context->device->threads));
#pragma omp parallel for num_threads(team)
    for (int64_t i = 0; i < batch->count; i++)
        hash[batch->first + i] = hash_bytes(batch->rgb + i * bytes, bytes);
}

static nl_status take(void *taker, const nl_picture_batch *batch)
{
    pass *p = taker;
    nl_extraction *e = p->found;
    int64_t done = p->range.first + e->count;
    if (batch->first != done || e->count + batch->count > p->range.count)
        return nl_fail(nl_inception_context(p->net), NL_ERROR_INTERNAL,
                       "picture %lld of %lld came after picture %lld", (long long)batch->first,
                       (long long)p->count, (long long)done - 1);
    NL_CHECK(report(p));
    e->mixed = e->mixed || (e->count && (batch->height != p->height || batch->width != p->width));
    p->height = batch->height;
    p->width = batch->width;
    NL_CHECK(nl_inception_begin(p->queue, batch->rgb, batch->count, batch->height, batch->width));
    if (e->count == 0)
        e->seconds_first_batch = nl_seconds() - p->started;
    hash_pictures(p, batch);
    if (nl_inception_under_way(p->queue) == NL_INCEPTION_WAYS)
        NL_CHECK(begin_adding(p));
    if (e->picture)
        NL_CHECK(e->picture(e->user, batch));
    e->count += batch->count;
    return NL_OK;
}

/* The pictures of this process. */
static nl_status run(pass *p, const nl_picture_source *source)
{
    nl_extraction *e = p->found;
    int64_t most;
    /* large enough for any picture: the network's batch of small ones */
    NL_CHECK(nl_inception_batch(p->net, 299, 299, &most));
    NL_CHECK(prepare(p));
    NL_CHECK(report(p));
    NL_CHECK(source->run(source->user, p->range, most, take, p));
    while (nl_inception_under_way(p->queue) > 0)
        NL_CHECK(begin_adding(p));
    NL_CHECK(finish_adding(p));
    for (int f = 0; f < NL_FEATURES; f++)
        if (p->moments[f])
            NL_CHECK(nl_device_moments_read(p->moments[f], e->of[f]));
    if (e->count != p->range.count)
        return nl_fail(nl_inception_context(p->net), NL_ERROR_INTERNAL,
                       "%s: %lld of %lld pictures came", source->name, (long long)e->count,
                       (long long)p->range.count);
    return NL_OK;
}

nl_status nl_extract(nl_inception *net, const nl_metric_options *options,
                     const nl_picture_source *source, const char *what, nl_extraction *e)
{
    nl_group *group = options->group;
    pass p = {.net = net,
              .options = options,
              .what = what,
              .found = e,
              .count = source->count,
              .range = nl_share_of(group, source->count),
              .started = nl_seconds()};
    p.first = p.range.first;
    nl_status status = nl_group_agree(group, run(&p, source));
    if (status == NL_OK)
        status = nl_gather(group, nl_feature_size(options->feature), e);
    e->seconds = nl_seconds() - p.started;
    finish_adding(&p);
    nl_inception_queue_destroy(p.queue);
    for (int f = 0; f < NL_FEATURES; f++)
        nl_device_moments_destroy(p.moments[f]);
    nl_free(nl_inception_context(net), p.positions);
    return status;
}

void nl_extraction_free(nl_context *context, nl_extraction *e)
{
    for (int f = 0; f < NL_FEATURES; f++)
        nl_moments_destroy(e->of[f]);
    nl_score_destroy(e->is);
    nl_free(context, e->kept);
    nl_free(context, e->hash);
    memset(e, 0, sizeof(*e));
}
