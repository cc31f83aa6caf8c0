#include "reference.h"

double nl_reference_activation(nl_activation activation, double x)
{
    switch (activation) {
    case NL_ACT_NONE:
        break;
    case NL_ACT_RELU:
        return x < 0 ? 0 : x; /* NaN stays */
    case NL_ACT_SILU:
        return nl_silu(x);
    case NL_ACT_SOFT_CLAMP:
        return 3 * tanh(x / 3);
    }
    return x;
}

nl_status nl_reference_activate(nl_device *device, const nl_activate_args *args)
{
    (void)device;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++)
        nl_put(&args->y, 0, i, nl_reference_activation(args->activation, nl_at(&args->x, i)));
    return NL_OK;
}
