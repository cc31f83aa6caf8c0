/* SPDX-License-Identifier: MIT */
/* Which pictures of a job this process makes. They go in units of one batch: every batch has the pictures that it
 * would have in one uninterrupted run of one process, whatever is there already and however many are at work. */
#include "nl_sample.h"

#include <string.h>

/* The first picture of this process's unit number k. */
static int64_t unit_start(const nl_work_list *list, int64_t k)
{
    return (list->rank + k * list->ranks) * list->unit;
}

static int64_t unit_size(const nl_work_list *list, int64_t k)
{
    return NL_MIN(list->unit, list->count - unit_start(list, k));
}

void nl_work_list_init(nl_work_list *list, int64_t count, int64_t unit, int rank, int ranks)
{
    *list = (nl_work_list){.count = count, .unit = unit, .rank = rank, .ranks = ranks};
    int64_t units = (count + unit - 1) / unit;
    list->units = rank < units ? (units - rank + ranks - 1) / ranks : 0;
    for (int64_t k = 0; k < list->units; k++)
        list->todo += unit_size(list, k);
}

nl_status nl_work_list_scan(nl_context *context, nl_work_list *list,
                            nl_status (*there)(void *user, int64_t picture, bool *is), void *user)
{
    NL_CHECK(NL_NEW_ZEROS(context, "the list of batches", list->units, &list->finished));
    for (int64_t k = 0; k < list->units; k++) {
        int64_t have = 0, size = unit_size(list, k);
        NL_CHECK(nl_check_cancelled(context));
        for (int64_t i = 0; i < size; i++) {
            bool is = false;
            NL_CHECK(there(user, unit_start(list, k) + i, &is));
            have += is;
        }
        list->finished[k] = have == size;
        if (have == size) {
            list->there += size;
            list->todo -= size;
        }
    }
    return NL_OK;
}

int64_t nl_work_list_next(nl_work_list *list, bool consecutive, int64_t room, int64_t *pictures)
{
    int64_t count = 0;
    for (; list->next < list->units; list->next++) {
        int64_t start = unit_start(list, list->next), size = unit_size(list, list->next);
        if (list->finished && list->finished[list->next])
            continue;
        if (count + size > room || (consecutive && count && start != pictures[count - 1] + 1))
            break;
        for (int64_t i = 0; i < size; i++)
            pictures[count++] = start + i;
    }
    return count;
}

void nl_work_list_free(nl_context *context, nl_work_list *list)
{
    nl_free(context, list->finished);
    *list = (nl_work_list){0};
}
