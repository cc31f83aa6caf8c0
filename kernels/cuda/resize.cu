/* Pictures of bytes to another size, NHWC: a thread for each output pixel walks over the source pixels that have weight
 * (2 x 2 for the bilinear kinds, 4 x 4 times the reduction for the cubic one). */
#include "image_types.cuh"

/* Keys' cubic with a = -1/2. */
__device__ static float cubic(float x)
{
    x = fabsf(x);
    return x < 1.f   ? (1.5f * x - 2.5f) * x * x + 1.f
           : x < 2.f ? ((-0.5f * x + 2.5f) * x - 4.f) * x + 2.f
                     : 0.f;
}

/* Where output i reads: the source pixels [first, last] around `centre`, each with weight(|j - centre| / width). */
struct window {
    double centre;
    float width;
    int first, last;
};

__device__ static window window_of(nl_resize kind, int in, int out, int i)
{
    const double ratio = (double)in / out;
    window w;
    w.width = kind == NL_RESIZE_BICUBIC && ratio > 1. ? (float)ratio : 1.f;
    w.centre = kind == NL_RESIZE_LEGACY ? i * ratio : (i + 0.5) * ratio - 0.5;
    if (kind != NL_RESIZE_BICUBIC)
        w.centre = fmin(fmax(w.centre, 0.), in - 1.);
    const double reach = kind == NL_RESIZE_BICUBIC ? 2. * w.width : 1.;
    w.first = max((int)ceil(w.centre - reach), 0);
    w.last = min((int)floor(w.centre + reach), in - 1);
    return w;
}

__device__ static float weight_of(nl_resize kind, const window &w, int j)
{
    const float distance = (float)(j - w.centre);
    return kind == NL_RESIZE_BICUBIC ? cubic(distance / w.width)
                                     : fmaxf(1.f - fabsf(distance), 0.f);
}

/* A thread for an output pixel, C channels of it at once (0: any number, one after the other). */
template <int C, typename T>
__global__ void resize_kernel(const uint8_t *x, T *y, int64_t count, int channels, int height,
                              int width, int out_height, int out_width, nl_resize kind, float scale,
                              float shift)
{
    const int at_once = C ? C : 1;
    NL_GRID_LOOP(pixel, count)
    {
        const int64_t line = pixel / out_width, image = line / out_height;
        const window rows = window_of(kind, height, out_height, (int)(line - image * out_height));
        const window columns = window_of(kind, width, out_width, (int)(pixel - line * out_width));
        float total_rows = 0.f, total_columns = 0.f;
        for (int v = columns.first; v <= columns.last; v++)
            total_columns += weight_of(kind, columns, v);
        for (int u = rows.first; u <= rows.last; u++)
            total_rows += weight_of(kind, rows, u);
        for (int c = 0; c < channels; c += at_once) {
            const uint8_t *from = x + image * height * width * channels + c;
            float sum[at_once] = {};
            for (int u = rows.first; u <= rows.last; u++) {
                const float vertical = weight_of(kind, rows, u);
                float part[at_once] = {};
                for (int v = columns.first; v <= columns.last; v++) {
                    const float horizontal = weight_of(kind, columns, v);
#pragma unroll
                    for (int j = 0; j < at_once; j++)
                        part[j] = fmaf(horizontal, from[((int64_t)u * width + v) * channels + j],
                                       part[j]);
                }
#pragma unroll
                for (int j = 0; j < at_once; j++)
                    sum[j] = fmaf(vertical, part[j], sum[j]);
            }
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                float value = sum[j] / (total_rows * total_columns);
                if (kind == NL_RESIZE_BICUBIC)
                    value = fminf(fmaxf(value, 0.f), 255.f);
                nl_put(y + pixel * channels + c + j, fmaf(scale, value, shift));
            }
        }
    }
}

extern "C" nl_status nl_cuda_resize(nl_device *device, const nl_resize_args *a)
{
    const int channels = (int)a->x.shape[3];
    const int64_t count = nl_tensor_count(&a->y) / channels;
    if (count > 0)
        NL_FOR_IMAGE_TYPE(a->y, T, {
            auto kernel = channels == 3 ? resize_kernel<3, T> : resize_kernel<0, T>;
            kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const uint8_t *)a->x.data, (T *)a->y.data, count, channels, (int)a->x.shape[1],
                (int)a->x.shape[2], (int)a->y.shape[1], (int)a->y.shape[2], a->kind, a->scale,
                a->shift);
        });
    return NL_CUDA_LAUNCHED(device, "resize");
}
