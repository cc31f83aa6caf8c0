/* SPDX-License-Identifier: MIT */
/* Operations that take no time worth saving beside the network's: the reference is good enough for them. */
#include "nl_cpu.h"

#define AS_REFERENCE(operation)                                                                    \
    nl_status NL_CPU(operation)(nl_device * device, const nl_##operation##_args *args)             \
    {                                                                                              \
        return nl_reference_ops.operation(device, args);                                           \
    }
AS_REFERENCE(unpatchify_backward)
AS_REFERENCE(add_label_backward)
AS_REFERENCE(latents)
AS_REFERENCE(diffuse)
AS_REFERENCE(regression_loss)
AS_REFERENCE(matching_loss)
AS_REFERENCE(variational_loss)
AS_REFERENCE(mean)
AS_REFERENCE(scatter_matrix)
