/* SPDX-License-Identifier: MIT */
/*
 * The matrix product is oneDNN's, or for a few rows of x (adaLN: one for each image) a kernel that
 * reads every weight once. The epilogue is a pass over the product while it is still in the cache. Of F8 both factors
 * become F32, which they fit into exactly.
 */
#include "activation.h"
#include "f8.h"
#include "nl_arranged.h"
#include "vector.h"
#include "vector_math.h"

enum {
    FEW_ROWS = 8,
    BLOCK_ROWS =
        256, /* rows of one product of oneDNN, for each 4 threads; or for one that works alone */
    TILE_ROWS = 96, /* of a product that is not made of blocks; oneDNN cuts more than 144 itself */
    TILE_COLUMNS = 96,
    ALONE_ROWS = 192,        /* with fewer a thread would spend too long on arranging weights */
    ARRANGED_ALONE_ROWS = 64 /* the same where they are arranged already */
};

/* ---- Few rows */

/* Sums of `rows` rows of x with one row of weights of `weight_size` bytes: 4 (F32) or 2 (BF16).
 * Both are constants to the compiler. */
NL_INLINE void dot_rows(int rows, int weight_size, int64_t k, const float *x, int64_t x_stride,
                        const void *weight, float *sums)
{
    nl_vec partial[FEW_ROWS] = {0};
    int64_t i = 0;
    for (; i + NL_LANES <= k; i += NL_LANES) {
        nl_vec w = weight_size == 4 ? nl_load((const float *)weight + i)
                                    : nl_load_bf16((const uint16_t *)weight + i);
        for (int row = 0; row < rows; row++)
            partial[row] += w * nl_load(x + row * x_stride + i);
    }
    for (int row = 0; row < rows; row++)
        sums[row] = nl_sum(partial[row]);
    for (; i < k; i++) {
        float w = weight_size == 4 ? ((const float *)weight)[i]
                                   : nlv_from_bits((uint32_t)((const uint16_t *)weight)[i] << 16);
        for (int row = 0; row < rows; row++)
            sums[row] += w * x[row * x_stride + i];
    }
}

/* y = x W^T + bias for `rows` rows from `first` on. */
NL_INLINE void few_rows(nl_device *device, int rows, int weight_size, const nl_linear_args *args,
                        int64_t first)
{
    int64_t k = args->x.shape[1], n = args->weight.shape[0];
    const float *x = nl_cpu_row(&args->x, first), *bias = args->bias.data;
    float *y = nl_cpu_row_out(&args->y, first);
#pragma omp parallel for num_threads(nl_cpu_team(device, n *k)) schedule(static)
    for (int64_t column = 0; column < n; column++) {
        float sums[FEW_ROWS];
        dot_rows(rows, weight_size, k, x, args->x.row_stride,
                 (const char *)args->weight.data + column * k * weight_size, sums);
        for (int row = 0; row < rows; row++)
            y[row * args->y.row_stride + column] = sums[row] + (bias ? bias[column] : 0);
    }
}

static void product_few(nl_device *device, const nl_linear_args *args)
{
    int64_t first = 0, rows = args->x.shape[0];
    bool half = args->weight.dtype == NL_BF16;
#define FEW(count)                                                                                 \
    for (; rows - first >= count; first += count) {                                                \
        if (half)                                                                                  \
            few_rows(device, count, 2, args, first);                                               \
        else                                                                                       \
            few_rows(device, count, 4, args, first);                                               \
    }
    FEW(8)
    FEW(4)
    FEW(2)
    FEW(1)
#undef FEW
}

/* ---- Many rows */

/* The epilogue of a row of y, which holds the product; that is kept when asked for. */
static void finish_row(const nl_linear_args *args, int64_t row)
{
    int64_t n = args->weight.shape[0];
    float *y = nl_cpu_row_out(&args->y, row);
    if (args->pre.data)
        memcpy(nl_cpu_row_out(&args->pre, row), y, (size_t)n * sizeof(float));
    nl_apply_activation(nl_epilogue_activation(args->epilogue), y, n, y);
}

static bool has_epilogue(const nl_linear_args *args)
{
    return args->epilogue != NL_EPILOGUE_NONE || args->pre.data;
}

static void finish(nl_device *device, const nl_linear_args *args, int64_t first, int64_t rows)
{
    if (!has_epilogue(args))
        return;
    int64_t n = args->weight.shape[0];
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *n)) schedule(static)
    for (int64_t row = first; row < first + rows; row++)
        finish_row(args, row);
}

