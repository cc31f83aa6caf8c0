/* SPDX-License-Identifier: MIT */
/* A group of processes as a table of functions; in a group of one every call does nothing. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nl_group.h"
#include "nl_process.h"

static nl_status open_group(nl_group *group, const nl_process *process, const char *folder)
{
    const nl_ops *ops = group->device->ops;
    char token[80];
    if (process->token[0])
        snprintf(token, sizeof(token), "%s", process->token);
    else /* children of one launcher on one machine */
        snprintf(token, sizeof(token), "parent-%ld", (long)getppid());
    for (char *c = token; *c; c++)
        *c = strchr("/ @:", *c) ? '-' : *c;
    group->rank = process->rank;
    group->size = process->ranks;
    return !strcmp(ops->name, "cuda") ? nl_group_open_nccl(group, folder, token)
                                      : nl_group_open_mpi(group);
}

nl_status nl_group_create(nl_context *context, const char *folder, nl_group **group)
{
    nl_status status = NL_OK;
    nl_process process;
    nl_group *made = NULL;
    *group = NULL;
    if (!nl_process_read(&process))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: nalagen sets it for the processes that it starts: unset it",
                       NL_CHILD_VARIABLE);
    NL_TRY(NL_NEW(context, "a group of processes", &made));
    *made = (nl_group){.context = context, .device = context->device, .rank = 0, .size = 1};
    if (process.ranks > 1) {
        nl_log(context, NL_LOG_DEBUG, "process %d of %d, says %s", process.rank, process.ranks,
               process.launcher);
        NL_TRY(open_group(made, &process, folder));
    }
    *group = made;
cleanup:
    if (status != NL_OK)
        nl_free(context, made);
    return status;
}

void nl_group_destroy(nl_group *group)
{
    if (!group)
        return;
    if (group->ops)
        group->ops->destroy(group);
    nl_free(group->context, group);
}

nl_status nl_group_all_reduce_sum(nl_group *group, const nl_tensor *x)
{
    return group->ops ? group->ops->all_reduce_sum(group, x) : NL_OK;
}

nl_status nl_group_join(nl_group *group)
{
    return group->ops ? group->ops->join(group) : NL_OK;
}

nl_status nl_group_maximum(nl_group *group, int64_t *value)
{
    return group->ops ? group->ops->maximum(group, value) : NL_OK;
}

nl_status nl_group_barrier(nl_group *group)
{
    return group->ops ? group->ops->barrier(group) : NL_OK;
}

nl_status nl_group_broadcast(nl_group *group, int root, void *data, int64_t bytes)
{
    return group->ops ? group->ops->broadcast(group, root, data, bytes) : NL_OK;
}

nl_status nl_group_agree(nl_group *group, nl_status status)
{
    enum { STATUS_BITS = 8 };
    if (!group || !group->ops || group->failed)
        return status;
    /* the largest is the first rank's */
    int64_t first = status ? (int64_t)(group->size - group->rank) << STATUS_BITS | status : 0;
    nl_status heard = nl_group_maximum(group, &first);
    if (heard != NL_OK)
        return heard;
    int64_t found = first & ((1 << STATUS_BITS) - 1);
    if (found)
        group->failed = 1 + group->size - (int)(first >> STATUS_BITS);
    if (!found || group->failed == 1 + group->rank)
        return status;
    return nl_fail(group->context, (nl_status)found, "process %d of %d failed", group->failed - 1,
                   group->size);
}

void nl_group_abort(nl_group *group, nl_status status)
{
    if (!group || !group->ops || group->failed)
        return;
    group->failed = 1 + group->rank;
    group->ops->abort(group, status);
}
