/* SPDX-License-Identifier: MIT */
/* Curves of runs in one picture. */
#include <math.h>
#include <string.h>

#include "canvas.h"
#include "curves.h"
#include "nl_image.h"
#include "nl_run.h"
#include "nl_train.h"

enum {
    MAX_POINTS = 1500,
    MAX_TICKS = 20,
    MARGIN_LEFT = 76,
    MARGIN_RIGHT = 20,
    MARGIN_TOP = 20,
    MARGIN_BOTTOM = 46
};
static const uint32_t colours[] = {0x1f77b4, 0xd62728, 0x2ca02c, 0x9467bd,
                                   0xff7f0e, 0x17becf, 0x8c564b, 0xe377c2};
static const uint32_t grey = 0xdddddd, ink = 0x333333;

typedef struct nl_series {
    const char *name;
    nl_curve raw, smooth, validation;
    bool itself; /* validation has the value itself, not what it is on held-out data */
} nl_series;

typedef struct nl_figure {
    nl_canvas canvas;
    const nl_plot_options *options;
    double low[2], high[2]; /* of both axes, of logarithms where they are logarithmic */
} nl_figure;

static bool logarithmic(const nl_figure *figure, int axis)
{
    return axis ? figure->options->log_scale : figure->options->log_over;
}

/* Of a value on its axis, before it becomes a place. */
static double on_axis(const nl_figure *figure, int axis, double value)
{
    return logarithmic(figure, axis) ? (value > 0 ? log10(value) : NAN) : value;
}

static double place(const nl_figure *figure, int axis, double value)
{
    const nl_canvas *canvas = &figure->canvas;
    double part = (on_axis(figure, axis, value) - figure->low[axis]) /
                  (figure->high[axis] - figure->low[axis]);
    if (axis == 0)
        return MARGIN_LEFT + part * (canvas->width - MARGIN_LEFT - MARGIN_RIGHT);
    return canvas->height - MARGIN_BOTTOM - part * (canvas->height - MARGIN_TOP - MARGIN_BOTTOM);
}

static void widen(nl_figure *figure, const nl_curve *curve)
{
    for (int64_t i = 0; i < curve->count; i++)
        for (int axis = 0; axis < 2; axis++) {
            double value = on_axis(figure, axis, curve->points[2 * i + axis]);
            figure->low[axis] = fmin(figure->low[axis], value);
            figure->high[axis] = fmax(figure->high[axis], value);
        }
}

/* 1, 2 or 5 times a power of ten, about range / parts. */
static double tick_step(double range, int parts)
{
    double power = pow(10, floor(log10(range / parts))), times = range / parts / power;
    return power * (times <= 1.5 ? 1 : times <= 3.5 ? 2 : times <= 7.5 ? 5 : 10);
}

static void draw_tick(nl_figure *figure, int axis, double value)
{
    nl_canvas *canvas = &figure->canvas;
    char text[32];
    double at = place(figure, axis, value);
    double bottom = canvas->height - MARGIN_BOTTOM, right = canvas->width - MARGIN_RIGHT;
    snprintf(text, sizeof(text), "%.6g", fabs(value) < 1e-12 ? 0.0 : value);
    if (axis == 0) {
        nl_canvas_line(canvas, (double[]){at, MARGIN_TOP, at, bottom}, 2, 1, grey);
        nl_canvas_text(canvas, at, bottom + 16, 0.5, 9, ink, text);
    } else {
        nl_canvas_line(canvas, (double[]){MARGIN_LEFT, at, right, at}, 2, 1, grey);
        nl_canvas_text(canvas, MARGIN_LEFT - 6, at + 4, 1, 9, ink, text);
    }
}

