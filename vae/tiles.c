/* SPDX-License-Identifier: MIT */
/*
 * Pictures of any size and number between host and device.
 *
 * Pictures that fit the memory go through whole, as many at a time as fit. A larger one is cut into
 * equal tiles that overlap by at least OVERLAP latents. In an overlap each tile counts for nothing in
 * its outer MARGIN latents, where it lacks its surroundings, and then rises linearly to its full
 * weight; weights are normalised, so that they add up to one everywhere.
 *
 * The tiny autoencoder looks 19 latents far, but what lies beyond MARGIN moves no pixel of a photograph
 * by more than one step of 255 (test_vae.c). AutoencoderKL also has things that look at the
 * whole picture (group norms, the mid attention) and sees the tile alone there: its tiled pictures
 * are a little other than the whole ones, but the change is spread over the overlap.
 */
#include <math.h>
#include <string.h>

#include "arena.h"
#include "layers.h"

enum {
    OVERLAP = 32, /* latents, as the next two */
    MARGIN = 12,
    MINIMUM_TILE = 48,
    MAX_BATCH = 64,
    ARENA_EXTRA = 1024 /* bytes that the arena takes to align itself */
};

/* A batch gains nothing above the first. With no budget set, a picture beyond the second is cut. */
static const int64_t batch_cap = INT64_C(1) << 30, picture_cap = INT64_C(4) << 30;

/* One way of a conversion: from host to host in units of one picture or tile. */
typedef struct nl_conversion {
    nl_vae *vae;
    nl_vae_half half;
    float shift; /* decoder: bytes are trunc(127.5 x + shift) */
} nl_conversion;

/* ---- One run of the network */

/* Pictures of height x width latents. With the decoder `from` are latents and `to` is uint8 or, for
 * tiles, float pictures; with the encoder `from` are float pictures in [-1, 1]. On a measuring device
 * nothing is moved. */
static nl_status run_batch(const nl_conversion *conversion, nl_device *device, int64_t batch,
                           int64_t height, int64_t width, const float *from, nl_dtype to_type,
                           void *to)
{
    const nl_vae *vae = conversion->vae;
    bool decode = conversion->half == NL_VAE_DECODER;
    int64_t factor = vae->factor;
    int64_t latent_shape[] = {batch, vae->latent_channels, height, width};
    int64_t rgb_shape[] = {batch, height * factor, width * factor, 3};
    int64_t mark = nl_arena_mark(device);
    nl_tensor latents, rgb, bytes = {0};
    nl_status status;
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, latent_shape, &latents));
    NL_TRY(nl_arena_tensor(device, NL_F32, 4, rgb_shape, &rgb));
    if (to_type == NL_U8)
        NL_TRY(nl_arena_tensor(device, NL_U8, 4, rgb_shape, &bytes));
    const nl_tensor *input = decode ? &latents : &rgb;
    const nl_tensor *output = to_type == NL_U8 ? &bytes : decode ? &rgb : &latents;
    if (!device->measuring)
        NL_TRY(device->ops->upload(device, input->data, from, nl_tensor_bytes(input)));
    if (decode)
        NL_TRY(nl_vae_decode(vae, device, &latents, &rgb));
    else
        NL_TRY(nl_vae_encode(vae, device, &rgb, &latents, NULL));
    if (to_type == NL_U8)
        NL_TRY(NL_OP(device, to_uint8, .x = rgb, .y = bytes, .scale = 127.5f,
                     .shift = conversion->shift));
    if (!device->measuring)
        NL_TRY(device->ops->download(device, to, output->data, nl_tensor_bytes(output)));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

/* Bytes of the arena that run_batch takes. */
static nl_status measure(const nl_conversion *conversion, int64_t batch, int64_t height,
                         int64_t width, nl_dtype to_type, int64_t *bytes)
{
    nl_device measuring;
    nl_device_measuring(conversion->vae->device, &measuring);
    nl_status status = run_batch(conversion, &measuring, batch, height, width, NULL, to_type, NULL);
    *bytes = measuring.arena_peak;
    return status;
}

