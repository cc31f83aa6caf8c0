/* x += gate * branch, then y = LN(x) (1 + scale) + shift: each activation crosses memory once each way. */
#include "cuda_common.cuh"

/* One warp a row; ROWS consecutive rows of one image share shift, scale and gate in registers.
 * D = 256 CHUNKS at most, in pieces of eight elements a lane. */
template <typename T, typename M, int CHUNKS, bool BRANCH>
__global__ void __launch_bounds__(256)
    modulate_kernel(T *x, const T *branch, const M *gate, const M *shift, const M *scale, T *y,
                    int64_t rows, int width, int64_t rows_per_image, int64_t gate_stride,
                    int64_t mod_stride, int rows_per_warp, float eps)
{
    const int lane = threadIdx.x % 32;
    const int64_t warp = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    const int64_t first = warp * rows_per_warp;
    if (first >= rows)
        return;
    const int64_t image = first / rows_per_image;
    float a[CHUNKS][8], b[CHUNKS][8], g[BRANCH ? CHUNKS : 1][8];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * 32 + lane) * 8;
        if (at < width) {
            nl_load8(scale + image * mod_stride + at, a[c]);
            nl_load8(shift + image * mod_stride + at, b[c]);
            if (BRANCH)
                nl_load8(gate + image * gate_stride + at, g[c]);
        }
    }
    for (int64_t row = first; row < first + rows_per_warp && row < rows; row++) {
        float v[CHUNKS][8], sum = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int at = (c * 32 + lane) * 8;
            if (at < width) {
                nl_load8(x + row * width + at, v[c]);
                if (BRANCH) {
                    float f[8];
                    nl_load8(branch + row * width + at, f);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        v[c][i] = fmaf(g[c][i], f[i], v[c][i]);
                    nl_store8(x + row * width + at, v[c]);
                }
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum += v[c][i];
            }
        }
        const float mean = nl_warp_sum(sum) / width;
        float squares = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if ((c * 32 + lane) * 8 < width)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    squares += (v[c][i] - mean) * (v[c][i] - mean);
        const float inverse = rsqrtf(nl_warp_sum(squares) / width + eps);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int at = (c * 32 + lane) * 8;
            if (at < width) {
                float out[8];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    out[i] = fmaf((v[c][i] - mean) * inverse, 1.f + a[c][i], b[c][i]);
                nl_store8(y + row * width + at, out);
            }
        }
    }
}

/* Any width: one block a row, element by element. */
template <typename T, typename M>
__global__ void modulate_any_kernel(T *x, const T *branch, const M *gate, const M *shift,
                                    const M *scale, T *y, int width, int64_t rows_per_image,
                                    int64_t gate_stride, int64_t mod_stride, float eps)
{
    __shared__ float partial[32];
    const int64_t row = blockIdx.x, image = row / rows_per_image;
    auto block_sum = [&](float value) {
        value = nl_warp_sum(value);
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            partial[threadIdx.x / 32] = value;
        __syncthreads();
        float sum = 0.f;
        for (int i = 0; i < blockDim.x / 32; i++)
            sum += partial[i];
        return sum;
    };
    float sum = 0.f, squares = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = nl_get(x + row * width + i);
        if (branch) {
            v = fmaf(nl_get(gate + image * gate_stride + i), nl_get(branch + row * width + i), v);
            nl_put(x + row * width + i, v);
        }
        sum += v;
    }
    const float mean = block_sum(sum) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float v = nl_get(x + row * width + i) - mean;
        squares += v * v;
    }
    const float inverse = rsqrtf(block_sum(squares) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        nl_put(y + row * width + i, fmaf((nl_get(x + row * width + i) - mean) * inverse,
                                         1.f + nl_get(scale + image * mod_stride + i),
                                         nl_get(shift + image * mod_stride + i)));
}

template <typename T, typename M, int CHUNKS>
static void launch(cudaStream_t stream, const nl_layernorm_modulate_args *a, int64_t rows,
                   int width)
{
    /* Rows of a warp must belong to one image. */
    int together = 8;
    while (a->rows_per_image % together || rows / together < 132 * 16)
        if ((together /= 2) == 1)
            break;
    together = together < 1 ? 1 : together;
    const int64_t warps = (rows + together - 1) / together;
    auto call = [&](auto kernel) {
        kernel<<<nl_blocks(warps, 8), 256, 0, stream>>>(
            (T *)a->x.data, (const T *)a->branch.data, (const M *)a->gate.data,
            (const M *)a->shift.data, (const M *)a->scale.data, (T *)a->y.data, rows, width,
            a->rows_per_image, a->gate.row_stride, a->scale.row_stride, together, a->eps);
    };
    if (a->branch.data)
        call(modulate_kernel<T, M, CHUNKS, true>);
    else
        call(modulate_kernel<T, M, CHUNKS, false>);
}

template <typename T, typename M>
static void choose(cudaStream_t stream, const nl_layernorm_modulate_args *a)
{
    const int64_t rows = a->x.shape[0];
    const int width = (int)a->x.shape[1];
    const bool vectors =
        width % 8 == 0 && width <= 2048 && a->scale.row_stride % 8 == 0 &&
        a->shift.row_stride == a->scale.row_stride && a->gate.row_stride % 8 == 0 &&
        ((uintptr_t)a->scale.data | (uintptr_t)a->shift.data | (uintptr_t)a->gate.data) % 16 == 0;
    if (!vectors) {
        modulate_any_kernel<T, M><<<(unsigned)rows, 256, 0, stream>>>(
            (T *)a->x.data, (const T *)a->branch.data, (const M *)a->gate.data,
            (const M *)a->shift.data, (const M *)a->scale.data, (T *)a->y.data, width,
            a->rows_per_image, a->gate.row_stride, a->scale.row_stride, a->eps);
    } else if (width <= 256) {
        launch<T, M, 1>(stream, a, rows, width);
    } else if (width <= 512) {
        launch<T, M, 2>(stream, a, rows, width);
    } else if (width <= 1024) {
        launch<T, M, 4>(stream, a, rows, width);
    } else {
        launch<T, M, 8>(stream, a, rows, width);
    }
}

extern "C" nl_status nl_cuda_layernorm_modulate(nl_device *device,
                                                const nl_layernorm_modulate_args *args)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    if (args->x.shape[0] > 0)
        NL_FOR_TYPE(args->x, T, NL_FOR_TYPE(args->scale, M, (choose<T, M>(stream, args))));
    return NL_CUDA_LAUNCHED(device, "layernorm_modulate");
}
