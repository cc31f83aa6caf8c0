/* SPDX-License-Identifier: MIT */
/* Points of a query's norm and its entropy, so many that they are counted in cells. */
#include <math.h>
#include <string.h>

#include "canvas.h"
#include "nl_analysis.h"
#include "nl_image.h"

enum {
    PANEL_WIDTH = 280,
    PANEL_HEIGHT = 230,
    COLUMNS = 4,
    TITLE = 34, /* height of the figure's */
    LEFT = 48,  /* margins of a panel */
    RIGHT = 12,
    TOP = 26,
    BOTTOM = 32,
    CELLS_X = 55, /* of four pixels */
    CELLS_Y = 43,
};
static const uint32_t ink = 0x333333, line_colour = 0xd62728;

typedef struct nl_panel {
    nl_canvas *canvas;
    double left, top; /* of the plot; its size is fixed */
    const double *x, *y;
    int64_t count;
    double low[2], high[2];
} nl_panel;

static const double size[2] = {PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM};

static void choose_range(nl_panel *panel)
{
    const double *values[2] = {panel->x, panel->y};
    for (int axis = 0; axis < 2; axis++) {
        double low = INFINITY, high = -INFINITY;
        for (int64_t i = 0; i < panel->count; i++) {
            low = fmin(low, values[axis][i]);
            high = fmax(high, values[axis][i]);
        }
        double room = high > low ? 0.03 * (high - low) : fmax(1e-9, 0.05 * fabs(high));
        panel->low[axis] = panel->count ? low - room : 0;
        panel->high[axis] = panel->count ? high + room : 1;
        if (axis == 1) { /* an entropy is between 0 and ln N */
            panel->low[axis] = fmax(panel->low[axis], 0);
            panel->high[axis] = fmin(panel->high[axis], fmax(high, 1));
        }
    }
}

/* Part of the axis, 0 to 1. */
static double part(const nl_panel *panel, int axis, double value)
{
    return (value - panel->low[axis]) / (panel->high[axis] - panel->low[axis]);
}

/* From light to dark blue by the logarithm of the number of points. */
static uint32_t shade(int64_t points, int64_t most)
{
    static const int light[] = {0xcf, 0xe1, 0xf2}, dark[] = {0x08, 0x30, 0x6b};
    double dense = most > 1 ? log((double)points) / log((double)most) : 1;
    uint32_t colour = 0;
    for (int c = 0; c < 3; c++)
        colour = colour << 8 | (uint32_t)lrint(light[c] + dense * (dark[c] - light[c]));
    return colour;
}

static void draw_cells(const nl_panel *panel)
{
    int64_t counts[CELLS_Y][CELLS_X] = {{0}}, most = 0;
    double width = size[0] / CELLS_X, height = size[1] / CELLS_Y;
    for (int64_t i = 0; i < panel->count; i++) {
        int x = NL_MIN(CELLS_X - 1, (int)(part(panel, 0, panel->x[i]) * CELLS_X));
        int y = NL_MIN(CELLS_Y - 1, (int)((1 - part(panel, 1, panel->y[i])) * CELLS_Y));
        counts[y][x]++;
        most = NL_MAX(most, counts[y][x]);
    }
    for (int y = 0; y < CELLS_Y; y++)
        for (int x = 0; x < CELLS_X; x++)
            if (counts[y][x])
                nl_canvas_rectangle(panel->canvas, panel->left + x * width, panel->top + y * height,
                                    panel->left + (x + 1) * width, panel->top + (y + 1) * height,
                                    shade(counts[y][x], most));
}

/* The mean entropy of queries of like norm, where at least ten are. */
static void draw_means(const nl_panel *panel)
{
    enum { PARTS = 20, LEAST = 10 };
    double sums[PARTS] = {0}, points[2 * PARTS];
    int64_t counts[PARTS] = {0};
    for (int64_t i = 0; i < panel->count; i++) {
        int at = NL_MIN(PARTS - 1, (int)(part(panel, 0, panel->x[i]) * PARTS));
        sums[at] += panel->y[i];
        counts[at]++;
    }
    for (int i = 0; i < PARTS; i++) {
        double mean = counts[i] < LEAST ? NAN : sums[i] / (double)counts[i];
        points[2 * i] = panel->left + (i + 0.5) / PARTS * size[0];
        points[2 * i + 1] = panel->top + (1 - part(panel, 1, mean)) * size[1];
    }
    nl_canvas_line(panel->canvas, points, PARTS, 1.6, line_colour);
}

