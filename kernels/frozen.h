/* SPDX-License-Identifier: MIT */
/*
 * Weights that nobody writes any more. A back end may then keep a copy of them beside them, in the order in which its
 * products read them: the CPU does of BF16, others have nothing to keep.
 *
 * No copy outlives what it was made of: uploads and copies to frozen memory and operations that would write there are
 * refused (NL_ERROR_INTERNAL), and `free` of the memory that the weights lie in takes the copies with it.
 */
#ifndef NL_FROZEN_H
#define NL_FROZEN_H

#include "ops.h"

/* From now on nobody writes these weights of products, [N, K] each, until their memory is freed. What a product comes to
 * does not change by a bit. Copies are made at once; there are none where memory is short or has a limit
 * (options.max_memory). NL_ERROR_MEMORY: nothing is frozen. */
nl_status nl_freeze(nl_device *device, const nl_tensor *const *weights, int count) NL_MUST_CHECK;

/* Whether one of these bytes is frozen. */
bool nl_frozen(const nl_device *device, const void *data, int64_t bytes);

#endif
