/* SPDX-License-Identifier: MIT */
/* y = scale x + shift between [B, C, H, W] and [B, H, W, C], also between fp32 and bf16. */
#include "cuda_common.cuh"

template <typename A, typename B>
__global__ void layout_kernel(const A *x, B *y, int64_t count, int channels, int64_t pixels,
                              bool to_nhwc, float scale, float shift)
{
    NL_GRID_LOOP(i, count)
    {
        int64_t from; /* i walks the output */
        if (to_nhwc)
            from = (i / (pixels * channels) * channels + i % channels) * pixels +
                   i / channels % pixels;
        else
            from =
                (i / (pixels * channels) * pixels + i % pixels) * channels + i / pixels % channels;
        nl_put(y + i, fmaf(scale, nl_get(x + from), shift));
    }
}

extern "C" nl_status nl_cuda_layout(nl_device *device, const nl_layout_args *a)
{
    const int64_t count = nl_tensor_count(&a->x), channels = a->x.shape[a->to_nhwc ? 1 : 3];
    if (count > 0)
        NL_FOR_TYPE(a->x, A, NL_FOR_TYPE(a->y, B, {
                        layout_kernel<A, B>
                            <<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                                (const A *)a->x.data, (B *)a->y.data, count, (int)channels,
                                count / a->x.shape[0] / channels, a->to_nhwc, a->scale, a->shift);
                    }));
    return NL_CUDA_LAUNCHED(device, "layout");
}
