/* SPDX-License-Identifier: MIT */
/* The thread of the device: models in the sizes asked for, batches gathered from jobs that agree. */
#include "queue.h"

#include <stdio.h>
#include <string.h>

#include "nl_image.h"

/* ---- Models */

static nl_status load(nl_context *device, const nl_task_options *options, nl_sized_model *sized)
{
    int shape[3];
    nl_status status = NL_OK;
    *sized = (nl_sized_model){0};
    NL_TRY(nl_task_load(device, options, &sized->model));
    if (!nl_model_has_autoencoder(sized->model))
        NL_TRY(nl_fail(device, NL_ERROR_USAGE, "%s makes latents only: give its --vae",
                       options->model ? options->model : nl_shipped_model));
    NL_TRY(nl_model_facts(sized->model, options, &sized->facts));
    int factor = nl_model_factor(nl_model_get_config(sized->model));
    nl_model_latent_shape(sized->model, shape);
    sized->height = shape[1] * factor;
    sized->width = shape[2] * factor;
cleanup:
    if (status != NL_OK) {
        cJSON_Delete(sized->facts);
        nl_model_destroy(sized->model);
        *sized = (nl_sized_model){0};
    }
    return status;
}

nl_status nl_queue_add_model(nl_queue *queue, nl_context *device, const nl_task_options *options)
{
    nl_served_model *model = &queue->models[queue->model_count];
    int taken;
    if (queue->model_count == NL_MODELS)
        return nl_fail(device, NL_ERROR_USAGE, "more than %d models", NL_MODELS);
    *model = (nl_served_model){.options = *options};
    NL_CHECK(load(device, options, &model->sizes[0]));
    model->count = 1;
    model->config = nl_model_get_config(model->sizes[0].model);
    model->unit = nl_model_factor(model->config) * model->config->patch_size;
    const char *name = nl_base_name(options->model ? options->model : nl_shipped_model);
    const char *end = strrchr(name, '.');
    int length = (int)(end && end > name ? end - name : (int64_t)strlen(name));
    snprintf(model->name, sizeof(model->name), "%.*s", NL_MIN(length, 100), name);
    for (int i = 2; nl_queue_find_model(queue, model->name, &taken); i++)
        snprintf(model->name, sizeof(model->name), "%.*s-%d", NL_MIN(length, 100), name, i);
    queue->model_count++;
    return NL_OK;
}

/* The model at that size: loaded when it is not, in place of the one that was used longest ago. */
static nl_status find_size(nl_queue *queue, nl_context *device, int number, int height, int width,
                           nl_sized_model **found)
{
    nl_served_model *model = &queue->models[number];
    nl_task_options options = model->options;
    int oldest = 1;
    for (int i = 0; i < model->count; i++) {
        *found = &model->sizes[i];
        (*found)->used = ++queue->uses;
        if ((*found)->height == height && (*found)->width == width)
            return NL_OK;
    }
    options.size[0] = height;
    options.size[1] = width;
    if (model->count == NL_SIZES) {
        for (int i = 2; i < model->count; i++)
            if (model->sizes[i].used < model->sizes[oldest].used)
                oldest = i;
        cJSON_Delete(model->sizes[oldest].facts);
        nl_model_destroy(model->sizes[oldest].model);
        model->sizes[oldest] = model->sizes[--model->count];
    }
    *found = &model->sizes[model->count];
    nl_status status = load(device, &options, *found);
    if (status == NL_OK) {
        (*found)->used = ++queue->uses;
        model->count++;
    }
    return status;
}

/* ---- Batches, with the lock */

static bool late(const nl_queue *queue, const nl_queued_job *job, double now)
{
    return job->started > 0 && now - job->started > queue->limits.seconds;
}

static void fail_job(nl_queue *queue, nl_queued_job *job, nl_status status, const char *message)
{
    job->status = status;
    snprintf(job->error, sizeof(job->error), "%s", message);
    nl_job_end(queue, job, NL_JOB_FAILED);
}

static void fail_late(nl_queue *queue, nl_queued_job *job)
{
    char message[80];
    snprintf(message, sizeof(message), "not done within %g seconds", queue->limits.seconds);
    fail_job(queue, job, NL_CANCELLED, message);
}

static bool waits(const nl_queued_job *job)
{
    return !nl_job_over(job) && job->begun < job->wanted.task.count;
}

static nl_queued_job *first_waiting(nl_queue *queue)
{
    double now = nl_seconds();
    nl_queued_job *job = queue->jobs, *background = NULL;
    while (job) {
        bool wanted = waits(job), too_late = wanted && late(queue, job, now);
        if (wanted && !too_late && !job->wanted.background)
            return job;
        if (wanted && !too_late && !background)
            background = job;
        if (too_late) { /* the list may be another one then */
            fail_late(queue, job);
            background = NULL;
        }
        job = too_late ? queue->jobs : job->next;
    }
    return background;
}

