#include "reference.h"

nl_status nl_reference_finite(nl_device *device, const nl_finite_args *args)
{
    (void)device;
    *args->finite = true;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++)
        if (!isfinite(nl_at(&args->x, i)))
            *args->finite = false;
    return NL_OK;
}
