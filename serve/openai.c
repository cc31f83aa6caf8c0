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
    cJSON *string;
    cJSON_AddNumberToObject(object, "created", (double)time(NULL));
    data = cJSON_AddArrayToObject(object, "data");
    for (int64_t i = 0; i < job->wanted.task.count; i++) {
        NL_TRY(nl_picture_string(exchange, job, i, &string));
        cJSON *picture = cJSON_CreateObject();
        cJSON_AddItemToObject(picture, "b64_json", string);
        cJSON_AddItemToArray(data, picture);
    }
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
cleanup:
    cJSON_Delete(object);
    return nl_answer_failure(exchange, exchange->context, status);
}

static nl_status read_body(nl_exchange *exchange, nl_wanted *wanted, void *user)
{
    (void)user;
    return nl_wanted_openai(exchange->server->queue, exchange->body, exchange->size, wanted);
}

static enum MHD_Result generate(nl_exchange *exchange)
{
    enum MHD_Result result;
    nl_queued_job *job = nl_put_job(exchange, read_body, NULL, &result);
    if (job && nl_await_job(exchange, job, &result))
        result = answer_pictures(exchange, job);
    nl_queue_release(exchange->server->queue, job);
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