static bool together(const nl_queued_job *a, const nl_queued_job *b)
{
    return a->wanted.model == b->wanted.model && a->wanted.height == b->wanted.height &&
           a->wanted.width == b->wanted.width &&
           a->wanted.preview_every == b->wanted.preview_every &&
           nl_tasks_agree(&a->wanted.task, &b->wanted.task);
}

static void add_pictures(nl_batch *batch, nl_queued_job *job, int64_t room)
{
    for (; batch->count < room && job->begun < job->wanted.task.count; batch->count++) {
        batch->pictures[batch->count] = (nl_task_picture){&job->wanted.task, job->begun++};
        batch->jobs[batch->count] = job;
        job->holders++;
    }
}

/* A power of two, at most `room` and what waits: a device makes plans for every size of a batch that it has not met, which
 * take longer than its pictures, so there should be few. */
static int64_t batch_size(const nl_queued_job *first, int64_t room)
{
    int64_t waiting = 0, size = 1;
    for (const nl_queued_job *job = first; job; job = job->next)
        if (waits(job) && together(first, job))
            waiting += job->wanted.task.count - job->begun;
    while (2 * size <= NL_MIN(waiting, room))
        size *= 2;
    return size;
}

/* Of the job that comes first and of those behind it that agree. */
static void gather(nl_queue *queue, nl_queued_job *first, int64_t room, nl_batch *batch)
{
    double now = nl_seconds();
    batch->count = 0;
    room = batch_size(first, room);
    for (nl_queued_job *job = first; job; job = job->next) {
        if (!waits(job) || !together(first, job))
            continue;
        if (job->state == NL_JOB_QUEUED) {
            job->state = NL_JOB_RUNNING;
            job->started = now;
            queue->state.queued--;
            queue->state.running++;
        }
        add_pictures(batch, job, room);
        nl_job_change(queue, job);
    }
}

/* Whoever had a batch waits behind the others for the next. */
static void to_the_end(nl_queue *queue, nl_queued_job *job)
{
    nl_queued_job **at = &queue->jobs;
    while (*at && *at != job)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = job->next;
    job->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = job;
}

static void give_back(nl_queue *queue, nl_batch *batch)
{
    for (int64_t i = 0; i < batch->count; i++)
        if (waits(batch->jobs[i]) && (i == 0 || batch->jobs[i] != batch->jobs[i - 1]))
            to_the_end(queue, batch->jobs[i]);
    for (int64_t i = 0; i < batch->count; i++)
        nl_job_release(queue, batch->jobs[i]);
    batch->count = 0;
}

/* ---- Pictures */

static nl_status keep(nl_queue *queue, nl_batch *batch, nl_queued_job *job, int64_t number,
                      const nl_picture *picture)
{
    nl_context *context = job->wanted.context;
    const nl_task *task = &job->wanted.task;
    nl_made_picture *made = &job->pictures[number];
    size_t bytes = 3 * (size_t)picture->height * (size_t)picture->width;
    uint8_t *rgb = NULL;
    cJSON *facts = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_task_facts(batch->sized->model, batch->sized->facts, &task->options, &task->sampling,
                         &picture->label, picture->index, &facts));
    if (NL_NEW_ARRAY(context, "a picture", bytes, &rgb) != NL_OK) /* told by the device's */
        NL_TRY(nl_fail(nl_model_context(batch->sized->model), NL_ERROR_MEMORY, "%s",
                       nl_last_error(context)));
    memcpy(rgb, picture->rgb, bytes);
    pthread_mutex_lock(&queue->lock);
    made->facts = facts;
    made->label = picture->label;
    made->index = picture->index;
    made->rgb = rgb;
    queue->state.pictures++;
    job->done++;
    nl_job_change(queue, job);
    if (job->done == task->count)
        nl_job_end(queue, job, NL_JOB_DONE);
    pthread_mutex_unlock(&queue->lock);
    return NL_OK;
cleanup:
    cJSON_Delete(facts);
    return status;
}

static nl_status take_picture(void *user, const nl_picture *picture)
{
    nl_batch *batch = user;
    nl_queue *queue = batch->queue;
    int64_t i = batch->taken++;
    nl_queued_job *job = batch->jobs[i];
    pthread_mutex_lock(&queue->lock);
    bool over = nl_job_over(job);
    pthread_mutex_unlock(&queue->lock);
    return over ? NL_OK : keep(queue, batch, job, batch->pictures[i].number, picture);
}