/* Working memory of a call. */
typedef struct work {
    bool tiled;    /* one thread makes a tile of a product: nl_dnnl_has_blocks */
    bool alone;    /* each thread makes products of its own */
    int64_t block; /* rows of a product: so few that it is still in the cache for the epilogue */
    uint16_t *
        x; /* a block as BF16, part by part (round_row), for each thread that works alone, or NULL */
    float *wide_x; /* of F8: [block, K] as F32, or NULL */
    float *weight; /* [N, K] as F32, or NULL */
    nl_arranged
        arranged; /* the weight in the order in which oneDNN reads it: kept, or in working memory */
    char *room;   /* for the latter, to be filled; or NULL */
} work;

/* Threads work alone where each gets equal blocks, none too short. Then what a thread writes is in its own cache when it reads
 * it in the next operation: the others cut rows into the same shares. */
static void choose_blocks(const nl_device *device, const nl_linear_args *args, work *made)
{
    int64_t share = args->x.shape[0] / device->threads;
    int64_t parts = (share + BLOCK_ROWS - 1) / BLOCK_ROWS;
    made->alone = device->threads > 1 && args->weight.dtype != NL_F8 && !made->tiled &&
                  share >= (made->arranged.data ? ARRANGED_ALONE_ROWS : ALONE_ROWS) &&
                  args->x.shape[0] % (device->threads * parts) == 0;
    made->block = made->alone ? share / parts : BLOCK_ROWS * NL_MAX(1, device->threads / 4);
}

/* Bytes for arranging a weight whose products are summed part by part: oneDNN adds a part to what is there in another order where
 * the weight is not arranged, and the sums must not depend on whether it is kept so. */
static int64_t room_to_arrange(const nl_device *device, const nl_linear_args *args, work *made)
{
    const nl_cpu_state *state = device->state;
    int64_t n = args->weight.shape[0], k = args->weight.shape[1];
    if (made->arranged.data || k <= NL_DNNL_K)
        return 0;
    made->arranged.part_bytes = nl_cpu_pad(nl_dnnl_arranged_bytes(state->dnnl, n, NL_DNNL_K), 64);
    return made->arranged.part_bytes * ((k + NL_DNNL_K - 1) / NL_DNNL_K);
}

static void arrange(nl_device *device, const nl_linear_args *args, work *memory)
{
    int64_t n = args->weight.shape[0], k = args->weight.shape[1];
    int64_t runs = (n + NL_DNNL_OUTPUTS - 1) / NL_DNNL_OUTPUTS;
    const uint16_t *weight = args->weight.data;
#pragma omp parallel for num_threads(nl_cpu_team(device, n *k)) schedule(static)
    for (int64_t run = 0; run < runs; run++)
        for (int64_t part = 0, from = 0; from < k; part++, from += NL_DNNL_K) {
            int64_t first = run * NL_DNNL_OUTPUTS, columns = NL_MIN(k - from, NL_DNNL_K);
            char *to = memory->room + part * memory->arranged.part_bytes;
            nl_dnnl_arrange(NL_MIN(n - first, NL_DNNL_OUTPUTS), columns, weight + first * k + from,
                            k, to + run * nl_dnnl_run_bytes(columns));
        }
    memory->arranged.data = memory->room;
}

static nl_status reserve(nl_device *device, const nl_linear_args *args, work *made)
{
    const nl_cpu_state *state = device->state;
    bool half = args->weight.dtype == NL_BF16, f8 = args->weight.dtype == NL_F8;
    bool fast = half && nl_cpu_multiplies_bf16(device);
    *made = (work){.arranged = nl_cpu_arranged(device, &args->weight),
                   .tiled = !fast && !nl_dnnl_has_blocks(state->dnnl)};
    choose_blocks(device, args, made);
    int64_t rows = NL_MIN(args->x.shape[0], made->block), k = args->x.shape[1];
    int64_t n = args->weight.shape[0];
    int64_t x_bytes = fast || f8 ? nl_cpu_pad(rows * k * (f8 ? 4 : 2), 64) : 0;
    int64_t weight_bytes = f8 || (half && !fast) ? nl_cpu_pad(n * k * 4, 64) : 0;
    if (made->alone)
        x_bytes *= device->threads;
    int64_t room = fast ? room_to_arrange(device, args, made) : 0;
    void *scratch;
    nl_status status = nl_cpu_scratch(device, x_bytes + weight_bytes + room, &scratch);
    if (status != NL_OK)
        return status;
    char *next = scratch;
    made->x = fast ? (uint16_t *)next : NULL;
    made->wide_x = f8 ? (float *)next : NULL;
    made->weight = weight_bytes ? (float *)(next + x_bytes) : NULL;
    made->room = room ? next + x_bytes + weight_bytes : NULL;
    return NL_OK;
}

/* Products in BF16 that are summed one after the other into y, so that their order is the same whatever the batch. */
static int parts_of(const work *memory, int64_t k)
{
    return memory->x ? (int)((k + NL_DNNL_K - 1) / NL_DNNL_K) : 1;
}

