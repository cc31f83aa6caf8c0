/* SPDX-License-Identifier: MIT */
/*
 * Pictures: PNG with text chunks written through stb_image_write (to memory, then our checked writer), PNG and
 * JPEG read through libpng and libjpeg-turbo, grids, previews in the terminal. RGB, 8 bits, [height, width, 3].
 */
#ifndef NL_IMAGE_H
#define NL_IMAGE_H

#include "nl_io.h"

typedef struct nl_image {
    int height, width;
    uint8_t *rgb; /* allocated */
    char **text;  /* PNG text chunks: pairs of keyword and value, ended by NULL; or NULL */
} nl_image;

/* PNG or JPEG by content; grey, palette and alpha become RGB (alpha over white). At most 2^28 pixels. */
nl_status nl_image_read(nl_context *context, const char *path, nl_image *image);
/* The same of bytes in memory; `where` stands for the path in messages. */
nl_status nl_image_read_bytes(nl_context *context, const char *where, const uint8_t *bytes,
                              size_t size, nl_image *image);
/* Only the text chunks and the size of a PNG (rgb NULL); checks every CRC it passes. */
nl_status nl_png_read_text(nl_context *context, const char *path, nl_image *image);
void nl_image_free(nl_context *context, nl_image *image);

/* PNG bytes in memory (allocated). text as in nl_image; values go into iTXt (UTF-8) chunks. */
nl_status nl_png_encode(nl_context *context, const uint8_t *rgb, int height, int width,
                        const char *const *text, uint8_t **bytes, size_t *size);
nl_status nl_png_write(nl_context *context, const char *path, bool overwrite, const uint8_t *rgb,
                       int height, int width, const char *const *text);

/* count pictures of one size into rows x columns with a gap of `gap` white pixels; missing ones white. */
nl_status nl_image_grid(nl_context *context, const uint8_t *const *pictures, int count, int height,
                        int width, int rows, int columns, int gap, nl_image *grid);

/* ---- Scaling, exactly as PIL scales: antialiased, in bytes. The picture is changed in place. */

typedef enum nl_filter { NL_FILTER_BOX, NL_FILTER_BICUBIC } nl_filter;
nl_status nl_image_scale(nl_context *context, nl_filter filter, int height, int width,
                         nl_image *image);
/* What ADM, DiT and SiT do to a training picture: halved by box while both sides stay at least as long as asked
 * for, bicubic until one side fits, the centre cut out. */
nl_status nl_image_fit(nl_context *context, int height, int width, nl_image *image);
/* A part of that: fitted to zoom (>= 1) times the size, and cut out at `down` and `right` (0 to 1) of the room. */
nl_status nl_image_fit_part(nl_context *context, int height, int width, double zoom, double down,
                            double right, nl_image *image);

/* A picture in the terminal behind `stream`. AUTO picks by the environment (KITTY_WINDOW_ID, TERM, TERM_PROGRAM,
 * COLORTERM). Half blocks, and letters for a terminal without colours (NO_COLOR) or without any control sequence (TERM is
 * dumb), are scaled down to `columns` times `rows` characters; rows 0: as many as it takes. */
typedef enum nl_show {
    NL_SHOW_AUTO,
    NL_SHOW_KITTY,
    NL_SHOW_ITERM2,
    NL_SHOW_BLOCKS,
    NL_SHOW_LETTERS
} nl_show;
nl_status nl_image_show(nl_context *context, void *stream /* FILE * */, nl_show how,
                        const uint8_t *rgb, int height, int width, int columns, int rows);

#endif