/* Bytes that the arena can come to, less what the host needs beside it. */
static int64_t capacity(const nl_device *device, int64_t host_bytes)
{
    int64_t left = nl_memory_left(device->context);
    if (device->arena_used) /* an arena in use cannot grow */
        return left < host_bytes ? 0 : device->arena_size - device->arena_used;
    if (left == INT64_MAX)
        return picture_cap;
    return NL_MAX(0, left + device->arena_size - host_bytes - ARENA_EXTRA);
}

/* An arena of `bytes`, with `host_bytes` left to allocate beside it: one that has grown larger than
 * that leaves room for is given back first. */
static nl_status reserve(nl_device *device, int64_t bytes, int64_t host_bytes)
{
    if (device->arena_used)
        return NL_OK;
    if (nl_memory_left(device->context) < host_bytes)
        nl_arena_free(device);
    return nl_arena_reserve(device, bytes);
}

/* ---- Whole pictures, several at a time */

static float from_byte(uint8_t x)
{
    return (float)x / 127.5f - 1;
}

/* trunc(127.5 x + shift) within [0, 255], as the operation to_uint8. */
static uint8_t to_byte(float x, float shift)
{
    float y = 127.5f * x + shift;
    return y >= 255 ? 255 : y > 0 ? (uint8_t)y : 0;
}

static nl_status convert_whole(const nl_conversion *conversion, int64_t batch, int64_t count,
                               int64_t height, int64_t width, const void *from, void *to)
{
    nl_vae *vae = conversion->vae;
    nl_device *device = vae->device;
    nl_context *context = device->context;
    bool decode = conversion->half == NL_VAE_DECODER;
    int64_t latent_size = vae->latent_channels * height * width;
    int64_t rgb_size = height * vae->factor * width * vae->factor * 3;
    nl_dtype type = decode ? NL_U8 : NL_F32;
    int64_t need;
    float *floats = NULL;
    nl_status status;
    int64_t host_bytes = decode ? 0 : batch * rgb_size * (int64_t)sizeof(float);
    NL_TRY(measure(conversion, batch, height, width, type, &need));
    NL_TRY(reserve(device, need, host_bytes));
    if (host_bytes)
        NL_TRY(
            NL_NEW_SIZED(context, "pictures on their way to the encoder", host_bytes, 1, &floats));
    for (int64_t first = 0; first < count; first += batch) {
        int64_t now = NL_MIN(batch, count - first);
        NL_TRY(nl_check_cancelled(context));
        if (decode) {
            const float *latents = (const float *)from + first * latent_size;
            uint8_t *rgb = (uint8_t *)to + first * rgb_size;
            NL_TRY(run_batch(conversion, device, now, height, width, latents, type, rgb));
        } else {
            const uint8_t *rgb = (const uint8_t *)from + first * rgb_size;
            for (int64_t i = 0; i < now * rgb_size; i++)
                floats[i] = from_byte(rgb[i]);
            NL_TRY(run_batch(conversion, device, now, height, width, floats, type,
                             (float *)to + first * latent_size));
        }
    }
cleanup:
    nl_free(context, floats);
    return status;
}

/* ---- Tiles of one picture */

/* One axis of a picture cut into tiles, in latents. */
typedef struct nl_axis {
    int64_t size, tile, tiles;
} nl_axis;

static void cut(nl_axis *axis, int64_t tiles)
{
    axis->tiles = tiles;
    axis->tile = (axis->size + (tiles - 1) * OVERLAP + tiles - 1) / tiles;
}

static int64_t tile_start(const nl_axis *axis, int64_t index)
{
    return axis->tiles == 1 ? 0 : index * (axis->size - axis->tile) / (axis->tiles - 1);
}

/* Weight of tile `index` at position p of its axis, in units of 1 / factor latents. */
static float raw_weight(const nl_axis *axis, int64_t index, int64_t p, int64_t factor)
{
    float ramp = (float)((OVERLAP - 2 * MARGIN) * factor), weight = 1;
    int64_t length = axis->tile * factor;
    if (index > 0)
        weight = ((float)(p - MARGIN * factor) + 0.5f) / ramp;
    if (index < axis->tiles - 1)
        weight = fminf(weight, ((float)(length - 1 - p - MARGIN * factor) + 0.5f) / ramp);
    return fminf(fmaxf(weight, 0), 1);
}

