/* SPDX-License-Identifier: MIT */
/* The bar: what is finished, how fast it goes, how long it will take. Its width follows from the terminal's alone. */
#include "nl_console.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TEXT = 256 };

static int terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return 80;
}

void nl_console_begin(nl_console *console, int64_t there)
{
    double now = nl_seconds();
    console->bar = (nl_bar){.there = there,
                            .started = now,
                            /* a terminal sees the first report, a log what takes its time */
                            .last = console->terminal ? -INFINITY : now};
}

static bool trains(const nl_progress *now)
{
    return !strcmp(now->stage, "training");
}

static double steps_of(const nl_progress *now)
{
    return now->steps > 0 ? (double)now->step / (double)now->steps : 0;
}

/* Pictures finished, and those at work by their steps. In training those of steps that are done, and none at work. */
static double images_of(const nl_progress *now)
{
    return (double)now->image + (trains(now) ? 0 : steps_of(now) * (double)now->batch);
}

/* The part of the whole in [0, 1]. */
static double part_of(const nl_progress *now)
{
    if (trains(now))
        return now->done;
    return fmin(now->images ? images_of(now) / (double)now->images : steps_of(now), 1);
}

/* Takes the report into the bar. Decoding is the end of sampling; what else has another name is other work. */
static void follow(nl_bar *bar, const nl_progress *now)
{
    const char *stage = strcmp(now->stage, "decoding") ? now->stage : "sampling";
    double part = part_of(now);
    bool first = !bar->stage;
    if (first || strcmp(bar->stage, stage) || (part <= 0 && bar->done >= 1)) {
        bar->stage = stage;
        bar->first = bar->done = part;
        bar->first_images = images_of(now);
        if (!first) {
            bar->started = nl_seconds();
            bar->there = 0;
        }
    }
    bar->measured = now->images || now->steps || now->done > 0;
    bar->done =
        fmax(bar->done, part); /* a model may be ahead of the network that looks at its pictures */
}

/* Joins to what is there with a comma. */
static void add(char *text, const char *piece)
{
    size_t length = strlen(text);
    snprintf(text + length, TEXT - length, "%s%s", length ? ", " : "", piece);
}

/* "sampling step 12/19, 0/4 images, 12 s left, 1.4 s/image" */
static void describe(const nl_bar *bar, const nl_progress *now, char text[TEXT])
{
    char piece[96], figure[NL_FIGURE];
    double passed = nl_seconds() - bar->started, done = bar->done - bar->first;
    text[0] = '\0';
    snprintf(piece, sizeof(piece), "%s", now->stage);
    if (now->steps)
        snprintf(piece, sizeof(piece), "%s step %lld/%lld", now->stage, (long long)now->step,
                 (long long)now->steps);
    else if (now->step)
        snprintf(piece, sizeof(piece), "%s step %lld", now->stage, (long long)now->step);
    add(text, piece);
    if (bar->there + now->images > 1 && !trains(now)) {
        snprintf(piece, sizeof(piece), "%lld/%lld images",
                 (long long)(bar->there + NL_MIN(now->image, now->images)),
                 (long long)(bar->there + now->images));
        add(text, piece);
    }
    if (done > 0 && passed > 0.2 && bar->done < 1) {
        snprintf(piece, sizeof(piece), "%s left",
                 nl_time_text(ceil(passed * (1 - bar->done) / done), figure));
        add(text, piece);
    }
    double images = images_of(now) - bar->first_images;
    if (images > 0 && passed > 0.2) /* last: a narrow terminal does without */
        add(text, nl_rate_text(images / passed, "image", figure));
}

static void draw(nl_console *console, const char *text)
{
    const nl_bar *bar = &console->bar;
    int columns = terminal_columns() - 1;
    int width = columns >= 99 ? 20 : columns >= 59 ? 10 : 0;
    char line[TEXT], figure[8];
    size_t at = 0;
    if (width && bar->measured) {
        line[at++] = '[';
        for (int i = 0; i < width; i++)
            line[at++] = i < (int)(bar->done * width) ? '#' : '-';
        snprintf(figure, sizeof(figure), "%3d %% ", (int)(100 * bar->done));
        at += (size_t)snprintf(line + at, sizeof(line) - at, "] %s", figure);
    }
    snprintf(line + at, sizeof(line) - at, "%s", text);
    fprintf(stderr, "\r%.*s\033[K", columns, line);
    fflush(stderr);
    console->drawn = true;
}

void nl_console_progress(nl_console *console, const nl_progress *progress)
{
    nl_bar *bar = &console->bar;
    const char *before = bar->stage;
    char text[TEXT];
    follow(bar, progress);
    double now = nl_seconds();
    bool other = before && strcmp(before, bar->stage) != 0;
    /* A terminal sees each work begin and, however soon it comes, the last step of a batch and the end. */
    bool edge = console->terminal && (other || bar->done >= 1 ||
                                      (progress->steps > 0 && progress->step == progress->steps));
    if (console->quiet || (!edge && now - bar->last < (console->terminal ? 0.05 : 5)))
        return;
    bar->last = now;
    describe(bar, progress, text);
    if (console->terminal)
        draw(console, text);
    else
        fprintf(stderr, "nalagen: %s\n", text);
}
