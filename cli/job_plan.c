/* SPDX-License-Identifier: MIT */
/* What a job of `nalagen sample` is: refused before the first step, or made. */
#include "job.h"

#include <string.h>

#include "nl_latent_file.h"

/* Initial latents of a file, as `decode` reads them. */
static nl_status read_noise(nl_job *job)
{
    nl_context *context = job->session->context;
    const int *shape = job->latent_shape;
    nl_latent_file file;
    nl_status status;
    NL_TRY(nl_latent_file_open(context, job->options->noise, NULL, &file));
    if (file.channels != shape[0] || file.height != shape[1] || file.width != shape[2])
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: expected initial latents [n, %d, %d, %d] of floats, found [%lld, %lld, "
                       "%lld, %lld] (see --size)",
                       file.path, shape[0], shape[1], shape[2], (long long)file.count,
                       (long long)file.channels, (long long)file.height, (long long)file.width));
    job->noise_count = file.count;
    NL_TRY(NL_NEW_ARRAY(context, "initial latents",
                        file.count * file.channels * file.height * file.width, &job->noise));
    NL_TRY(nl_latent_file_read(&file, file.count, job->noise));
cleanup:
    nl_latent_file_close(&file);
    return status;
}

/* Room in the grid and noise for every picture. */
static nl_status check_count(const nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    int64_t count = job->task.count;
    int64_t room = options->grid[0] * options->grid[1];
    int64_t have = job->noise_count;
    if (room && count > room)
        return nl_fail(context, NL_ERROR_USAGE, "--grid %lldx%lld has no room for %lld pictures",
                       (long long)options->grid[0], (long long)options->grid[1], (long long)count);
    if (have && count > have)
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected noise for %lld %s, found %lld",
                       options->noise, (long long)count, nl_plural(count, "picture", "pictures"),
                       (long long)have);
    return NL_OK;
}

/* Room for the latents, which are written at the end: asked before the memory for them. */
static nl_status check_space(const nl_job *job)
{
    const int *shape = job->latent_shape;
    int64_t bytes = (int64_t)sizeof(float) * shape[0] * shape[1] * shape[2];
    if (!job->options->latents)
        return NL_OK;
    if (!nl_mul_size(job->task.count, bytes, &bytes))
        bytes = INT64_MAX;
    return nl_check_space(job->session->context, job->options->latents, bytes);
}

nl_status nl_job_picture_name(nl_job *job, int64_t i, char **path)
{
    const nl_session *session = job->session;
    return nl_output_name(session->context, &job->output, nl_model_get_config(session->model),
                          nl_task_label(&job->task, i), job->options->task.first_index + i, path);
}

static nl_status check_output(const nl_job *job)
{
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    const nl_share *share = &job->session->share;
    bool pictures = nl_model_has_autoencoder(job->session->model);
    bool archive = nl_is_archive(options->out);
    const char *one = options->grid[0] ? "--grid" : options->animate ? "--animate" : NULL;
    const char *whole = one ? one : options->latents ? "--latents" : NULL;
    if (!pictures && !options->latents)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--vae none makes latents only: say where with --latents FILE.npy");
    if (!pictures && options->out)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out %s: --vae none makes no pictures: leave it out", options->out);
    if (!pictures && one)
        return nl_fail(context, NL_ERROR_USAGE, "--vae none makes no pictures for %s", one);
    if (options->preview_every && !options->show &&
        (archive || (options->out && nl_is_stdout(options->out))))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--preview-every writes files beside those of pictures, and --out %s is %s: "
                       "give --show, or another --out",
                       options->out, archive ? "an archive" : "standard output");
    if (options->grid[0] && options->animate)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--grid and --animate are two ways to put all pictures into one");
    if (options->noise && options->task.walk)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--walk draws the noise of its pictures: it does not go with --noise");
    if (whole && (archive || options->resume || share->ranks > 1))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s takes all pictures at once: it does not go with %s", whole,
                       archive           ? "an archive"
                       : options->resume ? "--resume"
                                         : "several processes");
    if (options->no_metadata && (archive || options->resume))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--no-metadata: what is there already is known by its parameters, which %s "
                       "needs",
                       archive ? "an archive" : "--resume");
    if (options->resume && options->force)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--resume keeps what is there and --force overwrites it: give one of them");
    return NL_OK;
}

static nl_status open_archive(nl_job *job)
{
    int factor = nl_model_factor(nl_model_get_config(job->session->model));
    return nl_archive_open(job->session, job->options, &job->task.sampling, job->task.count,
                           job->latent_shape[1] * factor, job->latent_shape[2] * factor,
                           &job->archive);
}

/* Room for the pictures of one request: some thousand, in whole batches. */
static nl_status make_work_list(nl_job *job)
{
    enum { MANY = 4096 };
    nl_session *session = job->session;
    nl_context *context = session->context;
    int64_t batch = session->options->batch;
    int64_t unit = NL_MIN(batch ? batch : nl_model_batch(session->model), job->task.count);
    bool whole = nl_sample_in_one(job->options) || job->options->latents;
    nl_work_list_init(&job->work, job->task.count, unit, session->share.rank, session->share.ranks);
    job->room = whole ? job->task.count : NL_MIN(job->task.count, NL_MAX(1, MANY / unit) * unit);
    NL_CHECK(NL_NEW_ARRAY(context, "picture numbers", job->room, &job->numbers));
    return NL_NEW_ARRAY(context, "pictures wanted", job->room, &job->wanted);
}

nl_status nl_job_facts(nl_job *job, int label, int64_t index, cJSON **facts)
{
    nl_session *session = job->session;
    *facts = NULL;
    if (job->options->no_metadata && !session->options->json && !job->pictures)
        return NL_OK;
    return nl_picture_facts(session, job->options, &job->task.sampling, label, index, facts);
}