/* weights [tiles, tile * factor], which add up to one at every position of the axis. */
static nl_status make_weights(nl_context *context, const nl_axis *axis, int64_t factor,
                              float **weights)
{
    int64_t length = axis->tile * factor;
    float *sum = NULL, *w = NULL;
    nl_status status;
    NL_TRY(NL_NEW_ARRAY(context, "tile weights", axis->tiles * length, &w));
    NL_TRY(NL_NEW_ZEROS(context, "tile weights", axis->size * factor, &sum));
    for (int64_t i = 0; i < axis->tiles; i++)
        for (int64_t p = 0; p < length; p++) {
            w[i * length + p] = raw_weight(axis, i, p, factor);
            sum[tile_start(axis, i) * factor + p] += w[i * length + p];
        }
    for (int64_t i = 0; i < axis->tiles; i++)
        for (int64_t p = 0; p < length; p++)
            w[i * length + p] /= sum[tile_start(axis, i) * factor + p];
    *weights = w;
    w = NULL;
cleanup:
    nl_free(context, sum);
    nl_free(context, w);
    return status;
}

/* A picture's cut, its weights and its buffers. Layouts differ: latents are planes, pictures have
 * their channels last; strides hide that. */
typedef struct nl_tiling {
    nl_axis rows, columns;
    float *row_weights, *column_weights; /* at the output's resolution */
    float *input, *output;               /* one tile */
} nl_tiling;

/* Host memory beside the arena for a cut. */
static int64_t tiling_bytes(const nl_conversion *conversion, const nl_axis *rows,
                            const nl_axis *columns)
{
    int64_t f = conversion->vae->factor;
    int64_t tile = rows->tile * columns->tile * (3 * f * f + conversion->vae->latent_channels);
    int64_t sum = conversion->half == NL_VAE_DECODER ? 3 * f * f * rows->size * columns->size : 0;
    int64_t weights = f * (rows->tile * rows->tiles + rows->size + columns->tile * columns->tiles +
                           columns->size);
    return (int64_t)sizeof(float) * (tile + sum + weights) + 4096;
}

/* The fewest tiles that fit: the longer side of the tile is cut again until one does. */
static nl_status choose_tiles(const nl_conversion *conversion, nl_axis *rows, nl_axis *columns,
                              int64_t *need)
{
    nl_device *device = conversion->vae->device;
    cut(rows, 1);
    cut(columns, 1);
    for (;;) {
        int64_t room = capacity(device, tiling_bytes(conversion, rows, columns));
        nl_status status = measure(conversion, 1, rows->tile, columns->tile, NL_F32, need);
        if (status != NL_OK || *need <= room)
            return status;
        nl_axis *longer = rows->tile >= columns->tile ? rows : columns;
        if (longer->tile <= MINIMUM_TILE)
            return nl_fail(device->context, NL_ERROR_MEMORY,
                           "the autoencoder needs %.1f MiB for the smallest tile and %.1f MiB are "
                           "left%s",
                           (double)*need / (1 << 20), (double)room / (1 << 20),
                           device->context->options.max_memory ? " of the memory limit: allow more"
                                                               : "");
        cut(longer, longer->tiles + 1);
    }
}

/* input <- the tile of the picture at latent (top, left) */
static void take_tile(const nl_conversion *conversion, const nl_tiling *tiling, int64_t top,
                      int64_t left, const void *from)
{
    const nl_axis *rows = &tiling->rows, *columns = &tiling->columns;
    int64_t f = conversion->vae->factor, channels = conversion->vae->latent_channels;
    float *to = tiling->input;
    if (conversion->half == NL_VAE_DECODER) {
        const float *latents = from;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t y = 0; y < rows->tile; y++, to += columns->tile)
                memcpy(to, latents + (c * rows->size + top + y) * columns->size + left,
                       (size_t)columns->tile * sizeof(float));
        return;
    }
    const uint8_t *rgb = from;
    for (int64_t y = 0; y < rows->tile * f; y++) {
        const uint8_t *row = rgb + ((top * f + y) * columns->size + left) * f * 3;
        for (int64_t i = 0; i < columns->tile * f * 3; i++)
            *to++ = from_byte(row[i]);
    }
}

