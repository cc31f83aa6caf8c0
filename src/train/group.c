#include "nl_group.h"

nl_status nl_group_create(nl_context *context, nl_group **group)
{
    void *memory;
    nl_status status = nl_alloc_zero(context, "a group of processes", sizeof(**group), &memory);
    *group = status == NL_OK ? memory : NULL;
    if (status == NL_OK)
        **group =
            (nl_group){.context = context, .device = context->device, .rank = 0, .size = 1};
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

nl_status nl_group_broadcast(nl_group *group, const nl_tensor *x)
{
    return group->ops ? group->ops->broadcast(group, x) : NL_OK;
}

nl_status nl_group_maximum(nl_group *group, int64_t *value)
{
    return group->ops ? group->ops->maximum(group, value) : NL_OK;
}

nl_status nl_group_barrier(nl_group *group)
{
    return group->ops ? group->ops->barrier(group) : NL_OK;
}

void nl_group_abort(nl_group *group, nl_status status)
{
    if (group && group->ops)
        group->ops->abort(group, status);
}
