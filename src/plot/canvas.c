/* SPDX-License-Identifier: MIT */
/* Drawings through Cairo, into memory and from there through the checked writer. */
#include "nl_canvas.h"

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_utf8.h"

/* fontconfig takes the next sans-serif family where it is missing. */
static const char font_family[] = "DejaVu Sans";

struct nl_canvas {
    nl_context *context;
    const nl_drawing *drawing;
    cairo_t *cairo;
    bool pen; /* down: the last point was one */
    FILE *words;
};

static void close_stream(FILE **stream, bool *failed)
{
    *failed |= *stream && fclose(*stream) == EOF;
    *stream = NULL;
}

static nl_status no_memory(nl_context *context)
{
    return nl_fail(context, NL_ERROR_MEMORY, "no memory for a drawing");
}

static nl_status check(nl_context *context, cairo_status_t status)
{
    if (status == CAIRO_STATUS_SUCCESS)
        return NL_OK;
    if (status == CAIRO_STATUS_NO_MEMORY || status == CAIRO_STATUS_WRITE_ERROR)
        return no_memory(context);
    return nl_fail(context, NL_ERROR_INTERNAL,
                   "a drawing failed: %s (are fonts installed, such as fonts-dejavu-core?)",
                   cairo_status_to_string(status));
}

/* ---- From a drawing to a surface */

/* The texts of the drawing, a line each, into *words (of malloc). */
static nl_status draw_on(nl_context *context, const nl_drawing *drawing, cairo_surface_t *surface,
                         char **words)
{
    nl_status status;
    size_t size;
    bool failed = false;
    nl_canvas canvas = {.context = context, .drawing = drawing};
    cairo_font_options_t *options = cairo_font_options_create();
    canvas.words = open_memstream(words, &size);
    canvas.cairo = cairo_create(surface);
    if (!canvas.words)
        NL_TRY(no_memory(context));
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
    cairo_set_font_options(canvas.cairo, options);
    cairo_set_line_join(canvas.cairo, CAIRO_LINE_JOIN_ROUND);
    cairo_set_source_rgb(canvas.cairo, 1, 1, 1);
    cairo_paint(canvas.cairo);
    NL_TRY(drawing->draw(drawing->user, &canvas));
    NL_TRY(check(context, cairo_status(canvas.cairo)));
    cairo_surface_flush(surface);
cleanup:
    cairo_destroy(canvas.cairo);
    cairo_font_options_destroy(options);
    close_stream(&canvas.words, &failed);
    return status == NL_OK && failed ? no_memory(context) : status;
}

nl_status nl_drawing_render(nl_context *context, const nl_drawing *drawing, nl_image *image)
{
    nl_status status;
    double scale = drawing->scale > 0 ? drawing->scale : 1;
    int width = (int)lrint(drawing->width * scale), height = (int)lrint(drawing->height * scale);
    char *words = NULL;
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    *image = (nl_image){.height = height, .width = width};
    NL_TRY(check(context, cairo_surface_status(surface)));
    cairo_surface_set_device_scale(surface, scale, scale);
    NL_TRY(draw_on(context, drawing, surface, &words));
    NL_TRY(NL_NEW_ARRAY(context, "a drawing", 3 * (int64_t)width * height, &image->rgb));
    const uint8_t *pixels = cairo_image_surface_get_data(surface);
    int stride = cairo_image_surface_get_stride(surface);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            uint32_t pixel;
            memcpy(&pixel, pixels + (int64_t)y * stride + 4 * x, sizeof(pixel));
            for (int c = 0; c < 3; c++)
                image->rgb[3 * ((int64_t)y * width + x) + c] = (uint8_t)(pixel >> (16 - 8 * c));
        }
    NL_TRY(NL_NEW_ZEROS(context, "a description", 3, &image->text));
    NL_TRY(nl_strdup(context, "Description", &image->text[0]));
    NL_TRY(nl_strdup(context, words, &image->text[1]));
cleanup:
    cairo_surface_destroy(surface);
    free(words);
    if (status != NL_OK)
        nl_image_free(context, image);
    return status;
}

/* ---- SVG and PDF */

