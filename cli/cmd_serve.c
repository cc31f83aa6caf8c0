/* SPDX-License-Identifier: MIT */
/* The serve command: pictures over HTTP, where libmicrohttpd was found when nalagen was built. */
#include "nl_serve_command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#include "nl_command.h"
#include "nl_thread.h"

#ifdef NL_SERVE
#include "nl_serve.h"
#endif

typedef struct nl_serve_values {
    nl_machine_options machine;
    nl_option_list models, names, runs;
    const char *vae, *host, *token;
    int64_t port, queue, pictures, size, seconds, batch;
    bool open;
} nl_serve_values;

#define FIELD(member)   offsetof(nl_serve_values, member)
#define MACHINE(member) offsetof(nl_serve_values, machine.member)

static const nl_option options_table[] = {
    {"model", 'm', NL_OPTION_FILE, FIELD(models), "FILE", .group = "Model",
     .where = NL_COMMON | NL_REPEATED, .help = "may be given again (shipped NaLaSiT-S/2)",
     .detail = "Clients know a model by the name of its file, without the suffix."},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .help = "autoencoder of all of them, or tiny"},

    {"port", 'p', NL_OPTION_INT, FIELD(port), "N", 0, 65535, .where = NL_COMMON, .group = "Server",
     .help = "(7860); 0: one that is free"},
    {"host", 0, NL_OPTION_TEXT, FIELD(host), "ADDRESS", .where = NL_COMMON,
     .help = "(127.0.0.1); what is no loopback needs --token"},
    {"token", 0, NL_OPTION_TEXT, FIELD(token), "TEXT|@FILE", .where = NL_COMMON,
     .help = "that clients have to send",
     .detail = "In the header Authorization: Bearer TEXT. @FILE: its first line, which other "
               "users do not see in a list of processes."},
    {"name", 0, NL_OPTION_TEXT, FIELD(names), "NAME", .where = NL_REPEATED,
     .help = "another name that clients know the server by"},
    {"runs", 0, NL_OPTION_FILE, FIELD(runs), "FOLDER", .where = NL_COMMON | NL_REPEATED,
     .help = "training runs to be shown: one, or a folder of them"},
    {"open", 0, NL_OPTION_FLAG, FIELD(open), .where = NL_COMMON,
     .help = "show the page in the browser"},

    {"max-queue", 0, NL_OPTION_INT, FIELD(queue), "N", 1, 100000, .where = NL_COMMON,
     .group = "Limits", .help = "jobs that wait or are at work (64)"},
    {"max-pictures", 0, NL_OPTION_INT, FIELD(pictures), "N", 1, 100000,
     .help = "pictures of a job (64)"},
    {"max-size", 0, NL_OPTION_INT, FIELD(size), "N", 1, 16384,
     .help = "pixels of a side of a picture (1024)"},
    {"max-seconds", 0, NL_OPTION_INT, FIELD(seconds), "N", 1, 86400,
     .help = "from the start of a job to its end (600)"},

    {.include = nl_device_options, .offset = FIELD(machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = nl_dtypes,
     .help = "of matrix products: auto, f32, bf16, fp8"},
    {"batch", 'b', NL_OPTION_INT, FIELD(batch), "N", 1, 65536,
     .help = "pictures at once (as fits; does not change them)"},
    {.include = nl_common_options, .offset = FIELD(machine)},
    {0},
};

#ifdef NL_SERVE

/* Bytes of pictures that wait or are kept. */
static const int64_t picture_bytes = INT64_C(1) << 30;

/* The first signal ends the server when what it has taken is made; the next one ends that, too. Signals are held back in this
 * thread and those that come of it (a frame in the middle of a product of oneDNN's would lie on its numbers); whichever thread
 * takes one, a thread of a library's perhaps, passes it on through a pipe. */
typedef struct nl_stopper {
    nl_context *context;
    nl_queue *queue;
    pthread_t thread;
    bool running;
} nl_stopper;

static int stopping[2] = {-1, -1}; /* a byte for each signal; 0: it is over */
static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

static void pass_on(int number)
{
    int error = errno;
    char byte = (char)number;
    ssize_t written = write(stopping[1], &byte, 1);
    (void)written;
    errno = error;
}

static void stop_signal_set(sigset_t *set)
{
    sigemptyset(set);
    for (int i = 0; i < NL_COUNT(stop_signals); i++)
        sigaddset(set, stop_signals[i]);
}

static void *wait_for_signals(void *user)
{
    nl_stopper *stopper = user;
    sigset_t set;
    char byte;
    stop_signal_set(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    for (double first = 0;;) {
        ssize_t size = read(stopping[0], &byte, 1);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 1 || !byte)
            return NULL;
        nl_queue_stop(stopper->queue);
        if (first == 0) {
            first = nl_seconds();
            nl_log(stopper->context, NL_LOG_INFO,
                   "stopping when what was asked for is made; once more stops at once");
        } else if (nl_asks_again(first)) {
            nl_queue_cancel_all(stopper->queue, false);
        }
    }
}

