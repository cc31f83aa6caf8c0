/* SPDX-License-Identifier: MIT */
/* --gpus and --processes: this program once more for each share of the work. The processes are in groups of their own,
 * so that Ctrl-C reaches them through this one and once. */
#include "nl_launch.h"
#include "nl_thread.h"
#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct nl_child {
    pid_t pid; /* 0: ended */
    int state; /* as waitpid gives it */
} nl_child;

typedef struct nl_crew {
    nl_console *console;
    nl_context *context;
    nl_child *children; /* [count], allocated */
    int count, started, ended;
    bool gpus, together;
    int failed; /* 1 + the first child that failed */
    uint64_t token;
    int reports[2]; /* a pipe of nl_share_report */
    nl_share_report sum;
} nl_crew;

static nl_status choose_count(nl_crew *crew, const nl_launch_options *options)
{
    nl_context *context = crew->context;
    nl_process process;
    if (nl_process_read(&process) && process.ranks > 1)
        return nl_fail(context, NL_ERROR_USAGE,
                       "this is process %d of %d, says %s: leave %s out, or start one process",
                       process.rank, process.ranks, process.launcher,
                       options->gpus ? "--gpus" : "--processes");
    if (options->gpus && options->processes)
        return nl_fail(context, NL_ERROR_USAGE, "--gpus and --processes do not go with each other");
    crew->count = (int)options->processes;
    if (!options->gpus)
        return NL_OK;
    if (options->device && strcmp(options->device, "auto") && strcmp(options->device, "cuda"))
        return nl_fail(context, NL_ERROR_USAGE, "--gpus chooses the devices: leave --device %s out",
                       options->device);
    int have = nl_cuda_device_count();
    char *end;
    long asked = strtol(options->gpus, &end, 10);
    bool all = !strcmp(options->gpus, "all");
    if (!all && (end == options->gpus || *end || asked < 1))
        return nl_fail(context, NL_ERROR_USAGE, "--gpus %s: expected a number or all",
                       options->gpus);
    if (have < 1 || asked > have)
        return nl_fail(context, NL_ERROR_DEVICE, "--gpus %s: found %d GPUs that CUDA can use%s",
                       options->gpus, have,
                       have                ? ""
                       : options->together ? "; on CPUs mpirun starts the processes"
                                           : "; --processes N works on the CPU");
    crew->gpus = true;
    crew->count = all ? have : (int)asked;
    return NL_OK;
}

/* In the new process: nothing but system calls. A signal that comes before the program is there ends the process: its
 * handler here is the parent's. */
static void become_child(const nl_crew *crew, pid_t parent, char **arguments, const sigset_t *held)
{
    setpgid(0, 0);
    nl_forget_interrupt();
    nl_let_interrupt(held);
    fcntl(crew->reports[1], F_SETFD, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent)
        execv("/proc/self/exe", arguments);
    _exit(NL_ERROR_INTERNAL);
}

static nl_status start(nl_crew *crew, char **arguments)
{
    pid_t parent = getpid();
    fflush(NULL);
    nl_unbind_thread(pthread_self()); /* and so those that are born of it */
    for (int i = 0; i < crew->count; i++) {
        char text[96];
        snprintf(text, sizeof(text), "%d/%d %llx %d %d", i, crew->count,
                 (unsigned long long)crew->token, crew->reports[1], crew->gpus ? i : -1);
        if (setenv(NL_CHILD_VARIABLE, text, 1) != 0)
            return nl_fail(crew->context, NL_ERROR_MEMORY, "no memory for another process");
        sigset_t held;
        nl_hold_interrupt(&held);
        pid_t pid = fork();
        if (pid == 0)
            become_child(crew, parent, arguments, &held);
        int reason = errno;
        nl_let_interrupt(&held);
        if (pid < 0)
            return nl_fail(crew->context, NL_ERROR_MEMORY, "process %d of %d cannot be started: %s",
                           i, crew->count, strerror(reason));
        crew->children[crew->started++].pid = pid;
    }
    return NL_OK;
}

static void stop(const nl_crew *crew, int signal)
{
    for (int i = 0; i < crew->started; i++)
        if (crew->children[i].pid)
            kill(crew->children[i].pid, signal);
}

static void read_reports(nl_crew *crew)
{
    nl_share_report reports[64];
    ssize_t size = read(crew->reports[0], reports, sizeof(reports));
    for (ssize_t i = 0; i < size / (ssize_t)sizeof(reports[0]); i++) {
        crew->sum.there += reports[i].there;
        crew->sum.todo += reports[i].todo;
        crew->sum.made += reports[i].made;
    }
    nl_progress progress = {.stage = "sampling", .image = crew->sum.made, .images = crew->sum.todo};
    crew->console->bar.there = crew->sum.there;
    if (crew->sum.todo)
        nl_console_progress(crew->console, &progress);
}

static void reap(nl_crew *crew)
{
    for (int i = 0; i < crew->started; i++) {
        nl_child *child = &crew->children[i];
        if (child->pid && waitpid(child->pid, &child->state, WNOHANG) == child->pid) {
            child->pid = 0;
            crew->ended++;
            if (!crew->failed && (!WIFEXITED(child->state) || WEXITSTATUS(child->state)))
                crew->failed = i + 1;
        }
    }
}

