/* SPDX-License-Identifier: MIT */
/* Fills a tensor with zeros. */
#include "reference.h"

#include <string.h>

nl_status nl_reference_zero(nl_device *device, const nl_zero_args *args)
{
    (void)device;
    memset(args->x.data, 0, (size_t)nl_tensor_bytes(&args->x));
    return NL_OK;
}
