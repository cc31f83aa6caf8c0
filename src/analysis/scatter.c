/* SPDX-License-Identifier: MIT */
/* Points of a query's norm and its entropy, so many that they are counted in cells. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_analysis.h"
#include "nl_chart.h"

enum {
    PANEL_WIDTH = 290,
    PANEL_HEIGHT = 240,
    COLUMNS = 4,
    HEAD = 88, /* height of the figure's title and key */
    CELLS_X = 55,
    CELLS_Y = 43,
};
static const uint32_t mean_colour = 0xd55e00;
static const double mean_width = 2.4;

typedef struct nl_panel {
    nl_chart chart;
    const double *x, *y;
    int64_t count;
} nl_panel;

typedef struct nl_scatter {
    const nl_analysis *analysis;
    nl_attention rule;
    int panels, columns;
    double *x, *y; /* room for all points */
} nl_scatter;

static void choose_range(nl_panel *panel)
{
    for (int64_t i = 0; i < panel->count; i++) {
        nl_axis_include(&panel->chart.x, panel->x[i]);
        nl_axis_include(&panel->chart.y, panel->y[i]);
    }
    double highest = panel->chart.y.high;
    nl_axis_pad(&panel->chart.x, 0.03, 0.03);
    nl_axis_pad(&panel->chart.y, 0.03, 0.03);
    if (panel->count) { /* an entropy is between 0 and ln N */
        panel->chart.y.low = fmax(panel->chart.y.low, 0);
        panel->chart.y.high = fmin(panel->chart.y.high, fmax(highest, 1));
    }
}

/* Coloured by the logarithm of the number of points. */
static void draw_cells(nl_canvas *canvas, const nl_panel *panel)
{
    const nl_chart *chart = &panel->chart;
    int64_t counts[CELLS_Y][CELLS_X] = {{0}}, most = 0;
    double width = (chart->right - chart->left) / CELLS_X;
    double height = (chart->bottom - chart->top) / CELLS_Y;
    for (int64_t i = 0; i < panel->count; i++) {
        int x = NL_MIN(CELLS_X - 1, (int)(nl_axis_part(&chart->x, panel->x[i]) * CELLS_X));
        int y = NL_MIN(CELLS_Y - 1, (int)((1 - nl_axis_part(&chart->y, panel->y[i])) * CELLS_Y));
        counts[y][x]++;
        most = NL_MAX(most, counts[y][x]);
    }
    for (int y = 0; y < CELLS_Y; y++)
        for (int x = 0; x < CELLS_X; x++)
            if (counts[y][x])
                nl_canvas_rectangle(
                    canvas, chart->left + x * width, chart->top + y * height,
                    chart->left + (x + 1) * width, chart->top + (y + 1) * height,
                    nl_blues(most > 1 ? log((double)counts[y][x]) / log((double)most) : 1));
}

/* The mean entropy of queries of like norm, where at least ten are. */
static void draw_means(nl_canvas *canvas, const nl_panel *panel)
{
    enum { PARTS = 20, LEAST = 10 };
    const nl_axis *axis = &panel->chart.x;
    double sums[PARTS] = {0};
    int64_t counts[PARTS] = {0};
    for (int64_t i = 0; i < panel->count; i++) {
        int at = NL_MIN(PARTS - 1, (int)(nl_axis_part(axis, panel->x[i]) * PARTS));
        sums[at] += panel->y[i];
        counts[at]++;
    }
    for (int i = 0; i < PARTS; i++) {
        double norm = axis->low + (i + 0.5) / PARTS * (axis->high - axis->low);
        double mean = counts[i] < LEAST ? NAN : sums[i] / (double)counts[i];
        nl_canvas_point(canvas, nl_chart_x(&panel->chart, norm), nl_chart_y(&panel->chart, mean));
    }
    nl_canvas_stroke(canvas, mean_width, mean_colour, false);
}

