/* SPDX-License-Identifier: MIT */
/* OpenAI's interface: images/generations and models. */
#include <string.h>
#include <time.h>

#include "http.h"
#include "nl_wanted.h"

static enum MHD_Result answer_pictures(nl_exchange *exchange, nl_queued_job *job)
{
    nl_status status = NL_OK;
    cJSON *object = cJSON_CreateObject(), *data;
    char *text = NULL;
    cJSON_AddNumberToObject(object, "created", (double)time(NULL));
    data = cJSON_AddArrayToObject(object, "data");
    for (int64_t i = 0; i < job->wanted.task.count; i++) {
        NL_TRY(nl_picture_base64(exchange, job, i, &text));
        cJSON *picture = cJSON_CreateObject();
        cJSON_AddStringToObject(picture, "b64_json", text);
        cJSON_AddItemToArray(data, picture);
        nl_free(exchange->context, text);
        text = NULL;
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
cleanup:
    cJSON_Delete(object);
    return nl_answer_failure(exchange, exchange->context, status);
}

static enum MHD_Result generate(nl_exchange *exchange)
{
    nl_queue *queue = exchange->server->queue;
    nl_queued_job *job = NULL;
    nl_wanted wanted;
    nl_job_look look;
    enum MHD_Result result;
    nl_status status = nl_wanted_create(&wanted);
    if (status != NL_OK)
        return MHD_NO;
    status = nl_wanted_openai(queue, exchange->body ? exchange->body : "", exchange->size, &wanted);
    if (status != NL_OK) {
        result = nl_answer_failure(exchange, wanted.context, status);
        nl_wanted_free(&wanted);
        return result;
    }
    status = nl_queue_put(queue, exchange->context, &wanted, &job);
    if (status != NL_OK)
        return nl_answer_failure(exchange, exchange->context, status);
    nl_await_job(exchange, job);
    nl_queue_look(queue, job, &look);
    result = look.state == NL_JOB_DONE ? answer_pictures(exchange, job)
                                       : nl_answer_ended(exchange, &look);
    nl_queue_release(queue, job);
    return result;
}

static enum MHD_Result list_models(nl_exchange *exchange)
{
    const nl_queue *queue = exchange->server->queue;
    cJSON *object = cJSON_CreateObject(), *data;
    cJSON_AddStringToObject(object, "object", "list");
    data = cJSON_AddArrayToObject(object, "data");
    for (int i = 0; i < nl_queue_models(queue); i++) {
        cJSON *model = cJSON_CreateObject();
        cJSON_AddStringToObject(model, "id", nl_queue_model(queue, i)->name);
        cJSON_AddStringToObject(model, "object", "model");
        cJSON_AddNumberToObject(model, "created", 0);
        cJSON_AddStringToObject(model, "owned_by", "nalagen");
        cJSON_AddItemToArray(data, model);
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

const nl_route nl_openai_routes[] = {
    {"POST", "/v1/images/generations", generate},
    {"GET", "/v1/models", list_models},
    {0},
};
