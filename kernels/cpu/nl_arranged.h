/* SPDX-License-Identifier: MIT */
/* Copies of frozen weights (frozen.h) as oneDNN's products like best to read them. */
#ifndef NL_ARRANGED_H
#define NL_ARRANGED_H

#include "nl_cpu.h"

/* Parts of NL_DNNL_K columns, `part_bytes` apart; data NULL: there is no copy. */
typedef struct nl_arranged {
    const char *data;
    int64_t part_bytes;
} nl_arranged;

nl_arranged nl_cpu_arranged(const nl_device *device, const nl_tensor *weight);

/* What was frozen within the memory is forgotten. */
void nl_cpu_thaw(nl_device *device, const void *data, int64_t bytes);
/* Gives all copies back; what is frozen stays so. False: there were none. */
bool nl_cpu_drop_arranged(nl_device *device);

#endif
