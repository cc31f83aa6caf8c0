#include "nl_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(&((nl_session *)user)->console, level, message);
}

static bool progress(void *user, const nl_progress *progress_now)
{
    nl_session *session = user;
    nl_progress of_job = *progress_now;
    if (progress_now->preview)
        nl_job_preview(session, progress_now);
    nl_job_progress(session, &of_job);
    if (session->share.report < 0)
        nl_console_progress(&session->console, &of_job);
    return !nl_interrupted();
}

static nl_status check_together(nl_context *context, const nl_sample_options *options)
{
    bool standard_output = options->out && !strcmp(options->out, "-");
    if (standard_output && (options->json || options->requests))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out - and %s both want standard output: give pictures a name",
                       options->requests ? "--requests" : "--json");
    if (options->from && options->requests)
        return nl_fail(context, NL_ERROR_USAGE, "--from and --requests do not go together");
    if (options->steps && options->respacing)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--steps and --respacing say the same thing: give one of them");
    return NL_OK;
}

/* The command line; with --from, on top of what the picture says. */
static nl_status read_options(nl_context *context, int argc, char **argv, nl_texts *texts,
                              cJSON **facts, nl_sample_options *options)
{
    nl_status status = NL_OK;
    int operands;
    *options = nl_sample_defaults;
    NL_TRY(nl_options_parse(context, &nl_sample_command, argc, argv, options, &operands));
    if (options->help)
        return NL_OK;
    if (operands < argc)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "unexpected argument '%s': classes are given with --class", argv[operands]));
    NL_TRY(check_together(context, options));
    if (options->from) {
        const char *from = options->from;
        *options = nl_sample_defaults;
        NL_TRY(nl_read_picture_facts(context, from, facts));
        NL_TRY(nl_options_from_picture(context, from, *facts, texts, options));
        nl_sample_options recorded = *options;
        NL_TRY(nl_options_parse(context, &nl_sample_command, argc, argv, options, &operands));
        /* Either of the two replaces both of the recorded ones. */
        if (options->steps != recorded.steps && options->respacing == recorded.respacing)
            options->respacing = NULL;
        if (options->respacing != recorded.respacing && options->steps == recorded.steps)
            options->steps = 0;
    }
cleanup:
    return status;
}

nl_status nl_session_load(nl_session *session)
{
    const nl_sample_options *options = session->options;
    nl_model_options model = {.path = options->model,
                              .key = options->key,
                              .config_path = options->config,
                              .architecture = options->arch,
                              .transport_path = options->path,
                              .prediction = options->prediction,
                              .vae = options->vae,
                              .height = (int)options->size[0],
                              .width = (int)options->size[1]};
    nl_status status = nl_model_load(session->context, &model, &session->model);
    if (status == NL_OK && (!options->no_metadata || options->json || options->requests))
        status = nl_model_facts(session, &session->facts);
    return status;
}

static nl_status run(nl_session *session, const cJSON *from)
{
    const nl_sample_options *options = session->options;
    nl_status status = NL_OK;
    /* What all processes of one command would say, the first says. */
    if (session->share.report >= 0 && session->share.rank > 0 && !options->verbose)
        session->console.quiet = true;
    nl_context_options context_options = {.device = options->device,
                                          .dtype = options->dtype,
                                          .threads = (int)options->threads,
                                          .max_memory = options->max_memory,
                                          .log = log_message,
                                          .progress = progress,
                                          .user = session};
    NL_TRY(nl_context_create(&context_options, &session->context));
    nl_catch_interrupt(session->context);
    NL_TRY(nl_session_load(session));
    if (from)
        NL_TRY(nl_compare_facts(session, options->from, from));
    NL_TRY(options->requests ? nl_requests_run(session) : nl_job_run(session, options, NULL));
cleanup:
    nl_release_interrupt();
    bool said =
        session->share.report >= 0 &&
        (status == NL_CANCELLED ||
         (session->share.rank > 0 && (status == NL_ERROR_USAGE || status == NL_ERROR_INPUT)));
    if (session->context && !said) /* without one the log has said why */
        nl_console_error(&session->console, session->context, status);
    cJSON_Delete(session->facts);
    nl_model_destroy(session->model);
    nl_context_destroy(session->context);
    return status;
}

nl_status nl_sample_main(int argc, char **argv)
{
    nl_session session = {0};
    nl_sample_options options;
    nl_context *context = NULL;
    cJSON *facts = NULL;
    nl_status status = NL_OK;
    nl_console_init(&session.console, false, false);
    NL_TRY(nl_core_context_create(NULL, &context));
    nl_texts texts = {.context = context};
    status = read_options(context, argc, argv, &texts, &facts, &options);
    if (status == NL_OK && options.help) {
        nl_print_help(stdout, &nl_sample_command);
        status = nl_finish_stdout(context);
    } else if (status == NL_OK) {
        session.options = &options;
        nl_console_init(&session.console, options.quiet, options.verbose);
        context->options.log = log_message;
        context->options.user = &session;
        nl_launch_options processes = {
            .gpus = options.gpus, .processes = options.processes, .device = options.device};
        bool launch = nl_launch_wanted(&processes);
        if (launch && (options.requests || options.rank))
            status = nl_fail(context, NL_ERROR_USAGE,
                             "--gpus and --processes do not go with --rank or --requests");
        else
            status = launch ? nl_launch(&session.console, context, &processes, argc, argv)
                            : nl_share_read(context, &options, &session.share);
        if (status == NL_OK && !launch) {
            status = run(&session, facts);
            goto done;
        }
    }
    nl_console_error(&session.console, context, status);
done:
    nl_texts_free(&texts);
cleanup:
    cJSON_Delete(facts);
    nl_core_context_destroy(context);
    return status;
}
