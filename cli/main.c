/* SPDX-License-Identifier: MIT */
/* The program: finds the command; starts anew where libraries need another environment. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nl_analyze.h"
#include "nl_blas.h"
#include "nl_console.h"
#include "nl_convert.h"
#include "nl_encode_command.h"
#include "nl_eval.h"
#include "nl_help.h"
#include "nl_info.h"
#include "nl_sample.h"
#include "nl_serve_command.h"
#include "nl_thread.h"
#include "nl_training.h"
#include "ops.h"

static nl_status version_main(int argc, char **argv);
static nl_status help_main(int argc, char **argv);
static nl_status man_main(int argc, char **argv);
static nl_status completion_main(int argc, char **argv);
static nl_status schema_main(int argc, char **argv);

static const nl_option no_options[] = {{0}};

enum { MAX_COMMANDS = 24 };

static const nl_command *const commands[MAX_COMMANDS + 1] = {
    &nl_sample_command,
    &nl_train_command,
    &nl_distill_command,
    &nl_average_command,
    &nl_encode_command,
    &nl_decode_command,
    &nl_reconstruct_command,
    &nl_eval_command,
    &nl_stats_command,
    &nl_nearest_command,
    &nl_info_command,
    &nl_plot_command,
    &nl_likelihood_command,
    &nl_analyze_command,
    &nl_convert_command,
    &nl_serve_command,
    &(nl_command){.name = "version",
                  .summary = "Print the version",
                  .arguments = "",
                  .options = no_options,
                  .run = version_main},
    &(nl_command){.name = "help",
                  .summary = "Print this text, the help of a command, or that of all",
                  .arguments = "[COMMAND [all] | all]",
                  .options = no_options,
                  .run = help_main},
    &(nl_command){.name = "completion",
                  .summary = "Print shell completion",
                  .arguments = "bash|zsh|fish",
                  .options = no_options,
                  .hidden = true,
                  .run = completion_main},
    &(nl_command){.name = "generate-schema",
                  .summary = "Print the JSON schema of requests, answers and pictures",
                  .arguments = "",
                  .options = no_options,
                  .hidden = true,
                  .run = schema_main},
    &(nl_command){.name = "generate-man",
                  .summary = "Print the man page",
                  .arguments = "",
                  .options = no_options,
                  .hidden = true,
                  .run = man_main},
};

/* The commands by value, ended by one without name. */
static void list_commands(nl_command list[MAX_COMMANDS + 1])
{
    int count = 0;
    for (; commands[count]; count++)
        list[count] = *commands[count];
    list[count] = (nl_command){0};
}

static const nl_command *find_command(const char *name)
{
    for (int i = 0; commands[i]; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

/* One screen: 24 lines of 80 columns. */
static void print_help(FILE *stream)
{
    fputs("nalagen makes pictures of given classes with DiT, SiT, NaLaDiT and NaLaSiT.\n"
          "Usage: nalagen COMMAND [OPTION...]\n",
          stream);
    for (int i = 0; commands[i]; i++)
        if (commands[i]->options != no_options)
            fprintf(stream, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fputs("Try: nalagen sample --class church; nalagen COMMAND --help; nalagen help all\n"
          "Exit codes:\n",
          stream);
    fputs(nl_exit_codes, stream);
}

static nl_status finish(void)
{
    if (fflush(stdout) != EOF && !ferror(stdout))
        return NL_OK;
    fprintf(stderr, "nalagen: error: standard output: cannot be written: %s\n", strerror(errno));
    return NL_ERROR_WRITE;
}

static nl_status complain(const char *what, const char *word, const char *near)
{
    fprintf(stderr, "nalagen: error: %s '", what);
    nl_print_plain(stderr, word);
    fprintf(stderr, "'%s%s%s; see 'nalagen help'\n", near ? "; did you mean " : "",
            near ? near : "", near ? "?" : "");
    return NL_ERROR_USAGE;
}

static nl_status unknown_command(const char *word)
{
    const char *names[MAX_COMMANDS + 1] = {NULL};
    for (int i = 0; commands[i]; i++)
        names[i] = commands[i]->name;
    return complain(word[0] == '-' ? "unknown option" : "unknown command", word,
                    nl_nearest(word, names));
}

static nl_status version_main(int argc, char **argv)
{
    if (argc > 1)
        return complain("unexpected argument", argv[1], NULL);
    printf("nalagen %s\n", nl_version());
    return finish();
}

static nl_status help_main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    const nl_command *command = argc > 1 ? find_command(argv[1]) : NULL;
    if (argc > 1 && !command && !all)
        return unknown_command(argv[1]);
    if (command && command->options != no_options)
        nl_print_help(stdout, command, argc > 2 && !strcmp(argv[2], "all"));
    else
        print_help(stdout);
    for (int i = 0; all && commands[i]; i++)
        if (commands[i]->options != no_options) {
            putchar('\n');
            nl_print_help(stdout, commands[i], true);
        }
    return finish();
}

static nl_status man_main(int argc, char **argv)
{
    nl_command list[MAX_COMMANDS + 1];
    if (argc > 1)
        return complain("unexpected argument", argv[1], NULL);
    list_commands(list);
    nl_print_man(stdout, list);
    return finish();
}

static nl_status schema_main(int argc, char **argv)
{
    if (argc > 1)
        return complain("unexpected argument", argv[1], NULL);
    return nl_print_schema(stdout) ? finish() : NL_ERROR_MEMORY;
}

static nl_status completion_main(int argc, char **argv)
{
    nl_command list[MAX_COMMANDS + 1];
    const char *what = argc > 1 ? argv[1] : "";
    list_commands(list);
    if ((argc == 2 || argc == 3) && !strcmp(what, "classes")) {
        nl_print_classes(stdout, argc == 3 && *argv[2] ? argv[2] : NULL);
    } else if (argc == 2 && !strcmp(what, "devices")) {
        nl_print_devices(stdout);
    } else if (argc != 2 || !nl_print_completion(stdout, what, list)) {
        fputs("nalagen: error: expected 'nalagen completion bash', zsh or fish\n", stderr);
        return NL_ERROR_USAGE;
    }
    return finish();
}

/* A program may be started without them; the next file to be opened would take their place, and what is
 * printed would go into it. Reading from and writing to what is opened here fails, but for messages. */
static void open_standard_files(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) < 0)
            _exit(NL_ERROR_INTERNAL);
}

