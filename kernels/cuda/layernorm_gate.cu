/* y = (LN(x) weight + bias) SiLU(g) over all heads; one warp a row. */
#include "cuda_common.cuh"

/* A warp takes ROWS rows at once, so that enough loads are in flight. */
template <typename T, int CHUNKS, int ROWS>
__global__ void __launch_bounds__(256)
    gate_kernel(const T *x, const float *weight, const float *bias, const T *g, T *y, int64_t rows,
                int width, int64_t g_stride, int rows_per_warp, float eps)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32 * rows_per_warp;
    float w[CHUNKS][8], b[CHUNKS][8];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * 32 + lane) * 8;
        if (at < width)
            nl_load8(weight + at, w[c]), nl_load8(bias + at, b[c]);
    }
    for (int64_t row = first; row < first + rows_per_warp && row + ROWS <= rows; row += ROWS) {
        float v[ROWS][CHUNKS][8], s[ROWS][CHUNKS][8], mean[ROWS], inverse[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * 32 + lane) * 8;
                if (at < width) {
                    nl_load8(x + (row + r) * width + at, v[r][c]);
                    if (g)
                        nl_load8(g + (row + r) * g_stride + at, s[r][c]);
                }
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = 0.f, squares = 0.f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                if ((c * 32 + lane) * 8 < width)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        sum += v[r][c][i];
            mean[r] = nl_warp_sum(sum) / width;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                if ((c * 32 + lane) * 8 < width)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        squares += (v[r][c][i] - mean[r]) * (v[r][c][i] - mean[r]);
            inverse[r] = rsqrtf(nl_warp_sum(squares) / width + eps);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * 32 + lane) * 8;
                if (at < width) {
                    float out[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        out[i] = fmaf((v[r][c][i] - mean[r]) * inverse[r], w[c][i], b[c][i]);
                        if (g)
                            out[i] *= nl_silu(s[r][c][i]);
                    }
                    nl_store8(y + (row + r) * width + at, out);
                }
            }
    }
}

template <typename T>
__global__ void gate_any_kernel(const T *x, const float *weight, const float *bias, const T *g,
                                T *y, int64_t rows, int width, int64_t g_stride, float eps)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    if (row >= rows)
        return;
    float sum = 0.f, squares = 0.f;
    for (int i = lane; i < width; i += 32)
        sum += nl_get(x + row * width + i);
    const float mean = nl_warp_sum(sum) / width;
    for (int i = lane; i < width; i += 32) {
        const float v = nl_get(x + row * width + i) - mean;
        squares += v * v;
    }
    const float inverse = rsqrtf(nl_warp_sum(squares) / width + eps);
    for (int i = lane; i < width; i += 32) {
        float out = fmaf((nl_get(x + row * width + i) - mean) * inverse, weight[i], bias[i]);
        if (g)
            out *= nl_silu(nl_get(g + row * g_stride + i));
        nl_put(y + row * width + i, out);
    }
}

template <typename T, int CHUNKS>
static void launch(cudaStream_t stream, const nl_layernorm_gate_args *a, int64_t rows, int width)
{
    int together = 4;
    while (together > 1 && (rows % together || rows / together < 2048))
        together /= 2;
    auto call = [&](auto kernel) {
        kernel<<<nl_blocks(rows, 8 * together), 256, 0, stream>>>(
            (const T *)a->x.data, (const float *)a->weight.data, (const float *)a->bias.data,
            (const T *)a->g.data, (T *)a->y.data, rows, width, a->g.data ? a->g.row_stride : 0,
            together, a->eps);
    };
    if (together == 1)
        call(gate_kernel<T, CHUNKS, 1>);
    else
        call(gate_kernel < T, CHUNKS, CHUNKS <= 2 ? 2 : 1 >);
}

template <typename T> static void choose(cudaStream_t stream, const nl_layernorm_gate_args *a)
{
    const int64_t rows = a->x.shape[0], stride = a->g.data ? a->g.row_stride : 0;
    const int width = (int)a->x.shape[1];
    const bool vectors =
        width % 8 == 0 && width <= 2048 && stride % 8 == 0 && (uintptr_t)a->g.data % 16 == 0;
    if (!vectors)
        gate_any_kernel<T><<<nl_blocks(rows, 8), 256, 0, stream>>>(
            (const T *)a->x.data, (const float *)a->weight.data, (const float *)a->bias.data,
            (const T *)a->g.data, (T *)a->y.data, rows, width, stride, a->eps);
    else if (width <= 256)
        launch<T, 1>(stream, a, rows, width);
    else if (width <= 512)
        launch<T, 2>(stream, a, rows, width);
    else if (width <= 1024)
        launch<T, 4>(stream, a, rows, width);
    else if (width <= 1280)
        launch<T, 5>(stream, a, rows, width);
    else
        launch<T, 8>(stream, a, rows, width);
}

extern "C" nl_status nl_cuda_layernorm_gate(nl_device *device, const nl_layernorm_gate_args *args)
{
    if (args->x.shape[0] > 0)
        NL_FOR_TYPE(args->x, T, (choose<T>(nl_cuda_of(device)->stream, args)));
    return NL_CUDA_LAUNCHED(device, "layernorm_gate");
}
