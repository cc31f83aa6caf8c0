/* SPDX-License-Identifier: MIT */
/* Where queries look, beside the picture that came of it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_analysis.h"
#include "nl_chart.h"

enum {
    LONG_SIDE = 192 /* of the picture and of a map */,
    GAP = 8,
    HEAD = 74,
    SIDE = 34,
    MOST_LAYERS = 8
};
static const uint32_t mark_colour = 0x56b4e9;

typedef struct nl_maps {
    const nl_analysis *analysis;
    const nl_picture *picture;
    int time;
    double width, height; /* of a map in the drawing */
    int columns;          /* maps beside the picture */
    int grid[2];          /* rows and columns of tokens */
} nl_maps;

/* Corners of a token's place within a map. */
static void token_box(const nl_maps *maps, int64_t token, double left, double top, double box[4])
{
    double row = (double)(token / maps->grid[1]), column = (double)(token % maps->grid[1]);
    double height = maps->height / maps->grid[0], width = maps->width / maps->grid[1];
    box[0] = left + column * width;
    box[1] = top + row * height;
    box[2] = box[0] + width;
    box[3] = box[1] + height;
}

/* Seen on light and on dark. */
static void mark(nl_canvas *canvas, const nl_maps *maps, int64_t token, double left, double top)
{
    double b[4];
    token_box(maps, token, left, top, b);
    nl_canvas_frame(canvas, b[0] - 1, b[1] - 1, b[2] + 1, b[3] + 1, 4, 0x000000);
    nl_canvas_frame(canvas, b[0] - 1, b[1] - 1, b[2] + 1, b[3] + 1, 2, mark_colour);
}

/* weights [tokens], scaled by the largest. */
static void put_map(nl_canvas *canvas, const nl_maps *maps, const double *weights, double left,
                    double top)
{
    double most = 0, box[4];
    for (int64_t token = 0; token < maps->analysis->tokens; token++)
        most = fmax(most, weights[token]);
    for (int64_t token = 0; token < maps->analysis->tokens; token++) {
        token_box(maps, token, left, top, box);
        nl_canvas_rectangle(canvas, box[0], box[1], box[2], box[3],
                            nl_heat(most > 0 ? weights[token] / most : 0));
    }
}

/* Place in the options of the layer in a column: all of them, or some evenly spaced. */
static int layer_of(const nl_maps *maps, int column)
{
    int layers = maps->analysis->options.layer_count;
    return maps->columns < 2
               ? 0
               : (column * (layers - 1) + (maps->columns - 1) / 2) / (maps->columns - 1);
}

static void draw_head(nl_canvas *canvas, const nl_maps *maps)
{
    const nl_analysis *analysis = maps->analysis;
    char text[192], name[64];
    nl_config_name(analysis->config, name, sizeof(name));
    snprintf(text, sizeof(text), "%s: where queries look at step %d of %d, t = %.4g", name,
             analysis->step[maps->time] + 1, analysis->steps, analysis->t[maps->time]);
    nl_canvas_text(canvas, GAP, 22, 0, nl_font_title, text);
    double x = nl_colour_bar(canvas, GAP, 32, nl_heat, "0", "the largest weight of the map",
                             "weight, mean over the heads");
    nl_canvas_frame(canvas, x + 27, 38, x + 37, 48, 2, mark_colour);
    nl_canvas_text(canvas, x + 46, 45, 0, nl_font_label, "the query");
}

static nl_status draw(void *user, nl_canvas *canvas)
{
    const nl_maps *maps = user;
    const nl_analysis *analysis = maps->analysis;
    const nl_analysis_options *options = &analysis->options;
    double wide = maps->width + GAP, high = maps->height + GAP;
    char text[64];
    draw_head(canvas, maps);
    nl_canvas_text(canvas, SIDE, HEAD - 6, 0, nl_font_label, "picture");
    for (int query = 0; query < options->query_count; query++) {
        double top = HEAD + query * high;
        int token = options->queries[query];
        nl_canvas_picture(canvas, SIDE, top, SIDE + maps->width, top + maps->height,
                          maps->picture->rgb, maps->picture->height, maps->picture->width);
        mark(canvas, maps, token, SIDE, top);
        snprintf(text, sizeof(text), "token %d: row %d, column %d", token, token / maps->grid[1],
                 token % maps->grid[1]);
        nl_canvas_text_upwards(canvas, SIDE - 10, top + maps->height / 2, nl_font_tick, text);
    }
    for (int column = 0; column < maps->columns; column++) {
        int layer = layer_of(maps, column);
        double left = SIDE + (column + 1) * wide;
        int64_t place = (int64_t)maps->time * options->layer_count + layer;
        snprintf(text, sizeof(text), "layer %d", options->layers[layer]);
        nl_canvas_text(canvas, left, HEAD - 6, 0, nl_font_label, text);
        for (int query = 0; query < options->query_count; query++) {
            put_map(canvas, maps,
                    analysis->maps + (place * options->query_count + query) * analysis->tokens,
                    left, HEAD + query * high);
            mark(canvas, maps, options->queries[query], left, HEAD + query * high);
        }
    }
    return NL_OK;
}

nl_status nl_analysis_attention_maps(const nl_analysis *analysis, const nl_picture *picture,
                                     int time, const char *path, bool overwrite)
{
    const nl_config *config = analysis->config;
    nl_maps maps = {.analysis = analysis, .picture = picture, .time = time};
    int rows = analysis->options.query_count;
    if (!picture->rgb || !rows)
        return nl_fail(analysis->context, NL_ERROR_USAGE,
                       "%s: attention maps take a picture and at least one query", path);
    double factor = (double)LONG_SIDE / NL_MAX(picture->height, picture->width);
    maps.width = fmax(1, rint(picture->width * factor));
    maps.height = fmax(1, rint(picture->height * factor));
    maps.columns = NL_MIN(MOST_LAYERS, analysis->options.layer_count);
    maps.grid[0] = config->input_height / config->patch_size;
    maps.grid[1] = config->input_width / config->patch_size;
    nl_drawing drawing = {.width = fmax(560, SIDE + (maps.columns + 1) * (maps.width + GAP)),
                          .height = HEAD + rows * (maps.height + GAP),
                          .draw = draw,
                          .user = &maps};
    return nl_drawing_write(analysis->context, &drawing, path, overwrite);
}
