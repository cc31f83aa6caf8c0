/* SPDX-License-Identifier: MIT */
/*
 * Pictures: PNG with text chunks written through stb_image_write (to memory, then our checked writer), PNG,
 * JPEG and WebP read through libpng, libjpeg-turbo and libwebp, grids, previews in the terminal. RGB, 8 bits, [height, width, 3].
 */
#ifndef NL_IMAGE_H
#define NL_IMAGE_H

#include "nl_io.h"

typedef struct nl_image {
    int height, width;
    uint8_t *rgb;    /* allocated */
    char **text;     /* PNG text chunks: pairs of keyword and value, ended by NULL; or NULL */
    int orientation; /* EXIF's, of JPEG and WebP: 1 upright, up to 8; 0: it says nothing */
} nl_image;

typedef enum nl_image_kind {
    NL_IMAGE_NONE,
    NL_IMAGE_PNG,
    NL_IMAGE_JPEG,
    NL_IMAGE_WEBP
} nl_image_kind;
/* What a file is by its first bytes (12 are enough). */
nl_image_kind nl_image_kind_of(const uint8_t *bytes, int64_t size);
/* Turns the picture as its orientation says. */
nl_status nl_image_turn(nl_context *context, nl_image *image);

/* ---- Folders. Pictures are regular files with the name or the content of a PNG, JPEG or WebP; hidden files and folders
 * that systems leave behind (__MACOSX, @eaDir, lost+found) are passed over, all else is counted. */

typedef struct nl_picture_walk {
    nl_status (*take)(void *user, const char *name); /* below the root */
    bool (*ignore)(void *user, const char *name);    /* is no picture and is known; or NULL */
    void *user;
    int64_t others; /* left out */
    char first_other[256];
} nl_picture_walk;

/* The pictures of folder root/below ("": root), by their names; then, when deep, of the folders in it. */
nl_status nl_walk_pictures(nl_context *context, const char *root, const char *below, bool deep,
                           nl_picture_walk *walk);
/* The one warning about what was left out, if anything was. */
void nl_picture_walk_warn(nl_context *context, const char *root, const nl_picture_walk *walk);
void nl_picture_walk_skip(nl_picture_walk *walk, const char *name);
bool nl_is_stray_folder(const char *name);
bool nl_is_picture_name(const char *name); /* by its ending */

/* PNG, JPEG or WebP by content; grey, palette and alpha become RGB (alpha over white). At most 2^28 pixels. */
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

/* Pictures [height, width, 3] one after the other, each for so many milliseconds (1 to 65535), without end; what knows no
 * animation shows the first. As nl_png_encode. */
nl_status nl_apng_encode(nl_context *context, const uint8_t *const *pictures, int count, int height,
                         int width, int milliseconds, const char *const *text, uint8_t **bytes,
                         size_t *size);

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
/* A part of that: fitted to zoom (>= 1) times the size, and cut out at `down` and `right` (0 to 1) of the room. *part is
 * what that came to in whole pixels. */
typedef struct nl_image_part {
    double side;        /* of the part over that of the whole: 1 / zoom */
    double down, right; /* of its centre from the whole's, in sides of the whole: -1/2 to 1/2 */
} nl_image_part;
nl_status nl_image_fit_part(nl_context *context, int height, int width, double zoom, double down,
                            double right, nl_image *image, nl_image_part *part);

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
