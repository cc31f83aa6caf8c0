/* SPDX-License-Identifier: MIT */
/*
 * A drawing of lines and text, as SVG and as pixels at the same time. Coordinates are pixels, y downwards.
 * Text on the pixels is drawn with strokes.
 */
#ifndef NL_CANVAS_H
#define NL_CANVAS_H

#include <stdio.h>

#include "nl_core.h"

typedef struct nl_canvas {
    nl_context *context;
    int width, height;
    uint8_t *rgb; /* [height, width, 3] */
    float *cover; /* [height, width] of the line at work */
    FILE *svg;    /* into svg_text */
    char *svg_text;
    size_t svg_size;
} nl_canvas;

/* White. */
nl_status nl_canvas_open(nl_context *context, int width, int height, nl_canvas *canvas);
/* Ends the SVG text; nothing may be drawn any more. */
nl_status nl_canvas_finish(nl_canvas *canvas);
void nl_canvas_close(nl_canvas *canvas);

/* A line through `count` points (x, y), where a NaN interrupts it. colour: 0xrrggbb. */
void nl_canvas_line(nl_canvas *canvas, const double *points, int64_t count, double width,
                    uint32_t colour);
/* Fills the pixels whose middles lie within [left, right) x [top, bottom). */
void nl_canvas_rectangle(nl_canvas *canvas, double left, double top, double right, double bottom,
                         uint32_t colour);
/* anchor: the part of the text that lies left of x. size: of a capital letter. */
void nl_canvas_text(nl_canvas *canvas, double x, double y, double anchor, double size,
                    uint32_t colour, const char *text);
/* What nl_canvas_text takes, in pixels. */
double nl_text_width(double size, const char *text);

/* Strokes of a character on a grid 4 wide, 6 high and 2 deep below the line: pairs of digits x y (y from the
 * top), strokes ended by a space. A box for what has none. */
const char *nl_glyph(char character);

#endif