static nl_status code_of(const nl_crew *crew, int child)
{
    int state = crew->children[child].state;
    return WIFEXITED(state) ? (nl_status)WEXITSTATUS(state) : NL_ERROR_INTERNAL;
}

/* Of processes that wait for each other one has failed, or not all could be started. One that was asked to stop (by
 * another than this one) has told the others. */
static bool broken(const nl_crew *crew)
{
    return crew->started < crew->count ||
           (crew->together && crew->failed && code_of(crew, crew->failed - 1) != NL_CANCELLED);
}

/* Those that wait for one that has gone do not hear SIGTERM; one that writes a checkpoint may end. */
static void wait_for_all(nl_crew *crew)
{
    const double patience = 20; /* seconds */
    double since = 0;
    bool told = false;
    while (crew->ended < crew->started) {
        struct pollfd fd = {.fd = crew->reports[0], .events = POLLIN};
        if (!told && (nl_interrupted() || broken(crew))) {
            told = true;
            stop(crew, SIGTERM);
        }
        if (crew->together && (crew->failed || broken(crew))) {
            since = since > 0 ? since : nl_seconds();
            if (nl_seconds() - since > patience)
                stop(crew, SIGKILL);
        }
        if (poll(&fd, 1, 200) > 0 && fd.revents & POLLIN)
            read_reports(crew);
        reap(crew);
    }
    nl_console_clear(crew->console);
}

static void tell_failure(const nl_crew *crew, int child)
{
    int state = crew->children[child].state;
    if (WIFSIGNALED(state))
        fprintf(stderr,
                "nalagen: error: process %d of %d was ended by signal %d (%s): run the same "
                "command to %s\n",
                child, crew->count, WTERMSIG(state), strsignal(WTERMSIG(state)),
                crew->together ? "resume from the last checkpoint"
                               : "make what it had not finished");
    else
        fprintf(stderr, "nalagen: error: process %d of %d ended with code %d (%s)\n", child,
                crew->count, (int)code_of(crew, child), nl_status_name(code_of(crew, child)));
}

/* The first failure; told are those that the first process has not told of in its own words. Those that were ended
 * because of another tell nothing. */
static nl_status outcome(const nl_crew *crew)
{
    nl_status status = crew->together && crew->failed ? code_of(crew, crew->failed - 1) : NL_OK;
    for (int i = 0; i < crew->started; i++) {
        nl_status code = code_of(crew, i);
        bool told = WIFEXITED(crew->children[i].state) && (i == 0 || code == code_of(crew, 0));
        if (status == NL_OK)
            status = code;
        if (code != NL_OK && !told && (!crew->together || i == crew->failed - 1))
            tell_failure(crew, i);
    }
    if (nl_interrupted() && (status == NL_OK || status == NL_CANCELLED))
        return NL_CANCELLED;
    return status == NL_OK
               ? NL_OK
               : nl_fail(crew->context, status, "not every process came to its end: see above");
}

void nl_take_place(nl_console *console, nl_machine_options *machine, char text[24])
{
    nl_process process;
    bool any =
        !machine->device || !strcmp(machine->device, "auto") || !strcmp(machine->device, "cuda");
    if (!nl_process_read(&process) || process.ranks < 2)
        return; /* what is wrong with it is said later */
    int gpus = any && process.local >= 0 ? nl_cuda_device_count() : 0;
    if (gpus > 0) {
        snprintf(text, 24, "cuda:%d", process.local % gpus);
        machine->device = text;
    }
    if (!machine->threads && process.child_token)
        machine->threads = NL_MAX(1, nl_default_threads() / process.ranks);
    console->quiet |= process.rank > 0;
}

bool nl_launch_wanted(const nl_launch_options *options)
{
    return (options->gpus || options->processes) && !getenv(NL_CHILD_VARIABLE);
}

nl_status nl_launch(nl_console *console, nl_context *context, const nl_launch_options *options,
                    int argc, char **argv)
{
    nl_crew crew = {
        .console = console, .context = context, .together = options->together, .reports = {-1, -1}};
    nl_status status = NL_OK;
    char **arguments = NULL;
    struct timespec now;
    NL_TRY(choose_count(&crew, options));
    NL_TRY(NL_NEW_ZEROS(context, "processes", crew.count, &crew.children));
    NL_TRY(NL_NEW_ZEROS(context, "arguments", argc + 2, &arguments));
    arguments[0] = "nalagen";
    memcpy(arguments + 1, argv, (size_t)argc * sizeof(*argv));
    if (pipe2(crew.reports, O_CLOEXEC) != 0)
        NL_TRY(nl_fail(context, NL_ERROR_INTERNAL, "no pipe: %s", strerror(errno)));
    clock_gettime(CLOCK_REALTIME, &now);
    crew.token =
        ((uint64_t)getpid() << 40 ^ (uint64_t)now.tv_sec << 20 ^ (uint64_t)now.tv_nsec) | 1;
    nl_console_begin(console, 0);
    nl_catch_interrupt(console, context);
    status = start(&crew, arguments);
    wait_for_all(&crew);
    nl_release_interrupt();
    if (status == NL_OK)
        status = outcome(&crew);
cleanup:
    for (int i = 0; i < 2; i++)
        if (crew.reports[i] >= 0)
            close(crew.reports[i]);
    nl_free(context, crew.children);
    nl_free(context, arguments);
    return status;
}
