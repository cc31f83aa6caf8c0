/* SPDX-License-Identifier: MIT */
/* What charts are made of: axes with ticks, legends, colours that colour-blind people can tell apart. */
#ifndef NL_CHART_H
#define NL_CHART_H

#include "nl_canvas.h"

/* ---- Colours and type */

/* Of series number i: Okabe and Ito's palette without its yellow, which a white page swallows. */
uint32_t nl_series_colour(int i);
uint32_t nl_pale(uint32_t colour); /* two thirds of the way to white */
/* part: 0 to 1. Both grow evenly in lightness. */
uint32_t nl_heat(double part);  /* black, purple, orange, pale yellow (inferno) */
uint32_t nl_blues(double part); /* pale to dark blue */

extern const nl_font nl_font_title, nl_font_label, nl_font_tick;
enum { NL_INK = 0x222222, NL_GREY = 0x8a8a8a, NL_GRID = 0xe4e4e4, NL_MARGIN = 14 };

/* ---- Axes */

typedef struct nl_axis {
    double low, high;  /* what is shown */
    bool logarithmic;  /* both are above 0 */
    const char *label; /* with its unit; NULL: none */
    double
        spacing; /* between ticks, at least, in units of the drawing; 0: enough for most labels */
} nl_axis;

/* An axis that shows nothing yet, and one that shows a value more. What a logarithm does not know is left out. */
nl_axis nl_axis_empty(const char *label, bool logarithmic);
void nl_axis_include(nl_axis *axis, double value);
/* Room at the ends: parts of the range. An axis without values, or with one, is given a range. */
void nl_axis_pad(nl_axis *axis, double before, double after);

typedef struct nl_chart {
    double left, top, right, bottom; /* of the area for the data */
    nl_axis x, y;
} nl_chart;

/* Makes the area smaller by what ticks and labels take. */
void nl_chart_make_room(nl_canvas *canvas, nl_chart *chart);
/* Grid, ticks and labels. */
void nl_chart_draw(nl_canvas *canvas, const nl_chart *chart);
/* Places of values; NaN where a logarithm has none. */
double nl_chart_x(const nl_chart *chart, double value);
double nl_chart_y(const nl_chart *chart, double value);
/* Part of an axis, 0 to 1. */
double nl_axis_part(const nl_axis *axis, double value);

/* "0.25", "1,000", "1e-9" */
void nl_number_text(double value, char text[32]);

/* ---- Keys: one beside the other from left to right, in as many lines as they take */

typedef struct nl_key {
    const char *text;
    uint32_t colour;
    double width; /* of the line */
    bool dashed, marked;
} nl_key;

/* Returns where the next thing can begin below. */
double nl_legend(nl_canvas *canvas, const nl_key *keys, int count, double left, double right,
                 double top);
/* A bar of colours from 0 to 1 with a text at either end and what it is about behind it. Returns its right end. */
double nl_colour_bar(nl_canvas *canvas, double left, double top, uint32_t (*colour)(double part),
                     const char *low, const char *high, const char *what);

#endif
