/* SPDX-License-Identifier: MIT */
/* The own interface: jobs, their pictures and events, and what there is. */
#include "http.h"
#include "nl_image.h"
#include "nl_sampler.h"
#include "nl_wanted.h"
#include "ops.h"
#include "served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Jobs as JSON */

static cJSON *picture_json(nl_exchange *exchange, nl_queued_job *job, int64_t i)
{
    const cJSON *facts = nl_queue_facts(exchange->server->queue, job, i);
    char url[96];
    if (!facts)
        return NULL;
    cJSON *object = cJSON_CreateObject();
    snprintf(url, sizeof(url), "/api/jobs/%s/pictures/%lld", job->id, (long long)i);
    cJSON_AddNumberToObject(object, "number", (double)i);
    cJSON_AddStringToObject(object, "url", url);
    for (const cJSON *fact = facts->child; fact; fact = fact->next)
        if (strcmp(fact->string, "config") != 0)
            cJSON_AddItemToObject(object, fact->string, cJSON_Duplicate(fact, true));
    return object;
}

static void add_look(cJSON *object, const nl_job_look *look)
{
    cJSON_AddStringToObject(object, "state", nl_job_state_names[look->state]);
    cJSON_AddNumberToObject(object, "done", (double)look->done);
    cJSON_AddNumberToObject(object, "count", (double)look->count);
    cJSON_AddNumberToObject(object, "step", (double)look->step);
    cJSON_AddNumberToObject(object, "steps", (double)look->steps);
    cJSON_AddNumberToObject(object, "before", (double)look->before);
    cJSON_AddNumberToObject(object, "waited", (double)(int64_t)(look->waited * 1e3) / 1e3);
    cJSON_AddNumberToObject(object, "seconds", (double)(int64_t)(look->worked * 1e3) / 1e3);
    if (look->error[0])
        cJSON_AddStringToObject(object, "error", look->error);
}

static cJSON *job_json(nl_exchange *exchange, nl_queued_job *job)
{
    nl_queue *queue = exchange->server->queue;
    nl_job_look look;
    cJSON *object = cJSON_CreateObject();
    nl_queue_look(queue, job, &look);
    cJSON_AddStringToObject(object, "id", job->id);
    cJSON_AddStringToObject(object, "model", nl_queue_model(queue, job->wanted.model)->name);
    cJSON_AddNumberToObject(object, "height", job->wanted.height);
    cJSON_AddNumberToObject(object, "width", job->wanted.width);
    add_look(object, &look);
    cJSON *pictures = cJSON_AddArrayToObject(object, "pictures");
    for (int64_t i = 0; i < look.count; i++) {
        cJSON *picture = picture_json(exchange, job, i);
        if (picture)
            cJSON_AddItemToArray(pictures, picture);
    }
    return object;
}

static nl_status read_own(nl_exchange *exchange, nl_wanted *wanted, void *user)
{
    (void)user;
    return nl_wanted_own(exchange->server->queue, exchange->body, exchange->size, wanted);
}

static enum MHD_Result post_job(nl_exchange *exchange)
{
    enum MHD_Result result;
    nl_queued_job *job = nl_put_job(exchange, read_own, NULL, &result);
    if (!job)
        return result;
    result = nl_answer_json(exchange, MHD_HTTP_ACCEPTED, job_json(exchange, job));
    nl_queue_release(exchange->server->queue, job);
    return result;
}

/* Of the job that the path names, held meanwhile. */
static enum MHD_Result with_job(nl_exchange *exchange,
                                enum MHD_Result (*answer)(nl_exchange *exchange,
                                                          nl_queued_job *job))
{
    nl_queue *queue = exchange->server->queue;
    nl_queued_job *job = nl_queue_find(queue, exchange->parts[0]);
    if (!job)
        return nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such job (any more)");
    enum MHD_Result result = answer(exchange, job);
    nl_queue_release(queue, job);
    return result;
}

static enum MHD_Result answer_job(nl_exchange *exchange, nl_queued_job *job)
{
    return nl_answer_json(exchange, MHD_HTTP_OK, job_json(exchange, job));
}

