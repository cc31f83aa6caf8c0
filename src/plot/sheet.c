/* SPDX-License-Identifier: MIT */
/* Pictures in rows and columns with captions. */
#include "nl_chart.h"
#include "nl_plot.h"

enum { GAP = 4, CAPTION = 18 };

static double left_of(const nl_sheet *sheet)
{
    return GAP + (sheet->beside ? CAPTION : 0);
}

static double top_of(const nl_sheet *sheet)
{
    return GAP + (sheet->over ? CAPTION : 0);
}

static nl_status draw(void *user, nl_canvas *canvas)
{
    const nl_sheet *sheet = user;
    double first = left_of(sheet), above = top_of(sheet);
    for (int column = 0; sheet->over && column < sheet->columns; column++)
        if (sheet->over[column])
            nl_canvas_text(canvas, first + column * (sheet->width + GAP), above - 6, 0,
                           nl_font_tick, sheet->over[column]);
    for (int row = 0; row < sheet->rows; row++) {
        double top = above + row * (sheet->height + GAP);
        if (sheet->beside)
            nl_canvas_text_upwards(canvas, first - 6, top + sheet->height / 2.0, nl_font_tick,
                                   sheet->beside[row]);
        for (int column = 0; column < sheet->columns; column++) {
            const uint8_t *picture = sheet->pictures[row * sheet->columns + column];
            double left = first + column * (sheet->width + GAP);
            if (picture)
                nl_canvas_picture(canvas, left, top, left + sheet->width, top + sheet->height,
                                  picture, sheet->height, sheet->width);
        }
    }
    return NL_OK;
}

nl_status nl_sheet_write(nl_context *context, const nl_sheet *sheet, const char *path,
                         bool overwrite)
{
    nl_drawing drawing = {.width = left_of(sheet) + sheet->columns * (sheet->width + GAP),
                          .height = top_of(sheet) + sheet->rows * (sheet->height + GAP),
                          .draw = draw,
                          .user = (void *)(uintptr_t)sheet};
    return nl_drawing_write(context, &drawing, path, overwrite);
}
