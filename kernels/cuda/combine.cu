/* SPDX-License-Identifier: MIT */
/* y = sum of coefficient[term][image] x[term], in term order, fp32. Coefficients travel as kernel parameters, so nothing
 * is uploaded; batches larger than what fits go in parts. */
#include "cuda_common.cuh"

enum { IMAGES = 256 };

struct terms {
    int count;
    bool per_image;
    const float *x[NL_MAX_TERMS];
    float coefficients[NL_MAX_TERMS * IMAGES];
};

__global__ void combine_kernel(const __grid_constant__ terms t, float *y, int64_t count,
                               int64_t per_image)
{
    NL_GRID_LOOP(i, count)
    {
        const int image = t.per_image ? i / per_image : 0;
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < NL_MAX_TERMS; k++)
            if (k < t.count)
                sum = fmaf(t.coefficients[k * IMAGES + image], t.x[k][i], sum);
        y[i] = sum;
    }
}

extern "C" nl_status nl_cuda_combine(nl_device *device, const nl_combine_args *a)
{
    const int64_t count = nl_tensor_count(&a->y), batch = a->y.shape[0];
    if (count == 0)
        return NL_OK;
    const int64_t per_image = count / batch, part = a->per_image ? IMAGES : batch;
    terms t;
    t.count = a->terms;
    t.per_image = a->per_image;
    for (int64_t first = 0; first < batch; first += part) {
        const int64_t images = batch - first < part ? batch - first : part;
        for (int k = 0; k < a->terms; k++) {
            t.x[k] = (const float *)a->x[k].data + first * per_image;
            for (int64_t i = 0; i < (a->per_image ? images : 1); i++)
                t.coefficients[k * IMAGES + i] =
                    (float)a->coefficients[a->per_image ? k * batch + first + i : k];
        }
        combine_kernel<<<nl_blocks(images * per_image, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            t, (float *)a->y.data + first * per_image, images * per_image, per_image);
    }
    return NL_CUDA_LAUNCHED(device, "combine");
}
