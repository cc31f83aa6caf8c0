/* SPDX-License-Identifier: MIT */
/* rope: a pair of elements a thread. Bound by memory. */
#include "cuda_common.cuh"

/* x [rows, pairs 2], `half` pairs a head; table [tokens, 2 half] */
template <typename T>
__global__ void rope_kernel(T *x, int64_t stride, const float *table, int64_t rows, int pairs,
                            int64_t tokens, int half, float sign)
{
    NL_GRID_LOOP(i, rows * pairs)
    {
        const int64_t row = i / pairs;
        const int pair = i % pairs;
        const float *angles = table + row % tokens * 2 * half + pair % half;
        T *at = x + row * stride + 2 * pair;
        const float c = angles[0], s = angles[half] * sign, a = nl_get(at), b = nl_get(at + 1);
        nl_put(at, a * c - b * s);
        nl_put(at + 1, b * c + a * s);
    }
}

extern "C" nl_status nl_cuda_rope(nl_device *device, const nl_rope_args *a)
{
    enum { THREADS = 256 };
    const int64_t rows = a->x.shape[0], pairs = a->x.shape[1] / 2;
    NL_FOR_TYPE(a->x, T, {
        rope_kernel<T>
            <<<nl_blocks(rows * pairs, THREADS), THREADS, 0, nl_cuda_of(device)->stream>>>(
                (T *)a->x.data, a->x.row_stride, (const float *)a->table.data, rows, (int)pairs,
                a->table.shape[0], (int)(a->table.shape[1] / 2), a->back ? -1.f : 1.f);
    });
    return NL_CUDA_LAUNCHED(device, "rope");
}
