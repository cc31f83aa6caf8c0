/* SPDX-License-Identifier: MIT */
/* A request and its answer, as the handlers of the interfaces see them; in serve/ only. */
#ifndef NL_HTTP_H
#define NL_HTTP_H

#include <microhttpd.h>

#include "nl_guard.h"
#include "nl_json.h"
#include "nl_serve.h"

typedef struct nl_thumbnails nl_thumbnails;

struct nl_server {
    nl_context *context;
    const nl_serve_options *options;
    nl_guard guard;
    nl_queue *queue;
    struct MHD_Daemon *daemon;
    const nl_context *device;
    double started;
    _Atomic int webui_model; /* that A1111's interface has chosen */
    atomic_bool ending;
    nl_thumbnails *thumbnails;
};

typedef struct nl_exchange {
    nl_server *server;
    struct MHD_Connection *connection;
    nl_context *context; /* of messages and memory of this request */
    const struct nl_route *route;
    char parts[2][128]; /* of the path, where the route has a star */
    bool open;          /* of the page */
    bool too_large;     /* the content */
    double started;
    char *body; /* ended by NUL; "" where there is none */
    size_t size, room;
    char nothing[1];
} nl_exchange;

/* path: "/api/jobs/ * /events" (without spaces); a star stands for one part. */
typedef struct nl_route {
    const char *method, *path;
    enum MHD_Result (*handle)(nl_exchange *exchange);
} nl_route;

/* The tables of the interfaces; ended by a route without a method. Those of the page are answered without the token and to
 * links of other pages: they hold nothing of this server. */
extern const nl_route nl_api_routes[], nl_openai_routes[], nl_webui_routes[], nl_page_routes[],
    nl_runs_routes[], nl_thumbnail_routes[];

/* ---- Answers. Each says everything: `return nl_answer(...)`. */

enum MHD_Result nl_answer_json(nl_exchange *exchange, unsigned code, cJSON *json); /* taken over */
/* "error" with the message, as OpenAI's clients and A1111's read it. */
enum MHD_Result nl_answer_error(nl_exchange *exchange, unsigned code, const char *format, ...)
    NL_PRINTF(3, 4);
/* The failure that `context` tells of. */
enum MHD_Result nl_answer_failure(nl_exchange *exchange, nl_context *context, nl_status status);
/* type: of the content; copied; seconds: that it may be kept by the client, 0: not at all. */
enum MHD_Result nl_answer_bytes(nl_exchange *exchange, const char *type, const void *data,
                                size_t size, int seconds);
/* The same of what a client may have already, under a tag of its own; data NULL: it has, and the answer is 304. */
enum MHD_Result nl_answer_tagged(nl_exchange *exchange, const char *tag, const char *type,
                                 const void *data, size_t size, int seconds);
/* A response of one's own, taken over. */
enum MHD_Result nl_answer(nl_exchange *exchange, unsigned code, const char *type,
                          struct MHD_Response *response);

/* Digits alone, up to `most`. */
bool nl_number_read(const char *text, int64_t most, int64_t *number);
/* An argument of the query, or NULL. */
const char *nl_argument(nl_exchange *exchange, const char *name);
/* Whether the client has what was answered with the tag (If-None-Match). */
bool nl_client_has(nl_exchange *exchange, const char *tag);
/* The client has closed the connection, or the server is about to. */
bool nl_has_gone(nl_exchange *exchange);

/* ---- What interfaces share */

nl_status nl_thumbnails_create(nl_context *context, nl_thumbnails **thumbnails);
void nl_thumbnails_destroy(nl_context *context, nl_thumbnails *thumbnails);

/* The model that ?model= names; NULL: there is none, and *answered says so. */
const nl_served_model *nl_model_argument(nl_exchange *exchange, int *number,
                                         enum MHD_Result *answered);

/* What the client wants, into a fresh `wanted`, whose context takes the message of a failure. */
typedef nl_status (*nl_reader)(nl_exchange *exchange, nl_wanted *wanted, void *user);
/* Reads what is wanted and puts it into the queue. Held; NULL: it could not be read or has no place, and *answered says so. */
nl_queued_job *nl_put_job(nl_exchange *exchange, nl_reader read, void *user,
                          enum MHD_Result *answered);
/* Waits for the end of the job; a client that goes away cancels it. False: it ended otherwise than done, and *answered says
 * so. */
bool nl_await_job(nl_exchange *exchange, nl_queued_job *job, enum MHD_Result *answered);
/* Picture i as a string of base64. */
nl_status nl_picture_string(nl_exchange *exchange, nl_queued_job *job, int64_t i, cJSON **string);

#endif
