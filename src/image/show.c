/* SPDX-License-Identifier: MIT */
/*
 * A picture in the terminal: kitty's graphics protocol, iTerm2's inline images, half blocks, or letters.
 *
 * kitty:  ESC _ G a=T,f=100,m=<more follow> ; at most 4096 characters of base64 ESC \, repeated
 * iTerm2: ESC ] 1337 ; File=inline=1;size=<bytes> : base64 BEL
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pixels.h"

enum { KITTY_CHUNK = 4096, MAX_COLUMNS = 1000 };

static bool names(const char *variable, const char *part)
{
    const char *value = getenv(variable);
    return value && strstr(value, part);
}

static nl_show choose(void)
{
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if ((no_colour && *no_colour) || (terminal && !strcmp(terminal, "dumb")))
        return NL_SHOW_LETTERS;
    if (getenv("TMUX") || names("TERM", "screen")) /* they pass neither protocol on */
        return NL_SHOW_BLOCKS;
    if (getenv("KITTY_WINDOW_ID") || names("TERM", "kitty") || names("TERM_PROGRAM", "ghostty"))
        return NL_SHOW_KITTY;
    if (names("TERM_PROGRAM", "iTerm") || names("TERM_PROGRAM", "WezTerm"))
        return NL_SHOW_ITERM2;
    return NL_SHOW_BLOCKS;
}

static void show_kitty(FILE *stream, const char *text)
{
    size_t left = strlen(text);
    for (bool first = true; left > 0; first = false) {
        size_t now = NL_MIN(left, (size_t)KITTY_CHUNK);
        left -= now;
        fprintf(stream, "\033_G%sm=%d;%.*s\033\\", first ? "a=T,f=100," : "", left > 0, (int)now,
                text);
        text += now;
    }
    fputc('\n', stream);
}

/* Mean of the pixels of a box, a, b exclusive ends. */
static void box_mean(const uint8_t *rgb, int width, int top, int bottom, int left, int right,
                     int mean[3])
{
    int64_t sum[3] = {0}, count = (int64_t)(bottom - top) * (right - left);
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++)
            for (int c = 0; c < 3; c++)
                sum[c] += rgb[((int64_t)y * width + x) * 3 + c];
    for (int c = 0; c < 3; c++)
        mean[c] = (int)((sum[c] + count / 2) / count);
}

/* The 24-bit colour, or its nearest in the 6 x 6 x 6 cube of 256-colour terminals. */
static void set_colour(FILE *stream, int ground, const int rgb[3], bool true_colour)
{
    if (true_colour) {
        fprintf(stream, "\033[%d;2;%d;%d;%dm", ground, rgb[0], rgb[1], rgb[2]);
        return;
    }
    int level[3];
    for (int c = 0; c < 3; c++)
        level[c] = rgb[c] < 48 ? 0 : rgb[c] < 115 ? 1 : (rgb[c] - 35) / 40;
    fprintf(stream, "\033[%d;5;%dm", ground, 16 + 36 * level[0] + 6 * level[1] + level[2]);
}

/* Square places for pixels; a character holds two of them, one above the other. */
static void fit(int height, int width, int columns, int rows, int *across, int *down)
{
    *across = NL_MIN(columns, width);
    *down = (int)NL_MAX(1, ((int64_t)height * *across + width / 2) / width);
    if (rows > 0 && *down > 2 * rows) {
        *down = 2 * rows;
        *across = (int)NL_MAX(1, ((int64_t)width * *down + height / 2) / height);
    }
}

/* The upper half block and its background are two pixels. */
static void show_blocks(FILE *stream, const uint8_t *rgb, int height, int width, int across,
                        int down, bool true_colour)
{
    for (int row = 0; row < down; row += 2) {
        for (int column = 0; column < across; column++) {
            int left = (int)((int64_t)column * width / across);
            int right = (int)((int64_t)(column + 1) * width / across);
            for (int half = 0; half < 2; half++) {
                int y = row + half;
                if (y == down) {
                    fputs("\033[49m", stream);
                    break;
                }
                int top = (int)((int64_t)y * height / down);
                int bottom = (int)((int64_t)(y + 1) * height / down), mean[3];
                box_mean(rgb, width, top, NL_MAX(bottom, top + 1), left, right, mean);
                set_colour(stream, half ? 48 : 38, mean, true_colour);
            }
            fputs("\xe2\x96\x80", stream);
        }
        fputs("\033[0m\n", stream);
    }
}

/* The brighter, the more ink: most terminals are dark. */
static void show_letters(FILE *stream, const uint8_t *rgb, int height, int width, int across,
                         int down)
{
    static const char letters[] = " .:-=+*#%@";
    for (int row = 0; row < down; row += 2) {
        int top = (int)((int64_t)row * height / down);
        int bottom = (int)((int64_t)NL_MIN(row + 2, down) * height / down), mean[3];
        for (int column = 0; column < across; column++) {
            box_mean(rgb, width, top, NL_MAX(bottom, top + 1),
                     (int)((int64_t)column * width / across),
                     (int)((int64_t)(column + 1) * width / across), mean);
            int light = (299 * mean[0] + 587 * mean[1] + 114 * mean[2]) / 1000;
            fputc(letters[light * 10 / 256], stream);
        }
        fputc('\n', stream);
    }
}

nl_status nl_image_show(nl_context *context, void *stream, nl_show how, const uint8_t *rgb,
                        int height, int width, int columns, int rows)
{
    FILE *file = stream;
    uint8_t *png = NULL;
    char *text = NULL;
    size_t size;
    int across, down;
    nl_status status;
    NL_TRY(nl_image_check_size(context, NL_ERROR_USAGE, "the picture to show", height, width));
    if (columns < 1 || columns > MAX_COLUMNS) {
        status = nl_fail(context, NL_ERROR_USAGE,
                         "%d columns to show a picture in: expected 1 to %d", columns, MAX_COLUMNS);
        goto cleanup;
    }
    bool true_colour = true;
    if (how == NL_SHOW_AUTO) {
        how = choose();
        true_colour = names("COLORTERM", "truecolor") || names("COLORTERM", "24bit");
    }
    fit(height, width, columns, rows, &across, &down);
    if (how == NL_SHOW_BLOCKS) {
        show_blocks(file, rgb, height, width, across, down, true_colour);
    } else if (how == NL_SHOW_LETTERS) {
        show_letters(file, rgb, height, width, across, down);
    } else {
        NL_TRY(nl_png_encode(context, rgb, height, width, NULL, &png, &size));
        NL_TRY(nl_base64(context, png, size, &text));
        if (how == NL_SHOW_KITTY)
            show_kitty(file, text);
        else
            fprintf(file, "\033]1337;File=inline=1;size=%zu:%s\a\n", size, text);
    }
    if (fflush(file) != 0 || ferror(file))
        status =
            nl_fail(context, NL_ERROR_WRITE, "the picture cannot be shown: %s", strerror(errno));
cleanup:
    nl_free(context, text);
    nl_free(context, png);
    return status;
}
