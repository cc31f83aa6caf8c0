/* SPDX-License-Identifier: MIT */
/* Drawing lines, boxes and text at once into pixels and into SVG. */
#include "canvas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

nl_status nl_canvas_open(nl_context *context, int width, int height, nl_canvas *canvas)
{
    nl_status status = NL_OK;
    int64_t pixels = (int64_t)width * height;
    *canvas = (nl_canvas){.context = context, .width = width, .height = height};
    NL_TRY(NL_NEW_SIZED(context, "a drawing", pixels, 3, &canvas->rgb));
    NL_TRY(NL_NEW_ARRAY(context, "a drawing", pixels, &canvas->cover));
    memset(canvas->rgb, 255, (size_t)pixels * 3);
    memset(canvas->cover, 0, (size_t)pixels * sizeof(float));
    canvas->svg = open_memstream(&canvas->svg_text, &canvas->svg_size);
    if (!canvas->svg)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for a drawing"));
    fprintf(canvas->svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            width, height, width, height, width, height);
cleanup:
    return status;
}

nl_status nl_canvas_finish(nl_canvas *canvas)
{
    FILE *svg = canvas->svg;
    fputs("</svg>\n", svg);
    canvas->svg = NULL;
    return fclose(svg) == EOF ? nl_fail(canvas->context, NL_ERROR_MEMORY, "no memory for a drawing")
                              : NL_OK;
}

void nl_canvas_close(nl_canvas *canvas)
{
    if (canvas->svg)
        fclose(canvas->svg);
    free(canvas->svg_text);
    nl_free(canvas->context, canvas->rgb);
    nl_free(canvas->context, canvas->cover);
    *canvas = (nl_canvas){0};
}

/* ---- Pixels: a line covers a pixel by how far its middle is from it, at most once. */

typedef struct nl_box {
    int left, top, right, bottom; /* right and bottom lie outside */
} nl_box;

static nl_box around(const nl_canvas *canvas, const double *a, const double *b, double reach)
{
    nl_box box = {(int)fmax(0, floor(fmin(a[0], b[0]) - reach)),
                  (int)fmax(0, floor(fmin(a[1], b[1]) - reach)),
                  (int)fmin(canvas->width, ceil(fmax(a[0], b[0]) + reach)),
                  (int)fmin(canvas->height, ceil(fmax(a[1], b[1]) + reach))};
    return box;
}

static void cover_segment(nl_canvas *canvas, const double *a, const double *b, double width,
                          nl_box *touched)
{
    double reach = width / 2 + 1, dx = b[0] - a[0], dy = b[1] - a[1], square = dx * dx + dy * dy;
    nl_box box = around(canvas, a, b, reach);
    for (int y = box.top; y < box.bottom; y++)
        for (int x = box.left; x < box.right; x++) {
            double px = x + 0.5 - a[0], py = y + 0.5 - a[1];
            double along = square > 0 ? fmin(1, fmax(0, (px * dx + py * dy) / square)) : 0;
            double away = hypot(px - along * dx, py - along * dy);
            float covered = (float)fmin(1, fmax(0, width / 2 + 0.5 - away));
            float *cover = &canvas->cover[(int64_t)y * canvas->width + x];
            *cover = fmaxf(*cover, covered);
        }
    touched->left = NL_MIN(touched->left, box.left);
    touched->top = NL_MIN(touched->top, box.top);
    touched->right = NL_MAX(touched->right, box.right);
    touched->bottom = NL_MAX(touched->bottom, box.bottom);
}

/* Paints what is covered and clears the cover. */
static void paint(nl_canvas *canvas, const nl_box *box, uint32_t colour)
{
    for (int y = box->top; y < box->bottom; y++)
        for (int x = box->left; x < box->right; x++) {
            int64_t at = (int64_t)y * canvas->width + x;
            for (int c = 0; c < 3; c++) {
                uint8_t *pixel = &canvas->rgb[3 * at + c];
                float ink = (float)(colour >> (16 - 8 * c) & 255);
                *pixel = (uint8_t)lrintf((float)*pixel + canvas->cover[at] * (ink - (float)*pixel));
            }
            canvas->cover[at] = 0;
        }
}

void nl_canvas_line(nl_canvas *canvas, const double *points, int64_t count, double width,
                    uint32_t colour)
{
    nl_box touched = {canvas->width, canvas->height, 0, 0};
    bool down = false;
    fputs("<path d=\"", canvas->svg);
    for (int64_t i = 0; i < count; i++) {
        const double *point = points + 2 * i;
        bool drawn = isfinite(point[0]) && isfinite(point[1]);
        if (drawn)
            fprintf(canvas->svg, "%c%.1f %.1f", down ? 'L' : 'M', point[0], point[1]);
        if (drawn && down)
            cover_segment(canvas, point - 2, point, width, &touched);
        down = drawn;
    }
    fprintf(canvas->svg,
            "\" fill=\"none\" stroke=\"#%06x\" stroke-width=\"%g\" stroke-linejoin=\"round\"/>\n",
            colour, width);
    paint(canvas, &touched, colour);
}

void nl_canvas_rectangle(nl_canvas *canvas, double left, double top, double right, double bottom,
                         uint32_t colour)
{
    fprintf(canvas->svg,
            "<path d=\"M%.1f %.1fH%.1fV%.1fH%.1f\" fill=\"#%06x\" "
            "shape-rendering=\"crispEdges\"/>\n",
            left, top, right, bottom, left, colour);
    int first = (int)fmax(0, ceil(left - 0.5)), last = (int)fmin(canvas->width, ceil(right - 0.5));
    for (int y = (int)fmax(0, ceil(top - 0.5)); y + 0.5 < bottom && y < canvas->height; y++)
        for (int x = first; x < last; x++)
            for (int c = 0; c < 3; c++)
                canvas->rgb[3 * ((int64_t)y * canvas->width + x) + c] =
                    (uint8_t)(colour >> (16 - 8 * c));
}

/* ---- Text */

enum { GLYPH_HEIGHT = 6, GLYPH_STEP = 6 /* from one character to the next */ };

double nl_text_width(double size, const char *text)
{
    return size / GLYPH_HEIGHT * (double)(GLYPH_STEP * strlen(text));
}

static void print_xml(FILE *stream, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(stream, "&#%d;", *text);
        else
            fputc((unsigned char)*text < ' ' ? '?' : *text, stream);
}

void nl_canvas_text(nl_canvas *canvas, double x, double y, double anchor, double size,
                    uint32_t colour, const char *text)
{
    double scale = size / GLYPH_HEIGHT, left = x - anchor * nl_text_width(size, text);
    nl_box touched = {canvas->width, canvas->height, 0, 0};
    fprintf(canvas->svg,
            "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" text-anchor=\"%s\" fill=\"#%06x\">", x,
            y, size * 1.4,
            anchor <= 0  ? "start"
            : anchor < 1 ? "middle"
                         : "end",
            colour);
    print_xml(canvas->svg, text);
    fputs("</text>\n", canvas->svg);
    for (; *text; text++, left += scale * GLYPH_STEP) {
        double pen[2], next[2];
        bool down = false;
        for (const char *at = nl_glyph(*text); *at; at++) {
            if (*at == ' ') {
                down = false;
                continue;
            }
            next[0] = left + scale * (at[0] - '0');
            next[1] = y + scale * (at[1] - '0' - GLYPH_HEIGHT);
            if (down)
                cover_segment(canvas, pen, next, size / 8, &touched);
            memcpy(pen, next, sizeof(pen));
            down = true;
            at++;
        }
    }
    paint(canvas, &touched, colour);
}
