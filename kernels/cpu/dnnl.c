/* SPDX-License-Identifier: MIT */
/* oneDNN behind one interface for versions 2 and 3: primitives kept by shape, products and convolutions. */
#include "nl_dnnl.h"

#include <dnnl.h>
#include <omp.h>
#include <string.h>

/* The name of an implementation says what it is made for. */
static bool begins_with(const_dnnl_primitive_desc_t made, const char *start)
{
    const char *name = "";
    return made &&
           dnnl_primitive_desc_query(made, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           strncmp(name, start, strlen(start)) == 0;
}

/* ---- What differs between the 2.x and the 3.x interface */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t description; /* an owned pointer */
typedef const_dnnl_memory_desc_t description_ref;
#define REF(description) (description)

static dnnl_status_t describe(description *made, int ndim, const dnnl_dims_t shape,
                              dnnl_data_type_t dtype, const dnnl_dims_t strides)
{
    return strides
               ? dnnl_memory_desc_create_with_strides(made, ndim, shape, dtype, strides)
               : dnnl_memory_desc_create_with_tag(made, ndim, shape, dtype, dnnl_format_tag_any);
}

static dnnl_status_t describe_as_tag(description *made, int ndim, const dnnl_dims_t shape,
                                     dnnl_data_type_t dtype, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(made, ndim, shape, dtype, tag);
}

static void forget(description *made)
{
    if (*made)
        dnnl_memory_desc_destroy(*made);
    *made = NULL;
}

static dnnl_status_t matmul_create(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                                   description_ref x, description_ref weight, description_ref bias,
                                   description_ref y, const_dnnl_primitive_attr_t attributes)
{
    return dnnl_matmul_primitive_desc_create(made, engine, x, weight, bias, y, attributes);
}

static dnnl_status_t conv_create(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                                 description_ref x, description_ref weight, description_ref bias,
                                 description_ref y, const dnnl_dims_t strides,
                                 const dnnl_dims_t low, const dnnl_dims_t high,
                                 const_dnnl_primitive_attr_t attributes)
{
    const dnnl_dims_t dilates = {0};
    return dnnl_convolution_forward_primitive_desc_create(
        made, engine, dnnl_forward_inference, dnnl_convolution_direct, x, weight, bias, y, strides,
        dilates, low, high, attributes);
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha)
{
    return dnnl_post_ops_append_eltwise(ops, kind, alpha, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t description;
typedef const dnnl_memory_desc_t *description_ref;
#define REF(description) (&(description))

static dnnl_status_t describe(description *made, int ndim, const dnnl_dims_t shape,
                              dnnl_data_type_t dtype, const dnnl_dims_t strides)
{
    return strides ? dnnl_memory_desc_init_by_strides(made, ndim, shape, dtype, strides)
                   : dnnl_memory_desc_init_by_tag(made, ndim, shape, dtype, dnnl_format_tag_any);
}

static dnnl_status_t describe_as_tag(description *made, int ndim, const dnnl_dims_t shape,
                                     dnnl_data_type_t dtype, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(made, ndim, shape, dtype, tag);
}

static void forget(description *made)
{
    (void)made;
}

static dnnl_status_t matmul_create(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                                   description_ref x, description_ref weight, description_ref bias,
                                   description_ref y, const_dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, x, weight, bias, y);
    return status != dnnl_success
               ? status
               : dnnl_primitive_desc_create(made, &operation, attributes, engine, NULL);
}

/* With AMX oneDNN 2 takes 1 to 70 ms to make the implementation that it puts first, and 0.2 to 0.9 for the second, which
 * is as fast: for a single picture that is most of the time. */
static dnnl_status_t conv_create(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                                 description_ref x, description_ref weight, description_ref bias,
                                 description_ref y, const dnnl_dims_t strides,
                                 const dnnl_dims_t low, const dnnl_dims_t high,
                                 const_dnnl_primitive_attr_t attributes)
{
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_iterator_t choices;
    dnnl_status_t status = dnnl_convolution_forward_desc_init(&operation, dnnl_forward_inference,
                                                              dnnl_convolution_direct, x, weight,
                                                              bias, y, strides, low, high);
    if (status == dnnl_success)
        status =
            dnnl_primitive_desc_iterator_create(&choices, &operation, attributes, engine, NULL);
    if (status != dnnl_success)
        return status;
    *made = dnnl_primitive_desc_iterator_fetch(choices);
    if (begins_with(*made, "brgconv:avx512_core_amx") &&
        dnnl_primitive_desc_iterator_next(choices) == dnnl_success) {
        dnnl_primitive_desc_t next = dnnl_primitive_desc_iterator_fetch(choices);
        bool better = begins_with(next, "jit:avx512_core_amx");
        dnnl_primitive_desc_destroy(better ? *made : next);
        *made = better ? next : *made;
    }
    dnnl_primitive_desc_iterator_destroy(choices);
    return *made ? dnnl_success : dnnl_out_of_memory;
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha)
{
    return dnnl_post_ops_append_eltwise(ops, 1, kind, alpha, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1);
}
#endif

/* ---- Primitives by shape */

enum { PRODUCT = 1, CONVOLUTION }; /* how a key begins */
enum { KEPT = 128, KEY = 20 };     /* Inception alone has about 70 shapes */
enum { ROOM = 32 << 20 };          /* addresses that must be left before a primitive is made */

/* ARRANGED: in place of WEIGHT, for an entry that takes it so. */
enum { X, WEIGHT, BIAS, Y, RESIDUAL, SCRATCHPAD, ARGUMENTS, ARRANGED = ARGUMENTS, DATA };

typedef struct kept {
    int64_t key[KEY]; /* all zero: free */
    int64_t last_used;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[ARGUMENTS]; /* without data of their own; NULL: not an argument */
    bool arranged;                   /* a product by a weight that was arranged before */
    int64_t scratchpad_bytes;
    dnnl_primitive_t reorder; /* of the weight into the layout that the primitive likes, or NULL */
    dnnl_memory_t plain_weight; /* source of the reorder */
    int64_t weight_bytes;       /* of its result */
} kept;

/* What nl_dnnl_arranged_bytes found. */
typedef struct known {
    int64_t n, k; /* 0: free */
    int64_t bytes;
} known;

enum { KNOWN = 16 };

struct nl_dnnl {
    nl_device *device;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int64_t clock;
    kept kept[KEPT];
    known known[KNOWN];
    unsigned next_known;
    bool asked_for_blocks, has_blocks;
    void *scratch; /* scratchpad, then reordered weight; or one scratchpad for each thread */
    int64_t scratch_bytes;
    int64_t stride; /* of the latter, in bytes */
};

static nl_status failed(nl_dnnl *dnnl, dnnl_status_t status, const int64_t *key)
{
    const char *name = key[0] == CONVOLUTION ? "convolution" : "matrix product";
    if (status == dnnl_out_of_memory)
        return nl_fail(dnnl->device->context, NL_ERROR_MEMORY, "oneDNN is out of memory in a %s",
                       name);
    return nl_fail(dnnl->device->context, NL_ERROR_DEVICE,
                   "oneDNN refuses a %s (status %d; key %lld %lld %lld %lld %lld)", name,
                   (int)status, (long long)key[1], (long long)key[2], (long long)key[3],
                   (long long)key[4], (long long)key[5]);
}

static void release(kept *entry)
{
    if (entry->primitive)
        dnnl_primitive_destroy(entry->primitive);
    if (entry->reorder)
        dnnl_primitive_destroy(entry->reorder);
    if (entry->plain_weight)
        dnnl_memory_destroy(entry->plain_weight);
    for (int i = 0; i < ARGUMENTS; i++)
        if (entry->memory[i])
            dnnl_memory_destroy(entry->memory[i]);
    memset(entry, 0, sizeof(*entry));
}

/* The entry of this key, or the emptied one that has gone unused for longest (its primitive is
 * NULL). */
static kept *find(nl_dnnl *dnnl, const int64_t *key)
{
    kept *oldest = &dnnl->kept[0];
    for (int i = 0; i < KEPT; i++) {
        kept *entry = &dnnl->kept[i];
        if (entry->primitive && memcmp(entry->key, key, sizeof(entry->key)) == 0) {
            entry->last_used = ++dnnl->clock;
            return entry;
        }
        if (entry->last_used < oldest->last_used)
            oldest = entry;
    }
    release(oldest);
    memcpy(oldest->key, key, sizeof(oldest->key));
    oldest->last_used = ++dnnl->clock;
    return oldest;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((status = (call)) != dnnl_success)                                                     \
            goto cleanup;                                                                          \
    } while (0)

static dnnl_status_t add_memory(nl_dnnl *dnnl, kept *entry, int argument, description_ref shape)
{
    return dnnl_memory_create(&entry->memory[argument], shape, dnnl->engine, DNNL_MEMORY_NONE);
}

/* Turns a primitive description into the entry's primitive; plain: the caller's weight. */
static dnnl_status_t finish(nl_dnnl *dnnl, kept *entry, const_dnnl_primitive_desc_t made,
                            description_ref plain)
{
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_desc_t reorder = NULL;
    description_ref scratchpad = dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
    description_ref weight = dnnl_primitive_desc_query_md(made, dnnl_query_weights_md, 0);
    entry->scratchpad_bytes = scratchpad ? (int64_t)dnnl_memory_desc_get_size(scratchpad) : 0;
    if (entry->scratchpad_bytes > 0)
        TRY(add_memory(dnnl, entry, SCRATCHPAD, scratchpad));
    TRY(add_memory(dnnl, entry, WEIGHT, weight));
    if (!dnnl_memory_desc_equal(weight, plain)) {
        entry->weight_bytes = (int64_t)dnnl_memory_desc_get_size(weight);
        TRY(dnnl_memory_create(&entry->plain_weight, plain, dnnl->engine, DNNL_MEMORY_NONE));
        TRY(dnnl_reorder_primitive_desc_create(&reorder, plain, dnnl->engine, weight, dnnl->engine,
                                               NULL));
        TRY(dnnl_primitive_create(&entry->reorder, reorder));
    }
    TRY(dnnl_primitive_create(&entry->primitive, made));
cleanup:
    if (reorder)
        dnnl_primitive_desc_destroy(reorder);
    return status;
}

static dnnl_status_t attributes_create(dnnl_primitive_attr_t *attributes, dnnl_post_ops_t ops)
{
    dnnl_status_t status = dnnl_success;
    TRY(dnnl_primitive_attr_create(attributes));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user));
    if (ops)
        TRY(dnnl_primitive_attr_set_post_ops(*attributes, ops));
cleanup:
    return status;
}

