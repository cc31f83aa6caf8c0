/* SPDX-License-Identifier: MIT */
/* Two parts of one data set that have no picture in common: what is trained on, and what is held out. */
#include <math.h>
#include <stdlib.h>

#include "data.h"

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

bool nl_dataset_is_whole(const nl_dataset *dataset, int64_t index)
{
    return !dataset->pictures || nl_dataset_picture(dataset, index) < dataset->pictures;
}

/* The number of the sample's picture, whichever crop of it this is. */
static int64_t picture_of(const nl_dataset *dataset, int64_t index)
{
    int64_t number = nl_dataset_picture(dataset, index);
    return dataset->pictures ? number % dataset->pictures : number;
}

/* Every k-th whole picture of each class. pictures: room for them, sorted in the end. */
static nl_status choose_pictures(const nl_dataset *dataset, int64_t k, int64_t *pictures,
                                 int64_t *count)
{
    nl_context *context = dataset->context;
    const nl_dataset_info *info = &dataset->info;
    nl_status status = NL_OK;
    int64_t *seen = NULL; /* of each class */
    *count = 0;
    NL_TRY(NL_NEW_ZEROS(context, "counts of classes", NL_MAX(info->classes, 1), &seen));
    for (int64_t i = 0; i < info->count; i++) {
        if (picture_of(dataset, i) < 0)
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: sample %lld is of a picture without a number: encode again",
                           dataset->path, (long long)i));
        if (nl_dataset_is_whole(dataset, i) && ++seen[nl_dataset_label(dataset, i)] % k == 0)
            pictures[(*count)++] = picture_of(dataset, i);
    }
    if (!*count)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s: one picture of %lld is to be held out, and no class has so many",
                       dataset->path, (long long)k));
    qsort(pictures, (size_t)*count, sizeof(*pictures), compare);
cleanup:
    nl_free(context, seen);
    return status;
}

nl_status nl_dataset_hold_out(nl_dataset *dataset, double part, bool held_out)
{
    nl_context *context = dataset->context;
    nl_status status = NL_OK;
    int64_t *pictures = NULL, *chosen = NULL, left = 0, count;
    if (!(part > 0 && part <= 0.5))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: a part of %g to hold out: expected more than 0 and at most 0.5",
                       dataset->path, part);
    int64_t k = llround(fmin(1 / part, 0x1p40));
    NL_TRY(NL_NEW_ARRAY(context, "what is held out", dataset->info.count / k + 1, &pictures));
    NL_TRY(choose_pictures(dataset, k, pictures, &count));
    NL_TRY(NL_NEW_ARRAY(context, "a part of a data set", dataset->info.count, &chosen));
    for (int64_t i = 0; i < dataset->info.count; i++) {
        int64_t picture = picture_of(dataset, i);
        bool held = bsearch(&picture, pictures, (size_t)count, sizeof(picture), compare) != NULL;
        if (held_out ? held && nl_dataset_is_whole(dataset, i) : !held)
            chosen[left++] = dataset->chosen ? dataset->chosen[i] : i;
    }
    if (!left)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: all samples are said to be of one picture: encode again",
                       dataset->path));
    nl_free(context, dataset->chosen);
    dataset->chosen = chosen;
    chosen = NULL;
    dataset->info.count = left;
    nl_dataset_count(dataset);
cleanup:
    nl_free(context, pictures);
    nl_free(context, chosen);
    return status;
}