/* A row of x as BF16, to place `place` of a block of `rows`: its parts of NL_DNNL_K columns are matrices of their own, since oneDNN
 * makes products of blocks of rows that follow each other alone. */
static void round_row(const nl_linear_args *args, int64_t row, int64_t rows, int64_t place,
                      uint16_t *x)
{
    int64_t k = args->x.shape[1];
    for (int64_t from = 0; from < k; from += NL_DNNL_K) {
        int64_t width = NL_MIN(k - from, NL_DNNL_K);
        nl_to_bf16(nl_cpu_row(&args->x, row) + from, width, x + from * rows + place * width);
    }
}

/* A part of rows from `first` on; x: those rows as BF16 or F32 in working memory, or NULL. */
static nl_dnnl_product product_of(const nl_linear_args *args, const work *memory, int64_t first,
                                  int64_t rows, const void *x, int part)
{
    int64_t k = args->x.shape[1], from = (int64_t)part * NL_DNNL_K;
    int64_t columns = memory->x ? NL_MIN(k - from, NL_DNNL_K) : k;
    nl_dtype dtype = memory->x ? NL_BF16 : NL_F32;
    const char *row = x ? x : nl_cpu_row(&args->x, first);
    const char *weight = memory->weight ? (const char *)memory->weight : args->weight.data;
    return (nl_dnnl_product){
        .m = rows,
        .n = args->weight.shape[0],
        .k = columns,
        .dtype = dtype,
        .add = part > 0,
        .x = row + from * rows * (int64_t)nl_dtype_size(dtype),
        .x_stride = x ? columns : args->x.row_stride,
        .weight = weight + from * (int64_t)nl_dtype_size(dtype),
        .weight_stride = k,
        .arranged = memory->arranged.data
                        ? memory->arranged.data + part * memory->arranged.part_bytes
                        : NULL,
        .bias = part ? NULL : args->bias.data,
        .y = nl_cpu_row_out(&args->y, first),
        .y_stride = args->y.row_stride,
    };
}

/* Rows [first, first + rows) of the outputs from `output` on, by the thread that calls. Rows beyond whole groups are made once more
 * with those before them. */
static bool tile(const nl_dnnl_product *p, int64_t first, int64_t rows, int64_t output)
{
    int64_t outputs = NL_MIN(TILE_COLUMNS, p->n - output), whole = rows / NL_DNNL_GROUP;
    nl_dnnl_gemm gemm = {
        .b_transposed = true,
        .m = whole > 0 ? whole * NL_DNNL_GROUP : rows,
        .n = outputs,
        .k = p->k,
        .a = (const float *)p->x + first * p->x_stride,
        .a_stride = p->x_stride,
        .b = (const float *)p->weight + output * p->weight_stride,
        .b_stride = p->weight_stride,
        .c = p->y + first * p->y_stride + output,
        .c_stride = p->y_stride,
    };
    bool done = nl_dnnl_multiply(&gemm);
    if (rows > gemm.m) {
        gemm.m = NL_DNNL_GROUP;
        gemm.a += (rows - NL_DNNL_GROUP) * p->x_stride;
        gemm.c += (rows - NL_DNNL_GROUP) * p->y_stride;
        done = nl_dnnl_multiply(&gemm) && done;
    }
    for (int64_t row = first; p->bias && row < first + rows; row++)
        for (int64_t i = output; i < output + outputs; i++)
            p->y[row * p->y_stride + i] += p->bias[i];
    return done;
}

/* The last tile of a column has what would be less than a group, too. */
static nl_status product_in_tiles(nl_device *device, const nl_dnnl_product *p)
{
    int64_t down = NL_MAX(1, (p->m + TILE_ROWS - NL_DNNL_GROUP) / TILE_ROWS);
    int64_t across = (p->n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    bool done = true;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* oneDNN's, within a tile */
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) reduction(&& : done)
    for (int64_t i = 0; i < down * across; i++) {
        int64_t first = i / across * TILE_ROWS;
        int64_t rows = i / across == down - 1 ? p->m - first : TILE_ROWS;
        done = tile(p, first, rows, i % across * TILE_COLUMNS) && done;
    }
    omp_set_num_threads(threads);
    return done ? NL_OK
                : nl_fail(device->context, NL_ERROR_DEVICE, "oneDNN refuses a matrix product");
}

