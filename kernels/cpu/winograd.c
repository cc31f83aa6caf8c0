/* SPDX-License-Identifier: MIT */
/*
 * Convolutions of 3 x 3 with a quarter of the multiplications: Winograd's minimal filtering, F(4 x 4, 3 x 3) of Lavin and
 * Gray (2016). Filtering is a product of polynomials. Both factors, 6 x 6 numbers of the picture and the kernel, are taken at
 * six points in each direction, multiplied there, which is 36 products in place of 144, summed over the channels, and 4 x 4
 * pixels interpolated. At 0, +-3/4, +-3/2 and infinity roundings are two to three times those of the plain sum, at the
 * usual 0, +-1, +-2 twice as much again (docs/pitfalls.md). oneDNN has it for AVX-512 alone, in an order of channels of its own.
 */
#include "feature_maps.h"

enum { POINTS = 6, PARTS = POINTS * POINTS, OUT = 4 };

/* Tiles that a thread has at work: with 64 channels, numbers of 32 fit in its own cache. Floats between them, so that they
 * do not fall on the same lines of it. Tiles of an image from which on the kernel's transform is worth its time. */
enum { TILES = 32, GAP = 16, WORTHWHILE = 36 };

/* Floats of a transformed kernel that is at work: a larger one is taken some outputs at a time, and the picture is
 * transformed anew for them, a twentieth of their products. */
enum { KERNEL = PARTS * 512 * 64 };

#define A  0.75f
#define B  1.5f
#define AA (A * A)
#define BB (B * B)

typedef struct pass {
    const nl_conv2d_args *args;
    int64_t channels, outputs;
    int64_t first, some;   /* outputs at work */
    int64_t height, width; /* of y */
    int64_t tall, wide;    /* tiles of an image */
    int64_t row, out_row;  /* floats from a tile to the next: PARTS rows of channels, of outputs */
    float *weight;         /* [PARTS, channels, some] */
    const float *nothing;  /* [channels]: zeros, beside the picture */
} pass;

/* step, at_step: from a number to the next. Divided by what interpolation leaves out. */
NL_INLINE void kernel_at_points(const nl_vec *g, int step, nl_vec *at, int at_step)
{
    const float of_zero = 1 / (AA * BB), of_a = 1 / (2 * AA * (AA - BB));
    const float of_b = 1 / (2 * BB * (BB - AA));
    nl_vec g0 = g[0], g1 = g[step], g2 = g[2 * step];
    at[0] = of_zero * g0;
    at[at_step] = of_a * (g0 + AA * g2 + A * g1);
    at[2 * at_step] = of_a * (g0 + AA * g2 - A * g1);
    at[3 * at_step] = of_b * (g0 + BB * g2 + B * g1);
    at[4 * at_step] = of_b * (g0 + BB * g2 - B * g1);
    at[5 * at_step] = g2;
}

/* weight [O, C, 3, 3] -> p->weight, of NL_COLUMN_UNIT channels. */
NL_INLINE void transform_weight(bool half, const pass *p, int64_t channel)
{
    const void *weight = p->args->weight.data;
    for (int64_t o = 0; o < p->some; o += NL_LANES)
        for (int64_t c = channel; c < channel + NL_COLUMN_UNIT; c++) {
            float taps[9][NL_LANES], *to = p->weight + c * p->some + o;
            nl_vec g[9], rows[POINTS * 3], at[POINTS];
            for (int64_t lane = 0; lane < NL_LANES; lane++)
                for (int i = 0; i < 9; i++)
                    taps[i][lane] = nl_get_element(
                        half, weight, ((p->first + o + lane) * p->channels + c) * 9 + i);
            for (int i = 0; i < 9; i++)
                g[i] = nl_load(taps[i]);
            for (int i = 0; i < 3; i++)
                kernel_at_points(g + i, 3, rows + i, 3);
            for (int i = 0; i < POINTS; i++) {
                kernel_at_points(rows + 3 * i, 1, at, 1);
                for (int j = 0; j < POINTS; j++)
                    nl_store(to + (POINTS * i + j) * p->channels * p->some, at[j]);
            }
        }
}