static cairo_status_t take_bytes(void *stream, const unsigned char *bytes, unsigned int size)
{
    return fwrite(bytes, 1, size, stream) == size ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static nl_status write_xml(nl_writer *writer, const char *text)
{
    nl_status status = NL_OK;
    while (status == NL_OK && *text) {
        size_t plain = strcspn(text, "<>&");
        status = nl_writer_write(writer, text, plain);
        text += plain;
        if (status == NL_OK && *text)
            status = nl_writer_printf(writer, "&#%d;", *text++);
    }
    return status;
}

/* Cairo's SVG with the description in it, and without the number of the surface, which counts all of this process. */
static nl_status write_svg(nl_writer *writer, const char *svg, const char *words)
{
    static const char numbered[] = " id=\"surface";
    const char *start = strstr(svg, "<svg"), *body = start ? strchr(start, '>') : NULL;
    body = body ? body + 1 : svg;
    NL_CHECK(nl_writer_write(writer, svg, (size_t)(body - svg)));
    NL_CHECK(nl_writer_printf(writer, "\n<desc>"));
    NL_CHECK(write_xml(writer, words));
    NL_CHECK(nl_writer_printf(writer, "</desc>"));
    const char *number = strstr(body, numbered);
    const char *behind = number ? strchr(number + sizeof(numbered), '"') : NULL;
    if (behind) {
        NL_CHECK(nl_writer_write(writer, body, (size_t)(number - body)));
        body = behind + 1;
    }
    return nl_writer_write(writer, body, strlen(body));
}

static nl_status write_vectors(nl_context *context, const nl_drawing *drawing, bool pdf,
                               const char *path, bool overwrite)
{
    nl_status status = NL_OK;
    char *bytes = NULL, *words = NULL;
    size_t size;
    bool failed = false;
    cairo_surface_t *surface = NULL;
    nl_writer *writer = NULL;
    FILE *stream = open_memstream(&bytes, &size);
    if (!stream)
        return no_memory(context);
    surface = pdf ? cairo_pdf_surface_create_for_stream(take_bytes, stream, drawing->width,
                                                        drawing->height)
                  : cairo_svg_surface_create_for_stream(take_bytes, stream, drawing->width,
                                                        drawing->height);
    NL_TRY(check(context, cairo_surface_status(surface)));
    if (pdf) /* no date: what is none is left out */
        cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_CREATE_DATE, "none");
    else
        cairo_svg_surface_set_document_unit(surface, CAIRO_SVG_UNIT_PX);
    NL_TRY(draw_on(context, drawing, surface, &words));
    cairo_surface_finish(surface);
    NL_TRY(check(context, cairo_surface_status(surface)));
    close_stream(&stream, &failed);
    if (failed)
        NL_TRY(no_memory(context));
    NL_TRY(nl_writer_open(context, path, overwrite, &writer));
    NL_TRY(pdf ? nl_writer_write(writer, bytes, size) : write_svg(writer, bytes, words));
    NL_TRY(nl_writer_commit(&writer));
cleanup:
    nl_writer_abort(&writer);
    cairo_surface_destroy(surface);
    close_stream(&stream, &failed);
    free(bytes);
    free(words);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), ending = strlen(end);
    return length >= ending && !strcmp(text + length - ending, end);
}

bool nl_drawing_path(const char *path)
{
    return ends_with(path, ".svg") || ends_with(path, ".png") || ends_with(path, ".pdf");
}

nl_status nl_drawing_write(nl_context *context, const nl_drawing *drawing, const char *path,
                           bool overwrite)
{
    if (!nl_drawing_path(path))
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected a name ending in .svg, .png or .pdf",
                       path);
    if (!ends_with(path, ".png"))
        return write_vectors(context, drawing, ends_with(path, ".pdf"), path, overwrite);
    nl_image image;
    nl_status status = nl_drawing_render(context, drawing, &image);
    if (status == NL_OK)
        status = nl_png_write(context, path, overwrite, image.rgb, image.height, image.width,
                              (const char *const *)image.text);
    nl_image_free(context, &image);
    return status;
}

/* ---- What draw() calls */

nl_context *nl_canvas_context(const nl_canvas *canvas)
{
    return canvas->context;
}

static void set_colour(nl_canvas *canvas, uint32_t colour)
{
    cairo_set_source_rgb(canvas->cairo, (colour >> 16 & 255) / 255.0, (colour >> 8 & 255) / 255.0,
                         (colour & 255) / 255.0);
}

void nl_canvas_point(nl_canvas *canvas, double x, double y)
{
    bool there = isfinite(x) && isfinite(y);
    if (there && canvas->pen)
        cairo_line_to(canvas->cairo, x, y);
    else if (there)
        cairo_move_to(canvas->cairo, x, y);
    canvas->pen = there;
}

void nl_canvas_stroke(nl_canvas *canvas, double width, uint32_t colour, bool dashed)
{
    set_colour(canvas, colour);
    cairo_set_line_width(canvas->cairo, width);
    cairo_set_dash(canvas->cairo, (double[]){4 * width, 2 * width}, dashed ? 2 : 0, 0);
    cairo_stroke(canvas->cairo);
    canvas->pen = false;
}

void nl_canvas_line(nl_canvas *canvas, double x0, double y0, double x1, double y1, double width,
                    uint32_t colour)
{
    nl_canvas_point(canvas, x0, y0);
    nl_canvas_point(canvas, x1, y1);
    nl_canvas_stroke(canvas, width, colour, false);
}

void nl_canvas_frame(nl_canvas *canvas, double left, double top, double right, double bottom,
                     double width, uint32_t colour)
{
    cairo_rectangle(canvas->cairo, left, top, right - left, bottom - top);
    nl_canvas_stroke(canvas, width, colour, false);
}

