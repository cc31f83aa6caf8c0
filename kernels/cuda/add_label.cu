/* SPDX-License-Identifier: MIT */
/* c = time + table[label] + crop_weight crop; y = SiLU(c). */
#include "cuda_common.cuh"

struct crops {
    const float *values, *weight; /* [B or 1, numbers]; [width, numbers] */
    int64_t stride;               /* of values, from image to image */
    int numbers;                  /* 0: none */
};

template <typename T, typename W>
__global__ void label_kernel(const T *time, int64_t time_stride, const W *table, const int *labels,
                             crops crop, T *c, T *y, int64_t count, int width)
{
    NL_GRID_LOOP(i, count)
    {
        const int64_t image = i / width;
        const int d = i % width;
        float x = nl_get(time + image * time_stride + d) +
                  nl_get(table + (int64_t)labels[image] * width + d);
        for (int k = 0; k < crop.numbers; k++)
            x = fmaf(crop.values[image * crop.stride + k],
                     crop.weight[(int64_t)d * crop.numbers + k], x);
        if (c)
            nl_put(c + i, x);
        nl_put(y + i, x / (1.f + expf(-x)));
    }
}

extern "C" nl_status nl_cuda_add_label(nl_device *device, const nl_add_label_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    crops crop = {};
    if (a->crop.data) {
        crop.values = (const float *)a->crop.data;
        crop.weight = (const float *)a->crop_weight.data;
        crop.numbers = (int)a->crop.shape[1];
        crop.stride = a->crop.shape[0] == 1 ? 0 : crop.numbers;
    }
    if (count > 0)
        NL_FOR_TYPE(a->y, T, NL_FOR_TYPE(a->table, W, {
                        label_kernel<T, W>
                            <<<nl_blocks(count, 128), 128, 0, nl_cuda_of(device)->stream>>>(
                                (const T *)a->time.data, a->time.shape[0] == 1 ? 0 : a->y.shape[1],
                                (const W *)a->table.data, (const int *)a->labels.data, crop,
                                (T *)a->c.data, (T *)a->y.data, count, (int)a->y.shape[1]);
                    }));
    return NL_CUDA_LAUNCHED(device, "add_label");
}
