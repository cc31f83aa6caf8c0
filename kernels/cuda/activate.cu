/* Elementwise activations. */
#include "activation.cuh"

template <typename T>
__global__ void activate_kernel(const T *x, T *y, int64_t count, nl_activation activation)
{
    NL_GRID_LOOP(i, count)
    {
        float v = nl_get(x + i);
        if (activation == NL_ACT_RELU)
            v = v < 0.f ? 0.f : v; /* keeps NaN */
        else if (activation == NL_ACT_SILU)
            v = nl_silu(v);
        else if (activation == NL_ACT_SOFT_CLAMP)
            v = 3.f * tanhf(v / 3.f);
        else if (activation == NL_ACT_GELU_TANH)
            v = nl_gelu(v);
        nl_put(y + i, v);
    }
}

extern "C" nl_status nl_cuda_activate(nl_device *device, const nl_activate_args *a)
{
    const int64_t count = nl_tensor_count(&a->x);
    if (count > 0)
        NL_FOR_TYPE(a->x, T, {
            activate_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, (T *)a->y.data, count, a->activation);
        });
    return NL_CUDA_LAUNCHED(device, "activate");
}
