/* SPDX-License-Identifier: MIT */
/* The memory functions of nl_ops for devices whose memory is the host's: reference and cpu. */
#ifndef NL_HOST_MEMORY_H
#define NL_HOST_MEMORY_H

#include "ops.h"

nl_status nl_host_alloc(nl_device *device, const char *what, int64_t bytes, void **pointer);
void nl_host_free(nl_device *device, void *pointer, int64_t bytes);
nl_status nl_host_upload(nl_device *device, void *to, const void *from, int64_t bytes);
nl_status nl_host_download(nl_device *device, void *to, const void *from, int64_t bytes);
nl_status nl_host_copy(nl_device *device, void *to, const void *from, int64_t bytes);
nl_status nl_host_sync(nl_device *device);

#endif