static nl_status product_block(nl_device *device, const nl_linear_args *args, const work *memory,
                               int64_t first, int64_t rows)
{
    nl_cpu_state *state = device->state;
    int64_t k = args->x.shape[1];
    const void *x = memory->x ? (const void *)memory->x : memory->wide_x;
    if (memory->x) {
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *k)) schedule(static)
        for (int64_t row = 0; row < rows; row++)
            round_row(args, first + row, rows, row, memory->x);
    }
    if (memory->wide_x) {
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *k)) schedule(static)
        for (int64_t row = 0; row < rows; row++)
            nl_cpu_get_f8(&args->x, first + row, memory->wide_x + row * k);
    }
    nl_status status = NL_OK;
    for (int part = 0; part < parts_of(memory, k) && status == NL_OK; part++) {
        nl_dnnl_product product = product_of(args, memory, first, rows, x, part);
        status = memory->tiled ? product_in_tiles(device, &product)
                               : nl_dnnl_matmul(state->dnnl, &product);
    }
    if (status == NL_OK)
        finish(device, args, first, rows);
    return status;
}

/* Of the first, the last and other parts. */
enum { FIRST, LAST, OTHERS, KINDS };
static int kind_of(int part, int parts)
{
    return part == 0 ? FIRST : part == parts - 1 ? LAST : OTHERS;
}

/* A block by the thread that calls. prepared [KINDS] */
static bool block_alone(nl_dnnl *dnnl, void *const *prepared, const nl_linear_args *args,
                        const work *memory, int64_t first)
{
    int64_t k = args->x.shape[1];
    int thread = omp_get_thread_num();
    uint16_t *x = memory->x ? memory->x + thread * memory->block * k : NULL;
    for (int64_t row = 0; x && row < memory->block; row++)
        round_row(args, first + row, memory->block, row, x);
    for (int part = 0, parts = parts_of(memory, k); part < parts; part++) {
        nl_dnnl_product product = product_of(args, memory, first, memory->block, x, part);
        if (!nl_dnnl_matmul_alone(dnnl, prepared[kind_of(part, parts)], &product, thread))
            return false;
    }
    for (int64_t row = 0; has_epilogue(args) && row < memory->block; row++)
        finish_row(args, first + row);
    return true;
}

static nl_status products_alone(nl_device *device, const nl_linear_args *args, const work *memory)
{
    nl_cpu_state *state = device->state;
    int64_t blocks = args->x.shape[0] / memory->block;
    int parts = parts_of(memory, args->x.shape[1]);
    bool done = true;
    void *prepared[KINDS];
    for (int kind = 0; kind < NL_MIN(parts, KINDS); kind++) {
        nl_dnnl_product product = product_of(args, memory, 0, memory->block, memory->x,
                                             kind == LAST ? parts - 1 : kind == OTHERS);
        NL_CHECK(nl_dnnl_prepare(state->dnnl, &product, device->threads, &prepared[kind]));
    }
#pragma omp parallel num_threads(device->threads) reduction(&& : done)
    {
        omp_set_num_threads(1); /* of this region */
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++)
            done = block_alone(state->dnnl, prepared, args, memory, block * memory->block) && done;
    }
    return done ? NL_OK
                : nl_fail(device->context, NL_ERROR_DEVICE, "oneDNN refuses a matrix product");
}

/* y in F8: what came into the room. */
static nl_status through_room(nl_device *device, const nl_linear_args *args)
{
    int64_t rows = args->y.shape[0];
    nl_linear_args wide = *args;
    wide.y = args->room;
    nl_status status = NL_CPU(linear)(device, &wide);
    if (status != NL_OK)
        return status;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows * args->y.shape[1])) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        nl_cpu_put_f8(&args->y, row, nl_cpu_row(&args->room, row));
    return NL_OK;
}

/* x [M, K], weight [N, K] -> y [M, N] */
nl_status NL_CPU(linear)(nl_device *device, const nl_linear_args *args)
{
    if (args->y.dtype == NL_F8)
        return through_room(device, args);
    int64_t m = args->x.shape[0], k = args->x.shape[1], n = args->weight.shape[0];
    if (m <= FEW_ROWS && args->weight.dtype != NL_F8) {
        product_few(device, args);
        finish(device, args, 0, m);
        return NL_OK;
    }
    work memory;
    nl_status status = reserve(device, args, &memory);
    if (status != NL_OK)
        return status;
    if (memory.wide_x) {
#pragma omp parallel for num_threads(nl_cpu_team(device, n *k)) schedule(static)
        for (int64_t row = 0; row < n; row++)
            nl_cpu_get_f8(&args->weight, row, memory.weight + row * k);
    } else if (memory.weight) {
        const uint16_t *from = args->weight.data;
#pragma omp parallel for simd num_threads(nl_cpu_team(device, n *k)) schedule(static)
        for (int64_t i = 0; i < n * k; i++)
            memory.weight[i] = nlv_from_bits((uint32_t)from[i] << 16);
    }
    if (memory.room)
        arrange(device, args, &memory);
    if (memory.alone)
        return products_alone(device, args, &memory);
    for (int64_t first = 0; first < m && status == NL_OK; first += memory.block)
        status = product_block(device, args, &memory, first, NL_MIN(m - first, memory.block));
    return status;
}