static void hold_signals(void)
{
    sigset_t set;
    stop_signal_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* After the device has been taken, in place of what catches signals for other commands. */
static nl_status start_stopper(nl_context *context, nl_stopper *stopper)
{
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART}, inherited;
    nl_release_interrupt();
    if (pipe2(stopping, O_CLOEXEC) != 0 ||
        nl_start_thread(&stopper->thread, wait_for_signals, stopper) != 0)
        return nl_fail(context, NL_ERROR_MEMORY, "no thread for signals");
    stopper->running = true;
    for (int i = 0; i < NL_COUNT(stop_signals); i++) /* what nohup has put out of action stays so */
        if (sigaction(stop_signals[i], NULL, &inherited) == 0 && inherited.sa_handler != SIG_IGN)
            sigaction(stop_signals[i], &action, NULL);
    return NL_OK;
}

static void end_stopper(nl_stopper *stopper)
{
    if (!stopper->running)
        return;
    pass_on(0);
    pthread_join(stopper->thread, NULL);
    for (int i = 0; i < NL_COUNT(stop_signals); i++)
        signal(stop_signals[i], SIG_DFL);
    close(stopping[0]);
    close(stopping[1]);
}

static nl_status read_token(nl_command_line *line, const char **token, char text[256])
{
    nl_status status = NL_OK;
    FILE *file;
    if (!*token || **token != '@')
        return NL_OK;
    if (!(file = fopen(*token + 1, "r")) || !fgets(text, 256, file))
        NL_TRY(nl_fail(line->context, NL_ERROR_INPUT, "--token %s: %s", *token,
                       errno ? strerror(errno) : "expected a line"));
    text[strcspn(text, "\r\n")] = '\0';
    *token = text;
cleanup:
    if (file)
        fclose(file);
    return status;
}

/* The browser is asked by the desktop's own program, and nobody waits for it. */
static void open_page(nl_context *context, const char *url, const char *token)
{
    char page[512];
    pid_t child;
    snprintf(page, sizeof(page), "%s/%s%s", url, token ? "#token=" : "", token ? token : "");
    char *words[] = {"xdg-open", page, NULL};
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    extern char **environ;
    if (posix_spawnp(&child, words[0], NULL, &attributes, words, environ) != 0)
        nl_log(context, NL_LOG_WARNING, "--open: there is no xdg-open: the page is at %s", url);
    posix_spawnattr_destroy(&attributes);
}

static nl_status add_models(nl_command_line *line, const nl_serve_values *values, nl_queue *queue)
{
    nl_status status = NL_OK;
    nl_task_options options = nl_task_defaults;
    options.vae = values->vae;
    for (int i = 0; i == 0 || values->models.items[i]; i++) {
        options.model = values->models.items[i];
        NL_TRY(nl_queue_add_model(queue, line->context, &options));
        if (!options.model)
            break;
    }
cleanup:
    return status;
}

static nl_status serve(nl_command_line *line, void *user)
{
    const nl_serve_values *values = user;
    char token[256], url[256];
    nl_serve_options options = {.host = values->host,
                                .port = (int)values->port,
                                .token = values->token,
                                .names = values->names.items,
                                .runs = values->runs.items,
                                .limits = {.jobs = values->queue,
                                           .pictures = values->pictures,
                                           .side = values->size,
                                           .seconds = (double)values->seconds,
                                           .bytes = picture_bytes,
                                           .batch = (int)values->batch}};
    nl_stopper stopper = {.context = line->first};
    nl_server *server = NULL;
    nl_status status = NL_OK;
    hold_signals();
    NL_TRY(read_token(line, &options.token, token));
    NL_TRY(nl_server_create(line->first, &options, &server));
    stopper.queue = nl_server_queue(server);
    NL_TRY(nl_command_take_device(line, &values->machine, nl_queue_progress, stopper.queue));
    NL_TRY(start_stopper(line->context, &stopper));
    NL_TRY(add_models(line, values, stopper.queue));
    status = nl_server_start(server, line->context, url, sizeof(url));
    if (status != NL_OK)
        NL_TRY(nl_fail(line->context, status, "%s", nl_last_error(line->first)));
    NL_TRY(nl_print_line(line->context, url));
    if (values->open)
        open_page(line->context, url, options.token);
    NL_TRY(nl_queue_work(stopper.queue, line->context));
cleanup:
    if (server)
        nl_server_end(server);
    end_stopper(&stopper);
    nl_server_destroy(server);
    return status;
}

#else

static nl_status serve(nl_command_line *line, void *values)
{
    (void)values;
    return nl_fail(line->context, NL_ERROR_DEVICE,
                   "this build has no server: install libmicrohttpd (Debian: libmicrohttpd-dev) "
                   "and build again");
}

#endif

static nl_status serve_main(int argc, char **argv)
{
    nl_serve_values values = {.host = "127.0.0.1",
                              .port = 7860,
                              .queue = 64,
                              .pictures = 64,
                              .size = 1024,
                              .seconds = 600};
    return nl_command_main(&nl_serve_command, argc, argv, &values, serve);
}

const nl_command nl_serve_command = {
    .name = "serve",
    .summary = "Serve a page and interfaces over HTTP",
    .arguments = "[OPTION...]",
    .operands = "models are given with --model",
    .notes = "The address is printed when the server answers. Interfaces: the page, /api,\n"
             "  OpenAI's images, A1111's txt2img (docs/serve.md). SIGTERM ends it when running\n"
             "  jobs are done.\n",
    .examples = "  nalagen serve --open\n"
                "  nalagen serve -m NaLaSiT.safetensors -m few.safetensors --runs runs\n"
                "  nalagen serve --host 0.0.0.0 --token @/etc/nalagen.token\n",
    .options = options_table,
    .run = serve_main,
};
