/* SPDX-License-Identifier: MIT */
/* Activation functions and their slopes in double. */
#include "reference.h"

/* u of gelu_tanh(x) = x (1 + tanh(u)) / 2. */
static double gelu_argument(double x)
{
    return sqrt(2 / nl_pi) * (x + 0.044715 * x * x * x);
}

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
    case NL_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(gelu_argument(x)));
    }
    return x;
}

double nl_reference_activation_slope(nl_activation activation, double x)
{
    double t, s;
    switch (activation) {
    case NL_ACT_NONE:
        break;
    case NL_ACT_RELU:
        return x > 0 ? 1 : x * 0; /* NaN stays */
    case NL_ACT_SILU:
        s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    case NL_ACT_SOFT_CLAMP:
        t = tanh(x / 3);
        return 1 - t * t;
    case NL_ACT_GELU_TANH:
        t = tanh(gelu_argument(x));
        s = sqrt(2 / nl_pi) * (1 + 3 * 0.044715 * x * x); /* du / dx */
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * s;
    }
    return 1;
}

nl_status nl_reference_activate(nl_device *device, const nl_activate_args *args)
{
    (void)device;
    for (int64_t i = 0; i < nl_tensor_count(&args->x); i++)
        nl_put(&args->y, 0, i, nl_reference_activation(args->activation, nl_at(&args->x, i)));
    return NL_OK;
}
