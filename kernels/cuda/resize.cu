/* Pictures of bytes to another size, NHWC: a thread for each output pixel walks over the source pixels that have weight
 * (2 x 2 for the bilinear kinds, 4 x 4 times the reduction for the cubic one). */
#include "cuda_common.cuh"

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

template <typename T>
__global__ void resize_kernel(const uint8_t *x, T *y, int64_t count, int channels, int height,
                              int width, int out_height, int out_width, nl_resize kind, float scale,
                              float shift)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t pixel = i / channels, image = pixel / ((int64_t)out_height * out_width);
        const window rows = window_of(kind, height, out_height, pixel / out_width % out_height);
        const window columns = window_of(kind, width, out_width, pixel % out_width);
        const uint8_t *from = x + image * height * width * channels + c;
        float sum = 0.f, total_rows = 0.f, total_columns = 0.f;
        for (int v = columns.first; v <= columns.last; v++)
            total_columns += weight_of(kind, columns, v);
        for (int u = rows.first; u <= rows.last; u++) {
            const float vertical = weight_of(kind, rows, u);
            float line = 0.f;
            for (int v = columns.first; v <= columns.last; v++)
                line = fmaf(weight_of(kind, columns, v), from[((int64_t)u * width + v) * channels],
                            line);
            sum = fmaf(vertical, line, sum);
            total_rows += vertical;
        }
        float value = sum / (total_rows * total_columns);
        if (kind == NL_RESIZE_BICUBIC)
            value = fminf(fmaxf(value, 0.f), 255.f);
        nl_put(y + i, fmaf(scale, value, shift));
    }
}

extern "C" nl_status nl_cuda_resize(nl_device *device, const nl_resize_args *a)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (count > 0)
        NL_FOR_TYPE(a->y, T, {
            resize_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const uint8_t *)a->x.data, (T *)a->y.data, count, (int)a->x.shape[3],
                (int)a->x.shape[1], (int)a->x.shape[2], (int)a->y.shape[1], (int)a->y.shape[2],
                a->kind, a->scale, a->shift);
        });
    return NL_CUDA_LAUNCHED(device, "resize");
}
