/* SPDX-License-Identifier: MIT */
/*
 * Trains a small model, shows how far it is, and stops at Ctrl-C so that the same command resumes.
 *
 *   nalagen encode pictures/ -o data
 *   cc train.c $(pkg-config --cflags --libs nalagen) -o train
 *   ./train data run 1000
 */
#include <nalagen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static nl_context *context;

static void stop(int signal_number)
{
    (void)signal_number;
    nl_cancel(context);
}

/* On a stack of its own: oneDNN keeps numbers where a handler's frame would lie (docs/pitfalls.md). */
static void stop_at(int signal_number)
{
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof(room)};
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(signal_number, &action, NULL);
}

static void show_message(void *user, nl_log_level level, const char *message)
{
    (void)user, (void)level;
    fprintf(stderr, "\n%s", message);
}

static bool show_progress(void *user, const nl_progress *progress)
{
    (void)user;
    fprintf(stderr, "\r%s: step %lld of %lld ", progress->stage, (long long)progress->step,
            (long long)progress->steps);
    return true; /* false would stop it as well */
}

int main(int argc, char **argv)
{
    nl_context_options context_options;
    nl_train_options options;
    nl_training training = {.step = 0};
    if (argc < 3) {
        fprintf(stderr, "usage: train DATA RUN [STEPS]\n");
        return NL_ERROR_USAGE;
    }
    NL_INIT(&options);
    nl_train_recipe(&options);
    options.model = "NaLaSiT-2x64x2/4";
    options.data = argv[1];
    options.out = argv[2];
    options.steps = argc > 3 ? atoll(argv[3]) : 1000;
    options.batch = 8;
    options.rate = 1e-3;
    options.log_every = 10;
    options.sample_every = 0;
    NL_INIT(&context_options);
    context_options.log = show_message;
    context_options.progress = show_progress;
    nl_status status = nl_context_create(&context_options, &context);
    if (status == NL_OK) {
        stop_at(SIGINT);
        stop_at(SIGTERM);
        status = nl_train(context, &options, &training);
    }
    fprintf(stderr, "\n");
    printf("step %lld of %lld, loss %.4f\n", (long long)training.step, (long long)training.steps,
           training.loss);
    if (training.model[0])
        printf("%s\n", training.model);
    if (status != NL_OK)
        fprintf(stderr, "%s: %s\n", nl_status_name(status), context ? nl_last_error(context) : "");
    nl_context_destroy(context);
    return status;
}