static nl_status reserve(nl_dnnl *dnnl, int64_t bytes)
{
    if (bytes <= dnnl->scratch_bytes)
        return NL_OK;
    nl_free(dnnl->device->context, dnnl->scratch);
    dnnl->scratch_bytes = 0;
    nl_status status =
        NL_NEW_SIZED(dnnl->device->context, "oneDNN working memory", bytes, 1, &dnnl->scratch);
    if (status == NL_OK)
        dnnl->scratch_bytes = bytes;
    return status;
}

static const int argument_names[ARGUMENTS] = {
    DNNL_ARG_SRC,
    DNNL_ARG_WEIGHTS,
    DNNL_ARG_BIAS,
    DNNL_ARG_DST,
    DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
    DNNL_ARG_SCRATCHPAD,
};

/* data: by argument, X to RESIDUAL, and of a product ARRANGED. */
static dnnl_status_t run_kept(nl_dnnl *dnnl, kept *entry, const void *const *data)
{
    dnnl_status_t status = dnnl_success;
    dnnl_exec_arg_t arguments[ARGUMENTS];
    int count = 0;
    char *weight =
        entry->reorder ? (char *)dnnl->scratch + (entry->scratchpad_bytes + 63) / 64 * 64 : NULL;
    for (int i = 0; i < ARGUMENTS; i++) {
        if (!entry->memory[i])
            continue;
        const void *from = i == SCRATCHPAD                  ? dnnl->scratch
                           : i == WEIGHT && entry->reorder  ? weight
                           : i == WEIGHT && entry->arranged ? data[ARRANGED]
                                                            : data[i];
        TRY(dnnl_memory_set_data_handle(entry->memory[i], (void *)from));
        arguments[count++] = (dnnl_exec_arg_t){argument_names[i], entry->memory[i]};
    }
    if (entry->reorder) {
        TRY(dnnl_memory_set_data_handle(entry->plain_weight, (void *)data[WEIGHT]));
        dnnl_exec_arg_t reorder[] = {{DNNL_ARG_FROM, entry->plain_weight},
                                     {DNNL_ARG_TO, entry->memory[WEIGHT]}};
        TRY(dnnl_primitive_execute(entry->reorder, dnnl->stream, 2, reorder));
    }
    TRY(dnnl_primitive_execute(entry->primitive, dnnl->stream, count, arguments));
    TRY(dnnl_stream_wait(dnnl->stream));
cleanup:
    return status;
}

