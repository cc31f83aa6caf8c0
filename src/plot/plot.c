/* SPDX-License-Identifier: MIT */
/* Curves of runs in one picture. */
#include "nl_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "curves.h"
#include "nl_chart.h"

enum { MAX_POINTS = 1500 };

typedef struct nl_series {
    const char *name;
    nl_curve raw, smooth, validation;
    bool itself; /* validation has the value itself, not what it is on held-out data */
} nl_series;

typedef struct nl_figure {
    const nl_plot_options *options;
    const nl_series *series;
    int count;
} nl_figure;

/* What a number of a log is called, with its unit. */
static const char *label_of(const char *name)
{
    static const char *const labels[][2] = {
        {"step", "training step"},
        {"seconds", "time in seconds"},
        {"epoch", "epoch"},
        {"images_per_second", "images per second"},
        {"lr", "learning rate"},
        {"grad_norm", "norm of the gradient"},
        {"mfu", "model FLOPs utilisation, part of the peak"},
        {"memory", "memory in bytes"},
        {"skipped", "skipped steps"},
        {"cfg_scale", "guidance scale"},
        {"fid", "FID"},
        {"fid_768", "FID-768"},
        {"sfid", "sFID"},
        {"inception_score", "Inception Score"},
    };
    for (int i = 0; i < NL_COUNT(labels); i++)
        if (!strcmp(name, labels[i][0]))
            return labels[i][1];
    return name;
}

static void draw_curve(nl_canvas *canvas, const nl_chart *chart, const nl_curve *curve,
                       double width, uint32_t colour, bool dashed)
{
    for (int64_t i = 0; i < curve->count; i++)
        nl_canvas_point(canvas, nl_chart_x(chart, curve->points[2 * i]),
                        nl_chart_y(chart, curve->points[2 * i + 1]));
    nl_canvas_stroke(canvas, width, colour, dashed);
    if (curve->count == 1) /* of which no line can be seen */
        nl_canvas_mark(canvas, nl_chart_x(chart, curve->points[0]),
                       nl_chart_y(chart, curve->points[1]), width, colour);
}

static const double bold = 2.2, thin = 1;

/* The palette begins anew, with dashes. */
static bool dashed(int series)
{
    return series >= 7;
}

static void draw_series(nl_canvas *canvas, const nl_chart *chart, const nl_figure *figure)
{
    for (int i = 0; i < figure->count; i++) {
        const nl_series *s = &figure->series[i];
        uint32_t colour = nl_series_colour(i);
        if (s->smooth.count)
            draw_curve(canvas, chart, &s->raw, thin, nl_pale(colour), false);
        else
            draw_curve(canvas, chart, &s->raw, bold, colour, dashed(i));
    }
    for (int i = 0; i < figure->count; i++)
        draw_curve(canvas, chart, &figure->series[i].smooth, bold, nl_series_colour(i), dashed(i));
    for (int i = 0; i < figure->count; i++) {
        const nl_series *s = &figure->series[i];
        const double *points = s->validation.points;
        draw_curve(canvas, chart, &s->validation, 1.5, nl_series_colour(i), !s->itself);
        for (int64_t k = 0; k < s->validation.count; k++)
            nl_canvas_mark(canvas, nl_chart_x(chart, points[2 * k]),
                           nl_chart_y(chart, points[2 * k + 1]), 3, nl_series_colour(i));
    }
}

/* Which colour is which run, then what kinds of lines there are. Returns where the chart can begin. */
static nl_status draw_legend(nl_canvas *canvas, const nl_figure *figure, double right, double *top)
{
    nl_context *context = nl_canvas_context(canvas);
    nl_status status;
    bool smoothed = false, held_out = false;
    char average[80];
    nl_key *keys = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "a legend", figure->count, &keys));
    for (int i = 0; i < figure->count; i++) {
        const nl_series *s = &figure->series[i];
        keys[i] = (nl_key){s->name, nl_series_colour(i), bold, dashed(i),
                           s->itself && s->validation.count};
        smoothed |= s->smooth.count > 0;
        held_out |= s->validation.count && !s->itself;
    }
    *top = nl_legend(canvas, keys, figure->count, NL_MARGIN, right, 10);
    snprintf(average, sizeof(average), "bold: moving average, weight %g of what came before",
             figure->options->smoothing);
    nl_key kinds[3];
    int count = 0;
    if (smoothed) {
        kinds[count++] = (nl_key){average, 0x555555, bold, false, false};
        kinds[count++] = (nl_key){"thin: as logged", nl_pale(0x555555), thin, false, false};
    }
    if (held_out)
        kinds[count++] = (nl_key){"held-out data", 0x555555, 1.5, true, true};
    *top = nl_legend(canvas, kinds, count, NL_MARGIN, right, *top) + 6;