static void draw_ticks(nl_figure *figure, int axis)
{
    double low = figure->low[axis], high = figure->high[axis];
    bool decades = logarithmic(figure, axis) && high - low > 0.7;
    if (decades) {
        static const int marks[] = {1, 2, 5};
        for (int power = (int)floor(low); power <= (int)ceil(high); power++)
            for (int i = 0; i < (high - low > 4 ? 1 : 3); i++) {
                double value = marks[i] * pow(10, power);
                if (log10(value) >= low && log10(value) <= high)
                    draw_tick(figure, axis, value);
            }
        return;
    }
    if (logarithmic(figure, axis)) {
        low = pow(10, low);
        high = pow(10, high);
    }
    /* Counted: of large numbers close together, value + step may be value. */
    double step = tick_step(high - low, axis ? 6 : 8), first = ceil(low / step);
    for (int i = 0; i < MAX_TICKS && (first + i) * step <= high * (1 + 1e-12); i++)
        draw_tick(figure, axis, (first + i) * step);
}

static void draw_curve(nl_figure *figure, const nl_curve *curve, double width, uint32_t colour)
{
    double *points = curve->points;
    for (int64_t i = 0; i < curve->count; i++)
        for (int axis = 0; axis < 2; axis++)
            points[2 * i + axis] = place(figure, axis, points[2 * i + axis]);
    nl_canvas_line(&figure->canvas, points, curve->count, width, colour);
}

static void draw_marks(nl_figure *figure, const nl_curve *curve, uint32_t colour)
{
    for (int64_t i = 0; i < curve->count; i++) {
        double x = curve->points[2 * i], y = curve->points[2 * i + 1];
        nl_canvas_line(&figure->canvas, (double[]){x - 3, y - 3, x + 3, y + 3}, 2, 1.5, colour);
        nl_canvas_line(&figure->canvas, (double[]){x - 3, y + 3, x + 3, y - 3}, 2, 1.5, colour);
    }
}

/* Half way to white. */
static uint32_t pale(uint32_t colour)
{
    return (colour >> 1 & 0x7f7f7f) + 0x808080;
}

static uint32_t dark(uint32_t colour)
{
    return colour >> 1 & 0x7f7f7f;
}

static void draw_legend(nl_figure *figure, const nl_series *series, int count)
{
    double right = figure->canvas.width - MARGIN_RIGHT - 10, y = MARGIN_TOP + 18;
    char text[300];
    for (int i = 0; i < count; i++) {
        uint32_t colour = colours[i % NL_COUNT(colours)];
        for (int part = 0; part < 2; part++) {
            if (!(part ? series[i].validation : series[i].raw).count)
                continue;
            snprintf(text, sizeof(text), "%.200s%s", series[i].name,
                     part && !series[i].itself ? ", validation" : "");
            nl_canvas_text(&figure->canvas, right, y, 1, 10, part ? dark(colour) : colour, text);
            y += 18;
        }
    }
}

static void draw(nl_figure *figure, nl_series *series, int count)
{
    nl_canvas *canvas = &figure->canvas;
    double left = MARGIN_LEFT, top = MARGIN_TOP;
    double right = canvas->width - MARGIN_RIGHT, bottom = canvas->height - MARGIN_BOTTOM;
    for (int axis = 0; axis < 2; axis++)
        draw_ticks(figure, axis);
    for (int i = 0; i < count; i++) {
        uint32_t colour = colours[i % NL_COUNT(colours)];
        bool smoothed = series[i].smooth.count > 0;
        draw_curve(figure, &series[i].raw, smoothed ? 1 : 1.8, smoothed ? pale(colour) : colour);
        draw_curve(figure, &series[i].smooth, 1.8, colour);
    }
    for (int i = 0; i < count; i++) {
        uint32_t colour = dark(colours[i % NL_COUNT(colours)]);
        draw_curve(figure, &series[i].validation, 1.5, colour);
        draw_marks(figure, &series[i].validation, colour);
    }
    nl_canvas_line(canvas,
                   (double[]){left, top, right, top, right, bottom, left, bottom, left, top}, 5, 1,
                   ink);
    nl_canvas_text(canvas, (left + right) / 2, bottom + 36, 0.5, 10, ink, figure->options->over);
    nl_canvas_text(canvas, left + 8, top + 18, 0, 10, ink, figure->options->value);
    draw_legend(figure, series, count);
}