/* sum += weights * output, at the tile's place */
static void add_tile(const nl_conversion *conversion, const nl_tiling *tiling, int64_t row,
                     int64_t column, float *sum)
{
    const nl_axis *rows = &tiling->rows, *columns = &tiling->columns;
    bool decode = conversion->half == NL_VAE_DECODER;
    int64_t f = decode ? conversion->vae->factor : 1;
    int64_t planes = decode ? 1 : conversion->vae->latent_channels, inner = decode ? 3 : 1;
    int64_t height = rows->tile * f, width = columns->tile * f;
    int64_t top = tile_start(rows, row) * f, left = tile_start(columns, column) * f;
    const float *row_weight = tiling->row_weights + row * height;
    const float *column_weight = tiling->column_weights + column * width;
    const float *tile = tiling->output;
    for (int64_t c = 0; c < planes; c++)
        for (int64_t y = 0; y < height; y++) {
            float *to = sum + ((c * rows->size * f + top + y) * columns->size * f + left) * inner;
            for (int64_t x = 0; x < width; x++)
                for (int64_t i = 0; i < inner; i++)
                    *to++ += row_weight[y] * column_weight[x] * *tile++;
        }
}

static nl_status alloc_tiling(const nl_conversion *conversion, nl_tiling *tiling)
{
    nl_context *context = conversion->vae->device->context;
    bool decode = conversion->half == NL_VAE_DECODER;
    int64_t f = conversion->vae->factor, area = tiling->rows.tile * tiling->columns.tile;
    int64_t latent_size = conversion->vae->latent_channels * area, rgb_size = 3 * f * f * area;
    int64_t resolution = decode ? f : 1;
    NL_CHECK(NL_NEW_ARRAY(context, "a tile", decode ? latent_size : rgb_size, &tiling->input));
    NL_CHECK(NL_NEW_ARRAY(context, "a tile", decode ? rgb_size : latent_size, &tiling->output));
    NL_CHECK(make_weights(context, &tiling->rows, resolution, &tiling->row_weights));
    return make_weights(context, &tiling->columns, resolution, &tiling->column_weights);
}

static void free_tiling(nl_context *context, nl_tiling *tiling)
{
    nl_free(context, tiling->input);
    nl_free(context, tiling->output);
    nl_free(context, tiling->row_weights);
    nl_free(context, tiling->column_weights);
}

static nl_status convert_tiled(const nl_conversion *conversion, int64_t height, int64_t width,
                               const void *from, void *to)
{
    nl_vae *vae = conversion->vae;
    nl_device *device = vae->device;
    nl_context *context = device->context;
    bool decode = conversion->half == NL_VAE_DECODER;
    int64_t size = decode ? 3 * height * width * vae->factor * vae->factor
                          : vae->latent_channels * height * width;
    nl_tiling tiling = {.rows.size = height, .columns.size = width};
    int64_t need;
    float *sum = NULL;
    nl_status status;
    NL_TRY(choose_tiles(conversion, &tiling.rows, &tiling.columns, &need));
    NL_TRY(reserve(device, need, tiling_bytes(conversion, &tiling.rows, &tiling.columns)));
    NL_TRY(alloc_tiling(conversion, &tiling));
    if (decode)
        NL_TRY(NL_NEW_ARRAY(context, "the picture made of tiles", size, &sum));
    float *target = decode ? sum : to;
    memset(target, 0, (size_t)size * sizeof(float));
    for (int64_t row = 0; row < tiling.rows.tiles; row++)
        for (int64_t column = 0; column < tiling.columns.tiles; column++) {
            NL_TRY(nl_check_cancelled(context));
            take_tile(conversion, &tiling, tile_start(&tiling.rows, row),
                      tile_start(&tiling.columns, column), from);
            NL_TRY(run_batch(conversion, device, 1, tiling.rows.tile, tiling.columns.tile,
                             tiling.input, NL_F32, tiling.output));
            add_tile(conversion, &tiling, row, column, target);
        }
    for (int64_t i = 0; decode && i < size; i++)
        ((uint8_t *)to)[i] = to_byte(target[i], conversion->shift);
cleanup:
    nl_free(context, sum);
    free_tiling(context, &tiling);
    return status;
}

