/* SPDX-License-Identifier: MIT */
/* Jobs from their coming to their end: put, watched, cancelled, kept for a while, forgotten. */
#include "queue.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { KEPT_JOBS = 256 /* that are over */ };

const char *const nl_job_state_names[] = {"queued", "running", "done", "failed", "cancelled", NULL};

nl_status nl_queue_create(nl_context *context, const nl_queue_limits *limits, nl_queue **out)
{
    pthread_condattr_t attributes;
    nl_queue *queue = NULL;
    nl_status status = NL_NEW(context, "a queue", &queue);
    *out = queue;
    if (status != NL_OK)
        return status;
    queue->context = context;
    queue->limits = *limits;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->changed, &attributes);
    pthread_cond_init(&queue->work, &attributes);
    pthread_condattr_destroy(&attributes);
    return NL_OK;
}

nl_status nl_wanted_create(nl_wanted *wanted)
{
    *wanted = (nl_wanted){0};
    nl_status status = nl_core_context_create(NULL, &wanted->context);
    wanted->texts.context = wanted->context;
    return status;
}

void nl_wanted_free(nl_wanted *wanted)
{
    if (!wanted->context)
        return;
    nl_task_free(wanted->context, &wanted->task);
    nl_texts_free(&wanted->texts);
    nl_core_context_destroy(wanted->context);
    *wanted = (nl_wanted){0};
}

static void free_job(nl_queue *queue, nl_queued_job *job)
{
    nl_context *context = job->wanted.context;
    for (int64_t i = 0; job->pictures && i < job->wanted.task.count; i++) {
        nl_free(context, job->pictures[i].rgb);
        nl_free(context, job->pictures[i].png);
        cJSON_Delete(job->pictures[i].facts);
    }
    nl_free(context, job->pictures);
    nl_free(context, job->preview);
    nl_wanted_free(&job->wanted);
    nl_free(queue->context, job);
}

void nl_queue_destroy(nl_queue *queue)
{
    if (!queue)
        return;
    for (nl_queued_job *job = queue->jobs, *next; job; job = next) {
        next = job->next;
        free_job(queue, job);
    }
    for (int i = 0; i < queue->model_count; i++)
        for (int k = 0; k < queue->models[i].count; k++) {
            cJSON_Delete(queue->models[i].sizes[k].facts);
            nl_model_destroy(queue->models[i].sizes[k].model);
        }
    pthread_cond_destroy(&queue->changed);
    pthread_cond_destroy(&queue->work);
    pthread_mutex_destroy(&queue->lock);
    nl_free(queue->context, queue);
}

const nl_queue_limits *nl_queue_get_limits(const nl_queue *queue)
{
    return &queue->limits;
}

int nl_queue_models(const nl_queue *queue)
{
    return queue->model_count;
}

const nl_served_model *nl_queue_model(const nl_queue *queue, int i)
{
    return &queue->models[i];
}

const nl_served_model *nl_queue_find_model(const nl_queue *queue, const char *name, int *i)
{
    for (*i = 0; *i < queue->model_count; ++*i)
        if (!strcmp(queue->models[*i].name, name))
            return &queue->models[*i];
    return NULL;
}

/* ---- With the lock */

bool nl_job_over(const nl_queued_job *job)
{
    return job->state >= NL_JOB_DONE;
}

int64_t nl_job_bytes(const nl_queued_job *job)
{
    return job->wanted.task.count * job->wanted.height * job->wanted.width * 3;
}

void nl_job_change(nl_queue *queue, nl_queued_job *job)
{
    job->changes++;
    pthread_cond_broadcast(&queue->changed);
}

void nl_job_release(nl_queue *queue, nl_queued_job *job)
{
    if (--job->holders == 0)
        free_job(queue, job);
}

/* Those that ended first go while too many, or too large ones, are kept. */
static void forget(nl_queue *queue)
{
    while (queue->state.kept > KEPT_JOBS ||
           (queue->kept > queue->limits.bytes && queue->state.kept > 1)) {
        nl_queued_job **oldest = NULL;
        for (nl_queued_job **at = &queue->jobs; *at; at = &(*at)->next)
            if (nl_job_over(*at) && (!oldest || (*at)->ended < (*oldest)->ended))
                oldest = at;
        nl_queued_job *job = *oldest;
        *oldest = job->next;
        queue->state.kept--;
        queue->kept -= nl_job_bytes(job);
        nl_job_release(queue, job);
    }
}

