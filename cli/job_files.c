/* SPDX-License-Identifier: MIT */
/* What a job of `nalagen sample` writes and says of it. */
#include "job.h"

#include <string.h>

#include "nl_image.h"
#include "ops.h"

/* The item, taken over, with the facts: a line on standard output, or part of the answer of a request. */
static nl_status describe(nl_job *job, cJSON *item, const cJSON *facts)
{
    for (const cJSON *fact = facts->child; fact; fact = fact->next)
        if (strcmp(fact->string, "config") != 0)
            cJSON_AddItemToObject(item, fact->string, cJSON_Duplicate(fact, true));
    if (job->pictures) {
        cJSON_AddItemToArray(job->pictures, item);
        return NL_OK;
    }
    nl_status status = nl_print_json(job->session->context, item);
    cJSON_Delete(item);
    return status;
}

nl_status nl_job_report_picture(nl_job *job, const char *path, const cJSON *facts,
                                int64_t evaluations)
{
    nl_session *session = job->session;
    double now = nl_seconds();
    nl_console_clear(session->console);
    if (!session->options->json && !job->pictures)
        return nl_print_path(session->context, path);
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "file", path);
    cJSON_AddNumberToObject(item, "evaluations", (double)evaluations);
    cJSON_AddNumberToObject(item, "seconds", (double)(int64_t)((now - job->last) * 1e3) / 1e3);
    job->last = now;
    return describe(job, item, facts);
}

/* milliseconds: of each of several pictures in one file; 0: it is one. */
static nl_status write_picture(nl_job *job, const char *path, const uint8_t *const *pictures,
                               int count, int height, int width, int milliseconds,
                               const cJSON *facts)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    uint8_t *bytes = NULL;
    size_t size;
    status = nl_animation_encode(context, pictures, count, height, width, milliseconds,
                                 options->no_metadata ? NULL : facts, &bytes, &size);
    if (status != NL_OK)
        return nl_fail_in(context, status, "%s", path);
    /* A batch that is not all there is made again: its pictures that are there have been found to be these. */
    NL_TRY(nl_write_file(context, path, options->force || options->resume, bytes, size));
    if (options->show) {
        static const char *const hows[] = {"auto", "kitty", "iterm2", "blocks", "letters", NULL};
        int how = 0;
        while (hows[how] && strcmp(hows[how], options->show) != 0)
            how++;
        nl_console_clear(session->console);
        NL_TRY(nl_image_show(context, stderr, (nl_show)how, pictures[0], height, width, 80,
                             nl_terminal_rows()));
    }
cleanup:
    nl_free(context, bytes);
    return status;
}

static nl_status write_one(void *user, const nl_writing *writing)
{
    nl_job *job = user;
    if (job->archive)
        return nl_npz_write(job->archive, writing->number, writing->label, writing->rgb);
    return write_picture(job, writing->path, &writing->rgb, 1, writing->height, writing->width, 0,
                         writing->facts);
}

static nl_status written_one(void *user, const nl_writing *writing)
{
    nl_job *job = user;
    job->done++;
    job->evaluations += writing->evaluations;
    nl_share_tell(&job->session->share, (nl_share_report){.made = 1});
    return job->archive
               ? NL_OK
               : nl_job_report_picture(job, writing->path, writing->facts, writing->evaluations);
}

/* While a GPU is at work the processors are free to write. */
nl_status nl_job_start_writers(nl_job *job)
{
    const nl_session *session = job->session;
    const nl_device *device = session->context->device;
    bool beside = nl_device_queues(device) && job->task.count > 1 && !job->options->show;
    return nl_writers_create(session->context, beside ? device->threads : 0, write_one, written_one,
                             job, &job->writers);
}