/* ---- Entries */

/* height, width in latents */
static nl_status convert(nl_vae *vae, nl_vae_half half, float shift, int64_t count, int64_t height,
                         int64_t width, const void *from, void *to)
{
    const nl_conversion conversion = {vae, half, shift};
    nl_context *context = vae->device->context;
    bool decode = half == NL_VAE_DECODER;
    int64_t rgb_size = 3 * height * width * vae->factor * vae->factor;
    int64_t latent_size = vae->latent_channels * height * width;
    int64_t room = capacity(vae->device, 0), single;
    nl_status status = measure(&conversion, 1, height, width, decode ? NL_U8 : NL_F32, &single);
    if (status != NL_OK)
        return status;
    if (!decode) /* the pictures as floats lie on the host beside the arena */
        single += rgb_size * (int64_t)sizeof(float);
    if (single <= room) {
        int64_t most = NL_MIN(MAX_BATCH, NL_MIN(room, batch_cap) / single);
        int64_t batch = NL_MAX(1, NL_MIN(count, most));
        return convert_whole(&conversion, batch, count, height, width, from, to);
    }
    nl_log(context, NL_LOG_DEBUG, "autoencoder: %lld x %lld latents in tiles", (long long)height,
           (long long)width);
    for (int64_t i = 0; i < count && status == NL_OK; i++) {
        if (decode)
            status =
                convert_tiled(&conversion, height, width, (const float *)from + i * latent_size,
                              (uint8_t *)to + i * rgb_size);
        else
            status = convert_tiled(&conversion, height, width, (const uint8_t *)from + i * rgb_size,
                                   (float *)to + i * latent_size);
    }
    return status;
}

/* Sizes come from callers, who may have them from files: 2^20 a side and 2^40 numbers in all are more
 * than any machine holds and leave room for every product below. */
static nl_status check_request(nl_vae *vae, int64_t count, int64_t height, int64_t width)
{
    const int64_t side = 1 << 20, numbers = INT64_C(1) << 40;
    int64_t area = 0, total = 0;
    if (count >= 0 && height > 0 && width > 0 && height <= side && width <= side &&
        nl_mul_size(height * width, 3 + vae->latent_channels, &area) &&
        nl_mul_size(area, count, &total) && total <= numbers)
        return NL_OK;
    return nl_fail(vae->device->context, NL_ERROR_USAGE, "%lld pictures of %lld x %lld: too large",
                   (long long)count, (long long)height, (long long)width);
}

nl_status nl_vae_decode_rounded(nl_vae *vae, const float *latents, int64_t count, int64_t height,
                                int64_t width, float shift, uint8_t *rgb)
{
    nl_status status = check_request(vae, count, height, width);
    if (status == NL_OK && count > 0)
        status = convert(vae, NL_VAE_DECODER, shift, count, height, width, latents, rgb);
    return status;
}

nl_status nl_vae_decode_pictures(nl_vae *vae, const float *latents, int64_t count, int64_t height,
                                 int64_t width, uint8_t *rgb)
{
    return nl_vae_decode_rounded(vae, latents, count, height, width, 128, rgb);
}

nl_status nl_vae_encode_pictures(nl_vae *vae, const uint8_t *rgb, int64_t count, int64_t height,
                                 int64_t width, float *latents)
{
    nl_status status = check_request(vae, count, height, width);
    if (status != NL_OK || count == 0)
        return status;
    if (height % vae->factor || width % vae->factor)
        return nl_fail(vae->device->context, NL_ERROR_USAGE,
                       "pictures of %lld x %lld pixels: the autoencoder takes multiples of %d",
                       (long long)width, (long long)height, vae->factor);
    return convert(vae, NL_VAE_ENCODER, 0, count, height / vae->factor, width / vae->factor, rgb,
                   latents);
}
