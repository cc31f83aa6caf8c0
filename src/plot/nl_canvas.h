/* SPDX-License-Identifier: MIT */
/*
 * Drawings through Cairo: one code for SVG, PNG and PDF. The same drawing gives the same bytes: no dates, no
 * names of programs. What is written in a drawing also stands in an SVG as <desc> and in a PNG as its text
 * "Description", for those who cannot see it and for searching.
 */
#ifndef NL_CANVAS_H
#define NL_CANVAS_H

#include "nl_image.h"

typedef struct nl_canvas nl_canvas;

typedef struct nl_drawing {
    double width, height; /* in units of a screen's pixel; y points downwards */
    double scale;         /* pixels of a PNG for each unit; 0 counts as 1 */
    nl_status (*draw)(void *user, nl_canvas *canvas);
    void *user;
} nl_drawing;

/* Whether a drawing can be written under this name: it ends in .svg, .png or .pdf. */
bool nl_drawing_path(const char *path);
/* Draws into a file of that name. Nothing stands there before all of it was drawn. */
nl_status nl_drawing_write(nl_context *context, const nl_drawing *drawing, const char *path,
                           bool overwrite);
/* The same as pixels; image->text holds the description. */
nl_status nl_drawing_render(nl_context *context, const nl_drawing *drawing, nl_image *image);

/* ---- Inside of draw(). White at first. Colours are 0xrrggbb. Failures show when the drawing ends. */

nl_context *nl_canvas_context(const nl_canvas *canvas);

/* A line: its points, then the stroke. A NaN interrupts it. */
void nl_canvas_point(nl_canvas *canvas, double x, double y);
void nl_canvas_stroke(nl_canvas *canvas, double width, uint32_t colour, bool dashed);
void nl_canvas_line(nl_canvas *canvas, double x0, double y0, double x1, double y1, double width,
                    uint32_t colour);
/* A frame around a rectangle. */
void nl_canvas_frame(nl_canvas *canvas, double left, double top, double right, double bottom,
                     double width, uint32_t colour);
/* Filled, without soft edges, so that neighbours meet. */
void nl_canvas_rectangle(nl_canvas *canvas, double left, double top, double right, double bottom,
                         uint32_t colour);
/* A filled circle with a white rim, that stands out from lines. */
void nl_canvas_mark(nl_canvas *canvas, double x, double y, double radius, uint32_t colour);
/* rgb [height, width, 3] over the rectangle. */
void nl_canvas_picture(nl_canvas *canvas, double left, double top, double right, double bottom,
                       const uint8_t *rgb, int height, int width);

typedef struct nl_font {
    double size; /* of the em, in units */
    uint32_t colour;
    bool bold;
} nl_font;
/* anchor: the part of the text that lies left of x. y: of the base line. What is no UTF-8 shows as U+FFFD. */
void nl_canvas_text(nl_canvas *canvas, double x, double y, double anchor, nl_font font,
                    const char *text);
/* Upwards along x, its middle at y. */
void nl_canvas_text_upwards(nl_canvas *canvas, double x, double y, nl_font font, const char *text);
double nl_canvas_text_width(nl_canvas *canvas, nl_font font, const char *text);

#endif
