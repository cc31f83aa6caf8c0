/* SPDX-License-Identifier: MIT */
/* Collectives between the GPUs of several processes (NCCL): kernels/cuda/nccl.cu. Builds without NCCL or CUDA
 * answer NL_ERROR_DEVICE. */
#ifndef NL_NCCL_H
#define NL_NCCL_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nl_nccl nl_nccl;

enum { NL_NCCL_ID = 128 };

/* As NCCL counts: 22703 is 2.27.3; 0: not there. */
int nl_nccl_version(void);

/* Names a group: made by rank 0, which must still be there when the others join. */
nl_status nl_nccl_id(nl_context *context, uint8_t id[NL_NCCL_ID]);
/* Waits for all ranks. Each has a GPU of its own. */
nl_status nl_nccl_create(nl_device *device, const uint8_t id[NL_NCCL_ID], int rank, int size,
                         nl_nccl **nccl);
void nl_nccl_destroy(nl_nccl *nccl);
/* x F32 [count] becomes the sum over all ranks, on a stream of its own behind what the device has queued; the device
 * goes on behind it after nl_nccl_join. */
nl_status nl_nccl_sum(nl_nccl *nccl, void *x, int64_t count);
nl_status nl_nccl_join(nl_nccl *nccl);
/* The largest of all ranks' values. Waits. */
nl_status nl_nccl_maximum(nl_nccl *nccl, int64_t *value);
/* data [bytes] on the host becomes that of rank `root`, through pieces on the device. Waits. */
nl_status nl_nccl_broadcast(nl_nccl *nccl, int root, void *data, int64_t bytes);
/* Ends the group without waiting for anybody. */
void nl_nccl_abort(nl_nccl *nccl);

#ifdef __cplusplus
}
#endif

#endif
