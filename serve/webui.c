/* SPDX-License-Identifier: MIT */
/* The interface of AUTOMATIC1111's web UI, as its clients use it: txt2img and what they ask before. */
#include <math.h>
#include <string.h>

#include "http.h"
#include "nl_sampler.h"
#include "nl_wanted.h"

static const nl_served_model *chosen(nl_exchange *exchange)
{
    return nl_queue_model(exchange->server->queue, atomic_load(&exchange->server->webui_model));
}

/* How the pictures were made, a text of JSON in JSON. */
static cJSON *info_json(nl_exchange *exchange, nl_queued_job *job)
{
    const nl_wanted *wanted = &job->wanted;
    const nl_task *task = &wanted->task;
    const char *prompt = task->options.classes ? task->options.classes : "";
    cJSON *info = cJSON_CreateObject();
    cJSON_AddStringToObject(info, "prompt", prompt);
    cJSON_AddStringToObject(info, "negative_prompt", "");
    cJSON_AddNumberToObject(info, "seed", (double)task->options.seed);
    cJSON_AddNumberToObject(info, "width", wanted->width);
    cJSON_AddNumberToObject(info, "height", wanted->height);
    cJSON_AddStringToObject(info, "sampler_name", task->sampling.sampler);
    cJSON_AddNumberToObject(info, "cfg_scale", nl_sampling_scale(&task->sampling));
    cJSON_AddNumberToObject(info, "steps", (double)task->sampling.steps);
    cJSON_AddNumberToObject(info, "batch_size", (double)task->count);
    cJSON_AddStringToObject(info, "sd_model_name",
                            nl_queue_model(exchange->server->queue, wanted->model)->name);
    cJSON *prompts = cJSON_AddArrayToObject(info, "all_prompts");
    cJSON *seeds = cJSON_AddArrayToObject(info, "all_seeds");
    cJSON *texts = cJSON_AddArrayToObject(info, "infotexts");
    for (int64_t i = 0; i < task->count; i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "%.200s\nSteps: %lld, Sampler: %s, CFG scale: %g, Seed: %llu, Size: %dx%d", prompt,
                 (long long)task->sampling.steps, task->sampling.sampler,
                 nl_sampling_scale(&task->sampling), (unsigned long long)task->options.seed,
                 wanted->width, wanted->height);
        cJSON_AddItemToArray(prompts, cJSON_CreateString(prompt));
        cJSON_AddItemToArray(seeds, cJSON_CreateNumber((double)task->options.seed));
        cJSON_AddItemToArray(texts, cJSON_CreateString(text));
    }
    return info;
}

static enum MHD_Result answer_pictures(nl_exchange *exchange, nl_queued_job *job, cJSON *echo)
{
    nl_status status = NL_OK;
    cJSON *string;
    cJSON *object = cJSON_CreateObject(), *images = cJSON_AddArrayToObject(object, "images");
    cJSON *info = info_json(exchange, job);
    for (int64_t i = 0; i < job->wanted.task.count; i++) {
        NL_TRY(nl_picture_string(exchange, job, i, &string));
        cJSON_AddItemToArray(images, string);
    }
    cJSON_AddItemToObject(object, "parameters", cJSON_Duplicate(echo, true));
    char *printed = nl_json_print(info, false);
    cJSON_AddStringToObject(object, "info", printed ? printed : "{}");
    cJSON_free(printed);
    cJSON_Delete(info);
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
cleanup:
    cJSON_Delete(info);
    cJSON_Delete(object);
    return nl_answer_failure(exchange, exchange->context, status);
}

/* echo: a cJSON *, of the caller in every case. */
static nl_status read_body(nl_exchange *exchange, nl_wanted *wanted, void *echo)
{
    nl_server *server = exchange->server;
    return nl_wanted_webui(server->queue, atomic_load(&server->webui_model), exchange->body,
                           exchange->size, wanted, echo);
}

static enum MHD_Result txt2img(nl_exchange *exchange)
{
    enum MHD_Result result;
    cJSON *echo = NULL;
    nl_queued_job *job = nl_put_job(exchange, read_body, &echo, &result);
    if (job && nl_await_job(exchange, job, &result))
        result = answer_pictures(exchange, job, echo);
    nl_queue_release(exchange->server->queue, job);
    cJSON_Delete(echo);
    return result;
}

static const char *sha256(const nl_served_model *model)
{
    return cJSON_GetObjectItemCaseSensitive(model->sizes[0].facts, "sha256")->valuestring;
}

/* A name and no path stands where A1111 says the file. */
static enum MHD_Result sd_models(nl_exchange *exchange)
{
    const nl_queue *queue = exchange->server->queue;
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < nl_queue_models(queue); i++) {
        const nl_served_model *model = nl_queue_model(queue, i);
        char hash[16];
        snprintf(hash, sizeof(hash), "%.10s", sha256(model));
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "title", model->name);
        cJSON_AddStringToObject(one, "model_name", model->name);
        cJSON_AddStringToObject(one, "hash", hash);
        cJSON_AddStringToObject(one, "sha256", sha256(model));
        cJSON_AddStringToObject(one, "filename", model->name);
        cJSON_AddNullToObject(one, "config");
        cJSON_AddItemToArray(list, one);
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, list);
}

