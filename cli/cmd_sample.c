/* SPDX-License-Identifier: MIT */
/* The sample command: one job from the command line, or one for each line of --requests. */
#include "nl_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool progress(void *user, const nl_progress *progress_now)
{
    nl_session *session = user;
    nl_progress of_job = *progress_now;
    if (progress_now->preview)
        nl_job_preview(session, progress_now);
    nl_job_progress(session, &of_job);
    if (session->share.report < 0)
        nl_console_progress(session->console, &of_job);
    return !nl_interrupted();
}

static nl_status check_together(nl_context *context, const nl_sample_options *options)
{
    bool standard_output = options->out && nl_is_stdout(options->out);
    if (standard_output && (options->json || options->requests))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out %s and %s both want standard output: give pictures a name",
                       options->out, options->requests ? "--requests" : "--json");
    if (options->root && !options->requests)
        return nl_fail(context, NL_ERROR_USAGE, "--root is what --requests are kept in");
    if (options->root && !nl_path_is_folder(options->root))
        return nl_fail(context, NL_ERROR_USAGE, "--root %s: no such folder", options->root);
    if (options->from && options->requests)
        return nl_fail(context, NL_ERROR_USAGE, "--from and --requests do not go together");
    if (options->task.sampling.steps && options->task.sampling.respacing)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--steps and --respacing say the same thing: give one of them");
    return NL_OK;
}

/* With another sampler, what was recorded of the one before and has not been given anew. */
static void drop_of_sampler(const nl_sampling *recorded, nl_sampling *s)
{
    s->eta = s->eta == recorded->eta ? 0 : s->eta;
    s->atol = s->atol == recorded->atol ? 0 : s->atol;
    s->rtol = s->rtol == recorded->rtol ? 0 : s->rtol;
    s->time_shift = s->time_shift == recorded->time_shift ? 0 : s->time_shift;
    s->rho = s->rho == recorded->rho ? 0 : s->rho;
    s->sde_form = s->sde_form == recorded->sde_form ? NULL : s->sde_form;
    s->sde_norm = s->sde_norm == recorded->sde_norm ? 0 : s->sde_norm;
    s->last_step = s->last_step == recorded->last_step ? NULL : s->last_step;
    s->last_step_size = s->last_step_size == recorded->last_step_size ? 0 : s->last_step_size;
}

/* Without guidance, how it acted. */
static void drop_of_guidance(const nl_task_options *recorded, nl_task_options *task)
{
    double *interval = task->sampling.cfg_interval;
    if (!memcmp(interval, recorded->sampling.cfg_interval, 2 * sizeof(*interval)))
        interval[0] = interval[1] = 0;
    if (nl_same_text(task->cfg_channels, recorded->cfg_channels))
        task->cfg_channels = NULL;
}

/* A picture knows files by their names alone: those that are not here have to be given. */
static nl_status check_here(nl_context *context, const char *from,
                            const nl_sample_options *recorded, const nl_sample_options *options)
{
    const struct {
        const char *name, *recorded, *taken;
    } files[] = {{"model", recorded->task.model, options->task.model},
                 {"vae", recorded->task.vae, options->task.vae},
                 {"guide", recorded->task.guide, options->task.guide},
                 {"noise", recorded->noise, options->noise}};
    for (int i = 0; i < NL_COUNT(files); i++)
        if (files[i].taken && files[i].taken == files[i].recorded &&
            !nl_path_exists(files[i].taken) && strcmp(files[i].taken, "none") &&
            strcmp(files[i].taken, "tiny"))
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s was made with --%s %s, which is neither here nor beside it: say "
                           "with --%s FILE where it is",
                           from, files[i].name, files[i].taken, files[i].name);
    return NL_OK;
}

/* The command line on top of what the picture of --from says. */
static nl_status read_from(nl_command_line *line, nl_texts *texts, cJSON **facts,
                           nl_sample_options *options)
{
    nl_context *context = line->context;
    const char *from = options->from;
    int operands;
    *options = nl_sample_defaults;
    NL_CHECK(nl_read_picture_facts(context, from, facts));
    NL_CHECK(nl_options_from_picture(context, from, *facts, texts, options));
    nl_sample_options recorded = *options;
    NL_CHECK(
        nl_options_parse(context, &nl_sample_command, line->argc, line->argv, options, &operands));
    NL_CHECK(check_here(context, from, &recorded, options));
    if (!nl_same_text(options->task.sampling.sampler, recorded.task.sampling.sampler))
        drop_of_sampler(&recorded.task.sampling, &options->task.sampling);
    if (options->task.sampling.cfg_scale == 1)
        drop_of_guidance(&recorded.task, &options->task);
    /* Either of the two replaces both of the recorded ones. */
    if (options->task.sampling.steps != recorded.task.sampling.steps &&
        options->task.sampling.respacing == recorded.task.sampling.respacing)
        options->task.sampling.respacing = NULL;
    if (options->task.sampling.respacing != recorded.task.sampling.respacing &&
        options->task.sampling.steps == recorded.task.sampling.steps)
        options->task.sampling.steps = 0;
    return NL_OK;
}

nl_status nl_session_load(nl_session *session)
{
    const nl_sample_options *options = session->options;
    nl_status status = nl_task_load(session->context, &options->task, &session->model);
    if (status == NL_OK && (!options->no_metadata || options->json || options->requests))
        status = nl_model_facts(session->model, &options->task, &session->facts);
    return status;
}

static nl_status run(nl_command_line *line, nl_session *session, const cJSON *from)
{
    const nl_sample_options *options = session->options;
    const nl_share *share = &session->share;
    nl_status status = NL_OK;
    /* What all processes of one command would say, the first says. */
    if (share->report >= 0 && share->rank > 0 && !options->machine.verbose)
        line->console.quiet = true;
    NL_TRY(nl_command_take_device(line, &options->machine, progress, session));
    session->context = line->context;
    NL_TRY(nl_session_load(session));
    if (from)
        NL_TRY(nl_compare_facts(session, options->from, from));
    NL_TRY(options->requests ? nl_requests_run(session) : nl_job_run(session, options, NULL));
cleanup:
    if (share->report >= 0)
        line->reported |=
            status == NL_CANCELLED ||
            (share->rank > 0 && (status == NL_ERROR_USAGE || status == NL_ERROR_INPUT));
    cJSON_Delete(session->facts);
    nl_model_destroy(session->model);
    return status;
}

static nl_status sample(nl_command_line *line, void *values)
{
    nl_sample_options *options = values;
    nl_session session = {.console = &line->console, .options = options};
    nl_texts texts = {.context = line->context};
    cJSON *from = NULL;
    nl_status status;
    NL_TRY(check_together(line->context, options));
    if (options->from)
        NL_TRY(read_from(line, &texts, &from, options));
    nl_launch_options processes = {
        .gpus = options->gpus, .processes = options->processes, .device = options->machine.device};
    if (!nl_launch_wanted(&processes)) {
        NL_TRY(nl_share_read(line->context, options, &session.share));
        NL_TRY(run(line, &session, from));
    } else if (options->requests || options->rank) {
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "--gpus and --processes do not go with --rank or --requests"));
    } else {
        NL_TRY(nl_launch(&line->console, line->context, &processes, line->argc, line->argv));
    }
cleanup:
    nl_texts_free(&texts);
    cJSON_Delete(from);
    return status;
}

nl_status nl_sample_main(int argc, char **argv)
{
    nl_sample_options options = nl_sample_defaults;
    return nl_command_main(&nl_sample_command, argc, argv, &options, sample);
}
