/* SPDX-License-Identifier: MIT */
/* Pictures in rows and columns with captions. */
#include <stdio.h>
#include <string.h>

#include "nl_chart.h"
#include "nl_plot.h"

enum { GAP = 4, CAPTION = 18, TITLE = 24 };

static int times(const nl_sheet *sheet)
{
    return NL_MAX(sheet->enlarged, 1);
}

/* From a picture to the next one. */
static double across(const nl_sheet *sheet)
{
    return sheet->width * times(sheet) + GAP;
}

static double down(const nl_sheet *sheet)
{
    return sheet->height * times(sheet) + GAP + (sheet->captions ? CAPTION : 0);
}

static double left_of(const nl_sheet *sheet)
{
    return GAP + (sheet->beside ? CAPTION : 0);
}

/* Of the first row, its captions included. */
static double top_of(const nl_sheet *sheet)
{
    return GAP + (sheet->title ? TITLE : 0) + (sheet->over ? CAPTION : 0);
}

/* The text, or as much of it as is no wider, with three dots. */
static void draw_within(nl_canvas *canvas, double x, double y, double width, const char *text)
{
    char part[128];
    size_t length = strlen(text);
    snprintf(part, sizeof(part), "%.*s", (int)sizeof(part) - 4, text);
    while (length > 0 && nl_canvas_text_width(canvas, nl_font_tick, part) > width) {
        do
            length--;
        while (length > 0 && (text[length] & 0xc0) == 0x80); /* in the midst of a character */
        snprintf(part, sizeof(part), "%.*s...", (int)NL_MIN(length, sizeof(part) - 4), text);
    }
    nl_canvas_text(canvas, x, y, 0, nl_font_tick, part);
}

static void draw_cell(nl_canvas *canvas, const nl_sheet *sheet, int cell, double left, double top)
{
    const uint8_t *picture = sheet->pictures[cell];
    double width = sheet->width * times(sheet), height = sheet->height * times(sheet);
    if (!picture)
        return;
    if (sheet->captions && sheet->captions[cell])
        draw_within(canvas, left, top + CAPTION - 6, width, sheet->captions[cell]);
    top += sheet->captions ? CAPTION : 0;
    nl_canvas_picture(canvas, left, top, left + width, top + height, picture, sheet->height,
                      sheet->width);
}

static nl_status draw(void *user, nl_canvas *canvas)
{
    const nl_sheet *sheet = user;
    double first = left_of(sheet), above = top_of(sheet);
    if (sheet->title)
        draw_within(canvas, GAP, TITLE - 6, sheet->columns * across(sheet) - GAP, sheet->title);
    for (int column = 0; sheet->over && column < sheet->columns; column++)
        if (sheet->over[column])
            nl_canvas_text(canvas, first + column * across(sheet), above - 6, 0, nl_font_tick,
                           sheet->over[column]);
    for (int row = 0; row < sheet->rows; row++) {
        double top = above + row * down(sheet);
        if (sheet->beside)
            nl_canvas_text_upwards(canvas, first - 6, top + (down(sheet) - GAP) / 2, nl_font_tick,
                                   sheet->beside[row]);
        for (int column = 0; column < sheet->columns; column++)
            draw_cell(canvas, sheet, row * sheet->columns + column, first + column * across(sheet),
                      top);
    }
    return NL_OK;
}

static nl_drawing drawing_of(const nl_sheet *sheet)
{
    return (nl_drawing){.width = left_of(sheet) + sheet->columns * across(sheet),
                        .height = top_of(sheet) + sheet->rows * down(sheet),
                        .draw = draw,
                        .user = (void *)(uintptr_t)sheet};
}

nl_status nl_sheet_write(nl_context *context, const nl_sheet *sheet, const char *path,
                         bool overwrite)
{
    nl_drawing drawing = drawing_of(sheet);
    return nl_drawing_write(context, &drawing, path, overwrite);
}

nl_status nl_sheet_render(nl_context *context, const nl_sheet *sheet, nl_image *image)
{
    nl_drawing drawing = drawing_of(sheet);
    return nl_drawing_render(context, &drawing, image);
}
