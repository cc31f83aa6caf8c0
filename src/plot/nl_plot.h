/* SPDX-License-Identifier: MIT */
/* The curves of training runs, and sheets of pictures with captions. */
#ifndef NL_PLOT_H
#define NL_PLOT_H

#include "nl_image.h"

typedef struct nl_plot_options {
    const char *const *out; /* files, ended by NULL, whose names end in .svg, .png or .pdf */
    bool log_scale;         /* of the value */
    bool log_over;
    double smoothing; /* 0 to 1: of a moving average */
    int64_t width, height;
    const char *log, *metrics; /* names of the files of lines in a run's folder */
    const char *value;         /* "loss", "grad_norm", ... */
    const char *over;          /* "step", or another number of the same lines */
    bool overwrite;
} nl_plot_options;

/* The curves of the lines of one or several runs, or of folders with one of the two files, in one picture. */
nl_status nl_plot(nl_context *context, const char *const *runs, int count,
                  const nl_plot_options *options);

/* Pictures of one size in rows and columns, with a title, words above the columns and beside the rows, and captions above
 * the pictures, which are cut to their width. */
typedef struct nl_sheet {
    const uint8_t *const
        *pictures; /* [rows * columns] of rgb [height, width, 3]; NULL: left white */
    int rows, columns, height, width;
    const char *const *over;     /* [columns], a NULL in it: none; or NULL */
    const char *const *beside;   /* [rows] or NULL */
    const char *title;           /* or NULL */
    const char *const *captions; /* [rows * columns], a NULL in it: none; or NULL */
    int enlarged;                /* so many pixels for each of a picture's; 0 counts as 1 */
} nl_sheet;
/* The sheet as pixels; image->text holds its words. */
nl_status nl_sheet_render(nl_context *context, const nl_sheet *sheet, nl_image *image);
nl_status nl_sheet_write(nl_context *context, const nl_sheet *sheet, const char *path,
                         bool overwrite);

#endif