/* The preview of the batch is that of its first picture. */
static void keep_preview(nl_queue *queue, nl_queued_job *job, const nl_progress *progress)
{
    nl_context *device = nl_model_context(queue->batch->sized->model);
    nl_context *context = job->wanted.context;
    uint8_t *rgb = NULL, *png = NULL;
    size_t size = 0;
    int height, width;
    nl_status status = nl_model_preview(queue->batch->sized->model, progress->preview,
                                        progress->preview_shape, &rgb, &height, &width);
    if (status == NL_OK)
        status = nl_png_encode(context, rgb, height, width, NULL, &png, &size);
    nl_free(device, rgb);
    if (status != NL_OK) /* no reason to lose the picture */
        return;
    pthread_mutex_lock(&queue->lock);
    nl_free(context, job->preview);
    job->preview = png;
    job->preview_size = size;
    job->previews++;
    pthread_mutex_unlock(&queue->lock);
}

bool nl_queue_progress(void *user, const nl_progress *progress)
{
    nl_queue *queue = user;
    nl_batch *batch = queue->batch;
    bool wanted = false;
    double now = nl_seconds();
    if (!batch || strcmp(progress->stage, "sampling") != 0)
        return true;
    if (progress->preview && progress->image < batch->count)
        keep_preview(queue, batch->jobs[progress->image], progress);
    pthread_mutex_lock(&queue->lock);
    for (int64_t i = progress->image; i < batch->count; i++) {
        nl_queued_job *job = batch->jobs[i];
        if (!nl_job_over(job) && late(queue, job, now))
            fail_late(queue, job);
        if (nl_job_over(job))
            continue;
        wanted = true;
        job->step = progress->step;
        job->steps = progress->steps;
        if (i == progress->image || job != batch->jobs[i - 1])
            nl_job_change(queue, job);
    }
    pthread_mutex_unlock(&queue->lock);
    return wanted;
}

/* What a client is told: messages of loading name files. */
static void batch_failed(nl_queue *queue, nl_context *device, nl_batch *batch, nl_status status,
                         bool loading)
{
    const char *message =
        loading ? "the model cannot be had at this size now" : nl_last_error(device);
    nl_log(device, NL_LOG_WARNING, "a batch of %lld %s: %s", (long long)batch->count,
           nl_plural(batch->count, "picture", "pictures"), nl_last_error(device));
    pthread_mutex_lock(&queue->lock);
    for (int64_t i = 0; i < batch->count; i++)
        if (!nl_job_over(batch->jobs[i]))
            fail_job(queue, batch->jobs[i], status, message);
    pthread_mutex_unlock(&queue->lock);
}

static nl_status make_batch(nl_queue *queue, nl_context *device, nl_batch *batch)
{
    const nl_wanted *wanted = &batch->jobs[0]->wanted;
    double started = nl_seconds();
    bool loading = true;
    nl_status status = NL_OK;
    NL_TRY(find_size(queue, device, wanted->model, wanted->height, wanted->width, &batch->sized));
    loading = false;
    nl_making making = {.pictures = batch->pictures,
                        .count = batch->count,
                        .batch = queue->limits.batch,
                        .preview_every = (int)wanted->preview_every};
    batch->taken = 0;
    queue->batch = batch;
    NL_TRY(nl_tasks_make(batch->sized->model, &making, take_picture, batch));
cleanup:
    queue->batch = NULL;
    if (status != NL_OK && status != NL_CANCELLED) /* that is: nobody wants it any more */
        batch_failed(queue, device, batch, status, loading);
    pthread_mutex_lock(&queue->lock);
    queue->state.batches++;
    queue->state.busy += nl_seconds() - started;
    pthread_mutex_unlock(&queue->lock);
    /* A device that has failed serves nobody. */
    return status == NL_ERROR_DEVICE || status == NL_ERROR_INTERNAL ? status : NL_OK;
}

nl_status nl_queue_work(nl_queue *queue, nl_context *device)
{
    nl_status status = NL_OK;
    nl_batch batch = {.queue = queue};
    int64_t room = queue->limits.batch;
    if (!room)
        room = nl_model_batch(queue->models[0].sizes[0].model);
    NL_TRY(NL_NEW_ARRAY(device, "a batch", room, &batch.pictures));
    NL_TRY(NL_NEW_ARRAY(device, "a batch", room, &batch.jobs));
    while (status == NL_OK) {
        nl_queued_job *first;
        pthread_mutex_lock(&queue->lock);
        while (!(first = first_waiting(queue)) && !queue->stopping)
            pthread_cond_wait(&queue->work, &queue->lock);
        if (first)
            gather(queue, first, room, &batch);
        pthread_mutex_unlock(&queue->lock);
        if (!first)
            break;
        status = make_batch(queue, device, &batch);
        pthread_mutex_lock(&queue->lock);
        give_back(queue, &batch);
        pthread_mutex_unlock(&queue->lock);
    }
cleanup:
    nl_free(device, batch.pictures);
    nl_free(device, batch.jobs);
    return status;
}