void nl_job_end(nl_queue *queue, nl_queued_job *job, nl_job_state state)
{
    if (nl_job_over(job))
        return;
    *(job->state == NL_JOB_QUEUED ? &queue->state.queued : &queue->state.running) -= 1;
    job->state = state;
    job->ended = nl_seconds();
    queue->promised -= nl_job_bytes(job);
    queue->kept += nl_job_bytes(job);
    queue->state.kept++;
    queue->state.jobs++;
    nl_job_change(queue, job);
    forget(queue);
}

/* ---- Any thread */

static nl_status make_id(nl_context *context, char id[33])
{
    uint8_t bits[16];
    if (getrandom(bits, sizeof(bits), 0) != sizeof(bits))
        return nl_fail(context, NL_ERROR_INTERNAL, "no random numbers: %s", strerror(errno));
    for (int i = 0; i < 16; i++)
        snprintf(id + 2 * i, 3, "%02x", bits[i]);
    return NL_OK;
}

static nl_status admit(nl_queue *queue, nl_context *context, nl_queued_job *job)
{
    nl_status status = NL_OK;
    pthread_mutex_lock(&queue->lock);
    if (queue->stopping) {
        status = nl_fail(context, NL_CANCELLED, "the server is stopping");
    } else if (queue->state.queued + queue->state.running >= queue->limits.jobs) {
        status = nl_fail(context, NL_ERROR_MEMORY, "%lld jobs are waiting or at work: try again",
                         (long long)(queue->state.queued + queue->state.running));
    } else if (queue->promised + nl_job_bytes(job) > queue->limits.bytes) {
        status = nl_fail(context, NL_ERROR_MEMORY,
                         "the pictures that others wait for take the room: try again");
    } else {
        nl_queued_job **end = &queue->jobs;
        while (*end)
            end = &(*end)->next;
        *end = job;
        job->holders = 2;
        queue->state.queued++;
        queue->promised += nl_job_bytes(job);
        pthread_cond_signal(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

nl_status nl_queue_put(nl_queue *queue, nl_context *context, nl_wanted *wanted, nl_queued_job **out)
{
    const nl_queue_limits *limits = &queue->limits;
    nl_queued_job *job = NULL;
    nl_status status = NL_OK;
    *out = NULL;
    if (wanted->task.count > limits->pictures)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%lld pictures: this server makes at most %lld in one job",
                       (long long)wanted->task.count, (long long)limits->pictures));
    if (wanted->height > limits->side || wanted->width > limits->side)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "a picture of %dx%d: this server makes sides of at most %lld pixels",
                       wanted->height, wanted->width, (long long)limits->side));
    int64_t bytes = wanted->task.count * wanted->height * wanted->width * 3;
    if (bytes > limits->bytes)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%lld pictures of %dx%d: %lld MiB are more than this server holds",
                       (long long)wanted->task.count, wanted->height, wanted->width,
                       (long long)bytes >> 20));
    NL_TRY(NL_NEW(queue->context, "a job", &job));
    job->wanted = *wanted;
    *wanted = (nl_wanted){0};
    NL_TRY(NL_NEW_ZEROS(job->wanted.context, "pictures of a job", job->wanted.task.count,
                        &job->pictures));
    NL_TRY(make_id(context, job->id));
    job->put = nl_seconds();
    NL_TRY(admit(queue, context, job));
    *out = job;
    job = NULL;
cleanup:
    if (job)
        free_job(queue, job);
    nl_wanted_free(wanted);
    return status;
}

nl_queued_job *nl_queue_find(nl_queue *queue, const char *id)
{
    pthread_mutex_lock(&queue->lock);
    nl_queued_job *job = queue->jobs;
    while (job && strcmp(job->id, id) != 0)
        job = job->next;
    if (job)
        job->holders++;
    pthread_mutex_unlock(&queue->lock);
    return job;
}

nl_queued_job *nl_queue_find_webui(nl_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    nl_queued_job *found = NULL;
    for (nl_queued_job *job = queue->jobs; job; job = job->next)
        if (job->wanted.webui && !nl_job_over(job) && (!found || job->state == NL_JOB_RUNNING))
            found = job;
    if (found)
        found->holders++;
    pthread_mutex_unlock(&queue->lock);
    return found;
}

void nl_queue_hold(nl_queue *queue, nl_queued_job *job)
{
    pthread_mutex_lock(&queue->lock);
    job->holders++;
    pthread_mutex_unlock(&queue->lock);
}

void nl_queue_release(nl_queue *queue, nl_queued_job *job)
{
    if (!job)
        return;
    pthread_mutex_lock(&queue->lock);
    nl_job_release(queue, job);
    pthread_mutex_unlock(&queue->lock);
}

