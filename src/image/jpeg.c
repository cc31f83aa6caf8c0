/* SPDX-License-Identifier: MIT */
/*
 * JPEG pixels through libjpeg-turbo. What libjpeg takes for warnings and papers over (a file cut off,
 * damaged codes) is an error here; data that is merely superfluous is not.
 */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "pixels.h"

enum { MAX_SCANS = 200 }; /* a small progressive file can ask for endless work */

/* Everything that must survive a longjmp lives here and not in locals. */
typedef struct nl_jpeg_reader {
    struct jpeg_error_mgr errors; /* first: libjpeg hands out its address */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct jpeg;
    jmp_buf escape;
    nl_context *context;
    const char *path;
    uint8_t *rgb;
    uint8_t *cmyk;     /* one row */
    int64_t accounted; /* bytes that libjpeg itself is expected to take */
    int orientation;
    nl_status status;
} nl_jpeg_reader;

static void on_error(j_common_ptr jpeg)
{
    nl_jpeg_reader *reader = (nl_jpeg_reader *)jpeg->err;
    char message[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, message);
    bool memory = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
    if (reader->status == NL_OK)
        reader->status = nl_fail(reader->context, memory ? NL_ERROR_MEMORY : NL_ERROR_INPUT,
                                 "%s: damaged JPEG: %s", reader->path, message);
    longjmp(reader->escape, 1);
}

static void on_message(j_common_ptr jpeg, int level)
{
    nl_jpeg_reader *reader = (nl_jpeg_reader *)jpeg->err;
    if (level >= 0)
        return;
    if (jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA && jpeg->err->msg_code != JWRN_ADOBE_XFORM)
        on_error(jpeg);
    char message[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, message);
    nl_log(reader->context, NL_LOG_DEBUG, "%s: %s", reader->path, message);
}

static void on_progress(j_common_ptr jpeg)
{
    nl_jpeg_reader *reader = (nl_jpeg_reader *)jpeg->err;
    if (reader->jpeg.input_scan_number <= MAX_SCANS)
        return;
    reader->status = nl_fail(reader->context, NL_ERROR_INPUT, "%s: a JPEG of more than %d scans",
                             reader->path, MAX_SCANS);
    longjmp(reader->escape, 1);
}

/* CMYK lies in a JPEG inverted, as Adobe writes it, with its marker or without (so PIL takes it, too). Without a
 * colour profile: R = (1 - C)(1 - K), and so on. */
static void cmyk_to_rgb(const uint8_t *cmyk, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++)
            rgb[c] = (uint8_t)(((unsigned)cmyk[c] * cmyk[3] + 127) / 255);
}

static nl_status allocate(nl_jpeg_reader *reader)
{
    const struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    nl_status status = nl_image_check_size(reader->context, NL_ERROR_INPUT, reader->path,
                                           jpeg->image_height, jpeg->image_width);
    if (status != NL_OK)
        return status;
    int64_t pixels = (int64_t)jpeg->image_height * jpeg->image_width;
    NL_TRY(NL_NEW_SIZED(reader->context, "a picture", pixels, 3, &reader->rgb));
    NL_TRY(NL_NEW_SIZED(reader->context, "a row", jpeg->image_width, 4, &reader->cmyk));
    /* with several scans libjpeg keeps the coefficients of the whole picture */
    if (jpeg_has_multiple_scans(&reader->jpeg)) {
        int64_t bytes = pixels * jpeg->num_components * (int64_t)sizeof(JCOEF);
        NL_TRY(nl_account(reader->context, "a progressive JPEG's coefficients", bytes));
        reader->accounted = bytes;
    }
cleanup:
    return status;
}

/* The part that libjpeg may leave by longjmp; no local of its own is used after that. */
static nl_status read_pixels(nl_jpeg_reader *reader, const nl_mapping *mapping)
{
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    if (setjmp(reader->escape))
        return reader->status;
    jpeg_create_decompress(jpeg);
    jpeg->progress = &reader->progress;
    jpeg_mem_src(jpeg, mapping->data, (unsigned long)mapping->size);
    jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff); /* EXIF */
    jpeg_read_header(jpeg, TRUE);
    for (jpeg_saved_marker_ptr marker = jpeg->marker_list; marker; marker = marker->next)
        if (marker->data_length > 6 && memcmp(marker->data, "Exif\0", 6) == 0)
            reader->orientation =
                nl_exif_orientation(marker->data + 6, (int64_t)marker->data_length - 6);
    bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    reader->status = allocate(reader);
    if (reader->status != NL_OK)
        return reader->status;
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = reader->rgb + (size_t)jpeg->output_scanline * jpeg->output_width * 3;
        JSAMPROW target = cmyk ? reader->cmyk : row;
        jpeg_read_scanlines(jpeg, &target, 1);
        if (cmyk)
            cmyk_to_rgb(reader->cmyk, (int)jpeg->output_width, row);
    }
    jpeg_finish_decompress(jpeg);
    return NL_OK;
}

nl_status nl_jpeg_pixels(nl_context *context, const char *path, const nl_mapping *mapping,
                         nl_image *image)
{
    nl_jpeg_reader reader;
    memset(&reader, 0, sizeof(reader));
    reader.context = context;
    reader.path = path;
    reader.jpeg.err = jpeg_std_error(&reader.errors);
    reader.errors.error_exit = on_error;
    reader.errors.emit_message = on_message;
    reader.progress.progress_monitor = on_progress;
    nl_status status = read_pixels(&reader, mapping);
    if (status == NL_OK) {
        image->height = (int)reader.jpeg.image_height;
        image->width = (int)reader.jpeg.image_width;
        image->rgb = reader.rgb;
        image->orientation = reader.orientation;
    } else {
        nl_free(context, reader.rgb);
    }
    jpeg_destroy_decompress(&reader.jpeg);
    nl_free(context, reader.cmyk);
    if (reader.accounted && nl_account(context, "JPEG", -reader.accounted) != NL_OK)
        status = NL_ERROR_INTERNAL;
    return status;
}
