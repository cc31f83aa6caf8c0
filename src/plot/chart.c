/* SPDX-License-Identifier: MIT */
/* Axes, ticks, legends and colours. */
#include "nl_chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TICKS = 40, TICK = 4 /* length of the mark */, LINE = 18 /* of text */ };

const nl_font nl_font_title = {14, NL_INK, true}, nl_font_label = {12, NL_INK, false},
              nl_font_tick = {11, 0x555555, false};

/* ---- Colours */

uint32_t nl_series_colour(int i)
{
    static const uint32_t colours[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                       0xe69f00, 0x56b4e9, 0x222222};
    return colours[i % NL_COUNT(colours)];
}

/* Between the stops around a part of the way. */
static uint32_t blend(const uint32_t *stops, int count, double part)
{
    double at = fmin(1, fmax(0, part)) * (count - 1);
    int from = NL_MIN((int)at, count - 2);
    uint32_t colour = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        double a = stops[from] >> shift & 255, b = stops[from + 1] >> shift & 255;
        colour = colour << 8 | (uint32_t)lrint(a + (at - from) * (b - a));
    }
    return colour;
}

uint32_t nl_pale(uint32_t colour)
{
    return blend((uint32_t[]){colour, 0xffffff}, 2, 0.62);
}

uint32_t nl_heat(double part)
{
    static const uint32_t stops[] = {0x000004, 0x210c4a, 0x57106e, 0x8a226a, 0xbc3754,
                                     0xe45a31, 0xf98c0a, 0xf9c932, 0xfcffa4};
    return blend(stops, NL_COUNT(stops), part);
}

uint32_t nl_blues(double part)
{
    static const uint32_t stops[] = {0xd6e6f4, 0xabd0e6, 0x6aaed6, 0x3787c0, 0x105ba4, 0x08306b};
    return blend(stops, NL_COUNT(stops), part);
}

/* ---- Axes */

/* What lies beyond has no place: differences and the room at the ends must stay finite. */
static const double largest = 1e300;

static double onto(const nl_axis *axis, double value)
{
    if (!(fabs(value) <= largest) || (axis->logarithmic && !(value >= 1 / largest)))
        return NAN;
    return axis->logarithmic ? log10(value) : value;
}

static double back(const nl_axis *axis, double value)
{
    value = axis->logarithmic ? pow(10, value) : value;
    return fmax(axis->logarithmic ? 1 / largest : -largest, fmin(largest, value));
}

double nl_axis_part(const nl_axis *axis, double value)
{
    double low = onto(axis, axis->low);
    return (onto(axis, value) - low) / (onto(axis, axis->high) - low);
}

nl_axis nl_axis_empty(const char *label, bool logarithmic)
{
    return (nl_axis){
        .low = INFINITY, .high = -INFINITY, .logarithmic = logarithmic, .label = label};
}

void nl_axis_include(nl_axis *axis, double value)
{
    if (!isfinite(onto(axis, value)))
        return;
    axis->low = fmin(axis->low, value);
    axis->high = fmax(axis->high, value);
}

void nl_axis_pad(nl_axis *axis, double before, double after)
{
    if (!(axis->low <= axis->high))
        axis->low = axis->high = 1;
    double low = onto(axis, axis->low), high = onto(axis, axis->high);
    if (!(high > low)) {
        double room = axis->logarithmic ? 0.3 : fmax(0.5, 0.05 * fabs(high));
        axis->low = back(axis, low - room);
        axis->high = back(axis, high + room);
        return;
    }
    axis->low = back(axis, low - before * (high - low));
    axis->high = back(axis, high + after * (high - low));
}

double nl_chart_x(const nl_chart *chart, double value)
{
    return chart->left + nl_axis_part(&chart->x, value) * (chart->right - chart->left);
}

double nl_chart_y(const nl_chart *chart, double value)
{
    return chart->bottom - nl_axis_part(&chart->y, value) * (chart->bottom - chart->top);
}

/* ---- Ticks */

