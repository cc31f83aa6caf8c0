/* SPDX-License-Identifier: MIT */
/* PNG pixels through libpng, from memory and with our allocator. */
#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "pixels.h"

/* Everything that must survive a longjmp lives here and not in locals. */
typedef struct nl_png_reader {
    nl_context *context;
    const char *path;
    const nl_mapping *mapping;
    int64_t offset;
    png_structp png;
    png_infop info;
    png_bytep *rows;
    uint8_t *pixels;
    int channels;
    nl_status status;
} nl_png_reader;

static void on_error(png_structp png, png_const_charp message)
{
    nl_png_reader *reader = png_get_error_ptr(png);
    if (reader->status == NL_OK)
        reader->status =
            nl_fail(reader->context, NL_ERROR_INPUT, "%s: damaged PNG: %s", reader->path, message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    const nl_png_reader *reader = png_get_error_ptr(png);
    nl_log(reader->context, NL_LOG_DEBUG, "%s: %s", reader->path, message);
}

static void on_read(png_structp png, png_bytep to, size_t size)
{
    nl_png_reader *reader = png_get_io_ptr(png);
    if ((uint64_t)(reader->mapping->size - reader->offset) < size)
        png_error(png, "cut off");
    memcpy(to, reader->mapping->data + reader->offset, size);
    reader->offset += (int64_t)size;
}

static png_voidp on_alloc(png_structp png, png_alloc_size_t size)
{
    nl_png_reader *reader = png_get_mem_ptr(png);
    void *memory;
    nl_status status = NL_NEW_SIZED(reader->context, "reading a PNG", (int64_t)size, 1, &memory);
    if (status != NL_OK)
        reader->status = status;
    return memory;
}

static void on_free(png_structp png, png_voidp memory)
{
    const nl_png_reader *reader = png_get_mem_ptr(png);
    nl_free(reader->context, memory);
}

/* Palette, grey, 16 bits and transparency to 8-bit RGB or RGBA. */
static void set_transforms(png_structp png)
{
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
}

/* The part that libpng may leave by longjmp; no local of its own is used after that. */
static nl_status read_pixels(nl_png_reader *reader, int height, int width)
{
    if (setjmp(png_jmpbuf(reader->png)))
        return reader->status;
    png_set_read_fn(reader->png, reader, on_read);
    png_set_crc_action(reader->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(reader->png, (png_uint_32)width, (png_uint_32)height);
    png_set_keep_unknown_chunks(reader->png, PNG_HANDLE_CHUNK_NEVER,
                                (png_const_bytep) "tEXt\0zTXt\0iTXt\0iCCP", 4);
    png_read_info(reader->png, reader->info);
    set_transforms(reader->png);
    png_read_update_info(reader->png, reader->info);
    reader->channels = png_get_channels(reader->png, reader->info);
    size_t row_bytes = png_get_rowbytes(reader->png, reader->info);
    if ((reader->channels != 3 && reader->channels != 4) ||
        row_bytes != (size_t)width * (size_t)reader->channels)
        return nl_fail(reader->context, NL_ERROR_INPUT, "%s: a PNG with %d channels", reader->path,
                       reader->channels);
    reader->status = NL_NEW_SIZED(reader->context, "a picture", height, row_bytes, &reader->pixels);
    if (reader->status != NL_OK)
        return reader->status;
    reader->status = NL_NEW_ARRAY(reader->context, "rows", height, &reader->rows);
    if (reader->status != NL_OK)
        return reader->status;
    for (int y = 0; y < height; y++)
        reader->rows[y] = reader->pixels + (size_t)y * row_bytes;
    png_read_image(reader->png, reader->rows);
    png_read_end(reader->png, NULL);
    return NL_OK;
}

void nl_drop_alpha(uint8_t *pixels, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = pixels + 4 * i;
        unsigned alpha = from[3];
        for (int c = 0; c < 3; c++)
            pixels[3 * i + (size_t)c] =
                (uint8_t)((from[c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
}

nl_status nl_png_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                        nl_image *image)
{
    nl_png_reader reader = {.context = context, .path = path, .mapping = mapping};
    nl_status status = NL_ERROR_MEMORY;
    reader.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning,
                                          &reader, on_alloc, on_free);
    reader.info = reader.png ? png_create_info_struct(reader.png) : NULL;
    if (reader.info)
        status = read_pixels(&reader, image->height, image->width);
    else if (reader.status == NL_OK)
        status = nl_fail(context, NL_ERROR_MEMORY, "%s: libpng does not start", path);
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    nl_free(context, reader.rows);
    if (status != NL_OK) {
        nl_free(context, reader.pixels);
        return status;
    }
    if (reader.channels == 4)
        nl_drop_alpha(reader.pixels, (size_t)image->height * (size_t)image->width);
    image->rgb = reader.pixels;
    return NL_OK;
}