static const char others[] = ", --resume to make only what is missing, another --out or another "
                             "--seed";

/* Whether picture i is there; refuses whatever else stands where something will be written, and one name for two
 * things. */
static nl_status is_there(void *user, int64_t i, bool *there)
{
    nl_job *job = user;
    nl_context *context = job->session->context;
    const nl_sample_options *options = job->options;
    nl_status status = NL_OK;
    char *path = NULL;
    cJSON *facts = NULL;
    *there = false;
    if (job->archive)
        return nl_npz_has(job->archive, i, there);
    NL_TRY(nl_job_picture_name(job, i, &path));
    if (job->pictures)
        NL_TRY(nl_requests_allow(job->session, path));
    if (options->latents && !strcmp(path, options->latents))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--latents %s: a picture has the same name: give another", path));
    if (options->resume) {
        NL_TRY(
            nl_job_facts(job, nl_task_label(&job->task, i), options->task.first_index + i, &facts));
        NL_TRY(nl_resume_check(context, path, facts, there));
    }
    if (!*there)
        NL_TRY(nl_output_check(context, path, options->force, others));
cleanup:
    nl_free(context, path);
    cJSON_Delete(facts);
    return status;
}

/* Room for `files` pictures that are not there yet. With --force they may take the place of others. */
static nl_status check_space_for_pictures(const nl_job *job, int64_t files)
{
    int factor = nl_model_factor(nl_model_get_config(job->session->model));
    int64_t bytes = 3 * (int64_t)job->latent_shape[1] * job->latent_shape[2] * factor * factor;
    if (!files || job->archive || job->options->force)
        return NL_OK;
    if (job->options->grid[0])
        bytes *= job->task.count;
    return nl_check_space_for_files(job->session->context, job->output.text, files, bytes);
}

/* Whoever gave no name and runs a command again gets another file beside the first: the names of all its pictures take
 * the next number that none of them has yet. */
static nl_status choose_copy(nl_job *job, int64_t files)
{
    enum { MOST = 1000 };
    const nl_sample_options *options = job->options;
    nl_context *context = job->session->context;
    nl_status status = NL_OK;
    char *path = NULL;
    bool taken = true;
    if (options->out || options->resume || options->force || job->pictures || !files ||
        job->session->share.ranks > 1)
        return NL_OK;
    while (taken && ++job->output.copy < MOST) {
        taken = false;
        for (int64_t i = 0; i < files && !taken; i++) {
            nl_free(context, path);
            path = NULL;
            NL_TRY(nl_job_picture_name(job, i, &path));
            taken = nl_path_exists(path);
        }
    }
    if (job->output.copy > 1 && !taken) {
        nl_free(context, path);
        path = NULL;
        NL_TRY(nl_job_picture_name(job, 0, &path));
        nl_log(context, NL_LOG_INFO, "there already: making %s%s (--force overwrites)", path,
               files > 1 ? ", ..." : "");
    }
cleanup:
    nl_free(context, path);
    return status;
}

static nl_status look_for_files(nl_job *job, int64_t files)
{
    const nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    bool there;
    if (options->latents)
        NL_CHECK(nl_output_check(context, options->latents, options->force, others));
    if (!options->resume)
        NL_CHECK(check_space_for_pictures(job, files));
    if (job->archive && nl_npz_finished(job->archive)) {
        job->work.there = job->task.count;
        job->work.units = job->work.todo = 0;
        nl_log(context, NL_LOG_INFO, "%s is finished: nothing to do", options->out);
    } else if (files && (nl_sample_in_one(options) || (options->force && !options->latents &&
                                                       !job->archive && !job->pictures))) {
        NL_CHECK(is_there(job, 0, &there));
    } else if (files) {
        NL_CHECK(nl_work_list_scan(context, &job->work, is_there, job));
        if (job->work.there && session->share.ranks == 1)
            nl_log(context, NL_LOG_INFO, "resuming: %lld of %lld made already",
                   (long long)job->work.there, (long long)(job->work.there + job->work.todo));
    }
    if (options->resume && files) /* as many as this process makes, for each of the others */
        NL_CHECK(
            check_space_for_pictures(job, NL_MIN(files, job->work.todo * session->share.ranks)));
    return NL_OK;
}

nl_status nl_job_plan(nl_job *job)
{
    nl_session *session = job->session;
    nl_context *context = session->context;
    const nl_sample_options *options = job->options;
    bool pictures = nl_model_has_autoencoder(session->model);
    int64_t room = options->grid[0] * options->grid[1];
    NL_CHECK(check_output(job));
    nl_model_latent_shape(session->model, job->latent_shape);
    if (options->noise)
        NL_CHECK(read_noise(job));
    int64_t usual = room ? room : job->noise_count;
    NL_CHECK(nl_task_plan(context, nl_model_get_config(session->model),
                          nl_model_guide_config(session->model), &options->task, usual,
                          &job->task));
    NL_CHECK(check_count(job));
    NL_CHECK(check_space(job));
    int64_t files = !pictures ? 0 : nl_sample_in_one(options) ? 1 : job->task.count;
    NL_CHECK(nl_output_open(context, options, files, &job->output));
    NL_CHECK(make_work_list(job));
    if (job->output.kind == NL_OUTPUT_ARCHIVE && job->work.units)
        NL_CHECK(open_archive(job));
    NL_CHECK(choose_copy(job, files));
    NL_CHECK(look_for_files(job, files));
    if (options->latents) {
        int64_t elements =
            (int64_t)job->latent_shape[0] * job->latent_shape[1] * job->latent_shape[2];
        NL_CHECK(NL_NEW_ARRAY(context, "latents to be written", job->task.count * elements,
                              &job->latents));
    }
    return NL_OK;
}