/* oneDNN does not look at whether it was given memory for the code that it writes. */
static nl_status check_room(nl_dnnl *dnnl)
{
    int64_t left = nl_addresses_left();
    return left >= ROOM
               ? NL_OK
               : nl_fail(dnnl->device->context, NL_ERROR_MEMORY,
                         "memory for oneDNN: need %d MiB of addresses, ulimit -v leaves %.1f; "
                         "allow more",
                         ROOM >> 20, (double)left / (1 << 20));
}

/* Gives up an entry that oneDNN did not make or run. */
static nl_status give_up(nl_dnnl *dnnl, kept *entry, dnnl_status_t done, const int64_t *key)
{
    release(entry);
    return failed(dnnl, done, key);
}

/* The entry of this key, whose primitive is made with `make` when it has none: for as many threads as there are now. */
static nl_status take(nl_dnnl *dnnl, const int64_t *key,
                      dnnl_status_t (*make)(nl_dnnl *, kept *, const void *), const void *args,
                      kept **entry)
{
    *entry = find(dnnl, key);
    if ((*entry)->primitive)
        return NL_OK;
    NL_CHECK(check_room(dnnl));
    dnnl_status_t done = make(dnnl, *entry, args);
    return done == dnnl_success ? NL_OK : give_up(dnnl, *entry, done, key);
}

