/* SPDX-License-Identifier: MIT */
/* Samples beside what is nearest to them. */
#include "nl_nearest.h"
#include "nl_plot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 1 + NL_SPACES * NL_NEAREST_K };

nl_status nl_nearest_order(const nl_nearness *nearness, nl_space space, int64_t count,
                           int64_t *order)
{
    const nl_neighbours *n = &nearness->of[space];
    if (count < 0 || count > n->count)
        return nl_fail(nearness->context, NL_ERROR_INPUT,
                       "%lld samples were to be shown, found %lld", (long long)count,
                       (long long)n->count);
    for (int64_t i = 0; i < n->count; i++) {
        int64_t at = NL_MIN(i, count);
        double distance = n->distance[i * NL_NEAREST_K];
        for (; at > 0 && n->distance[order[at - 1] * NL_NEAREST_K] > distance; at--)
            if (at < count)
                order[at] = order[at - 1];
        if (at < count)
            order[at] = i;
    }
    return NL_OK;
}

/* Which picture of a file goes where. */
typedef struct nl_place {
    int64_t picture;
    int cell;
} nl_place;

typedef struct nl_gathering {
    nl_context *context;
    const nl_place *places;
    int count, edge;
    uint8_t **cells;
} nl_gathering;

static nl_status take_batch(void *user, const nl_picture_batch *batch)
{
    nl_gathering *g = user;
    size_t bytes = (size_t)(3 * batch->height * batch->width);
    nl_image image = {.rgb = NULL};
    nl_status status = NL_OK;
    for (int i = 0; i < g->count; i++) {
        int64_t at = g->places[i].picture - batch->first;
        if (at < 0 || at >= batch->count)
            continue;
        image = (nl_image){.height = (int)batch->height, .width = (int)batch->width};
        NL_TRY(NL_NEW_ARRAY(g->context, "a picture", bytes, &image.rgb));
        memcpy(image.rgb, batch->rgb + (size_t)at * bytes, bytes);
        NL_TRY(nl_image_fit(g->context, g->edge, g->edge, &image));
        g->cells[g->places[i].cell] = image.rgb;
        image.rgb = NULL;
    }
cleanup:
    nl_image_free(g->context, &image);
    return status;
}

static nl_status gather(const nl_nearness *nearness, const char *path, const nl_place *places,
                        int count, int edge, uint8_t **cells)
{
    enum { BATCH = 64 };
    nl_context *context = nearness->context;
    nl_gathering g = {context, places, count, edge, cells};
    nl_pictures *pictures = NULL;
    nl_status status;
    NL_TRY(nl_pictures_open(context, path, context->device->threads, &pictures));
    nl_picture_source source = nl_pictures_source(pictures);
    NL_TRY(source.run(source.user, NL_ALL_PICTURES(&source), BATCH, take_batch, &g));
cleanup:
    nl_pictures_close(pictures);
    return status;
}

static nl_status write_sheet(const nl_nearness *nearness, const int64_t *order, nl_sheet *sheet,
                             const char *path, bool overwrite)
{
    nl_context *context = nearness->context;
    const char *over[COLUMNS] = {"sample"};
    char(*names)[32] = NULL;
    const char **beside = NULL;
    nl_status status;
    NL_TRY(NL_NEW_ARRAY(context, "captions", sheet->rows, &names));
    NL_TRY(NL_NEW_ARRAY(context, "captions", sheet->rows, &beside));
    for (int row = 0; row < sheet->rows; row++) {
        snprintf(names[row], sizeof(names[row]), "sample %lld", (long long)order[row]);
        beside[row] = names[row];
    }
    over[1 + NL_SPACE_FEATURES * NL_NEAREST_K] = "training data, nearest by features first";
    over[1 + NL_SPACE_PIXELS * NL_NEAREST_K] = "training data, nearest by pixels first";
    sheet->over = over;
    sheet->beside = beside;
    NL_TRY(nl_sheet_write(context, sheet, path, overwrite));
cleanup:
    nl_free(context, names);
    nl_free(context, beside);
    return status;
}

nl_status nl_nearest_sheet(const nl_nearness *nearness, const char *samples, const char *reference,
                           int rows, int edge, const char *path, bool overwrite)
{
    nl_context *context = nearness->context;
    int upper = (rows + 1) / 2, count = 0;
    int64_t *order = NULL;
    nl_place *places = NULL;
    uint8_t **cells = NULL;
    nl_status status;
    NL_TRY(NL_NEW_ARRAY(context, "a sheet", rows, &order));
    NL_TRY(NL_NEW_ARRAY(context, "a sheet", rows * COLUMNS, &places));
    NL_TRY(NL_NEW_ZEROS(context, "a sheet", rows * COLUMNS, &cells));
    NL_TRY(nl_nearest_order(nearness, NL_SPACE_FEATURES, upper, order));
    NL_TRY(nl_nearest_order(nearness, NL_SPACE_PIXELS, rows - upper, order + upper));
    for (int row = 0; row < rows; row++)
        places[row] = (nl_place){order[row], row * COLUMNS};
    NL_TRY(gather(nearness, samples, places, rows, edge, cells));
    for (int row = 0; row < rows; row++)
        for (int column = 1; column < COLUMNS; column++) {
            const nl_neighbours *n = &nearness->of[(column - 1) / NL_NEAREST_K];
            int64_t at = order[row] * NL_NEAREST_K + (column - 1) % NL_NEAREST_K;
            places[count++] = (nl_place){n->index[at], row * COLUMNS + column};
        }
    NL_TRY(gather(nearness, reference, places, count, edge, cells));
    nl_sheet sheet = {.pictures = (const uint8_t *const *)cells,
                      .rows = rows,
                      .columns = COLUMNS,
                      .height = edge,
                      .width = edge};
    NL_TRY(write_sheet(nearness, order, &sheet, path, overwrite));
cleanup:
    for (int i = 0; cells && i < rows * COLUMNS; i++)
        nl_free(context, cells[i]);
    nl_free(context, cells);
    nl_free(context, places);
    nl_free(context, order);
    return status;
}
