/* SPDX-License-Identifier: MIT */
/* The reference back end as a table of operations. */
#include "host_memory.h"
#include "reference.h"

static void destroy(nl_device *device)
{
    (void)device; /* holds no state */
}

const nl_ops nl_reference_ops = {.name = "reference",
                                 .alloc = nl_host_alloc,
                                 .free = nl_host_free,
                                 .upload = nl_host_upload,
                                 .download = nl_host_download,
                                 .copy = nl_host_copy,
                                 .sync = nl_host_sync,
                                 .destroy = destroy,
#define NL_OPERATION(operation)                                                                    \
    .operation = NL_ENTRY(NL_REFERENCE_LACKS_##operation, nl_reference_##operation),
                                 NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
};
