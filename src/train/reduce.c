/* SPDX-License-Identifier: MIT */
/* Gradients over the ranks in buckets, as the backward pass completes them. */
#include "reduce.h"

enum { BUCKET = 6 << 20 /* gradients that are summed over the ranks together, at least */ };

typedef struct nl_reducer {
    nl_group *group;
    nl_tensor flat;
    int64_t first, count; /* complete and not yet summed */
} nl_reducer;

static nl_status reduce_ready(nl_reducer *reducer)
{
    nl_tensor run = nl_tensor_rows(&reducer->flat, reducer->first, reducer->count);
    bool any = reducer->count > 0;
    reducer->count = 0;
    return any ? nl_group_all_reduce_sum(reducer->group, &run) : NL_OK;
}

static nl_status gradients_ready(void *user, int64_t first, int64_t count)
{
    nl_reducer *reducer = user;
    bool below = first + count == reducer->first;
    bool above = first == reducer->first + reducer->count;
    if (reducer->count > 0 && !below && !above)
        NL_CHECK(reduce_ready(reducer));
    if (reducer->count == 0 || below)
        reducer->first = first;
    reducer->count += count;
    if (reducer->count >= BUCKET)
        NL_CHECK(reduce_ready(reducer));
    return NL_OK;
}

nl_status nl_reduced_backward(nl_group *group, const nl_dit *dit, nl_device *device,
                              const nl_dit_saved *saved, const nl_tensor *dprediction,
                              const nl_tensor *dmiddle, nl_dit *gradients)
{
    nl_reducer reducer = {.group = group, .flat = nl_dit_flat(gradients)};
    bool reduce = group && group->size > 1;
    NL_CHECK(nl_dit_backward(dit, device, saved, dprediction, dmiddle, gradients, NULL,
                             reduce ? gradients_ready : NULL, &reducer));
    if (!reduce)
        return NL_OK;
    NL_CHECK(reduce_ready(&reducer));
    NL_CHECK(nl_group_join(group)); /* a recording ends with nothing under way */
    return NL_OK;
}