static enum MHD_Result cancel_job(nl_exchange *exchange, nl_queued_job *job)
{
    nl_queue_cancel(exchange->server->queue, job);
    return answer_job(exchange, job);
}

static enum MHD_Result answer_picture(nl_exchange *exchange, nl_queued_job *job)
{
    nl_queue *queue = exchange->server->queue;
    const uint8_t *png;
    int64_t i;
    size_t size;
    if (!nl_number_read(exchange->parts[1], job->wanted.task.count - 1, &i) ||
        !nl_queue_facts(queue, job, i))
        return nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such picture (yet)");
    nl_status status = nl_queue_png(queue, exchange->context, job, i, &png, &size);
    return status == NL_OK ? nl_answer_bytes(exchange, "image/png", png, size, 3600)
                           : nl_answer_failure(exchange, exchange->context, status);
}

/* All pictures of the job in one. milliseconds 0: a grid. They do not change: what a client has already is not made again. */
static enum MHD_Result answer_whole(nl_exchange *exchange, nl_queued_job *job, int64_t columns,
                                    int64_t milliseconds)
{
    enum { KEPT = 3600 };
    uint8_t *png = NULL;
    size_t size;
    nl_job_look look;
    nl_queue_look(exchange->server->queue, job, &look);
    if (look.state == NL_JOB_DONE && nl_client_has(exchange, job->id))
        return nl_answer_tagged(exchange, job->id, NULL, NULL, 0, KEPT);
    nl_status status = nl_queue_whole(exchange->server->queue, exchange->context, job, columns,
                                      milliseconds, &png, &size);
    enum MHD_Result result =
        status == NL_OK ? nl_answer_tagged(exchange, job->id, "image/png", png, size, KEPT)
        : status == NL_ERROR_INPUT
            ? nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "its pictures are not all made")
            : nl_answer_failure(exchange, exchange->context, status);
    nl_free(exchange->context, png);
    return result;
}

/* An argument of the query from `least` on; it stays as it is where there is none. */
static bool number_argument(nl_exchange *exchange, const char *name, int64_t least, int64_t most,
                            int64_t *number)
{
    const char *text = nl_argument(exchange, name);
    return !text || (nl_number_read(text, most, number) && *number >= least);
}

static enum MHD_Result answer_grid(nl_exchange *exchange, nl_queued_job *job)
{
    int64_t count = job->wanted.task.count, columns = count;
    if (!number_argument(exchange, "columns", 1, count, &columns))
        return nl_answer_error(exchange, MHD_HTTP_BAD_REQUEST, "columns: expected 1 to %lld",
                               (long long)count);
    return answer_whole(exchange, job, columns, 0);
}

static enum MHD_Result answer_animation(nl_exchange *exchange, nl_queued_job *job)
{
    enum { LEAST = 10, USUAL = 80, MOST = 60000 };
    int64_t milliseconds = USUAL;
    if (!number_argument(exchange, "ms", LEAST, MOST, &milliseconds))
        return nl_answer_error(exchange, MHD_HTTP_BAD_REQUEST, "ms: expected %d to %d", LEAST,
                               MOST);
    return answer_whole(exchange, job, 0, milliseconds);
}

static enum MHD_Result get_job(nl_exchange *exchange)
{
    return with_job(exchange, answer_job);
}

static enum MHD_Result delete_job(nl_exchange *exchange)
{
    return with_job(exchange, cancel_job);
}

static enum MHD_Result get_picture(nl_exchange *exchange)
{
    return with_job(exchange, answer_picture);
}

static enum MHD_Result get_grid(nl_exchange *exchange)
{
    return with_job(exchange, answer_grid);
}

static enum MHD_Result get_animation(nl_exchange *exchange)
{
    return with_job(exchange, answer_animation);
}

/* ---- Events */

enum { EVENT_SECONDS = 5 /* between signs of life */, BLOCK = 32 << 10 };

