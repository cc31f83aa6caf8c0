/* SPDX-License-Identifier: MIT */
/* One job of `nalagen sample`: a plan, then pictures that are written as they come. */
#include "job.h"

#include <string.h>

#include "nl_image.h"

static nl_status keep_for_whole(nl_job *job, const nl_picture *picture)
{
    size_t bytes = 3 * (size_t)picture->height * (size_t)picture->width;
    job->height = picture->height;
    job->width = picture->width;
    if (!job->whole)
        NL_CHECK(NL_NEW_SIZED(job->session->context, "pictures of the whole", job->task.count,
                              bytes, &job->whole));
    memcpy(job->whole + (size_t)job->taken * bytes, picture->rgb, bytes);
    return NL_OK;
}

static nl_status take_picture(void *user, const nl_picture *picture)
{
    nl_job *job = user;
    nl_context *context = job->session->context;
    nl_status status = NL_OK;
    const int *shape = picture->latent_shape;
    int64_t elements = (int64_t)shape[0] * shape[1] * shape[2];
    bool file = picture->rgb && !nl_sample_in_one(job->options);
    nl_writing writing = {.number = picture->index - job->options->task.first_index,
                          .evaluations = picture->evaluations,
                          .label = picture->label,
                          .height = picture->height,
                          .width = picture->width,
                          .rgb = picture->rgb};
    if (job->latents)
        memcpy(job->latents + job->taken * elements, picture->latents,
               (size_t)elements * sizeof(float));
    if (picture->rgb && !file)
        NL_TRY(keep_for_whole(job, picture));
    if (file && !job->archive)
        NL_TRY(nl_job_picture_name(job, writing.number, &writing.path));
    bool told = !picture->rgb && (job->pictures || job->session->options->json);
    if (told)
        NL_TRY(nl_strdup(context, job->options->latents, &writing.path));
    if (writing.path)
        NL_TRY(nl_job_facts(job, picture->label, picture->index, &writing.facts));
    job->taken++;
    if (file) {
        status = nl_writers_put(job->writers, &writing);
        writing = (nl_writing){0}; /* taken over */
        return status;
    }
    job->done++;
    job->evaluations += picture->evaluations;
    nl_share_tell(&job->session->share, (nl_share_report){.made = 1});
    if (told)
        NL_TRY(nl_job_report_picture(job, writing.path, writing.facts, picture->evaluations));
cleanup:
    nl_free(context, writing.path);
    cJSON_Delete(writing.facts);
    return status;
}

/* Request after request, so that memory does not depend on how many pictures there are. */
static nl_status make_pictures(nl_job *job)
{
    nl_session *session = job->session;
    const nl_sample_options *options = job->options;
    int64_t elements = (int64_t)job->latent_shape[0] * job->latent_shape[1] * job->latent_shape[2];
    int64_t count;
    while ((count = nl_work_list_next(&job->work, job->noise, job->room, job->numbers)) > 0) {
        for (int64_t i = 0; i < count; i++)
            job->wanted[i] = (nl_task_picture){&job->task, job->numbers[i]};
        nl_making making = {.pictures = job->wanted,
                            .count = count,
                            .batch = (int)session->options->batch,
                            .preview_every = (int)options->preview_every,
                            .noise = job->noise ? job->noise + job->numbers[0] * elements : NULL};
        job->before = job->taken;
        NL_CHECK(nl_tasks_make(session->model, &making, take_picture, job));
    }
    return NL_OK;
}

void nl_job_progress(const nl_session *session, nl_progress *progress)
{
    const nl_job *job = session->job;
    if (!job)
        return;
    progress->image += job->before;
    progress->images = job->work.todo;
    if (job->writers && nl_writers_report(job->writers) != NL_OK)
        nl_log(session->context, NL_LOG_DEBUG, "a picture was not written");
}

nl_status nl_job_run(nl_session *session, const nl_sample_options *options, cJSON *pictures)
{
    nl_context *context = session->context;
    nl_job job = {.session = session, .options = options, .pictures = pictures};
    nl_status status = NL_OK;
    NL_TRY(nl_job_plan(&job));
    job.started = job.last = nl_seconds();
    session->job = &job;
    nl_console_begin(session->console, job.work.there);
    nl_share_tell(&session->share,
                  (nl_share_report){.there = job.work.there, .todo = job.work.todo});
    status = nl_job_start_writers(&job);
    if (status == NL_OK)
        status = make_pictures(&job);
    nl_status written = nl_writers_end(&job.writers);
    status = written != NL_OK ? written : status;
    nl_console_clear(session->console);
    if (status == NL_OK || status == NL_CANCELLED) {
        nl_status finished = nl_job_finish(&job);
        status = finished != NL_OK ? finished : status;
    }
    if (status == NL_OK) {
        char time[NL_FIGURE];
        nl_log(context, NL_LOG_DEBUG, "%lld %s in %s, %lld %s of the network (%s)",
               (long long)job.done, nl_plural(job.done, "picture", "pictures"),
               nl_time_text(nl_seconds() - job.started, time), (long long)job.evaluations,
               nl_plural(job.evaluations, "evaluation", "evaluations"), job.task.sampling.sampler);
    }
cleanup:
    session->job = NULL;
    nl_task_free(context, &job.task);
    nl_free(context, job.noise);
    nl_npz_abandon(&job.archive);
    nl_work_list_free(context, &job.work);
    nl_free(context, job.numbers);
    nl_free(context, job.wanted);
    nl_free(context, job.latents);
    nl_free(context, job.whole);
    return status;
}

static nl_status preview(nl_job *job, const nl_progress *progress)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    nl_status status = NL_OK;
    uint8_t *rgb = NULL;
    char *path = NULL, *name = NULL;
    int height, width;
    NL_TRY(nl_model_preview(session->model, progress->preview, progress->preview_shape, &rgb,
                            &height, &width));
    if (job->options->show) {
        nl_console_clear(session->console);
        NL_TRY(nl_image_show(context, stderr, NL_SHOW_AUTO, rgb, height, width, 40,
                             nl_terminal_rows() / 2));
    } else if (job->output.kind != NL_OUTPUT_STDOUT && job->output.kind != NL_OUTPUT_ARCHIVE) {
        NL_TRY(nl_job_picture_name(job, job->numbers[progress->image], &path));
        NL_TRY(nl_output_preview_name(context, path, progress->step, &name));
        if (job->pictures)
            NL_TRY(nl_requests_allow(session, name));
        NL_TRY(nl_png_write(context, name, true, rgb, height, width, NULL));
    }
cleanup:
    nl_free(context, rgb);
    nl_free(context, path);
    nl_free(context, name);
    return status;
}

/* A preview that fails is no reason to lose the picture. */
void nl_job_preview(nl_session *session, const nl_progress *progress)
{
    if (session->job && preview(session->job, progress) != NL_OK)
        nl_log(session->context, NL_LOG_WARNING, "no preview: %s", nl_last_error(session->context));
}