cleanup:
    nl_free(context, keys);
    return status;
}

static void include(nl_chart *chart, const nl_curve *curve)
{
    for (int64_t i = 0; i < curve->count; i++) {
        nl_axis_include(&chart->x, curve->points[2 * i]);
        nl_axis_include(&chart->y, curve->points[2 * i + 1]);
    }
}

static nl_status draw(void *user, nl_canvas *canvas)
{
    const nl_figure *figure = user;
    const nl_plot_options *options = figure->options;
    nl_chart chart = {.left = NL_MARGIN,
                      .right = (double)options->width - NL_MARGIN - 6,
                      .bottom = (double)options->height - NL_MARGIN + 4,
                      .x = nl_axis_empty(label_of(options->over), options->log_over),
                      .y = nl_axis_empty(label_of(options->value), options->log_scale)};
    for (int i = 0; i < figure->count; i++) {
        include(&chart, &figure->series[i].raw);
        include(&chart, &figure->series[i].validation);
    }
    bool steps = !strcmp(options->over, "step"); /* a run begins at the axis */
    nl_axis_pad(&chart.x, steps ? 0 : 0.02, 0.02);
    nl_axis_pad(&chart.y, 0.04, 0.04);
    NL_CHECK(draw_legend(canvas, figure, chart.right, &chart.top));
    nl_chart_make_room(canvas, &chart);
    nl_chart_draw(canvas, &chart);
    draw_series(canvas, &chart, figure);
    return NL_OK;
}

static nl_status read_series(nl_context *context, const char *run, const nl_plot_options *options,
                             nl_series *series)
{
    nl_status status = NL_OK;
    char *log = NULL, *metrics = NULL, key[64];
    snprintf(key, sizeof(key), "val_%s", options->value);
    NL_TRY(nl_path_join(context, run, options->log, &log));
    NL_TRY(nl_path_join(context, run, options->metrics, &metrics));
    if (!nl_path_exists(log) && !nl_path_exists(metrics))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected the folder of a run of nalagen train, found no %s and no %s "
                       "in it",
                       run, options->log, options->metrics));
    NL_TRY(nl_curve_read(context, log, options->over, options->value, &series->raw));
    NL_TRY(nl_curve_read(context, metrics, options->over, key, &series->validation));
    if (!series->validation.count) { /* "fid", of nalagen eval --watch */
        nl_curve_free(context, &series->validation);
        NL_TRY(nl_curve_read(context, metrics, options->over, options->value, &series->validation));
        series->itself = true;
    }
    if (!series->raw.count && !series->validation.count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: %s and %s have no numbers \"%s\" by \"%s\"",
                       run, options->log, options->metrics, options->value, options->over));
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

/* The last part of each path; the paths as they were given where those are the same. */
static void name_series(nl_series *series, const char *const *runs, int count)
{
    for (int i = 0; i < count; i++) {
        const char *slash = strrchr(runs[i], '/');
        series[i].name = slash && slash[1] ? slash + 1 : runs[i];
        for (int j = 0; j < i; j++)
            if (!strcmp(series[i].name, series[j].name)) {
                series[i].name = runs[i];
                series[j].name = runs[j];
            }
    }
}

nl_status nl_plot(nl_context *context, const char *const *runs, int count,
                  const nl_plot_options *options)
{
    nl_status status = NL_OK;
    nl_series *series = NULL;
    NL_TRY(NL_NEW_ZEROS(context, "curves", count, &series));
    name_series(series, runs, count);
    for (int i = 0; i < count; i++)
        NL_TRY(read_series(context, runs[i], options, &series[i]));
    nl_figure figure = {options, series, count};
    nl_drawing drawing = {.width = (double)options->width,
                          .height = (double)options->height,
                          .draw = draw,
                          .user = &figure};
    for (int i = 0; options->out[i]; i++)
        NL_TRY(nl_drawing_write(context, &drawing, options->out[i], options->overwrite));
cleanup:
    for (int i = 0; series && i < count; i++) {
        nl_curve_free(context, &series[i].raw);
        nl_curve_free(context, &series[i].smooth);
        nl_curve_free(context, &series[i].validation);
    }
    nl_free(context, series);
    return status;
}