/* It is freed after the exchange, and so owns its memory. */
typedef struct nl_watch {
    nl_context *context;
    nl_queue *queue;
    nl_exchange *exchange; /* while events are read */
    nl_queued_job *job;
    bool cancels; /* the job ends with the stream */
    uint64_t changes, previews;
    int64_t told; /* pictures: all before */
    bool *shown;  /* [count] */
    bool ended;
    char *text; /* that goes out next */
    size_t size, at;
} nl_watch;

static nl_status add_event(nl_watch *watch, const char *name, const char *data)
{
    nl_context *context = watch->context;
    char *longer = NULL;
    nl_status status = nl_format(context, &longer, "%.*sevent: %s\ndata: %s\n\n", (int)watch->size,
                                 watch->text ? watch->text : "", name, data);
    if (status != NL_OK)
        return status;
    nl_free(context, watch->text);
    watch->text = longer;
    watch->size = strlen(longer);
    return NL_OK;
}

static nl_status add_json_event(nl_watch *watch, const char *name, cJSON *json)
{
    char *text = nl_json_print(json, false);
    nl_status status = text ? add_event(watch, name, text) : NL_ERROR_MEMORY;
    cJSON_free(text);
    cJSON_Delete(json);
    return status;
}

static nl_status add_preview(nl_watch *watch)
{
    nl_exchange *exchange = watch->exchange;
    uint8_t *png = NULL;
    char *text = NULL, *json = NULL;
    size_t size;
    nl_status status;
    NL_TRY(nl_queue_preview(exchange->server->queue, exchange->context, watch->job, &png, &size));
    NL_TRY(nl_base64(exchange->context, png, size, &text));
    NL_TRY(nl_format(exchange->context, &json, "{\"png\":\"%s\"}", text));
    NL_TRY(add_event(watch, "preview", json));
cleanup:
    nl_free(exchange->context, png);
    nl_free(exchange->context, text);
    nl_free(exchange->context, json);
    return status;
}

/* What has become of the job since the last time. */
static nl_status tell(nl_watch *watch)
{
    nl_exchange *exchange = watch->exchange;
    nl_job_look look;
    nl_status status = NL_OK;
    nl_queue_look(exchange->server->queue, watch->job, &look);
    if (look.previews != watch->previews)
        NL_TRY(add_preview(watch));
    watch->previews = look.previews;
    for (int64_t i = watch->told; i < look.count; i++) {
        cJSON *picture = watch->shown[i] ? NULL : picture_json(exchange, watch->job, i);
        watch->shown[i] |= picture != NULL;
        if (picture)
            NL_TRY(add_json_event(watch, "picture", picture));
        watch->told += watch->told == i && watch->shown[i];
    }
    cJSON *object = cJSON_CreateObject();
    add_look(object, &look);
    watch->ended = look.state >= NL_JOB_DONE;
    NL_TRY(add_json_event(watch, watch->ended ? "end" : "progress", object));
cleanup:
    return status;
}

