/* SPDX-License-Identifier: MIT */
/* What the checks of check.c and check_training.c share. */
#ifndef NL_CHECK_H
#define NL_CHECK_H

#include <math.h>

#include "arguments.h"

#define SIZES(...)                                                                                 \
    NL_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[])                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define TENSOR(field, flags, ...)                                                                  \
    nl_check_tensor(a, #field, &args->field, flags, SIZES(__VA_ARGS__))
/* field has the shape of another tensor, its own when that is the same one. */
#define TENSOR_AS(field, flags, other)                                                             \
    nl_check_tensor(a, #field, &args->field, flags, args->other.ndim, args->other.shape)

/* Sizes of a tensor that was not checked yet read as 0 or 1 beyond ndim: harmless, and refused later. */

/* M / rows_per_image, or a size that no tensor has. */
static inline int64_t images_of(nl_arguments *a, int64_t rows, int64_t rows_per_image)
{
    bool whole = rows_per_image > 0 && rows % rows_per_image == 0;
    nl_check(a, whole, "%lld rows are not a whole number of images of %lld rows", (long long)rows,
             (long long)rows_per_image);
    return whole ? rows / rows_per_image : 0;
}

static inline void check_eps(nl_arguments *a, float eps)
{
    nl_check(a, eps > 0 && isfinite(eps), "eps is %g, expected more than 0", (double)eps);
}

/* Kernels look for the largest score before it is scaled. */
static inline void check_attention_scale(nl_arguments *a, float scale)
{
    nl_check(a, scale > 0 && isfinite(scale), "scale is not above 0");
}

static inline bool check_feature_map(nl_arguments *a, nl_feature_map map)
{
    bool known = (unsigned)map < NL_FEATURE_MAP_COUNT;
    nl_check(a, known, "no feature map %d", (int)map);
    return known;
}

/* NaLa's exponents of each head, in a known map. */
static inline void check_log_exponents(nl_arguments *a, nl_feature_map map, const void *log_lambda,
                                       const void *log_tau)
{
    nl_check(a, !log_lambda == !log_tau, "one of log_lambda and log_tau");
    nl_check(a, !log_lambda || nl_feature_map_norm_aware(map),
             "map %s has no exponents that grow with the norm", nl_feature_map_names[map]);
}

/* Columns q | k of whole heads. */
static inline void check_heads(nl_arguments *a, int64_t columns, int64_t head)
{
    nl_check(a, head > 0 && columns % (2 * head) == 0,
             "%lld columns are not those of q and k in heads of %lld", (long long)columns,
             (long long)head);
}

/* B, T, h, d of an attention, each small enough that their products are sizes. */
static inline bool check_attention_sizes(nl_arguments *a, int64_t batch, int64_t tokens,
                                         int64_t heads, int64_t head_size)
{
    const int64_t most = 1 << 30;
    bool fits = batch > 0 && tokens > 0 && heads > 0 && head_size > 0 && batch <= most &&
                tokens <= most && heads <= most && head_size <= most && heads * head_size <= most &&
                batch * heads <= most;
    nl_check(a, fits, "no attention of %lld images, %lld tokens, %lld heads of %lld",
             (long long)batch, (long long)tokens, (long long)heads, (long long)head_size);
    return fits;
}

/* B * H * W of token grids. */
static inline int64_t grid_rows(nl_arguments *a, int64_t batch, int64_t grid_height,
                                int64_t grid_width)
{
    int64_t rows = 0;
    nl_check(a,
             nl_mul_size(batch, grid_height, &rows) && nl_mul_size(rows, grid_width, &rows) &&
                 rows > 0,
             "no grid of %lld x %lld x %lld", (long long)batch, (long long)grid_height,
             (long long)grid_width);
    return rows;
}

/* The sizes of an attention through mediators; rows: those of its tensors. */
static inline bool check_mediators(nl_arguments *a, const nl_mediators *sizes, int64_t *rows)
{
    *rows = grid_rows(a, sizes->batch, sizes->grid_height, sizes->grid_width);
    if (a->status != NL_OK)
        return false;
    nl_check(
        a, sizes->side > 0 && sizes->side <= sizes->grid_height && sizes->side <= sizes->grid_width,
        "no %lld x %lld mediators of %lld x %lld tokens", (long long)sizes->side,
        (long long)sizes->side, (long long)sizes->grid_height, (long long)sizes->grid_width);
    return check_attention_sizes(a, sizes->batch, sizes->grid_height * sizes->grid_width,
                                 sizes->heads, sizes->head_size) &&
           a->status == NL_OK;
}

static inline void check_whole_heads(nl_arguments *a, int64_t columns, int64_t head)
{
    nl_check(a, head > 0 && columns % head == 0, "%lld columns are not those of heads of %lld",
             (long long)columns, (long long)head);
}

static inline void check_scan_numbers(nl_arguments *a, float scale, float normalizer)
{
    nl_check(a, isfinite(scale), "scale is not finite");
    nl_check(a, normalizer > 0 && isfinite(normalizer), "normalizer is %g, expected more than 0",
             (double)normalizer);
}

/* The sizes of gated linear attention; rows: those of its tensors. */
static inline bool check_scanned(nl_arguments *a, int64_t batch, int64_t heads, int64_t key_size,
                                 int64_t head_size, const nl_scan *scan, int64_t *rows)
{
    int64_t tokens = grid_rows(a, 1, scan->grid_height, scan->grid_width);
    if (a->status != NL_OK || !check_attention_sizes(a, batch, tokens, heads, head_size) ||
        !check_attention_sizes(a, batch, tokens, heads, key_size))
        return false;
    *rows = grid_rows(a, batch, scan->grid_height, scan->grid_width);
    return a->status == NL_OK;
}

/* The grid of tokens that rotary angles are taken from. */
static inline void check_turned(nl_arguments *a, int64_t tokens, int64_t head_size,
                                int64_t grid_height, int64_t grid_width)
{
    nl_check(a,
             grid_height > 0 && grid_width > 0 && tokens % grid_height == 0 &&
                 tokens / grid_height == grid_width,
             "rope: a grid of %lld x %lld is not one of %lld tokens", (long long)grid_height,
             (long long)grid_width, (long long)tokens);
    nl_check(a, head_size % 4 == 0, "rope: head size %lld is no multiple of 4",
             (long long)head_size);
}

/* Tokens of a picture cut into patches, or a size that no tensor has. */
static inline int64_t grid_tokens(nl_arguments *a, int64_t height, int64_t width, int64_t patch)
{
    bool whole = patch > 0 && height % patch == 0 && width % patch == 0;
    nl_check(a, whole, "patches of %lld do not divide %lld x %lld", (long long)patch,
             (long long)height, (long long)width);
    return whole ? height / patch * (width / patch) : 0;
}

/* Numbers that a head gives for a patch, at least those of the picture's channels, or a size that no tensor has. */
static inline int64_t patch_columns(nl_arguments *a, int64_t patch, int64_t head_channels,
                                    int64_t channels)
{
    int64_t columns = 0;
    nl_check(a, head_channels >= channels && nl_mul_size(patch * patch, head_channels, &columns),
             "head_channels is %lld, expected the %lld channels of the picture or more",
             (long long)head_channels, (long long)channels);
    return columns;
}

/* The public function: checks, then the device's table. */
#define NL_FRONT_DOOR(operation_)                                                                  \
    nl_status nl_op_##operation_(nl_device *device, const nl_##operation_##_args *args)            \
    {                                                                                              \
        nl_arguments arguments = {.device = device, .operation = #operation_};                     \
        check_##operation_(&arguments, args);                                                      \
        nl_status status = nl_arguments_end(&arguments);                                           \
        if (status == NL_OK && device->cancellable)                                                \
            status = nl_check_cancelled(device->context);                                          \
        if (status != NL_OK)                                                                       \
            return status;                                                                         \
        if (!device->ops->operation_)                                                              \
            return nl_fail(device->context, NL_ERROR_DEVICE,                                       \
                           "operation %s is not on this device: the back end %s lacks it; try "    \
                           "another one (--device cpu)",                                           \
                           #operation_, device->ops->name);                                        \
        return device->ops->operation_(device, args);                                              \
    }

#endif
