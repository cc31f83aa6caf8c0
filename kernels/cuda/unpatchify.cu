/* Token columns (row, column, channel) back to the picture. */
#include "cuda_common.cuh"

template <typename T>
__global__ void unpatchify_kernel(const T *tokens, float *x, int64_t count, int channels,
                                  int height, int width, int patch, int head_channels)
{
    const int grid_width = width / patch;
    NL_GRID_LOOP(i, count)
    {
        const int column = i % width, row = i / width % height,
                  c = i / ((int64_t)width * height) % channels;
        const int64_t image = i / ((int64_t)width * height * channels);
        const int64_t token =
            (image * (height / patch) + row / patch) * grid_width + column / patch;
        x[i] = nl_get(tokens +
                      ((token * patch + row % patch) * patch + column % patch) * head_channels + c);
    }
}

extern "C" nl_status nl_cuda_unpatchify(nl_device *device, const nl_unpatchify_args *a)
{
    const int64_t count = nl_tensor_count(&a->x);
    if (count > 0)
        NL_FOR_TYPE(a->tokens, T, {
            unpatchify_kernel<T><<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->tokens.data, (float *)a->x.data, count, (int)a->x.shape[1],
                (int)a->x.shape[2], (int)a->x.shape[3], (int)a->patch, (int)a->head_channels);
        });
    return NL_CUDA_LAUNCHED(device, "unpatchify");
}
