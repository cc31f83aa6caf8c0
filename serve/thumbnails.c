/* SPDX-License-Identifier: MIT */
/* A small picture of each class, made when it is first asked for and kept. */
#include <string.h>

#include "http.h"
#include "nl_image.h"

enum { SIDE = 96, MOST = 1 << 16 /* of all models together */ };

typedef struct nl_thumbnail {
    int model, class;
    size_t size;
    struct nl_thumbnail *next;
    uint8_t png[];
} nl_thumbnail;

struct nl_thumbnails {
    pthread_mutex_t lock;
    nl_thumbnail *first;
    int64_t count;
};

nl_status nl_thumbnails_create(nl_context *context, nl_thumbnails **thumbnails)
{
    nl_status status = NL_NEW(context, "thumbnails", thumbnails);
    if (status == NL_OK)
        pthread_mutex_init(&(*thumbnails)->lock, NULL);
    return status;
}

void nl_thumbnails_destroy(nl_context *context, nl_thumbnails *thumbnails)
{
    if (!thumbnails)
        return;
    for (nl_thumbnail *one = thumbnails->first, *next; one; one = next) {
        next = one->next;
        nl_free(context, one);
    }
    pthread_mutex_destroy(&thumbnails->lock);
    nl_free(context, thumbnails);
}

/* Once there, it stays: what is returned needs no lock. */
static const nl_thumbnail *find(nl_thumbnails *thumbnails, int model, int class)
{
    pthread_mutex_lock(&thumbnails->lock);
    const nl_thumbnail *one = thumbnails->first;
    while (one && (one->model != model || one->class != class))
        one = one->next;
    pthread_mutex_unlock(&thumbnails->lock);
    return one;
}

static nl_status keep(nl_exchange *exchange, int model, int class, const uint8_t *png, size_t size)
{
    nl_thumbnails *thumbnails = exchange->server->thumbnails;
    nl_thumbnail *one =
        nl_new_array(exchange->server->context, "a thumbnail", 1, sizeof(nl_thumbnail) + size);
    if (!one)
        return NL_ERROR_MEMORY;
    one->model = model;
    one->class = class;
    one->size = size;
    memcpy(one->png, png, size);
    pthread_mutex_lock(&thumbnails->lock);
    bool room = thumbnails->count < MOST;
    if (room) {
        one->next = thumbnails->first;
        thumbnails->first = one;
        thumbnails->count++;
    }
    pthread_mutex_unlock(&thumbnails->lock);
    if (!room)
        nl_free(exchange->server->context, one);
    return NL_OK;
}

/* Picture 0 of seed 0 of the class that the path names, by the model's defaults; number: an int *, of the model. */
static nl_status read_class(nl_exchange *exchange, nl_wanted *wanted, void *number)
{
    const nl_served_model *model = nl_queue_model(exchange->server->queue, *(int *)number);
    nl_task_options options = model->options;
    char *text = NULL;
    wanted->model = *(int *)number;
    wanted->background = true;
    wanted->height = model->sizes[0].height;
    wanted->width = model->sizes[0].width;
    NL_CHECK(nl_strdup(wanted->context, exchange->parts[0], &text));
    NL_CHECK(nl_texts_add(&wanted->texts, text));
    options.classes = text;
    return nl_task_plan(wanted->context, model->config, NULL, &options, 1, &wanted->task);
}

static nl_status scale(nl_exchange *exchange, nl_queued_job *job, uint8_t **png, size_t *size)
{
    nl_context *context = exchange->context;
    nl_image image = {.height = job->wanted.height, .width = job->wanted.width};
    nl_status status = NL_OK;
    size_t bytes = 3 * (size_t)image.height * (size_t)image.width;
    NL_TRY(NL_NEW_ARRAY(context, "a thumbnail", bytes, &image.rgb));
    memcpy(image.rgb, job->pictures[0].rgb, bytes);
    if (image.height > SIDE && image.width > SIDE)
        NL_TRY(nl_image_fit(context, SIDE, SIDE, &image));
    NL_TRY(nl_png_encode(context, image.rgb, image.height, image.width, NULL, png, size));
cleanup:
    nl_image_free(context, &image);
    return status;
}

static enum MHD_Result get_thumbnail(nl_exchange *exchange)
{
    enum MHD_Result result;
    uint8_t *png = NULL;
    int64_t class;
    size_t size;
    int number;
    const nl_served_model *model = nl_model_argument(exchange, &number, &result);
    if (!model)
        return result;
    if (!nl_number_read(exchange->parts[0], model->config->num_classes - 1, &class))
        return nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such class");
    const nl_thumbnail *kept = find(exchange->server->thumbnails, number, (int)class);
    if (kept)
        return nl_answer_bytes(exchange, "image/png", kept->png, kept->size, 3600);
    nl_queued_job *job = nl_put_job(exchange, read_class, &number, &result);
    if (job && nl_await_job(exchange, job, &result)) {
        nl_status status = scale(exchange, job, &png, &size);
        if (status == NL_OK)
            status = keep(exchange, number, (int)class, png, size);
        result = status == NL_OK ? nl_answer_bytes(exchange, "image/png", png, size, 3600)
                                 : nl_answer_failure(exchange, exchange->context, status);
    }
    nl_free(exchange->context, png);
    nl_queue_release(exchange->server->queue, job);
    return result;
}

const nl_route nl_thumbnail_routes[] = {
    {"GET", "/api/classes/*/thumbnail", get_thumbnail},
    {0},
};
