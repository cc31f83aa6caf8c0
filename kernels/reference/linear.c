#include "reference.h"

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / nl_pi) * (x + 0.044715 * x * x * x)));
}

/* x [M, K], weight [N, K] -> y [M, N] */
nl_status nl_reference_linear(nl_device *device, const nl_linear_args *args)
{
    int64_t m_count = args->x.shape[0], k_count = args->x.shape[1], n_count = args->weight.shape[0];
    (void)device;
    for (int64_t m = 0; m < m_count; m++)
        for (int64_t n = 0; n < n_count; n++) {
            double sum = nl_at_or_zero(&args->bias, n);
            for (int64_t k = 0; k < k_count; k++)
                sum += nl_get(&args->x, m, k) * nl_get(&args->weight, n, k);
            switch (args->epilogue) {
            case NL_EPILOGUE_NONE:
                break;
            case NL_EPILOGUE_GELU_TANH:
                sum = gelu_tanh(sum);
                break;
            case NL_EPILOGUE_SILU:
                sum = nl_silu(sum);
                break;
            }
            nl_put(&args->y, m, n, sum);
        }
    return NL_OK;
}