static enum MHD_Result samplers(nl_exchange *exchange)
{
    const nl_config *config = chosen(exchange)->config;
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; nl_method_names[i]; i++) {
        if (!nl_takes_sampler(config, (nl_method)i))
            continue;
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", nl_method_names[i]);
        cJSON_AddItemToObject(one, "aliases", cJSON_CreateArray());
        cJSON_AddItemToObject(one, "options", cJSON_CreateObject());
        cJSON_AddItemToArray(list, one);
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, list);
}

static enum MHD_Result schedulers(nl_exchange *exchange)
{
    cJSON *list = cJSON_CreateArray(), *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "name", "automatic");
    cJSON_AddStringToObject(one, "label", "Automatic");
    cJSON_AddItemToObject(one, "aliases", cJSON_CreateArray());
    cJSON_AddNumberToObject(one, "default_rho", -1);
    cJSON_AddBoolToObject(one, "need_inner_model", false);
    cJSON_AddItemToArray(list, one);
    return nl_answer_json(exchange, MHD_HTTP_OK, list);
}

static enum MHD_Result get_options(nl_exchange *exchange)
{
    const nl_served_model *model = chosen(exchange);
    cJSON *options = cJSON_CreateObject();
    cJSON_AddStringToObject(options, "sd_model_checkpoint", model->name);
    cJSON_AddStringToObject(options, "sd_checkpoint_hash", sha256(model));
    cJSON_AddStringToObject(options, "samples_format", "png");
    return nl_answer_json(exchange, MHD_HTTP_OK, options);
}

/* The model alone can be chosen; other options mean nothing here and are passed over. */
static enum MHD_Result set_options(nl_exchange *exchange)
{
    nl_context *context = exchange->context;
    nl_json json = {.context = context, .where = "request"};
    cJSON *object = NULL;
    const char *name = NULL;
    int model = -1;
    nl_status status;
    NL_TRY(nl_json_parse(context, "request", exchange->body, exchange->size, &object));
    json.object = object;
    if (!cJSON_IsObject(object))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "request: expected an object {...}"));
    NL_TRY(nl_json_string(&json, "sd_model_checkpoint", &name));
    if (name && !nl_queue_find_model(exchange->server->queue, name, &model))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "model \"%.100s\" is not served here", name));
    if (name)
        atomic_store(&exchange->server->webui_model, model);
    cJSON_Delete(object);
    return nl_answer_json(exchange, MHD_HTTP_OK, cJSON_CreateObject());
cleanup:
    cJSON_Delete(object);
    return nl_answer_failure(exchange, context, status);
}

static enum MHD_Result progress(nl_exchange *exchange)
{
    nl_queue *queue = exchange->server->queue;
    nl_queued_job *job = nl_queue_find_webui(queue);
    nl_job_look look = {0};
    char *preview = NULL;
    cJSON *object = cJSON_CreateObject();
    if (job) {
        uint8_t *png = NULL;
        size_t size;
        nl_queue_look(queue, job, &look);
        if (nl_queue_preview(queue, exchange->context, job, &png, &size) == NL_OK && png &&
            nl_base64(exchange->context, png, size, &preview) != NL_OK)
            preview = NULL;
        nl_free(exchange->context, png);
    }
    double part = look.steps ? (double)look.step / (double)look.steps : 0;
    double now = job ? fmin(((double)look.done + part) / (double)look.count, 1) : 0;
    cJSON_AddNumberToObject(object, "progress", now);
    cJSON_AddNumberToObject(object, "eta_relative", now > 0 ? look.worked * (1 - now) / now : 0);
    cJSON *state = cJSON_AddObjectToObject(object, "state");
    cJSON_AddBoolToObject(state, "skipped", false);
    cJSON_AddBoolToObject(state, "interrupted", false);
    cJSON_AddStringToObject(state, "job", job ? job->id : "");
    cJSON_AddNumberToObject(state, "job_count", job ? 1 : 0);
    cJSON_AddNumberToObject(state, "job_no", 0);
    cJSON_AddNumberToObject(state, "sampling_step", (double)look.step);
    cJSON_AddNumberToObject(state, "sampling_steps", (double)look.steps);
    if (preview)
        cJSON_AddStringToObject(object, "current_image", preview);
    else
        cJSON_AddNullToObject(object, "current_image");
    cJSON_AddNullToObject(object, "textinfo");
    nl_free(exchange->context, preview);
    nl_queue_release(queue, job);
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

static enum MHD_Result interrupt(nl_exchange *exchange)
{
    nl_queue_cancel_all(exchange->server->queue, true);
    return nl_answer_json(exchange, MHD_HTTP_OK, cJSON_CreateObject());
}

const nl_route nl_webui_routes[] = {
    {"POST", "/sdapi/v1/txt2img", txt2img},
    {"GET", "/sdapi/v1/sd-models", sd_models},
    {"GET", "/sdapi/v1/samplers", samplers},
    {"GET", "/sdapi/v1/schedulers", schedulers},
    {"GET", "/sdapi/v1/options", get_options},
    {"POST", "/sdapi/v1/options", set_options},
    {"GET", "/sdapi/v1/progress", progress},
    {"POST", "/sdapi/v1/interrupt", interrupt},
    {0},
};