/* The grid, or the animated picture. */
static nl_status write_whole(nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    const uint8_t **pictures = NULL;
    nl_image grid = {0};
    char *path = NULL;
    cJSON *facts = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "pictures of the whole", job->done, &pictures));
    for (int64_t i = 0; i < job->done; i++)
        pictures[i] = job->whole + 3 * (size_t)i * (size_t)job->height * (size_t)job->width;
    if (!options->animate)
        NL_TRY(nl_image_grid(context, pictures, (int)job->done, job->height, job->width,
                             (int)options->grid[0], (int)options->grid[1], 2, &grid));
    NL_TRY(nl_job_facts(job, nl_task_label(&job->task, 0), options->task.first_index, &facts));
    NL_TRY(nl_job_picture_name(job, 0, &path));
    if (options->animate)
        NL_TRY(write_picture(job, path, pictures, (int)job->done, job->height, job->width,
                             (int)options->animate, facts));
    else
        NL_TRY(write_picture(job, path, (const uint8_t *const *)&grid.rgb, 1, grid.height,
                             grid.width, 0, facts));
    NL_TRY(nl_job_report_picture(job, path, facts, job->evaluations));
cleanup:
    nl_free(context, pictures);
    nl_image_free(context, &grid);
    nl_free(context, path);
    cJSON_Delete(facts);
    return status;
}

/* Names the archive, or describes it and the work; to standard output or the answer of a request. */
static nl_status report_archive(nl_job *job)
{
    nl_session *session = job->session;
    nl_status status = NL_OK;
    double seconds = nl_seconds() - job->started;
    cJSON *facts = NULL;
    if (!session->options->json && !job->pictures)
        return nl_print_path(session->context, job->options->out);
    NL_TRY(nl_pictures_facts(session, job->options, &job->task.sampling, &facts));
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "file", job->options->out);
    cJSON_AddNumberToObject(item, "pictures", (double)job->task.count);
    if (session->share.ranks == 1) {
        cJSON_AddNumberToObject(item, "made", (double)job->done);
        cJSON_AddNumberToObject(item, "evaluations", (double)job->evaluations);
        cJSON_AddNumberToObject(item, "pictures_per_second", (double)job->done / seconds);
    }
    cJSON_AddNumberToObject(item, "seconds", (double)(int64_t)(seconds * 1e3) / 1e3);
    NL_TRY(describe(job, item, facts));
cleanup:
    cJSON_Delete(facts);
    return status;
}

/* Who finds all pictures there ends the archive; others may be at work, or this process was stopped. */
static nl_status finish_archive(nl_job *job)
{
    nl_context *context = job->session->context;
    int64_t there = 0;
    const nl_share *share = &job->session->share;
    bool finished = false, stood = nl_npz_finished(job->archive);
    NL_CHECK(nl_npz_done(job->archive, &there));
    NL_CHECK(nl_npz_close(&job->archive, &finished));
    if (finished && (!stood || share->rank == 0))
        return report_archive(job);
    if (there == job->task.count || (share->report >= 0 && !nl_interrupted()))
        return NL_OK; /* in a command of several processes the others are at work */
    nl_log(context, NL_LOG_INFO, "%s.part holds %lld of %lld %s%s", job->options->out,
           (long long)there, (long long)job->task.count,
           nl_plural(job->task.count, "picture", "pictures"),
           share->ranks > 1 ? "" : ": run the same command to resume");
    return NL_OK;
}

nl_status nl_job_finish(nl_job *job)
{
    nl_context *context = job->session->context;
    if (job->archive)
        return finish_archive(job);
    if (!job->done)
        return NL_OK;
    if (job->whole)
        NL_CHECK(write_whole(job));
    if (job->latents) {
        int64_t shape[] = {job->done, job->latent_shape[0], job->latent_shape[1],
                           job->latent_shape[2]};
        NL_CHECK(nl_npy_write(context, job->options->latents, job->options->force, NL_F32, 4, shape,
                              job->latents));
        bool plain = !job->session->options->json && !job->pictures;
        if (plain && job->output.kind != NL_OUTPUT_STDOUT)
            NL_CHECK(nl_print_path(context, job->options->latents));
    }
    return NL_OK;
}
