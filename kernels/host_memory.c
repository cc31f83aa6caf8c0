/* SPDX-License-Identifier: MIT */
/* Memory of devices whose memory is the host's: allocation within the budget, transfers as copies. */
#include "host_memory.h"

#include <string.h>

nl_status nl_host_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer)
{
    return NL_NEW_SIZED(device->context, what, bytes, 1, pointer);
}

void nl_host_free(nl_device *device, void *pointer, int64_t bytes)
{
    (void)bytes;
    nl_free(device->context, pointer);
}

nl_status nl_host_copy(nl_device *device, void *to, const void *from, int64_t bytes)
{
    if (bytes < 0)
        return nl_fail(device->context, NL_ERROR_INTERNAL, "copy of %lld bytes", (long long)bytes);
    if (bytes > 0)
        memmove(to, from, (size_t)bytes);
    return NL_OK;
}

nl_status nl_host_upload(nl_device *device, void *to, const void *from, int64_t bytes)
{
    return nl_host_copy(device, to, from, bytes);
}

nl_status nl_host_download(nl_device *device, void *to, const void *from, int64_t bytes)
{
    return nl_host_copy(device, to, from, bytes);
}

nl_status nl_host_sync(nl_device *device)
{
    (void)device;
    return NL_OK;
}