void nl_canvas_rectangle(nl_canvas *canvas, double left, double top, double right, double bottom,
                         uint32_t colour)
{
    set_colour(canvas, colour);
    cairo_set_antialias(canvas->cairo, CAIRO_ANTIALIAS_NONE);
    cairo_rectangle(canvas->cairo, left, top, right - left, bottom - top);
    cairo_fill(canvas->cairo);
    cairo_set_antialias(canvas->cairo, CAIRO_ANTIALIAS_DEFAULT);
}

void nl_canvas_mark(nl_canvas *canvas, double x, double y, double radius, uint32_t colour)
{
    if (!isfinite(x) || !isfinite(y))
        return;
    for (int rim = 1; rim >= 0; rim--) {
        set_colour(canvas, rim ? 0xffffff : colour);
        cairo_arc(canvas->cairo, x, y, radius + rim, 0, 6.283185307179586);
        cairo_fill(canvas->cairo);
    }
}

void nl_canvas_picture(nl_canvas *canvas, double left, double top, double right, double bottom,
                       const uint8_t *rgb, int height, int width)
{
    cairo_t *cairo = canvas->cairo;
    cairo_surface_t *picture = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    uint8_t *pixels = cairo_image_surface_get_data(picture);
    int stride = cairo_image_surface_get_stride(picture);
    for (int y = 0; pixels && y < height; y++)
        for (int x = 0; x < width; x++) {
            const uint8_t *from = rgb + 3 * ((int64_t)y * width + x);
            uint32_t pixel = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
            memcpy(pixels + (int64_t)y * stride + 4 * x, &pixel, sizeof(pixel));
        }
    cairo_surface_mark_dirty(picture);
    cairo_save(cairo);
    cairo_translate(cairo, left, top);
    cairo_scale(cairo, (right - left) / width, (bottom - top) / height);
    cairo_set_source_surface(cairo, picture, 0, 0);
    /* What is enlarged by whole times keeps its pixels. */
    double times = (right - left) / width;
    bool whole = times >= 2 && times == rint(times) && times * height == bottom - top;
    cairo_pattern_set_filter(cairo_get_source(cairo),
                             whole ? CAIRO_FILTER_NEAREST : CAIRO_FILTER_BEST);
    cairo_pattern_set_extend(cairo_get_source(cairo), CAIRO_EXTEND_PAD);
    cairo_rectangle(cairo, 0, 0, width, height);
    cairo_fill(cairo);
    cairo_restore(cairo);
    cairo_surface_destroy(picture);
}

/* ---- Text */

/* What Cairo takes: UTF-8 without control characters; U+FFFD stands for what is neither. */
static const char *clean(const char *text, char *room, size_t size)
{
    size_t length = strlen(text), used = 0;
    while (*text && used + 4 < size) {
        uint32_t code;
        int bytes = nl_utf8_decode(text, length, &code);
        bool fine = bytes > 0 && code >= 0x20 && !(code >= 0x7F && code < 0xA0);
        memcpy(room + used, fine ? text : "\xEF\xBF\xBD", fine ? (size_t)bytes : 3);
        used += fine ? (size_t)bytes : 3;
        bytes = NL_MAX(bytes, 1);
        text += bytes;
        length -= (size_t)bytes;
    }
    room[used] = 0;
    return room;
}

static void choose(nl_canvas *canvas, nl_font font)
{
    cairo_select_font_face(canvas->cairo, font_family, CAIRO_FONT_SLANT_NORMAL,
                           font.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(canvas->cairo, font.size);
}

static double advance(nl_canvas *canvas, const char *clean_text)
{
    cairo_text_extents_t extents;
    cairo_text_extents(canvas->cairo, clean_text, &extents);
    return extents.x_advance;
}

double nl_canvas_text_width(nl_canvas *canvas, nl_font font, const char *text)
{
    char room[512];
    choose(canvas, font);
    return advance(canvas, clean(text, room, sizeof(room)));
}

void nl_canvas_text(nl_canvas *canvas, double x, double y, double anchor, nl_font font,
                    const char *text)
{
    char room[512];
    text = clean(text, room, sizeof(room));
    choose(canvas, font);
    set_colour(canvas, font.colour);
    cairo_move_to(canvas->cairo, x - anchor * advance(canvas, text), y);
    cairo_show_text(canvas->cairo, text);
    cairo_new_path(canvas->cairo);
    fprintf(canvas->words, "%s\n", text);
}

void nl_canvas_text_upwards(nl_canvas *canvas, double x, double y, nl_font font, const char *text)
{
    cairo_save(canvas->cairo);
    cairo_translate(canvas->cairo, x, y);
    cairo_rotate(canvas->cairo, -1.5707963267948966);
    nl_canvas_text(canvas, 0, 0, 0.5, font, text);
    cairo_restore(canvas->cairo);
}
