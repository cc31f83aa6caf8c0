/* SPDX-License-Identifier: MIT */
/* Gradients of the adaptive LayerNorm and of the residual sum before it, and its output once more. */
#include "layernorm.h"
#include "nl_cpu.h"
#include "vector.h"

/* Rows whose sums over rows are one after the other; a chunk ends with its image. */
enum { CHUNK = 64, SUMS = 4 /* dshift, dscale, dgate, dbias */ };

/* One row (rms: a constant), its parts of dshift, dscale, dgate and dbias added to sums [4, D]. */
NL_INLINE void backward_row(const nl_layernorm_modulate_backward_args *args, int64_t row,
                            float *restrict sums, bool rms)
{
/* What a normalised element is multiplied by. */
#define FACTOR(i) (rms ? weight[i] * (1.0f + scale[i]) : 1.0f + scale[i])
    const float *weight = args->weight.data;
    int64_t size = args->x.shape[1], image = row / args->rows_per_image;
    const float *x = nl_cpu_row(&args->x, row), *dy = nl_cpu_row(&args->dy, row);
    const float *scale = nl_cpu_row(&args->scale, image);
    float *dx = nl_cpu_row_out(&args->dx, row);
    float sum = 0, product = 0;
    nl_moments m = rms ? nl_row_rms(x, size, args->eps) : nl_row_moments(x, size, args->eps);
#pragma omp simd reduction(+ : sum, product)
    for (int64_t i = 0; i < size; i++) {
        float normal = (x[i] - m.center) * m.scale + m.offset;
        float dnormal = dy[i] * FACTOR(i);
        sum += dnormal;
        product += dnormal * normal;
        sums[i] += dy[i];
        sums[size + i] += dy[i] * normal;
    }
    sum = rms ? 0 : sum / (float)size;
    product /= (float)size;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        float normal = (x[i] - m.center) * m.scale + m.offset;
        dx[i] += (dy[i] * FACTOR(i) - sum - normal * product) * m.scale;
    }
    if (args->branch.data) {
        const float *branch = nl_cpu_row(&args->branch, row);
        const float *gate = nl_cpu_row(&args->gate, image);
        float *dbranch = nl_cpu_row_out(&args->dbranch, row), *dgate = sums + 2 * size;
        float *dbias = sums + 3 * size;
#pragma omp simd
        for (int64_t i = 0; i < size; i++) {
            dbranch[i] = gate[i] * dx[i];
            dbias[i] += gate[i] * dx[i];
            dgate[i] += branch[i] * dx[i];
        }
    }
    if (args->y.data) {
        const float *shift = nl_cpu_row(&args->shift, image);
        float *y = nl_cpu_row_out(&args->y, row);
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] = ((x[i] - m.center) * m.scale + m.offset) * FACTOR(i) + shift[i];
    }
#undef FACTOR
}

static void layer_row(const nl_layernorm_modulate_backward_args *args, int64_t row, float *sums)
{
    backward_row(args, row, sums, false);
}

static void rms_row(const nl_layernorm_modulate_backward_args *args, int64_t row, float *sums)
{
    backward_row(args, row, sums, true);
}

/* out [D] = sums over the chunks of one image; sums [chunks, 4, D] from its first one on. */
static void add_chunks(const float *sums, int64_t chunks, int64_t size, float *out)
{
    for (int64_t i = 0; i < size; i++)
        out[i] = sums[i];
    for (int64_t chunk = 1; chunk < chunks; chunk++)
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            out[i] += sums[chunk * SUMS * size + i];
}

/* dscale holds sums of dy n over the rows of each image: from them come dscale and dweight of a channel. */
static void weigh_column(const nl_layernorm_modulate_backward_args *args, int64_t i)
{
    float weight = ((const float *)args->weight.data)[i], sum = 0;
    for (int64_t image = 0; image < args->scale.shape[0]; image++) {
        float *dscale = nl_cpu_row_out(&args->dscale, image);
        sum += dscale[i] * (1.0f + nl_cpu_row(&args->scale, image)[i]);
        dscale[i] *= weight;
    }
    ((float *)args->dweight.data)[i] += sum;
}

/* x, dy, dx, branch [M, D]; gate, shift, scale [M / rows_per_image, D] -> dx, dbranch, y [M, D]; dshift, dscale,
 * dgate [M / rows_per_image, D]; dbias [D] is added to */
nl_status NL_CPU(layernorm_modulate_backward)(nl_device *device,
                                              const nl_layernorm_modulate_backward_args *args)
{
    int64_t size = args->x.shape[1], images = args->scale.shape[0], rows = args->rows_per_image;
    int64_t chunks = (rows + CHUNK - 1) / CHUNK; /* of an image */
    void *scratch;
    NL_CHECK(
        nl_cpu_scratch(device, images * chunks * SUMS * size * (int64_t)sizeof(float), &scratch));
    float *sums = scratch;
#pragma omp parallel num_threads(nl_cpu_team(device, images *rows *size))
    {
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < images * chunks; chunk++) {
            int64_t first = chunk % chunks * CHUNK, image = chunk / chunks;
            float *own = sums + chunk * SUMS * size;
            for (int64_t i = 0; i < SUMS * size; i++)
                own[i] = 0;
            for (int64_t row = first; row < NL_MIN(first + CHUNK, rows); row++)
                (args->norm == NL_NORM_RMS ? rms_row : layer_row)(args, image * rows + row, own);
        }
#pragma omp for schedule(static)
        for (int64_t image = 0; image < images; image++) {
            const float *own = sums + image * chunks * SUMS * size;
            add_chunks(own, chunks, size, nl_cpu_row_out(&args->dshift, image));
            add_chunks(own + size, chunks, size, nl_cpu_row_out(&args->dscale, image));
            if (args->branch.data)
                add_chunks(own + 2 * size, chunks, size, nl_cpu_row_out(&args->dgate, image));
        }
        if (args->norm == NL_NORM_RMS) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < size; i++)
                weigh_column(args, i);
        }
        if (args->dbias.data) {
#pragma omp for simd schedule(static)
            for (int64_t i = 0; i < size; i++) {
                float sum = 0;
                for (int64_t chunk = 0; chunk < images * chunks; chunk++)
                    sum += sums[(chunk * SUMS + 3) * size + i];
                ((float *)args->dbias.data)[i] += sum;
            }
        }
    }
    return NL_OK;
}