static nl_status read_series(nl_context *context, const char *run, const nl_plot_options *options,
                             nl_series *series)
{
    nl_status status = NL_OK;
    char *log = NULL, *metrics = NULL, key[64];
    const char *slash = strrchr(run, '/');
    series->name = slash && slash[1] ? slash + 1 : run;
    snprintf(key, sizeof(key), "val_%s", options->value);
    NL_TRY(nl_path_join(context, run, NL_RUN_LOG, &log));
    NL_TRY(nl_path_join(context, run, NL_RUN_METRICS, &metrics));
    if (!nl_path_exists(log) && !nl_path_exists(metrics))
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT,
                    "%s: expected the folder of a run of nalagen train, found no log.jsonl and no "
                    "metrics.jsonl in it",
                    run));
    NL_TRY(nl_curve_read(context, log, options->over, options->value, &series->raw));
    NL_TRY(nl_curve_read(context, metrics, options->over, key, &series->validation));
    if (!series->validation.count) { /* "fid", of nalagen eval --watch */
        nl_curve_free(context, &series->validation);
        NL_TRY(nl_curve_read(context, metrics, options->over, options->value, &series->validation));
        series->itself = true;
    }
    if (!series->raw.count && !series->validation.count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: log.jsonl and metrics.jsonl have no numbers \"%s\" by \"%s\"", run,
                       options->value, options->over));
    if (options->smoothing > 0) {
        NL_TRY(nl_curve_read(context, log, options->over, options->value, &series->smooth));
        nl_curve_smooth(&series->smooth, options->smoothing);
    }
    nl_curve_thin(&series->raw, MAX_POINTS);
    nl_curve_thin(&series->smooth, MAX_POINTS);
cleanup:
    nl_free(context, log);
    nl_free(context, metrics);
    return status;
}

static void choose_range(nl_figure *figure, const nl_series *series, int count)
{
    for (int axis = 0; axis < 2; axis++) {
        figure->low[axis] = INFINITY;
        figure->high[axis] = -INFINITY;
    }
    for (int i = 0; i < count; i++) {
        widen(figure, &series[i].raw);
        widen(figure, &series[i].validation);
    }
    for (int axis = 0; axis < 2; axis++) {
        if (!(figure->low[axis] <= figure->high[axis])) /* nothing above 0 for the logarithm */
            figure->low[axis] = figure->high[axis] = 0;
        double room = 0.04 * (figure->high[axis] - figure->low[axis]);
        if (room <= 0)
            room = fmax(1e-9, 0.05 * fabs(figure->high[axis])) + (axis == 0 ? 1 : 0);
        figure->high[axis] += room;
        /* a run begins at the frame */
        figure->low[axis] -= axis == 0 && !strcmp(figure->options->over, "step") ? 0 : room;
    }
}

nl_status nl_plot(nl_context *context, const char *const *runs, int count,
                  const nl_plot_options *options)
{
    nl_status status = NL_OK;
    nl_figure figure = {.options = options};
    nl_series *series = NULL;
    NL_TRY(NL_NEW_ZEROS(context, "curves", count, &series));
    for (int i = 0; i < count; i++)
        NL_TRY(read_series(context, runs[i], options, &series[i]));
    choose_range(&figure, series, count);
    NL_TRY(nl_canvas_open(context, (int)options->width, (int)options->height, &figure.canvas));
    draw(&figure, series, count);
    NL_TRY(nl_canvas_finish(&figure.canvas));
    if (options->svg)
        NL_TRY(nl_write_file(context, options->svg, options->overwrite, figure.canvas.svg_text,
                             figure.canvas.svg_size));
    if (options->png)
        NL_TRY(nl_png_write(context, options->png, options->overwrite, figure.canvas.rgb,
                            figure.canvas.height, figure.canvas.width, NULL));
cleanup:
    for (int i = 0; series && i < count; i++) {
        nl_curve_free(context, &series[i].raw);
        nl_curve_free(context, &series[i].smooth);
        nl_curve_free(context, &series[i].validation);
    }
    nl_free(context, series);
    nl_canvas_close(&figure.canvas);
    return status;
}
