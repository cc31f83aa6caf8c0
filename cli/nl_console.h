/* SPDX-License-Identifier: MIT */
/* The terminal: messages and progress on stderr, results on stdout, Ctrl-C. */
#ifndef NL_CONSOLE_H
#define NL_CONSOLE_H

#include <signal.h>
#include <stdio.h>

#include "nl_json.h"

/* The work whose progress is shown. */
typedef struct nl_bar {
    const char *stage; /* NULL: none yet */
    bool measured;     /* its length is known */
    int64_t there;     /* pictures made before, which count neither as done nor for the rate */
    double started;    /* when, by nl_seconds */
    double first;      /* part in [0, 1] that was done then */
    double first_images;
    double done; /* so far */
    double last; /* when it was shown */
} nl_bar;

typedef struct nl_console {
    bool quiet, verbose;
    bool terminal; /* stderr can redraw a line */
    bool drawn;    /* a progress line stands on it */
    nl_bar bar;
} nl_console;

void nl_console_init(nl_console *console, bool quiet, bool verbose);
void nl_console_log(nl_console *console, nl_log_level level, const char *message);
void nl_console_clear(nl_console *console); /* takes the progress line away */

/* progress.c. New work, of which `there` pictures were made before: the next progress is its first. */
void nl_console_begin(nl_console *console, int64_t there);
/* A bar with what is finished, the rate and the time left: on a terminal at once and then redrawn, elsewhere a line every
 * five seconds. Work within other work (pictures of a training) has a bar of its own while it lasts. */
void nl_console_progress(nl_console *console, const nl_progress *progress);

/* Rows of the terminal behind standard error but for two, the file's name and the prompt; 0: unknown. */
int nl_terminal_rows(void);

/* Prints the message of a failure; returns the status. */
nl_status nl_console_error(nl_console *console, nl_context *context, nl_status status);

/* Text that may come from a foreign file or an argument. What a terminal would act on is spelt out: \n, \x1b, \u{202e},
 * bytes that are no UTF-8 as well. A value takes one line; of a message, lines that are indented stay lines, so that
 * none looks like another message. */
void nl_print_plain(FILE *stream, const char *text);
void nl_print_message(FILE *stream, const char *text);

/* A line to stdout, flushed. NL_ERROR_WRITE when nobody takes it. */
nl_status nl_print_line(nl_context *context, const char *text);
/* Whether writing to this path writes to standard output: "-", or whatever leads to the same file or pipe. */
bool nl_is_stdout(const char *path);
/* The name of a file that was written: as it is for programs, spelt out for a terminal; nothing where it went there. */
nl_status nl_print_path(nl_context *context, const char *path);
/* The same of an object. */
nl_status nl_print_json(nl_context *context, const cJSON *object);
/* Flushes what help and info printed. */
nl_status nl_finish_stdout(nl_context *context);

/* SIGXCPU is held back from now on in this thread and those that come of it, and waited for by one of its own, which passes it to
 * this one where interrupts are caught; otherwise it ends the process. Before there are other threads. */
void nl_hold_time_limit(void);
/* From now on the first SIGINT, SIGTERM, SIGUSR1, SIGHUP or SIGXCPU cancels `context`'s work and says so on `console`; a second one of the first
 * three ends the process, if nl_asks_again. */
void nl_catch_interrupt(const nl_console *console, nl_context *context);
/* Whether a signal after the `first` (of nl_seconds) is a second one: timeout(1) sends each to the program and then to its
 * group, and batch systems do so too, so what comes within half a second is the same one. */
bool nl_asks_again(double first);
void nl_release_interrupt(void);
/* Holds these signals back and lets them in again. held: what was held back before. */
void nl_hold_interrupt(sigset_t *held);
void nl_let_interrupt(const sigset_t *held);
/* In a new process: they do what they do to a program that does not catch them. */
void nl_forget_interrupt(void);
bool nl_interrupted(void);

#endif