static void draw_frame(const nl_panel *panel, const char *title)
{
    nl_canvas *canvas = panel->canvas;
    double left = panel->left, top = panel->top, right = left + size[0], bottom = top + size[1];
    char text[32];
    nl_canvas_line(canvas,
                   (double[]){left, top, right, top, right, bottom, left, bottom, left, top}, 5, 1,
                   ink);
    nl_canvas_text(canvas, left, top - 7, 0, 8, ink, title);
    for (int end = 0; panel->count && end < 2; end++) {
        snprintf(text, sizeof(text), "%.3g", end ? panel->high[0] : panel->low[0]);
        nl_canvas_text(canvas, end ? right : left, bottom + 14, end, 7, ink, text);
        snprintf(text, sizeof(text), "%.3f", end ? panel->high[1] : panel->low[1]);
        nl_canvas_text(canvas, left - 4, end ? top + 7 : bottom, 1, 7, ink, text);
    }
    nl_canvas_text(canvas, (left + right) / 2, bottom + 14, 0.5, 7, ink, "norm of q");
}

/* layer: its place in the options, or -1 for all of them together. x, y: room for all points. */
static nl_status draw_panel(const nl_analysis *analysis, nl_attention rule, int layer,
                            nl_panel *panel, double *x, double *y)
{
    nl_status status = NL_OK;
    char title[80], name[24] = "all";
    double spearman = NAN;
    panel->x = x;
    panel->y = y;
    panel->count = nl_analysis_select(analysis, rule, (nl_selection){-1, layer, -1}, x, y);
    for (int64_t i = 0; analysis->tokens > 1 && i < panel->count; i++)
        y[i] /= log((double)analysis->tokens);
    NL_TRY(nl_spearman(analysis->context, x, y, panel->count, &spearman));
    if (layer >= 0)
        snprintf(name, sizeof(name), "layer %d", analysis->options.layers[layer]);
    snprintf(title, sizeof(title), "%s: r %.2f, rho %.2f", name, nl_pearson(x, y, panel->count),
             spearman);
    choose_range(panel);
    draw_cells(panel);
    draw_means(panel);
    draw_frame(panel, title);
cleanup:
    return status;
}

static void draw_title(nl_canvas *canvas, const nl_analysis *analysis, nl_attention rule)
{
    char text[160], name[64];
    nl_config_name(analysis->config, name, sizeof(name));
    snprintf(text, sizeof(text), "%s: entropy / ln N, %s%s", name,
             rule == NL_ATTENTION_NALA ? "NaLa" : "softmax",
             rule == analysis->config->attention ? "" : " of the same q and k");
    nl_canvas_text(canvas, LEFT, TITLE - 12, 0, 10, ink, text);
}

nl_status nl_analysis_scatter(const nl_analysis *analysis, nl_attention rule, const char *svg,
                              const char *png, bool overwrite)
{
    nl_status status = NL_OK;
    nl_context *context = analysis->context;
    nl_canvas canvas = {0};
    double *x = NULL;
    int layers = analysis->options.layer_count, panels = layers + (layers > 1);
    int columns = NL_MIN(COLUMNS, panels), rows = (panels + columns - 1) / columns;
    NL_TRY(NL_NEW_ARRAY(context, "points", 2 * analysis->count, &x));
    NL_TRY(nl_canvas_open(context, NL_MAX(2, columns) * PANEL_WIDTH, TITLE + rows * PANEL_HEIGHT,
                          &canvas));
    draw_title(&canvas, analysis, rule);
    for (int i = 0; i < panels; i++) {
        nl_panel panel = {.canvas = &canvas,
                          .left = i % columns * PANEL_WIDTH + LEFT,
                          .top = TITLE + i / columns * PANEL_HEIGHT + TOP};
        NL_TRY(draw_panel(analysis, rule, i < layers ? i : -1, &panel, x, x + analysis->count));
    }
    NL_TRY(nl_canvas_finish(&canvas));
    NL_TRY(nl_write_file(context, svg, overwrite, canvas.svg_text, canvas.svg_size));
    NL_TRY(nl_png_write(context, png, overwrite, canvas.rgb, canvas.height, canvas.width, NULL));
cleanup:
    nl_free(context, x);
    nl_canvas_close(&canvas);
    return status;
}