NL_INLINE void picture_at_points(const nl_vec *d, int step, nl_vec *at, int at_step)
{
    nl_vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
           d5 = d[5 * step];
    nl_vec even = d4 - BB * d2, odd = A * (d3 - BB * d1);
    at[0] = AA * BB * d0 - (AA + BB) * d2 + d4;
    at[at_step] = even + odd;
    at[2 * at_step] = even - odd;
    even = d4 - AA * d2, odd = B * (d3 - AA * d1);
    at[3 * at_step] = even + odd;
    at[4 * at_step] = even - odd;
    at[5 * at_step] = AA * BB * d1 - (AA + BB) * d3 + d5;
}

/* Four pixels of six products. */
NL_INLINE void interpolate(const nl_vec *m, int step, nl_vec *y, int y_step)
{
    nl_vec sum = m[step] + m[2 * step], difference = m[step] - m[2 * step];
    nl_vec far = m[3 * step] + m[4 * step], apart = m[3 * step] - m[4 * step];
    y[0] = m[0] + sum + far;
    y[y_step] = A * difference + B * apart;
    y[2 * y_step] = AA * sum + BB * far;
    y[3 * y_step] = A * AA * difference + B * BB * apart + m[5 * step];
}

typedef struct place {
    int64_t image, row, column; /* of the first pixel of y */
} place;

static place place_of(const pass *p, int64_t tile)
{
    int64_t in_image = tile % (p->tall * p->wide);
    return (place){tile / (p->tall * p->wide), in_image / p->wide * OUT, in_image % p->wide * OUT};
}

/* The picture around a tile -> at [PARTS, C]. */
static void transform_picture(const pass *p, place at, float *to)
{
    const nl_tensor *x = &p->args->x;
    int doubled = p->args->doubled.data != NULL;
    const float *from[PARTS];
    for (int i = 0; i < PARTS; i++) {
        int64_t row = at.row - 1 + i / POINTS, column = at.column - 1 + i % POINTS;
        bool inside = row >= 0 && row < p->height && column >= 0 && column < p->width;
        int64_t pixel =
            (at.image * x->shape[1] + (row >> doubled)) * x->shape[2] + (column >> doubled);
        from[i] = inside ? (const float *)x->data + pixel * p->channels : p->nothing;
    }
    for (int64_t c = 0; c < p->channels; c += NL_LANES) {
        nl_vec d[PARTS], rows[PARTS], points[POINTS];
        for (int i = 0; i < PARTS; i++)
            d[i] = nl_load(from[i] + c);
        for (int i = 0; i < POINTS; i++)
            picture_at_points(d + i, POINTS, rows + i, POINTS);
        for (int i = 0; i < POINTS; i++) {
            picture_at_points(rows + POINTS * i, 1, points, 1);
            for (int j = 0; j < POINTS; j++)
                nl_store(to + (POINTS * i + j) * p->channels + c, points[j]);
        }
    }
}

/* from [PARTS, some] -> the pixels of a tile, as far as they are in the picture. */
static void finish_tile(const pass *p, place at, const float *from)
{
    const nl_conv2d_args *a = p->args;
    int64_t rows = NL_MIN(OUT, p->height - at.row), columns = NL_MIN(OUT, p->width - at.column);
    for (int64_t o = p->first; o < p->first + p->some; o += NL_LANES) {
        nl_vec m[PARTS], half[OUT * POINTS], y[OUT * OUT];
        nl_vec bias = {0};
        if (a->bias.data)
            bias = nl_load((const float *)a->bias.data + o);
        for (int i = 0; i < PARTS; i++)
            m[i] = nl_load(from + i * p->some + o - p->first);
        for (int i = 0; i < POINTS; i++)
            interpolate(m + i, POINTS, half + i, POINTS);
        for (int i = 0; i < OUT; i++)
            interpolate(half + POINTS * i, 1, y + OUT * i, 1);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                int64_t pixel = (at.image * p->height + at.row + i) * p->width + at.column + j;
                nl_vec value = y[OUT * i + j] + bias;
                if (a->residual.data)
                    value += nl_load((const float *)a->residual.data + pixel * p->outputs + o);
                if (a->activation == NL_ACT_RELU)
                    value = (nl_vec)((nl_vec_bits)value & (nl_vec_bits) ~(value < 0));
                nl_store((float *)a->y.data + pixel * a->y.row_stride + o, value);
            }
    }
}

