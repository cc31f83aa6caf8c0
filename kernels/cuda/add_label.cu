/* SPDX-License-Identifier: MIT */
/* c = time + table[label]; y = SiLU(c). */
#include "cuda_common.cuh"

template <typename T, typename W>
__global__ void label_kernel(const T *time, int64_t time_stride, const W *table, const int *labels,
                             T *c, T *y, int64_t count, int width)
{
    NL_GRID_LOOP(i, count)
    {
        const int64_t image = i / width;
        const int d = i % width;
        const float x = nl_get(time + image * time_stride + d) +
                        nl_get(table + (int64_t)labels[image] * width + d);
        if (c)
            nl_put(c + i, x);
        nl_put(y + i, x / (1.f + expf(-x)));
    }
}

extern "C" nl_status nl_cuda_add_label(nl_device *device, const nl_add_label_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        NL_FOR_TYPE(a->y, T, NL_FOR_TYPE(a->table, W, {
                        label_kernel<T, W>
                            <<<nl_blocks(count, 128), 128, 0, nl_cuda_of(device)->stream>>>(
                                (const T *)a->time.data, a->time.shape[0] == 1 ? 0 : a->y.shape[1],
                                (const W *)a->table.data, (const int *)a->labels.data,
                                (T *)a->c.data, (T *)a->y.data, count, (int)a->y.shape[1]);
                    }));
    return NL_CUDA_LAUNCHED(device, "add_label");
}