/* number: of the panel, which is a layer's place in the options, or behind the last one all of them together. */
static nl_status draw_panel(nl_canvas *canvas, const nl_scatter *scatter, int number)
{
    const nl_analysis *analysis = scatter->analysis;
    int layer = number < analysis->options.layer_count ? number : -1;
    int row = number / scatter->columns, column = number % scatter->columns;
    char title[64] = "all layers", correlation[64];
    double spearman = NAN, left = column * PANEL_WIDTH + NL_MARGIN, *x = scatter->x,
           *y = scatter->y;
    double top = HEAD + row * PANEL_HEIGHT;
    nl_panel panel = {.chart = {.left = left,
                                .top = top + 24,
                                .right = left + PANEL_WIDTH - 22,
                                .bottom = top + PANEL_HEIGHT - 14,
                                .x = nl_axis_empty("norm of the query", false),
                                .y = nl_axis_empty(column ? NULL : "entropy / ln N", false)},
                      .x = x,
                      .y = y};
    panel.chart.x.spacing = 52;
    panel.chart.y.spacing = 36;
    panel.count = nl_analysis_select(analysis, scatter->rule, (nl_selection){-1, layer, -1}, x, y);
    for (int64_t i = 0; analysis->tokens > 1 && i < panel.count; i++)
        y[i] /= log((double)analysis->tokens);
    NL_CHECK(nl_spearman(analysis->context, x, y, panel.count, &spearman));
    if (layer >= 0)
        snprintf(title, sizeof(title), "layer %d", analysis->options.layers[layer]);
    snprintf(correlation, sizeof(correlation), "r %.2f   \xCF\x81 %.2f",
             nl_pearson(x, y, panel.count), spearman);
    choose_range(&panel);
    nl_chart_make_room(canvas, &panel.chart);
    nl_chart_draw(canvas, &panel.chart);
    draw_cells(canvas, &panel);
    draw_means(canvas, &panel);
    nl_canvas_text(canvas, panel.chart.left, top + 16, 0,
                   (nl_font){nl_font_label.size, NL_INK, true}, title);
    nl_canvas_text(canvas, panel.chart.right, top + 16, 1, nl_font_tick, correlation);
    return NL_OK;
}

static void draw_head(nl_canvas *canvas, const nl_scatter *scatter, double width)
{
    const nl_config *config = scatter->analysis->config;
    char title[192], name[64];
    nl_config_name(config, name, sizeof(name));
    snprintf(title, sizeof(title), "%s: how widely queries look, by %s%s", name,
             scatter->rule == NL_ATTENTION_NALA ? "NaLa" : "softmax",
             scatter->rule == config->attention ? "" : " of the same queries and keys");
    nl_canvas_text(canvas, NL_MARGIN, 22, 0, nl_font_title, title);
    double x = nl_colour_bar(canvas, NL_MARGIN, 32, nl_blues, "1", "most", "queries in a cell");
    nl_legend(canvas,
              &(nl_key){"mean of queries of like norm", mean_colour, mean_width, false, false}, 1,
              x + 26, width, 32);
    nl_canvas_text(canvas, NL_MARGIN, 68, 0, nl_font_tick,
                   "entropy / ln N: 0 all weight on one token, 1 the same on all. r: Pearson's "
                   "correlation, \xCF\x81: Spearman's.");
}

static double width_of(const nl_scatter *scatter)
{
    return NL_MAX(2, scatter->columns) * PANEL_WIDTH + NL_MARGIN;
}

static nl_status draw(void *user, nl_canvas *canvas)
{
    const nl_scatter *scatter = user;
    nl_status status = NL_OK;
    draw_head(canvas, scatter, width_of(scatter));
    for (int i = 0; i < scatter->panels && status == NL_OK; i++)
        status = draw_panel(canvas, scatter, i);
    return status;
}

nl_status nl_analysis_scatter(const nl_analysis *analysis, nl_attention rule, const char *path,
                              bool overwrite)
{
    nl_status status = NL_OK;
    nl_context *context = analysis->context;
    int layers = analysis->options.layer_count, panels = layers + (layers > 1);
    int columns = NL_MIN(COLUMNS, panels), rows = (panels + columns - 1) / columns;
    nl_scatter scatter = {.analysis = analysis, .rule = rule, .panels = panels, .columns = columns};
    NL_TRY(NL_NEW_ARRAY(context, "points", 2 * analysis->count, &scatter.x));
    scatter.y = scatter.x + analysis->count;
    nl_drawing drawing = {.width = width_of(&scatter),
                          .height = HEAD + rows * PANEL_HEIGHT,
                          .scale = 1.5,
                          .draw = draw,
                          .user = &scatter};
    NL_TRY(nl_drawing_write(context, &drawing, path, overwrite));
cleanup:
    nl_free(context, scatter.x);
    return status;
}
