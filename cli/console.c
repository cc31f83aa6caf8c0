/* SPDX-License-Identifier: MIT */
/* All that a person sees but the bar: messages, results on standard output; and the signals that stop a run. */
#include "nl_console.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_thread.h"
#include "nl_utf8.h"

static nl_context *volatile interrupt_context;
static const nl_console *volatile interrupt_console;
static volatile sig_atomic_t interrupt_count;
static volatile double interrupt_first; /* when the first came, of nl_seconds */
/* oneDNN's generated products (2.6) keep numbers below the stack pointer, where the frame of a signal would lie. */
static char interrupt_stack[1 << 16];
static double born; /* when the program's first console was made */

static const int interrupts[] = {
    SIGINT, SIGTERM, SIGUSR1, /* what Slurm may send before the time is over */
    SIGHUP,                   /* the terminal has gone */
};

/* The shell's limit of processor time: SIGXCPU, every second from then on. The kernel gives it to the thread that has used the
 * time up, in the middle of such a product, perhaps. So all threads hold it back, one waits for it, and passes it to the
 * first thread as this signal. */
#define PASSED_ON SIGRTMIN
static pthread_t first_thread;
static volatile sig_atomic_t catching;

static void *wait_for_time_limit(void *unused)
{
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGXCPU);
    while (sigwait(&set, &number) == 0) {
        if (catching) {
            pthread_kill(first_thread, PASSED_ON);
        } else { /* a command that is ended by it, as by default */
            pthread_sigmask(SIG_UNBLOCK, &set, NULL);
            raise(number);
        }
    }
    return unused;
}

void nl_hold_time_limit(void)
{
    struct sigaction inherited;
    sigset_t set, before;
    pthread_t thread;
    if (sigaction(SIGXCPU, NULL, &inherited) != 0 || inherited.sa_handler == SIG_IGN)
        return; /* what is ignored stays so */
    first_thread = pthread_self();
    sigemptyset(&set);
    sigaddset(&set, SIGXCPU);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    if (nl_start_thread(&thread, wait_for_time_limit, NULL) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* What a signal handler may do: no buffer, no lock. */
static void say_stopping(void)
{
    static const char text[] = "nalagen: stopping; once more stops at once\n";
    const nl_console *console = interrupt_console;
    if (!console || console->quiet)
        return;
    int error = errno;
    ssize_t line = console->drawn ? write(STDERR_FILENO, "\n", 1) : 0;
    line = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)line;
    errno = error;
}

bool nl_asks_again(double first)
{
    return nl_seconds() - first >= 0.5;
}

static void interrupt(int signal_number)
{
    /* SIGHUP comes from the kernel and from the shell, SIGXCPU again and again: a second one is no impatience. */
    bool asked = signal_number != SIGHUP && signal_number != PASSED_ON;
    if (!interrupt_count) {
        interrupt_first = nl_seconds();
        if (interrupt_context) {
            nl_cancel(interrupt_context);
            say_stopping();
        }
    } else if (asked && nl_asks_again(interrupt_first)) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    interrupt_count++;
}

void nl_catch_interrupt(const nl_console *console, nl_context *context)
{
    /* Without SA_RESTART: a read that waits for requests ends with EINTR. */
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_ONSTACK}, inherited;
    stack_t stack = {.ss_sp = interrupt_stack, .ss_size = sizeof(interrupt_stack)};
    sigaltstack(&stack, NULL);
    sigemptyset(&action.sa_mask);
    interrupt_console = console;
    interrupt_context = context;
    /* What a program is started with ignored stays so: SIGINT in the background of a script, SIGHUP by nohup. */
    for (int i = 0; i < NL_COUNT(interrupts); i++)
        if (sigaction(interrupts[i], NULL, &inherited) == 0 && inherited.sa_handler != SIG_IGN)
            sigaction(interrupts[i], &action, NULL);
    sigaction(PASSED_ON, &action, NULL);
    catching = 1;
}

void nl_release_interrupt(void)
{
    interrupt_context = NULL;
    interrupt_console = NULL;
}

void nl_hold_interrupt(sigset_t *held)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < NL_COUNT(interrupts); i++)
        sigaddset(&set, interrupts[i]);
    sigaddset(&set, PASSED_ON);
    sigprocmask(SIG_BLOCK, &set, held);
}

void nl_let_interrupt(const sigset_t *held)
{
    sigprocmask(SIG_SETMASK, held, NULL);
}

void nl_forget_interrupt(void)
{
    struct sigaction action;
    for (int i = 0; i < NL_COUNT(interrupts); i++)
        if (sigaction(interrupts[i], NULL, &action) == 0 && action.sa_handler == interrupt)
            signal(interrupts[i], SIG_DFL);
}