/* 1, 2 or 5 times a power of ten, at least range / parts. */
static double tick_step(double range, double parts)
{
    double power = pow(10, floor(log10(range / parts))), times = range / parts / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

/* length: of the axis in the drawing. Returns how many. */
static int find_ticks(const nl_axis *axis, double length, double spacing, double *ticks)
{
    double low = onto(axis, axis->low), high = onto(axis, axis->high);
    double parts = fmax(1, length / (axis->spacing > 0 ? axis->spacing : spacing));
    int count = 0;
    if (axis->logarithmic && high - low > 0.7) {
        static const int marks[] = {1, 2, 5};
        int every = (int)ceil((high - low) / parts), all = 3 * (high - low) <= parts ? 3 : 1;
        for (int power = (int)floor(low); power <= (int)ceil(high); power++)
            for (int i = 0; i < all; i++) {
                double value = marks[i] * pow(10, power), at = log10(value);
                if (power % every == 0 && at >= low - 1e-9 && at <= high + 1e-9 &&
                    count < MAX_TICKS)
                    ticks[count++] = value;
            }
        return count;
    }
    double step = tick_step(axis->high - axis->low, parts), first = ceil(axis->low / step - 1e-9);
    /* Counted: of large numbers close together, value + step may be value. */
    for (int i = 0; i < MAX_TICKS && (first + i) * step <= axis->high + 1e-9 * step; i++)
        ticks[count++] = (first + i) * step;
    return count;
}

void nl_number_text(double value, char text[32])
{
    char digits[32];
    int used = 0;
    if (!(fabs(value) >= 1e3 && fabs(value) < 1e15 && value == rint(value))) {
        snprintf(text, 32, "%.6g", fabs(value) < 1e-300 ? 0.0 : value);
        char *exponent = strchr(text, 'e'), *from = exponent ? exponent + 2 : NULL;
        while (from && *from == '0')
            from++;
        if (exponent)
            memmove(exponent + 1 + (exponent[1] == '-'), from, strlen(from) + 1);
        return;
    }
    int count = snprintf(digits, sizeof(digits), "%.0f", value);
    for (int i = 0; i < count; i++) {
        if (i > 0 && digits[i - 1] != '-' && (count - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
}

enum { SPACING_X = 90, SPACING_Y = 48 };

void nl_chart_make_room(nl_canvas *canvas, nl_chart *chart)
{
    double ticks[MAX_TICKS], widest = 0;
    char text[32];
    chart->bottom -= TICK + LINE + (chart->x.label ? LINE : 0);
    int count = find_ticks(&chart->y, chart->bottom - chart->top, SPACING_Y, ticks);
    for (int i = 0; i < count; i++) {
        nl_number_text(ticks[i], text);
        widest = fmax(widest, nl_canvas_text_width(canvas, nl_font_tick, text));
    }
    chart->left += widest + TICK + 4 + (chart->y.label ? LINE + 4 : 0);
}

void nl_chart_draw(nl_canvas *canvas, const nl_chart *chart)
{
    double ticks[MAX_TICKS], left = chart->left, right = chart->right, bottom = chart->bottom;
    char text[32];
    double widest = 0;
    int count = find_ticks(&chart->x, right - left, SPACING_X, ticks);
    for (int i = 0; i < count; i++) {
        double x = nl_chart_x(chart, ticks[i]);
        nl_number_text(ticks[i], text);
        nl_canvas_line(canvas, x, chart->top, x, bottom, 1, NL_GRID);
        nl_canvas_line(canvas, x, bottom, x, bottom + TICK, 1, NL_GREY);
        nl_canvas_text(canvas, x, bottom + TICK + 13, 0.5, nl_font_tick, text);
    }
    count = find_ticks(&chart->y, bottom - chart->top, SPACING_Y, ticks);
    for (int i = 0; i < count; i++) {
        double y = nl_chart_y(chart, ticks[i]);
        nl_number_text(ticks[i], text);
        nl_canvas_line(canvas, left, y, right, y, 1, NL_GRID);
        nl_canvas_line(canvas, left - TICK, y, left, y, 1, NL_GREY);
        nl_canvas_text(canvas, left - TICK - 4, y + 4, 1, nl_font_tick, text);
        widest = fmax(widest, nl_canvas_text_width(canvas, nl_font_tick, text));
    }
    nl_canvas_line(canvas, left, chart->top, left, bottom, 1, NL_GREY);
    nl_canvas_line(canvas, left, bottom, right, bottom, 1, NL_GREY);
    if (chart->x.label)
        nl_canvas_text(canvas, (left + right) / 2, bottom + TICK + LINE + 15, 0.5, nl_font_label,
                       chart->x.label);
    if (chart->y.label)
        nl_canvas_text_upwards(canvas, left - TICK - widest - 12, (chart->top + bottom) / 2,
                               nl_font_label, chart->y.label);
}

/* ---- Keys */

double nl_legend(nl_canvas *canvas, const nl_key *keys, int count, double left, double right,
                 double top)
{
    enum { SAMPLE = 26, GAP = 7, BETWEEN = 22 };
    double x = left, y = top;
    for (int i = 0; i < count; i++) {
        double width = SAMPLE + GAP + nl_canvas_text_width(canvas, nl_font_label, keys[i].text);
        if (x > left && x + width > right) {
            x = left;
            y += LINE;
        }
        nl_canvas_point(canvas, x, y + 9);
        nl_canvas_point(canvas, x + SAMPLE, y + 9);
        nl_canvas_stroke(canvas, keys[i].width, keys[i].colour, keys[i].dashed);
        if (keys[i].marked)
            nl_canvas_mark(canvas, x + SAMPLE / 2.0, y + 9, 3, keys[i].colour);
        nl_canvas_text(canvas, x + SAMPLE + GAP, y + 13, 0, nl_font_label, keys[i].text);
        x += width + BETWEEN;
    }
    return count ? y + LINE + 4 : top;
}

double nl_colour_bar(nl_canvas *canvas, double left, double top, uint32_t (*colour)(double part),
                     const char *low, const char *high, const char *what)
{
    enum { PARTS = 64, WIDTH = 128, HEIGHT = 10, GAP = 7 };
    double y = top + 13;
    nl_canvas_text(canvas, left, y, 0, nl_font_label, low);
    left += nl_canvas_text_width(canvas, nl_font_label, low) + GAP;
    for (int i = 0; i < PARTS; i++)
        nl_canvas_rectangle(canvas, left + i * WIDTH / PARTS, top + 4,
                            left + (i + 1) * WIDTH / PARTS, top + 4 + HEIGHT,
                            colour((double)i / (PARTS - 1)));
    left += WIDTH + GAP;
    nl_canvas_text(canvas, left, y, 0, nl_font_label, high);
    left += nl_canvas_text_width(canvas, nl_font_label, high) + 2 * GAP;
    nl_canvas_text(canvas, left, y, 0, nl_font_label, what);
    return left + nl_canvas_text_width(canvas, nl_font_label, what);
}
