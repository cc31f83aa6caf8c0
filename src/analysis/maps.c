/* SPDX-License-Identifier: MIT */
/* Where queries look, beside the picture that came of it. */
#include <math.h>
#include <string.h>

#include "canvas.h"
#include "nl_analysis.h"
#include "nl_image.h"

enum { LONG_SIDE = 192 /* of the picture and of a map */, GAP = 6, TITLE = 22, MOST_LAYERS = 8 };
static const uint32_t ink = 0x333333, mark_colour = 0xff2020;

typedef struct nl_sheet {
    const nl_analysis *analysis;
    nl_canvas canvas;
    nl_image picture; /* as large as a map */
    int time;
    int columns; /* maps beside the picture */
    int grid[2]; /* rows and columns of tokens */
} nl_sheet;

/* Black, purple, orange, pale yellow. */
static uint32_t heat(double part)
{
    static const int stops[][3] = {
        {0, 0, 4}, {87, 16, 110}, {188, 55, 84}, {249, 142, 9}, {252, 255, 164}};
    double at = fmin(1, fmax(0, part)) * (NL_COUNT(stops) - 1);
    int from = NL_MIN((int)at, NL_COUNT(stops) - 2);
    uint32_t colour = 0;
    for (int c = 0; c < 3; c++)
        colour = colour << 8 | (uint32_t)lrint(stops[from][c] +
                                               (at - from) * (stops[from + 1][c] - stops[from][c]));
    return colour;
}

static void put_picture(nl_sheet *sheet, int left, int top)
{
    const nl_image *picture = &sheet->picture;
    for (int y = 0; y < picture->height; y++)
        memcpy(sheet->canvas.rgb + 3 * ((int64_t)(top + y) * sheet->canvas.width + left),
               picture->rgb + 3 * (int64_t)y * picture->width, 3 * (size_t)picture->width);
}

/* Corners of a token's place within a map. */
static void token_box(const nl_sheet *sheet, int64_t token, int left, int top, double box[4])
{
    double row = (double)(token / sheet->grid[1]), column = (double)(token % sheet->grid[1]);
    double height = (double)sheet->picture.height / sheet->grid[0];
    double width = (double)sheet->picture.width / sheet->grid[1];
    box[0] = left + column * width;
    box[1] = top + row * height;
    box[2] = box[0] + width;
    box[3] = box[1] + height;
}

static void mark(nl_sheet *sheet, int64_t token, int left, int top)
{
    double b[4];
    token_box(sheet, token, left, top, b);
    nl_canvas_line(&sheet->canvas,
                   (double[]){b[0], b[1], b[2], b[1], b[2], b[3], b[0], b[3], b[0], b[1]}, 5, 2,
                   mark_colour);
}

/* weights [tokens], scaled by the largest. */
static void put_map(nl_sheet *sheet, const double *weights, int left, int top)
{
    double most = 0, box[4];
    for (int64_t token = 0; token < sheet->analysis->tokens; token++)
        most = fmax(most, weights[token]);
    for (int64_t token = 0; token < sheet->analysis->tokens; token++) {
        token_box(sheet, token, left, top, box);
        nl_canvas_rectangle(&sheet->canvas, box[0], box[1], box[2], box[3],
                            heat(most > 0 ? weights[token] / most : 0));
    }
}

/* Place in the options of the layer in a column: all of them, or some evenly spaced. */
static int layer_of(const nl_sheet *sheet, int column)
{
    int layers = sheet->analysis->options.layer_count;
    return sheet->columns < 2
               ? 0
               : (column * (layers - 1) + (sheet->columns - 1) / 2) / (sheet->columns - 1);
}

static void draw(nl_sheet *sheet)
{
    const nl_analysis *analysis = sheet->analysis;
    const nl_analysis_options *options = &analysis->options;
    int wide = sheet->picture.width + GAP, high = sheet->picture.height + GAP;
    char text[64];
    snprintf(text, sizeof(text), "step %d, t = %.4g", analysis->step[sheet->time] + 1,
             analysis->t[sheet->time]);
    nl_canvas_text(&sheet->canvas, GAP, TITLE - 6, 0, 9, ink, text);
    for (int query = 0; query < options->query_count; query++) {
        put_picture(sheet, GAP, TITLE + query * high);
        mark(sheet, options->queries[query], GAP, TITLE + query * high);
    }
    for (int column = 0; column < sheet->columns; column++) {
        int layer = layer_of(sheet, column), left = GAP + (column + 1) * wide;
        int64_t place = (int64_t)sheet->time * options->layer_count + layer;
        snprintf(text, sizeof(text), "layer %d", options->layers[layer]);
        nl_canvas_text(&sheet->canvas, left, TITLE - 6, 0, 9, ink, text);
        for (int query = 0; query < options->query_count; query++) {
            put_map(sheet,
                    analysis->maps + (place * options->query_count + query) * analysis->tokens,
                    left, TITLE + query * high);
            mark(sheet, options->queries[query], left, TITLE + query * high);
        }
    }
}

static nl_status scaled(nl_context *context, const nl_picture *picture, nl_image *image)
{
    nl_status status = NL_OK;
    double factor = (double)LONG_SIDE / NL_MAX(picture->height, picture->width);
    int64_t pixels = (int64_t)picture->height * picture->width;
    *image = (nl_image){.height = picture->height, .width = picture->width};
    NL_TRY(NL_NEW_SIZED(context, "a picture", pixels, 3, &image->rgb));
    memcpy(image->rgb, picture->rgb, (size_t)pixels * 3);
    NL_TRY(nl_image_scale(context, NL_FILTER_BOX, NL_MAX(1, (int)lrint(picture->height * factor)),
                          NL_MAX(1, (int)lrint(picture->width * factor)), image));
cleanup:
    return status;
}

nl_status nl_analysis_attention_maps(const nl_analysis *analysis, const nl_picture *picture,
                                     int time, const char *png, bool overwrite)
{
    nl_status status = NL_OK;
    nl_context *context = analysis->context;
    const nl_config *config = analysis->config;
    nl_sheet sheet = {.analysis = analysis, .time = time};
    int rows = analysis->options.query_count;
    if (!picture->rgb || !rows)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: attention maps take a picture and at least one query", png);
    sheet.columns = NL_MIN(MOST_LAYERS, analysis->options.layer_count);
    sheet.grid[0] = config->input_height / config->patch_size;
    sheet.grid[1] = config->input_width / config->patch_size;
    NL_TRY(scaled(context, picture, &sheet.picture));
    NL_TRY(nl_canvas_open(context, GAP + (sheet.columns + 1) * (sheet.picture.width + GAP),
                          TITLE + rows * (sheet.picture.height + GAP), &sheet.canvas));
    draw(&sheet);
    NL_TRY(nl_png_write(context, png, overwrite, sheet.canvas.rgb, sheet.canvas.height,
                        sheet.canvas.width, NULL));
cleanup:
    nl_canvas_close(&sheet.canvas);
    nl_image_free(context, &sheet.picture);
    return status;
}
