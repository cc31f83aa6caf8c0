/* SPDX-License-Identifier: MIT */
/* Every process sends what it has to all others, one after the other. */
#include "gather.h"

#include <string.h>

static bool alone(const nl_group *group)
{
    return !group || group->size == 1;
}

static nl_picture_range share_of(int rank, int size, int64_t count)
{
    int64_t first = count / size * rank + NL_MIN(count % size, rank);
    return (nl_picture_range){first, count / size + (rank < count % size)};
}

nl_picture_range nl_share_of(const nl_group *group, int64_t count)
{
    return alone(group) ? (nl_picture_range){0, count} : share_of(group->rank, group->size, count);
}

/* Of `count` rows each process has its own. */
static nl_status gather_rows(nl_group *group, void *rows, int64_t count, int64_t bytes)
{
    for (int rank = 0; rank < group->size; rank++) {
        nl_picture_range part = share_of(rank, group->size, count);
        NL_CHECK(
            nl_group_broadcast(group, rank, (char *)rows + part.first * bytes, part.count * bytes));
    }
    return NL_OK;
}

static nl_status gather_moments(nl_group *group, int64_t size, nl_moments **moments)
{
    nl_context *context = group->context;
    nl_moments *all = NULL;
    double *sums = NULL; /* how many, mean, scatter */
    int64_t length = 1 + size + size * size;
    nl_status status;
    NL_TRY(nl_moments_create(context, size, &all));
    NL_TRY(NL_NEW_ARRAY(context, "a covariance", length, &sums));
    for (int rank = 0; rank < group->size; rank++) {
        if (rank == group->rank) {
            sums[0] = (double)nl_moments_count(*moments);
            nl_moments_sums(*moments, sums + 1, sums + 1 + size);
        }
        NL_TRY(nl_group_broadcast(group, rank, sums, length * (int64_t)sizeof(double)));
        nl_moments_join(all, sums + 1, sums + 1 + size, (int64_t)sums[0]);
    }
    nl_moments *own = *moments;
    *moments = all;
    all = own;
cleanup:
    nl_moments_destroy(all);
    nl_free(context, sums);
    return status;
}

nl_status nl_gather_sums(nl_group *group, double *sums, int64_t count)
{
    double *other = NULL, *own = NULL;
    nl_status status = NL_OK;
    if (alone(group))
        return NL_OK;
    NL_TRY(NL_NEW_ARRAY(group->context, "sums", count, &own));
    NL_TRY(NL_NEW_ARRAY(group->context, "sums", count, &other));
    memcpy(own, sums, (size_t)count * sizeof(double));
    memset(sums, 0, (size_t)count * sizeof(double));
    for (int rank = 0; rank < group->size; rank++) {
        double *part = rank == group->rank ? own : other;
        NL_TRY(nl_group_broadcast(group, rank, part, count * (int64_t)sizeof(double)));
        for (int64_t i = 0; i < count; i++)
            sums[i] += part[i];
    }
cleanup:
    if (status != NL_OK)
        nl_group_abort(group, status);
    nl_free(group->context, own);
    nl_free(group->context, other);
    return status;
}

nl_status nl_gather(nl_group *group, int64_t size, nl_extraction *e)
{
    nl_status status = NL_OK;
    int64_t mixed = e->mixed, count;
    double total = (double)e->count;
    if (alone(group))
        return NL_OK;
    NL_TRY(nl_gather_sums(group, &total, 1));
    e->count = (int64_t)total;
    NL_TRY(nl_group_maximum(group, &mixed));
    e->mixed = mixed;
    for (int f = 0; f < NL_FEATURES; f++)
        if (e->of[f])
            NL_TRY(gather_moments(group, nl_feature_size(f), &e->of[f]));
    if (e->kept)
        NL_TRY(gather_rows(group, e->kept, e->count, size * (int64_t)sizeof(float)));
    if (e->hash)
        NL_TRY(gather_rows(group, e->hash, e->count, sizeof(uint64_t)));
    if (e->is) {
        double *sums = nl_score_sums(e->is, &count);
        NL_TRY(nl_gather_sums(group, sums, count));
    }
cleanup:
    if (status != NL_OK)
        nl_group_abort(group, status);
    return status;
}
