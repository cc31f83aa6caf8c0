#include "extract.h"

#include <string.h>

/* 64 bits of a picture's bytes, to find copies: eight at a time through a multiplication whose halves are
 * folded together. */
static uint64_t hash_bytes(const uint8_t *bytes, int64_t size)
{
    uint64_t hash = 0x9e3779b97f4a7c15u ^ (uint64_t)size;
    for (int64_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, (size_t)NL_MIN(8, size - i));
        unsigned __int128 product =
            (unsigned __int128)(hash ^ word) * 0xd6e8feb86659fd93u + 0x2545f4914f6cdd1du;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return hash;
}

/* Everything whose size depends on the number of pictures, and a buffer of each feature for one batch. */
static nl_status prepare(nl_inception *net, const nl_evaluation_options *options, int64_t count,
                         int64_t batch, nl_extraction *e, float *features[NL_FEATURES],
                         nl_context *context)
{
    void *memory;
    nl_status status = NL_OK;
    (void)net;
    for (int f = 0; f < NL_FEATURES; f++) {
        int64_t size = nl_feature_size(f);
        if (e->moments[f])
            NL_TRY(nl_moments_create(context, size, &e->of[f]));
        bool needed = e->moments[f] || (e->rows && f == (int)options->feature) ||
                      (e->score && f == NL_FEATURE_LOGITS);
        if (!needed)
            continue;
        NL_TRY(nl_alloc_array(context, "features", batch * size, sizeof(float), &memory));
        features[f] = memory;
    }
    if (e->rows) {
        NL_TRY(nl_alloc_array(context,
                              "features for precision, recall and KID (--metrics leaves "
                              "them out)",
                              count * nl_feature_size(options->feature), sizeof(float), &memory));
        e->kept = memory;
    }
    if (e->hashes) {
        NL_TRY(nl_alloc_array(context, "hashes", count, sizeof(uint64_t), &memory));
        e->hash = memory;
    }
    if (e->score) {
        int64_t split = options->is_split ? options->is_split : NL_MAX(1, (count + 9) / 10);
        NL_TRY(nl_score_create(context, nl_feature_size(NL_FEATURE_LOGITS), split, &e->is));
    }
cleanup:
    return status;
}

static nl_status take_batch(const nl_evaluation_options *options, const nl_picture_batch *batch,
                            float *const features[NL_FEATURES], nl_extraction *e)
{
    int64_t bytes = 3 * batch->height * batch->width, size = nl_feature_size(options->feature);
    nl_status status = NL_OK;
    for (int f = 0; f < NL_FEATURES; f++)
        if (e->of[f])
            nl_moments_add(e->of[f], features[f], batch->count);
    if (e->kept)
        memcpy(e->kept + batch->first * size, features[options->feature],
               (size_t)(batch->count * size) * sizeof(float));
    for (int64_t i = 0; e->hash && i < batch->count; i++)
        e->hash[batch->first + i] = hash_bytes(batch->rgb + i * bytes, bytes);
    if (e->is)
        NL_TRY(nl_score_add(e->is, features[NL_FEATURE_LOGITS], batch->count));
    if (e->picture)
        NL_TRY(e->picture(e->user, batch));
cleanup:
    return status;
}

nl_status nl_extract(nl_inception *net, const nl_evaluation_options *options, nl_pictures *pictures,
                     const char *what, nl_extraction *e)
{
    nl_context *context = nl_inception_context(net);
    float *features[NL_FEATURES] = {NULL};
    int64_t count = nl_pictures_count(pictures), most;
    nl_picture_batch batch;
    nl_status status;
    /* large enough for any picture: the network's batch of small ones */
    NL_TRY(nl_inception_batch(net, 299, 299, &most));
    NL_TRY(prepare(net, options, count, most, e, features, context));
    for (;;) {
        if (options->progress && !options->progress(options->user, what, e->count, count))
            NL_TRY(nl_fail(context, NL_CANCELLED, "interrupted"));
        NL_TRY(nl_pictures_next(pictures, most, &batch));
        if (batch.count == 0)
            break;
        NL_TRY(nl_inception_run(net, options->preprocessing, batch.rgb, batch.count, batch.height,
                                batch.width, features));
        NL_TRY(take_batch(options, &batch, features, e));
        e->count += batch.count;
    }
    e->mixed = nl_pictures_mixed(pictures);
cleanup:
    for (int f = 0; f < NL_FEATURES; f++)
        nl_free(context, features[f]);
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