/* Runs it on the device's threads. */
static nl_status run(nl_dnnl *dnnl, const int64_t *key,
                     dnnl_status_t (*make)(nl_dnnl *, kept *, const void *), const void *args,
                     const void *const *data)
{
    nl_status status = NL_OK;
    kept *entry;
    int threads = omp_get_max_threads();
    omp_set_num_threads(dnnl->device->threads);
    NL_TRY(take(dnnl, key, make, args, &entry));
    NL_TRY(reserve(dnnl, (entry->scratchpad_bytes + 63) / 64 * 64 + entry->weight_bytes));
    dnnl_status_t done = run_kept(dnnl, entry, data);
    if (done != dnnl_success)
        status = give_up(dnnl, entry, done, key);
cleanup:
    omp_set_num_threads(threads);
    return status;
}

static dnnl_data_type_t data_type(nl_dtype dtype)
{
    return dtype == NL_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- Matrix products */

/* A product by a weight that lies like this, or, where that is left open, as suits it best. */
static dnnl_status_t describe_matmul(nl_dnnl *dnnl, const nl_dnnl_product *p,
                                     description_ref weight, dnnl_primitive_desc_t *made)
{
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_attr_t attributes = NULL;
    const dnnl_dims_t x_shape = {p->m, p->k}, y_shape = {p->m, p->n}, bias_shape = {1, p->n};
    const dnnl_dims_t x_strides = {p->x_stride, 1}, y_strides = {p->y_stride, 1},
                      bias_strides = {p->n, 1};
    description x = {0}, bias = {0}, y = {0};
    dnnl_post_ops_t ops = NULL;
    TRY(dnnl_post_ops_create(&ops));
    if (p->add)
        TRY(append_sum(ops));
    TRY(attributes_create(&attributes, ops));
    TRY(describe(&x, 2, x_shape, data_type(p->dtype), x_strides));
    TRY(describe(&bias, 2, bias_shape, dnnl_f32, bias_strides));
    TRY(describe(&y, 2, y_shape, dnnl_f32, y_strides));
    TRY(matmul_create(made, dnnl->engine, REF(x), weight, p->bias ? REF(bias) : NULL, REF(y),
                      attributes));
cleanup:
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    if (ops)
        dnnl_post_ops_destroy(ops);
    forget(&x);
    forget(&bias);
    forget(&y);
    return status;
}

static dnnl_status_t describe_weight(description *made, nl_dtype dtype, int64_t n, int64_t k,
                                     int64_t stride)
{
    const dnnl_dims_t shape = {k, n}, strides = {1, stride};
    return describe(made, 2, shape, data_type(dtype), stride ? strides : NULL);
}

/* The order in which nl_dnnl_arrange writes a weight [n, k]. */
static dnnl_status_t describe_arranged(description *made, int64_t n, int64_t k)
{
    const dnnl_dims_t shape = {k, n};
    return describe_as_tag(made, 2, shape, dnnl_bf16, dnnl_BA16a64b2a);
}

/* Products that are made of blocks sum in the same order as by a weight that they have to arrange themselves. */
static bool is_of_blocks(const_dnnl_primitive_desc_t made)
{
    return begins_with(made, "brg");
}

/* By the arranged weight where there is one and this product, like most, takes it; oneDNN's reference would take any. */
static dnnl_status_t make_matmul(nl_dnnl *dnnl, kept *entry, const void *args)
{
    const nl_dnnl_product *p = args;
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_desc_t made = NULL;
    description weight = {0}, arranged = {0};
    if (p->arranged) {
        TRY(describe_arranged(&arranged, p->n, p->k));
        entry->arranged =
            describe_matmul(dnnl, p, REF(arranged), &made) == dnnl_success && is_of_blocks(made);
    }
    TRY(describe_weight(&weight, p->dtype, p->n, p->k, p->weight_stride));
    if (!entry->arranged) {
        if (made)
            dnnl_primitive_desc_destroy(made);
        made = NULL;
        TRY(describe_matmul(dnnl, p, REF(weight), &made));
    }
    TRY(add_memory(dnnl, entry, X, dnnl_primitive_desc_query_md(made, dnnl_query_src_md, 0)));
    TRY(add_memory(dnnl, entry, Y, dnnl_primitive_desc_query_md(made, dnnl_query_dst_md, 0)));
    if (p->bias)
        TRY(add_memory(dnnl, entry, BIAS,
                       dnnl_primitive_desc_query_md(made, dnnl_query_weights_md, 1)));
    TRY(finish(dnnl, entry, made, entry->arranged ? REF(arranged) : REF(weight)));
cleanup:
    if (made)
        dnnl_primitive_desc_destroy(made);
    forget(&weight);
    forget(&arranged);
    return status;
}

enum { MANY_ROWS = 256 };

static bool find_blocks(nl_dnnl *dnnl)
{
    enum { SIZE = 384 };
    const nl_dnnl_product typical = {
        .m = MANY_ROWS, .n = SIZE, .k = SIZE, .dtype = NL_F32, .x_stride = SIZE, .y_stride = SIZE};
    dnnl_primitive_desc_t made = NULL;
    description weight = {0};
    bool found = describe_weight(&weight, NL_F32, SIZE, SIZE, SIZE) == dnnl_success &&
                 describe_matmul(dnnl, &typical, REF(weight), &made) == dnnl_success &&
                 is_of_blocks(made);
    if (made)
        dnnl_primitive_desc_destroy(made);
    forget(&weight);
    return found;
}

bool nl_dnnl_has_blocks(nl_dnnl *dnnl)
{
    if (!dnnl->asked_for_blocks)
        dnnl->has_blocks = find_blocks(dnnl);
    dnnl->asked_for_blocks = true;
    return dnnl->has_blocks;
}

/* ---- Weights arranged once */

static int64_t find_arranged_bytes(nl_dnnl *dnnl, int64_t n, int64_t k)
{
    const nl_dnnl_product typical = {
        .m = MANY_ROWS, .n = n, .k = k, .dtype = NL_BF16, .x_stride = k, .y_stride = n};
    dnnl_status_t status;
    dnnl_primitive_desc_t made = NULL;
    description open = {0}, arranged = {0};
    int64_t bytes = 0;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    TRY(describe_weight(&open, NL_BF16, n, k, 0));
    TRY(describe_arranged(&arranged, n, k));
    TRY(describe_matmul(dnnl, &typical, REF(open), &made));
    if (is_of_blocks(made) &&
        dnnl_memory_desc_equal(REF(arranged),
                               dnnl_primitive_desc_query_md(made, dnnl_query_weights_md, 0)))
        bytes = (int64_t)dnnl_memory_desc_get_size(REF(arranged));
cleanup:
    omp_set_num_threads(threads);
    if (made)
        dnnl_primitive_desc_destroy(made);
    forget(&open);
    forget(&arranged);
    return status == dnnl_success ? bytes : 0;
}

int64_t nl_dnnl_arranged_bytes(nl_dnnl *dnnl, int64_t n, int64_t k)
{
    for (int i = 0; i < KNOWN; i++)
        if (dnnl->known[i].n == n && dnnl->known[i].k == k)
            return dnnl->known[i].bytes;
    known *next = &dnnl->known[dnnl->next_known++ % KNOWN];
    *next = (known){n, k, find_arranged_bytes(dnnl, n, k)};
    return next->bytes;
}

/* A tile is NL_DNNL_OUTPUTS outputs by 16 pairs of numbers that follow each other in a row of the weight; in the arranged one
 * the pairs of all outputs follow each other. */
enum { TILE_PAIRS = 16, TILE_COLUMNS = 2 * TILE_PAIRS };

int64_t nl_dnnl_run_bytes(int64_t k)
{
    int64_t tiles = (k + TILE_COLUMNS - 1) / TILE_COLUMNS;
    return tiles * TILE_COLUMNS * NL_DNNL_OUTPUTS * (int64_t)sizeof(uint16_t);
}

/* Four pairs of four outputs, transposed. */
typedef uint32_t four __attribute__((vector_size(16)));

static void transpose(const uint16_t *from, int64_t stride, uint32_t *to)
{
    four rows[4], columns[4];
    for (int i = 0; i < 4; i++)
        memcpy(&rows[i], from + i * stride, sizeof(four));
    four low = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    four high = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    four low_2 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    four high_2 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    columns[0] = __builtin_shufflevector(low, low_2, 0, 1, 4, 5);
    columns[1] = __builtin_shufflevector(low, low_2, 2, 3, 6, 7);
    columns[2] = __builtin_shufflevector(high, high_2, 0, 1, 4, 5);
    columns[3] = __builtin_shufflevector(high, high_2, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(to + i * NL_DNNL_OUTPUTS, &columns[i], sizeof(four));
}

static void arrange_tile(const uint16_t *from, int64_t stride, uint32_t *to)
{
    for (int output = 0; output < NL_DNNL_OUTPUTS; output += 4)
        for (int pair = 0; pair < TILE_PAIRS; pair += 4)
            transpose(from + output * stride + 2 * pair, stride,
                      to + pair * NL_DNNL_OUTPUTS + output);
}

/* One of which there are only so many outputs and columns; the rest is 0. */
static void arrange_part(const uint16_t *from, int64_t stride, int64_t outputs, int64_t columns,
                         uint32_t *to)
{
    memset(to, 0, NL_DNNL_OUTPUTS * TILE_PAIRS * sizeof(*to));
    for (int64_t output = 0; output < outputs; output++) {
        uint32_t pairs[TILE_PAIRS] = {0};
        memcpy(pairs, from + output * stride, (size_t)columns * sizeof(*from));
        for (int pair = 0; pair < TILE_PAIRS; pair++)
            to[pair * NL_DNNL_OUTPUTS + output] = pairs[pair];
    }
}

void nl_dnnl_arrange(int64_t n, int64_t k, const uint16_t *weight, int64_t weight_stride,
                     void *arranged)
{
    uint32_t *to = arranged;
    for (int64_t output = 0; output < n; output += NL_DNNL_OUTPUTS)
        for (int64_t column = 0; column < k;
             column += TILE_COLUMNS, to += NL_DNNL_OUTPUTS * TILE_PAIRS) {
            const uint16_t *from = weight + output * weight_stride + column;
            int64_t outputs = NL_MIN(n - output, NL_DNNL_OUTPUTS);
            int64_t columns = NL_MIN(k - column, TILE_COLUMNS);
            if (outputs == NL_DNNL_OUTPUTS && columns == TILE_COLUMNS)
                arrange_tile(from, weight_stride, to);
            else
                arrange_part(from, weight_stride, outputs, columns, to);
        }
}

/* ---- Products, run */

/* alone: made for one thread */
static void matmul_key(const nl_dnnl_product *p, bool alone, int64_t *key)
{
    const int64_t of[KEY] = {PRODUCT,     p->m,        p->n,
                             p->k,        p->x_stride, p->weight_stride,
                             p->y_stride, p->dtype,    p->bias != NULL,
                             p->add,      alone,       p->arranged != NULL};
    memcpy(key, of, sizeof(of));
}

nl_status nl_dnnl_matmul(nl_dnnl *dnnl, const nl_dnnl_product *p)
{
    int64_t key[KEY];
    matmul_key(p, false, key);
    const void *const data[DATA] = {p->x, p->weight, p->bias, p->y, [ARRANGED] = p->arranged};
    return run(dnnl, key, make_matmul, p, data);
}

nl_status nl_dnnl_prepare(nl_dnnl *dnnl, const nl_dnnl_product *p, int threads, void **prepared)
{
    nl_status status = NL_OK;
    int64_t key[KEY];
    int before = omp_get_max_threads();
    kept *entry;
    matmul_key(p, true, key);
    omp_set_num_threads(1);
    NL_TRY(take(dnnl, key, make_matmul, p, &entry));
    dnnl->stride = NL_MAX(dnnl->stride, (entry->scratchpad_bytes + 4095) / 4096 * 4096);
    NL_TRY(reserve(dnnl, threads * dnnl->stride)); /* which share no pages */
    *prepared = entry;
cleanup:
    omp_set_num_threads(before);
    return status;
}

bool nl_dnnl_matmul_alone(nl_dnnl *dnnl, void *prepared, const nl_dnnl_product *p, int thread)
{
    kept *entry = prepared;
    dnnl_status_t status = dnnl_success;
    dnnl_stream_t stream = NULL;
    char *scratchpad =
        entry->memory[SCRATCHPAD] ? (char *)dnnl->scratch + thread * dnnl->stride : NULL;
    const void *const data[ARGUMENTS] = {[X] = p->x,
                                         [WEIGHT] = entry->arranged ? p->arranged : p->weight,
                                         [BIAS] = p->bias,
                                         [Y] = p->y,
                                         [SCRATCHPAD] = scratchpad};
    dnnl_exec_arg_t arguments[ARGUMENTS];
    int count = 0;
    TRY(dnnl_stream_create(&stream, dnnl->engine, dnnl_stream_default_flags));
    for (int i = 0; i < ARGUMENTS; i++) {
        description_ref shape;
        if (!entry->memory[i])
            continue;
        TRY(dnnl_memory_get_memory_desc(entry->memory[i], &shape));
        TRY(dnnl_memory_create(&arguments[count].memory, shape, dnnl->engine, (void *)data[i]));
        arguments[count++].arg = argument_names[i];
    }
    TRY(dnnl_primitive_execute(entry->primitive, stream, count, arguments));
    TRY(dnnl_stream_wait(stream));
cleanup:
    while (count > 0)
        dnnl_memory_destroy(arguments[--count].memory);
    if (stream)
        dnnl_stream_destroy(stream);
    return status == dnnl_success;
}

bool nl_dnnl_multiply(const nl_dnnl_gemm *g)
{
    return dnnl_sgemm(g->a_transposed ? 'T' : 'N', g->b_transposed ? 'T' : 'N', g->m, g->n, g->k, 1,
                      g->a, g->a_stride, g->b, g->b_stride, g->add ? 1 : 0, g->c,
                      g->c_stride) == dnnl_success;
}

/* ---- Convolutions, NHWC */

static void nhwc(const nl_tensor *tensor, dnnl_dims_t shape, dnnl_dims_t strides)
{
    int64_t height = tensor->shape[1], width = tensor->shape[2], channels = tensor->shape[3];
    memcpy(shape, (const dnnl_dim_t[]){tensor->shape[0], channels, height, width},
           4 * sizeof(dnnl_dim_t));
    memcpy(strides, (const dnnl_dim_t[]){height * width * channels, 1, width * channels, channels},
           4 * sizeof(dnnl_dim_t));
}

/* The residual is added, then the activation applied. */
static dnnl_status_t conv_post_ops(dnnl_post_ops_t *ops, const nl_conv2d_args *a, description_ref y)
{
    dnnl_status_t status = dnnl_success;
    TRY(dnnl_post_ops_create(ops));
    if (a->residual.data)
        TRY(dnnl_post_ops_append_binary(*ops, dnnl_binary_add, y));
    if (a->activation == NL_ACT_RELU)
        TRY(append_eltwise(*ops, dnnl_eltwise_relu, 0));
    else if (a->activation == NL_ACT_SILU)
        TRY(append_eltwise(*ops, dnnl_eltwise_swish, 1));
cleanup:
    return status;
}

static dnnl_status_t make_conv2d(nl_dnnl *dnnl, kept *entry, const void *args)
{
    const nl_conv2d_args *a = args;
    const int64_t *w = a->weight.shape; /* O, C, kh, kw */
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_desc_t made = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_dims_t x_shape, x_strides, y_shape, y_strides;
    nhwc(&a->x, x_shape, x_strides);
    nhwc(&a->y, y_shape, y_strides);
    const dnnl_dims_t weight_shape = {w[0], w[1], w[2], w[3]}, bias_shape = {w[0]},
                      bias_strides = {1};
    const dnnl_dims_t weight_strides = {w[1] * w[2] * w[3], w[2] * w[3], w[3], 1};
    const dnnl_dims_t strides = {a->stride, a->stride}, low = {a->pad_top, a->pad_left},
                      high = {a->pad_bottom, a->pad_right};
    description x = {0}, weight = {0}, plain = {0}, bias = {0}, y = {0};
    dnnl_data_type_t dtype = data_type(a->x.dtype);
    TRY(describe(&x, 4, x_shape, dtype, x_strides));
    TRY(describe(&weight, 4, weight_shape, dtype, NULL));
    TRY(describe(&plain, 4, weight_shape, data_type(a->weight.dtype), weight_strides));
    TRY(describe(&bias, 1, bias_shape, dnnl_f32, bias_strides));
    TRY(describe(&y, 4, y_shape, dtype, y_strides));
    TRY(conv_post_ops(&ops, a, REF(y)));
    TRY(attributes_create(&attributes, ops));
    TRY(conv_create(&made, dnnl->engine, REF(x), REF(weight), a->bias.data ? REF(bias) : NULL,
                    REF(y), strides, low, high, attributes));
    TRY(add_memory(dnnl, entry, X, REF(x)));
    TRY(add_memory(dnnl, entry, Y, REF(y)));
    if (a->bias.data)
        TRY(add_memory(dnnl, entry, BIAS, REF(bias)));
    if (a->residual.data)
        TRY(add_memory(dnnl, entry, RESIDUAL, REF(y)));
    TRY(finish(dnnl, entry, made, REF(plain)));
cleanup:
    if (made)
        dnnl_primitive_desc_destroy(made);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    if (ops)
        dnnl_post_ops_destroy(ops);
    forget(&x);
    forget(&weight);
    forget(&plain);
    forget(&bias);
    forget(&y);
    return status;
}

nl_status nl_dnnl_conv2d(nl_dnnl *dnnl, const nl_conv2d_args *a)
{
    const int64_t *x = a->x.shape, *w = a->weight.shape, *y = a->y.shape;
    const int64_t key[KEY] = {CONVOLUTION,
                              x[0],
                              x[1],
                              x[2],
                              x[3],
                              w[0],
                              w[2],
                              w[3],
                              y[1],
                              y[2],
                              a->stride,
                              a->pad_top,
                              a->pad_left,
                              a->pad_bottom,
                              a->pad_right,
                              a->activation,
                              a->bias.data != NULL,
                              a->residual.data != NULL,
                              a->weight.dtype,
                              a->x.dtype};
    const void *const data[ARGUMENTS] = {a->x.data, a->weight.data, a->bias.data, a->y.data,
                                         a->residual.data};
    return run(dnnl, key, make_conv2d, a, data);
}

/* ---- Life */

bool nl_dnnl_has_bf16(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

nl_status nl_dnnl_create(nl_device *device, nl_dnnl **dnnl)
{
    NL_CHECK(NL_NEW(device->context, "oneDNN", dnnl));
    (*dnnl)->device = device;
    if (dnnl_engine_create(&(*dnnl)->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&(*dnnl)->stream, (*dnnl)->engine, dnnl_stream_default_flags) !=
            dnnl_success) {
        nl_dnnl_destroy(*dnnl);
        *dnnl = NULL;
        return nl_fail(device->context, NL_ERROR_DEVICE, "oneDNN does not start on this processor");
    }
    return NL_OK;
}

void nl_dnnl_destroy(nl_dnnl *dnnl)
{
    if (!dnnl)
        return;
    for (int i = 0; i < KEPT; i++)
        release(&dnnl->kept[i]);
    if (dnnl->stream)
        dnnl_stream_destroy(dnnl->stream);
    if (dnnl->engine)
        dnnl_engine_destroy(dnnl->engine);
    nl_free(dnnl->device->context, dnnl->scratch);
    nl_free(dnnl->device->context, dnnl);
}