static ssize_t write_patiently(void *user, const char *text, size_t size)
{
    int fd = *(const int *)user;
    size_t done = 0;
    while (done < size) {
        ssize_t written = write(fd, text + done, size - done);
        if (written >= 0)
            done += (size_t)written;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (errno != EINTR)
            break;
        if (done < size && nl_interrupted())
            break;
    }
    return (ssize_t)done;
}

/* A pipe that does not wait, as some parents give it, would lose what does not fit into it at once. */
static void make_patient(FILE **stream, const int *fd)
{
    int flags = fcntl(*fd, F_GETFL);
    if (flags < 0 || !(flags & O_NONBLOCK))
        return;
    FILE *patient = fopencookie((void *)fd, "w", (cookie_io_functions_t){.write = write_patiently});
    if (patient)
        *stream = patient;
}

/* A thread of GCC's OpenMP spins for milliseconds when it has nothing to do. Where other programs want
 * the processors too, it takes the time of the very threads that it waits for, and sampling is ten
 * times slower and more. Not where a GPU will do the work, whose libraries would be loaded twice, but for
 * encoding: there threads read pictures beside it. True: the environment has changed. */
static bool shorten_waits(const nl_command *command, char **argv)
{
    bool cpu = !nl_cuda_is_likely() || command == &nl_encode_command;
    for (char **word = argv; *word; word++)
        cpu |= !strcmp(*word, "cpu") || !strcmp(*word, "--device=cpu");
    return cpu && !getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY") &&
           setenv("GOMP_SPINCOUNT", "5000", 1) == 0;
}

static bool choose_blas(const nl_command *command)
{
    const char *kernels = NULL;
    if (command == &nl_eval_command || command == &nl_stats_command)
        kernels = nl_blas_better_kernels();
    return kernels && !getenv("OPENBLAS_CORETYPE") && setenv("OPENBLAS_CORETYPE", kernels, 1) == 0;
}

/* Libraries read their environment before main: what they should find there takes starting anew, once, because
 * then it is there. */
static void start_anew(const nl_command *command, char **argv)
{
    char path[4096];
    bool waits = shorten_waits(command, argv), blas = choose_blas(command);
    if (!waits && !blas)
        return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    if (length <= 0 || length == sizeof(path))
        return;
    path[length] = '\0';
    nl_unbind_thread(pthread_self()); /* OpenMP counts the processors of the mask that it finds */
    execv(path, argv);
}

/* A file that is mapped became shorter, or its disk failed. */
static void end_of_mapping(int signal_number)
{
    static const char text[] =
        "\nnalagen: error: a file that was being read became shorter, or cannot be read any "
        "more: do not change files while they are in use\n";
    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
        _exit(NL_ERROR_INTERNAL);
    _exit(NL_ERROR_INPUT);
}

/* Every thread that allocates takes 64 MiB of addresses for a heap of its own: not where they are limited. */
static void share_heap(void)
{
#ifdef M_ARENA_MAX
    if (nl_addresses_left() < INT64_MAX)
        mallopt(M_ARENA_MAX, 1);
#endif
}

int main(int argc, char **argv)
{
    static const int out = STDOUT_FILENO, err = STDERR_FILENO;
    share_heap();
    open_standard_files();
    make_patient(&stdout, &out);
    make_patient(&stderr, &err);
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* lines of several processes stay whole */
    signal(SIGBUS, end_of_mapping);
    /* A reader that goes away is a write error like any other, and so is a file of the size that the shell allows. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return NL_ERROR_USAGE;
    }
    const char *word = argv[1];
    if (!strcmp(word, "--help") || !strcmp(word, "-h"))
        word = "help";
    else if (!strcmp(word, "--version") || !strcmp(word, "-V"))
        word = "version";
    const nl_command *command = find_command(word);
    if (!command)
        return unknown_command(word);
    if (command->options != no_options)
        start_anew(command, argv);
    nl_hold_time_limit();
    return command->run(argc - 1, argv + 1);
}