/* `count` tiles from `first`: points [.., row], products [.., out_row]. */
static void run_tiles(const pass *p, int64_t first, int64_t count, float *points, float *products)
{
    for (int64_t i = 0; i < count; i++)
        transform_picture(p, place_of(p, first + i), points + i * p->row);
    int64_t rows = nl_cpu_pad(count, NL_ROW_UNIT);
    memset(points + count * p->row, 0, (size_t)((rows - count) * p->row) * sizeof(float));
    for (int64_t i = 0; i < PARTS; i++)
        nl_small_product(false, rows, p->some, p->channels, points + i * p->channels, p->row, 1,
                         p->weight + i * p->channels * p->some, p->some, products + i * p->some,
                         p->out_row);
    for (int64_t i = 0; i < count; i++)
        finish_tile(p, place_of(p, first + i), products + i * p->out_row);
}

static int64_t tiles_of(int64_t pixels)
{
    return (pixels + OUT - 1) / OUT;
}

/* By what an image is: how many there are must not change it. */
bool NL_CPU(winograd_takes)(const nl_conv2d_args *a)
{
    const int64_t *w = a->weight.shape;
    return tiles_of(a->y.shape[1]) * tiles_of(a->y.shape[2]) >= WORTHWHILE &&
           a->x.dtype == NL_F32 && a->y.dtype == NL_F32 && nl_every_3x3(a) &&
           w[0] % NL_COLUMN_UNIT == 0 && w[1] % NL_COLUMN_UNIT == 0 &&
           (a->activation == NL_ACT_NONE || a->activation == NL_ACT_RELU);
}

/* x [B, H, W, C] -> y [B, H, W, O], or [B, 2H, 2W, O]. */
nl_status NL_CPU(winograd)(nl_device *device, const nl_conv2d_args *args)
{
    const int64_t *w = args->weight.shape, *y = args->y.shape;
    pass p = {.args = args, .channels = w[1], .outputs = w[0], .height = y[1], .width = y[2]};
    p.tall = tiles_of(p.height);
    p.wide = tiles_of(p.width);
    int64_t most = NL_MAX(KERNEL / (PARTS * p.channels) / NL_COLUMN_UNIT, 1) * NL_COLUMN_UNIT;
    most = NL_MIN(most, p.outputs);
    p.row = PARTS * p.channels + GAP;
    p.out_row = PARTS * most + GAP;
    int64_t tiles = y[0] * p.tall * p.wide;
    int team = nl_cpu_team(device, tiles * p.row);
    int64_t block = NL_MIN(TILES, nl_cpu_pad(tiles / team + 1, NL_ROW_UNIT));
    int64_t weights = PARTS * p.channels * most, of_thread = block * (p.row + p.out_row);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(
        device, (weights + p.channels + team * of_thread) * (int64_t)sizeof(float), &scratch));
    p.weight = scratch;
    float *nothing = p.weight + weights, *of_threads = nothing + p.channels;
    p.nothing = memset(nothing, 0, (size_t)p.channels * sizeof(float));
#pragma omp parallel num_threads(team) firstprivate(p)
    {
        float *points = of_threads + omp_get_thread_num() * of_thread;
        float *products = points + block * p.row;
        for (; p.first < p.outputs; p.first += most) {
            p.some = NL_MIN(most, p.outputs - p.first);
#pragma omp for schedule(static)
            for (int64_t c = 0; c < p.channels; c += NL_COLUMN_UNIT)
                NL_FOR_HALF(args->weight.dtype == NL_BF16, transform_weight, &p, c);
#pragma omp for schedule(dynamic)
            for (int64_t first = 0; first < tiles; first += block)
                run_tiles(&p, first, NL_MIN(block, tiles - first), points, products);
        }
    }
    return NL_OK;
}
