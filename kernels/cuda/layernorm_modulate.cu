/* x += gate * branch, then y = LN(x) (1 + scale) + shift: each activation crosses memory once each way. */
#include "cuda_common.cuh"

/* A warp takes ROWS rows at once, so that enough loads are in flight, and rows_per_warp one after the other, which belong
 * to one image and share shift, scale and gate in registers. D = 256 CHUNKS at most, in pieces of eight a lane. */
template <typename T, typename M, int CHUNKS, bool BRANCH, int ROWS>
__global__ void __launch_bounds__(256)
    modulate_kernel(T *x, const T *branch, const M *gate, const M *shift, const M *scale, T *y,
                    int64_t rows, int width, int64_t rows_per_image, int64_t gate_stride,
                    int64_t mod_stride, int rows_per_warp, float eps)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32 * rows_per_warp;
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
    for (int64_t row = first; row < first + rows_per_warp; row += ROWS) {
        float v[ROWS][CHUNKS][8], f[BRANCH ? ROWS : 1][CHUNKS][8], mean[ROWS], inverse[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * 32 + lane) * 8;
                if (at < width) {
                    nl_load8(x + (row + r) * width + at, v[r][c]);
                    if (BRANCH)
                        nl_load8(branch + (row + r) * width + at, f[r][c]);
                }
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = 0.f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * 32 + lane) * 8;
                if (at < width) {
                    if (BRANCH) {
#pragma unroll
                        for (int i = 0; i < 8; i++)
                            v[r][c][i] = fmaf(g[c][i], f[r][c][i], v[r][c][i]);
                        nl_store8(x + (row + r) * width + at, v[r][c]);
                    }
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        sum += v[r][c][i];
                }
            }
            mean[r] = nl_warp_sum(sum) / width;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float squares = 0.f;
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
                    for (int i = 0; i < 8; i++)
                        out[i] = fmaf((v[r][c][i] - mean[r]) * inverse[r], 1.f + a[c][i], b[c][i]);
                    nl_store8(y + (row + r) * width + at, out);
                }
            }
    }
}

/* Any width: one block a row, which stays in shared memory in fp32. */
template <typename T, typename M>
__global__ void modulate_any_kernel(T *x, const T *branch, const M *gate, const M *shift,
                                    const M *scale, T *y, int width, int64_t rows_per_image,
                                    int64_t gate_stride, int64_t shift_stride, int64_t scale_stride,
                                    float eps)
{
    extern __shared__ float values[];
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
        values[i] = v;
        sum += v;
    }
    const float mean = block_sum(sum) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        squares += (values[i] - mean) * (values[i] - mean);
    const float inverse = rsqrtf(block_sum(squares) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        nl_put(y + row * width + i,
               fmaf((values[i] - mean) * inverse, 1.f + nl_get(scale + image * scale_stride + i),
                    nl_get(shift + image * shift_stride + i)));
}

template <typename T, typename M, int CHUNKS>
static void launch(cudaStream_t stream, const nl_layernorm_modulate_args *a, int64_t rows,
                   int width)
{
    /* Rows of a warp must belong to one image, and there should be warps for the whole card. */
    int together = 8;
    while (together > 1 && (a->rows_per_image % together || rows / together < 2048))
        together /= 2;
    const int64_t warps = (rows + together - 1) / together;
    auto call = [&](auto kernel) {
        kernel<<<nl_blocks(warps, 8), 256, 0, stream>>>(
            (T *)a->x.data, (const T *)a->branch.data, (const M *)a->gate.data,
            (const M *)a->shift.data, (const M *)a->scale.data, (T *)a->y.data, rows, width,
            a->rows_per_image, a->gate.row_stride, a->scale.row_stride, together, a->eps);
    };
    constexpr int ROWS = CHUNKS <= 2 ? 2 : 1;
    if (together == 1)
        a->branch.data ? call(modulate_kernel<T, M, CHUNKS, true, 1>)
                       : call(modulate_kernel<T, M, CHUNKS, false, 1>);
    else
        a->branch.data ? call(modulate_kernel<T, M, CHUNKS, true, ROWS>)
                       : call(modulate_kernel<T, M, CHUNKS, false, ROWS>);
}

template <typename T, typename M>
static nl_status choose(nl_device *device, const nl_layernorm_modulate_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->x.shape[0];
    const int width = (int)a->x.shape[1];
    const bool vectors =
        width % 8 == 0 && width <= 2048 && a->scale.row_stride % 8 == 0 &&
        a->shift.row_stride == a->scale.row_stride && a->gate.row_stride % 8 == 0 &&
        ((uintptr_t)a->scale.data | (uintptr_t)a->shift.data | (uintptr_t)a->gate.data) % 16 == 0;
    if (!vectors) {
        if (width > 12000)
            return nl_fail(device->context, NL_ERROR_DEVICE,
                           "layernorm: rows of %d elements, at most 12000 on the GPU", width);
        modulate_any_kernel<T, M><<<(unsigned)rows, 256, width * sizeof(float), stream>>>(
            (T *)a->x.data, (const T *)a->branch.data, (const M *)a->gate.data,
            (const M *)a->shift.data, (const M *)a->scale.data, (T *)a->y.data, width,
            a->rows_per_image, a->gate.row_stride, a->shift.row_stride, a->scale.row_stride,
            a->eps);
    } else if (width <= 256) {
        launch<T, M, 1>(stream, a, rows, width);
    } else if (width <= 512) {
        launch<T, M, 2>(stream, a, rows, width);
    } else if (width <= 1024) {
        launch<T, M, 4>(stream, a, rows, width);
    } else if (width <= 1280) {
        launch<T, M, 5>(stream, a, rows, width);
    } else {
        launch<T, M, 8>(stream, a, rows, width);
    }
    return NL_CUDA_LAUNCHED(device, "layernorm_modulate");
}

extern "C" nl_status nl_cuda_layernorm_modulate(nl_device *device,
                                                const nl_layernorm_modulate_args *args)
{
    nl_status status = NL_OK;
    NL_FOR_TYPE(args->x, T, NL_FOR_TYPE(args->scale, M, status = (choose<T, M>(device, args))));
    return status;
}