/* The batch of one that has begun goes on while it has somebody else's pictures. */
void nl_queue_cancel(nl_queue *queue, nl_queued_job *job)
{
    pthread_mutex_lock(&queue->lock);
    nl_job_end(queue, job, NL_JOB_CANCELLED);
    pthread_mutex_unlock(&queue->lock);
}

void nl_queue_cancel_all(nl_queue *queue, bool webui)
{
    bool any = true;
    pthread_mutex_lock(&queue->lock);
    while (any) { /* what is over may be forgotten, and the list another one */
        any = false;
        for (nl_queued_job *job = queue->jobs; job && !any; job = job->next)
            if ((any = !nl_job_over(job) && (job->wanted.webui || !webui)))
                nl_job_end(queue, job, NL_JOB_CANCELLED);
    }
    pthread_mutex_unlock(&queue->lock);
}

bool nl_queue_wait(nl_queue *queue, nl_queued_job *job, uint64_t *changes, double seconds)
{
    struct timespec until;
    int error = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&queue->lock);
    while (job->changes == *changes && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
    bool changed = job->changes != *changes;
    *changes = job->changes;
    pthread_mutex_unlock(&queue->lock);
    return changed;
}

void nl_queue_look(nl_queue *queue, nl_queued_job *job, nl_job_look *look)
{
    double now = nl_seconds();
    pthread_mutex_lock(&queue->lock);
    double end = job->ended > 0 ? job->ended : now;
    *look = (nl_job_look){.state = job->state,
                          .status = job->status,
                          .done = job->done,
                          .count = job->wanted.task.count,
                          .step = job->step,
                          .steps = job->steps,
                          .changes = job->changes,
                          .previews = job->previews,
                          .waited = (job->started > 0 ? job->started : end) - job->put,
                          .worked = job->started > 0 ? end - job->started : 0};
    memcpy(look->error, job->error, sizeof(look->error));
    for (nl_queued_job *other = queue->jobs; other != job && other; other = other->next)
        look->before += !nl_job_over(other);
    if (nl_job_over(job))
        look->before = 0;
    pthread_mutex_unlock(&queue->lock);
}

nl_status nl_queue_png(nl_queue *queue, nl_context *context, nl_queued_job *job, int64_t i,
                       const uint8_t **png, size_t *size)
{
    nl_made_picture *picture = &job->pictures[i];
    nl_status status = NL_OK;
    pthread_mutex_lock(&queue->lock);
    bool there = picture->png, made = picture->rgb;
    pthread_mutex_unlock(&queue->lock);
    if (!made)
        return nl_fail(context, NL_ERROR_INPUT, "picture %lld is not made", (long long)i);
    if (!there) { /* two threads may do the same work: the first one's stays */
        uint8_t *bytes = NULL;
        size_t count = 0;
        status = nl_picture_encode(job->wanted.context, picture->rgb, job->wanted.height,
                                   job->wanted.width, picture->facts, &bytes, &count);
        if (status != NL_OK)
            return nl_fail(context, status, "picture %lld: no memory", (long long)i);
        pthread_mutex_lock(&queue->lock);
        if (!picture->png) {
            picture->png = bytes;
            picture->png_size = count;
            bytes = NULL;
        }
        pthread_mutex_unlock(&queue->lock);
        nl_free(job->wanted.context, bytes);
    }
    pthread_mutex_lock(&queue->lock);
    *png = picture->png;
    *size = picture->png_size;
    pthread_mutex_unlock(&queue->lock);
    return NL_OK;
}

const cJSON *nl_queue_facts(nl_queue *queue, nl_queued_job *job, int64_t i)
{
    pthread_mutex_lock(&queue->lock);
    const cJSON *facts = i < job->wanted.task.count ? job->pictures[i].facts : NULL;
    pthread_mutex_unlock(&queue->lock);
    return facts;
}

nl_status nl_queue_preview(nl_queue *queue, nl_context *context, nl_queued_job *job, uint8_t **png,
                           size_t *size)
{
    nl_status status = NL_OK;
    *png = NULL;
    pthread_mutex_lock(&queue->lock);
    *size = job->preview_size;
    if (job->preview)
        status = NL_NEW_ARRAY(context, "a preview", job->preview_size, png);
    if (*png)
        memcpy(*png, job->preview, job->preview_size);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

void nl_queue_state_of(nl_queue *queue, nl_queue_state *state)
{
    pthread_mutex_lock(&queue->lock);
    *state = queue->state;
    state->stopping = queue->stopping;
    pthread_mutex_unlock(&queue->lock);
}

void nl_queue_stop(nl_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}