bool nl_interrupted(void)
{
    return interrupt_count > 0;
}

void nl_console_init(nl_console *console, bool quiet, bool verbose)
{
    const char *kind = getenv("TERM");
    born = born > 0 ? born : nl_seconds();
    *console = (nl_console){.quiet = quiet, .verbose = verbose};
    console->terminal = isatty(STDERR_FILENO) && kind && strcmp(kind, "dumb") != 0;
    nl_console_begin(console, 0);
}

void nl_console_clear(nl_console *console)
{
    if (console->drawn) {
        fputs("\r\033[K", stderr);
        fflush(
            stderr); /* before a result goes to standard output, which may be the same terminal */
    }
    console->drawn = false;
}

static void print_escaped(FILE *stream, const char *text, bool message)
{
    for (size_t left = strlen(text); left > 0;) {
        uint32_t code = 0;
        int bytes = nl_utf8_decode(text, left, &code), used = NL_MAX(bytes, 1);
        bool line = message && text[0] == '\n' && left > 2 && text[1] == ' ' && text[2] == ' ';
        if (line || (bytes && !nl_utf8_hidden(code)))
            fwrite(text, 1, (size_t)used, stream);
        else if (bytes > 1)
            fprintf(stream, "\\u{%x}", (unsigned)code);
        else if (*text == '\n' || *text == '\t')
            fputs(*text == '\n' ? "\\n" : "\\t", stream);
        else
            fprintf(stream, "\\x%02x", (unsigned char)*text);
        text += used;
        left -= (size_t)used;
    }
}

void nl_print_plain(FILE *stream, const char *text)
{
    print_escaped(stream, text, false);
}

void nl_print_message(FILE *stream, const char *text)
{
    print_escaped(stream, text, true);
}

void nl_console_log(nl_console *console, nl_log_level level, const char *message)
{
    static const char *const names[] = {"error: ", "warning: ", "", ""};
    nl_log_level most = console->quiet     ? NL_LOG_ERROR
                        : console->verbose ? NL_LOG_DEBUG
                                           : NL_LOG_INFO;
    if (level > most)
        return;
    nl_console_clear(console);
    fprintf(stderr, "nalagen: %s", names[level]);
    if (level == NL_LOG_DEBUG)
        fprintf(stderr, "%.3f s: ", nl_seconds() - born);
    nl_print_message(stderr, message);
    fputc('\n', stderr);
}

nl_status nl_console_error(nl_console *console, nl_context *context, nl_status status)
{
    const char *message = nl_last_error(context);
    if (status == NL_OK)
        return status;
    nl_console_clear(console);
    if (status == NL_CANCELLED) {
        fputs("nalagen: interrupted\n", stderr);
        return status;
    }
    fputs("nalagen: error: ", stderr);
    nl_print_message(stderr, *message ? message : nl_status_name(status));
    fputc('\n', stderr);
    return status;
}

int nl_terminal_rows(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2 ? size.ws_row - 2 : 0;
}

static nl_status stdout_failed(nl_context *context)
{
    if (nl_interrupted())
        return nl_fail(context, NL_CANCELLED, "interrupted");
    return nl_fail(context, NL_ERROR_WRITE, "standard output: cannot be written: %s",
                   strerror(errno));
}

nl_status nl_print_line(nl_context *context, const char *text)
{
    if (fputs(text, stdout) == EOF || fputc('\n', stdout) == EOF || fflush(stdout) == EOF)
        return stdout_failed(context);
    return NL_OK;
}

bool nl_is_stdout(const char *path)
{
    struct stat of_path, of_stdout;
    return !strcmp(path, "-") ||
           (stat(path, &of_path) == 0 && fstat(STDOUT_FILENO, &of_stdout) == 0 &&
            of_path.st_dev == of_stdout.st_dev && of_path.st_ino == of_stdout.st_ino);
}

nl_status nl_print_path(nl_context *context, const char *path)
{
    if (nl_is_stdout(path))
        return NL_OK;
    if (!isatty(STDOUT_FILENO))
        return nl_print_line(context, path);
    nl_print_plain(stdout, path);
    return nl_print_line(context, "");
}

nl_status nl_print_json(nl_context *context, const cJSON *object)
{
    char *text = nl_json_print(object, false);
    nl_status status = text ? nl_print_line(context, text)
                            : nl_fail(context, NL_ERROR_MEMORY, "no memory for JSON");
    cJSON_free(text);
    return status;
}

nl_status nl_finish_stdout(nl_context *context)
{
    if (fflush(stdout) == EOF || ferror(stdout))
        return stdout_failed(context);
    return NL_OK;
}