static ssize_t read_events(void *user, uint64_t position, char *to, size_t most)
{
    nl_watch *watch = user;
    nl_exchange *exchange = watch->exchange;
    double since = nl_seconds();
    (void)position;
    while (watch->at == watch->size) {
        watch->at = watch->size = 0;
        if (watch->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (nl_has_gone(exchange))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (nl_queue_wait(exchange->server->queue, watch->job, &watch->changes, 0.2) ||
            !watch->text) {
            if (tell(watch) != NL_OK)
                return MHD_CONTENT_READER_END_WITH_ERROR;
        } else if (nl_seconds() - since > EVENT_SECONDS) {
            memcpy(to, ":\n\n", 3);
            return 3;
        }
    }
    size_t size = NL_MIN(most, watch->size - watch->at);
    memcpy(to, watch->text + watch->at, size);
    watch->at += size;
    return (ssize_t)size;
}

static void end_watch(void *user)
{
    nl_watch *watch = user;
    nl_context *context = watch->context;
    if (watch->cancels && !watch->ended)
        nl_queue_cancel(watch->queue, watch->job);
    nl_queue_release(watch->queue, watch->job);
    nl_free(context, watch->shown);
    nl_free(context, watch->text);
    nl_free(context, watch);
    nl_core_context_destroy(context);
}

static enum MHD_Result answer_events(nl_exchange *exchange, nl_queued_job *job)
{
    nl_context *context = NULL;
    int64_t cancels = 0;
    nl_watch *watch = NULL;
    nl_status status = NL_OK;
    if (!number_argument(exchange, "cancel", 0, 1, &cancels))
        return nl_answer_error(exchange, MHD_HTTP_BAD_REQUEST, "cancel: expected 0 or 1");
    NL_TRY(nl_core_context_create(NULL, &context));
    NL_TRY(NL_NEW(context, "events", &watch));
    NL_TRY(NL_NEW_ZEROS(context, "events", job->wanted.task.count, &watch->shown));
    watch->context = context;
    watch->queue = exchange->server->queue;
    watch->exchange = exchange;
    watch->job = job;
    nl_queue_hold(watch->queue, job);
    watch->cancels = cancels != 0;
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_events, watch, end_watch);
    if (!response) {
        end_watch(watch);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    return nl_answer(exchange, MHD_HTTP_OK, "text/event-stream", response);
cleanup:
    nl_free(context, watch);
    nl_core_context_destroy(context);
    return nl_answer_error(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, "%s", nl_status_name(status));
}

static enum MHD_Result get_events(nl_exchange *exchange)
{
    return with_job(exchange, answer_events);
}

/* ---- What there is */

const nl_served_model *nl_model_argument(nl_exchange *exchange, int *number,
                                         enum MHD_Result *answered)
{
    const nl_queue *queue = exchange->server->queue;
    const char *name = nl_argument(exchange, "model");
    const nl_served_model *model =
        name ? nl_queue_find_model(queue, name, number) : nl_queue_model(queue, *number = 0);
    if (!model)
        *answered = nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such model here");
    return model;
}

static cJSON *model_json(const nl_served_model *model)
{
    const nl_config *config = model->config;
    const cJSON *facts = model->sizes[0].facts;
    nl_sampling given = {.cfg_scale = -1}, usual;
    nl_context *context;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", model->name);
    cJSON_AddStringToObject(object, "architecture",
                            cJSON_GetObjectItemCaseSensitive(facts, "name")->valuestring);
    cJSON_AddStringToObject(object, "sha256",
                            cJSON_GetObjectItemCaseSensitive(facts, "sha256")->valuestring);
    cJSON_AddNumberToObject(object, "height", model->sizes[0].height);
    cJSON_AddNumberToObject(object, "width", model->sizes[0].width);
    cJSON_AddNumberToObject(object, "unit", model->unit);
    cJSON_AddBoolToObject(object, "shipped", !model->options.model);
    cJSON_AddNumberToObject(object, "classes", config->num_classes);
    cJSON_AddBoolToObject(object, "guidance", nl_takes_guidance(config));
    cJSON *samplers = cJSON_AddArrayToObject(object, "samplers");
    for (int i = 0; nl_method_names[i]; i++)
        if (nl_takes_sampler(config, (nl_method)i)) {
            cJSON *sampler = cJSON_CreateObject();
            cJSON_AddStringToObject(sampler, "name", nl_method_names[i]);
            cJSON_AddNumberToObject(sampler, "steps", nl_methods[i].default_steps);
            cJSON_AddItemToArray(samplers, sampler);
        }
    if (nl_core_context_create(NULL, &context) != NL_OK)
        return object;
    if (nl_sampling_resolve(context, config, NULL, &given, &usual) == NL_OK) {
        cJSON *defaults = cJSON_AddObjectToObject(object, "defaults");
        cJSON_AddStringToObject(defaults, "sampler", usual.sampler);
        cJSON_AddNumberToObject(defaults, "steps", (double)usual.steps);
        cJSON_AddNumberToObject(defaults, "cfg_scale", nl_sampling_scale(&usual));
        if (usual.cfg_interval[1] > 0)
            cJSON_AddItemToObject(defaults, "cfg_interval",
                                  cJSON_CreateDoubleArray(usual.cfg_interval, 2));
    }
    nl_core_context_destroy(context);
    return object;
}

static enum MHD_Result get_models(nl_exchange *exchange)
{
    const nl_queue *queue = exchange->server->queue;
    cJSON *object = cJSON_CreateObject(), *models = cJSON_AddArrayToObject(object, "models");
    for (int i = 0; i < nl_queue_models(queue); i++)
        cJSON_AddItemToArray(models, model_json(nl_queue_model(queue, i)));
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

static enum MHD_Result get_classes(nl_exchange *exchange)
{
    enum MHD_Result answered;
    int number;
    const nl_served_model *model = nl_model_argument(exchange, &number, &answered);
    if (!model)
        return answered;
    cJSON *object = cJSON_CreateObject(), *classes = cJSON_AddArrayToObject(object, "classes");
    cJSON_AddStringToObject(object, "model", model->name);
    for (int i = 0; i < model->config->num_classes; i++) {
        char text[128];
        cJSON *class = cJSON_CreateObject();
        const nl_class_name *name =
            model->config->class_names ? &model->config->class_names[i] : NULL;
        cJSON_AddNumberToObject(class, "class", i);
        cJSON_AddStringToObject(class, "name", nl_class_text(model->config, i, text, sizeof(text)));
        if (name && name->wnid)
            cJSON_AddStringToObject(class, "wnid", name->wnid);
        cJSON_AddItemToArray(classes, class);
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

static enum MHD_Result get_device(nl_exchange *exchange)
{
    const nl_server *server = exchange->server;
    const nl_context *device = server->device;
    const nl_queue_limits *limits = nl_queue_get_limits(server->queue);
    nl_queue_state state;
    double seconds = nl_seconds() - server->started;
    char processor[128];
    nl_queue_state_of(server->queue, &state);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "device", device->device->name);
    nl_processor_name(processor, sizeof(processor));
    cJSON_AddStringToObject(object, "processor", processor);
    cJSON_AddStringToObject(object, "dtype", nl_device_dtype_name(device->device));
    cJSON_AddNumberToObject(object, "threads", device->device->threads);
    cJSON_AddNumberToObject(object, "memory", (double)atomic_load(&device->memory_used));
    cJSON_AddNumberToObject(object, "memory_peak", (double)atomic_load(&device->memory_peak));
    cJSON_AddNumberToObject(object, "memory_limit", (double)device->options.max_memory);
    cJSON_AddNumberToObject(object, "seconds", seconds);
    cJSON_AddNumberToObject(object, "busy", state.busy);
    cJSON_AddNumberToObject(object, "queued", (double)state.queued);
    cJSON_AddNumberToObject(object, "running", (double)state.running);
    cJSON_AddNumberToObject(object, "jobs", (double)state.jobs);
    cJSON_AddNumberToObject(object, "pictures", (double)state.pictures);
    cJSON_AddNumberToObject(object, "batches", (double)state.batches);
    cJSON_AddBoolToObject(object, "stopping", state.stopping);
    cJSON_AddNumberToObject(object, "max_queue", (double)limits->jobs);
    cJSON_AddNumberToObject(object, "max_pictures", (double)limits->pictures);
    cJSON_AddNumberToObject(object, "max_size", (double)limits->side);
    cJSON_AddNumberToObject(object, "max_seconds", limits->seconds);
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

static enum MHD_Result get_openapi(nl_exchange *exchange)
{
    cJSON *document;
    nl_status status = nl_openapi(exchange->context, &document);
    return status == NL_OK ? nl_answer_json(exchange, MHD_HTTP_OK, document)
                           : nl_answer_failure(exchange, exchange->context, status);
}

const nl_route nl_api_routes[] = {
    {"POST", "/api/jobs", post_job},
    {"GET", "/api/jobs/*", get_job},
    {"DELETE", "/api/jobs/*", delete_job},
    {"GET", "/api/jobs/*/events", get_events},
    {"GET", "/api/jobs/*/pictures/*", get_picture},
    {"GET", "/api/jobs/*/grid", get_grid},
    {"GET", "/api/jobs/*/animation", get_animation},
    {"GET", "/api/models", get_models},
    {"GET", "/api/classes", get_classes},
    {"GET", "/api/device", get_device},
    {"GET", "/api/openapi.json", get_openapi},
    {0},
};
