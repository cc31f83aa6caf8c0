/* SPDX-License-Identifier: MIT */
/*
 * HTTP through libmicrohttpd, a thread a connection. Before a handler sees a request it has passed: the names of the
 * server (Host), its pages (Origin, Sec-Fetch-Site), the token, the size and the time of its body.
 *
 * A thread that waits for a job looks at its connection itself: a client that has closed it is gone.
 */
#include "http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_BODY = 1 << 18,    /* bytes; a request says little */
    MOST_HEADERS = 1 << 15, /* bytes, of request line, headers and MHD's own notes */
    MOST_CONNECTIONS = 256, /* at once */
    IDLE_SECONDS = 30,      /* a connection without a request, or with half of one */
    BODY_SECONDS = 30,      /* from the first byte of a request to its last */
    ENDING_SECONDS = 2,     /* for what clients still read when everything is made */
    STACK = 512 << 10,      /* bytes of a thread */
};

static const nl_route *const tables[] = {nl_page_routes,  nl_api_routes,  nl_openai_routes,
                                         nl_webui_routes, nl_runs_routes, nl_thumbnail_routes};

/* ---- Answers */

static void secure(struct MHD_Response *response)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
         "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
    };
    for (int i = 0; i < NL_COUNT(headers); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
}

enum MHD_Result nl_answer(nl_exchange *exchange, unsigned code, const char *type,
                          struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    secure(response);
    if (type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (code == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    enum MHD_Result result = MHD_queue_response(exchange->connection, code, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result nl_answer_bytes(nl_exchange *exchange, const char *type, const void *data,
                                size_t size, int seconds)
{
    return nl_answer_tagged(exchange, NULL, type, data, size, seconds);
}

enum MHD_Result nl_answer_tagged(nl_exchange *exchange, const char *tag, const char *type,
                                 const void *data, size_t size, int seconds)
{
    char keep[48] = "no-store", quoted[128];
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, (void *)data, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    if (seconds)
        snprintf(keep, sizeof(keep), "private, max-age=%d, immutable", seconds);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, keep);
    if (tag) {
        snprintf(quoted, sizeof(quoted), "\"%s\"", tag);
        MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, quoted);
    }
    return nl_answer(exchange, data ? MHD_HTTP_OK : MHD_HTTP_NOT_MODIFIED, type, response);
}

enum MHD_Result nl_answer_json(nl_exchange *exchange, unsigned code, cJSON *json)
{
    char *text = json ? nl_json_print(json, false) : NULL;
    cJSON_Delete(json);
    if (!text)
        return MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    cJSON_free(text);
    if (response)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    return nl_answer(exchange, code, "application/json", response);
}

enum MHD_Result nl_answer_error(nl_exchange *exchange, unsigned code, const char *format, ...)
{
    char message[NL_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    cJSON *json = cJSON_CreateObject(), *error = cJSON_AddObjectToObject(json, "error");
    cJSON_AddStringToObject(error, "message", message);
    cJSON_AddStringToObject(error, "type", code < 500 ? "invalid_request_error" : "server_error");
    cJSON_AddNumberToObject(error, "code", code);
    cJSON_AddStringToObject(json, "detail", message);
    return nl_answer_json(exchange, code, json);
}

enum MHD_Result nl_answer_failure(nl_exchange *exchange, nl_context *context, nl_status status)
{
    unsigned code = MHD_HTTP_INTERNAL_SERVER_ERROR;
    if (status == NL_ERROR_USAGE || status == NL_ERROR_INPUT)
        code = MHD_HTTP_BAD_REQUEST;
    else if (status == NL_ERROR_MEMORY || status == NL_CANCELLED)
        code = MHD_HTTP_SERVICE_UNAVAILABLE;
    return nl_answer_error(exchange, code, "%s", nl_last_error(context));
}

bool nl_number_read(const char *text, int64_t most, int64_t *number)
{
    size_t length = strspn(text, "0123456789");
    if (!length || text[length] || length > 15)
        return false;
    *number = atoll(text);
    return *number <= most;
}

const char *nl_argument(nl_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_GET_ARGUMENT_KIND, name);
}

static const char *header(nl_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

bool nl_client_has(nl_exchange *exchange, const char *tag)
{
    char quoted[128];
    const char *tags = header(exchange, MHD_HTTP_HEADER_IF_NONE_MATCH);
    snprintf(quoted, sizeof(quoted), "\"%s\"", tag);
    return tags && (!strcmp(tags, "*") || strstr(tags, quoted));
}

bool nl_has_gone(nl_exchange *exchange)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd poller = {.fd = info ? (int)info->connect_fd : -1, .events = POLLRDHUP};
    if (atomic_load(&exchange->server->ending))
        return true;
    return poller.fd < 0 || (poll(&poller, 1, 0) > 0 &&
                             (poller.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)));
}

nl_queued_job *nl_put_job(nl_exchange *exchange, nl_reader read, void *user,
                          enum MHD_Result *answered)
{
    nl_queued_job *job = NULL;
    nl_wanted wanted;
    *answered = MHD_NO;
    if (nl_wanted_create(&wanted) != NL_OK)
        return NULL;
    nl_status status = read(exchange, &wanted, user);
    if (status != NL_OK) {
        *answered = nl_answer_failure(exchange, wanted.context, status);
        nl_wanted_free(&wanted);
        return NULL;
    }
    status = nl_queue_put(exchange->server->queue, exchange->context, &wanted, &job);
    if (status != NL_OK)
        *answered = nl_answer_failure(exchange, exchange->context, status);
    return job;
}

bool nl_await_job(nl_exchange *exchange, nl_queued_job *job, enum MHD_Result *answered)
{
    nl_queue *queue = exchange->server->queue;
    nl_job_look look;
    uint64_t changes = 0;
    /* The seconds without traffic do not count while it is the server that is at work. */
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    for (nl_queue_look(queue, job, &look); look.state < NL_JOB_DONE;
         nl_queue_look(queue, job, &look)) {
        nl_queue_wait(queue, job, &changes, 0.2);
        if (nl_has_gone(exchange))
            nl_queue_cancel(queue, job);
    }
    if (look.state == NL_JOB_DONE)
        return true;
    if (look.state == NL_JOB_CANCELLED) {
        *answered = nl_answer_error(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, "cancelled");
        return false;
    }
    unsigned code = look.status == NL_CANCELLED      ? MHD_HTTP_GATEWAY_TIMEOUT
                    : look.status == NL_ERROR_USAGE  ? MHD_HTTP_BAD_REQUEST
                    : look.status == NL_ERROR_MEMORY ? MHD_HTTP_SERVICE_UNAVAILABLE
                                                     : MHD_HTTP_INTERNAL_SERVER_ERROR;
    *answered = nl_answer_error(exchange, code, "%s", look.error);
    return false;
}

nl_status nl_picture_string(nl_exchange *exchange, nl_queued_job *job, int64_t i, cJSON **string)
{
    const uint8_t *png;
    size_t size;
    char *text = NULL;
    nl_status status;
    NL_TRY(nl_queue_png(exchange->server->queue, exchange->context, job, i, &png, &size));
    NL_TRY(nl_base64(exchange->context, png, size, &text));
    *string = cJSON_CreateString(text);
cleanup:
    nl_free(exchange->context, text);
    return status;
}

/* ---- Requests */

/* Whether the path fits, the parts under its stars into `parts`. */
static bool fits(const char *path, const char *url, char parts[2][128])
{
    int part = 0;
    for (; *path; path++) {
        if (*path != '*') {
            if (*url++ != *path)
                return false;
            continue;
        }
        size_t length = strcspn(url, "/");
        if (!length || length >= sizeof(parts[0]) || part == 2)
            return false;
        memcpy(parts[part], url, length);
        parts[part++][length] = '\0';
        url += length;
    }
    return !*url;
}

/* NULL: *code says why. */
static const nl_route *find_route(const char *method, const char *url, char parts[2][128],
                                  unsigned *code)
{
    *code = MHD_HTTP_NOT_FOUND;
    bool head = !strcmp(method, MHD_HTTP_METHOD_HEAD);
    for (int i = 0; i < NL_COUNT(tables); i++)
        for (const nl_route *route = tables[i]; route->method; route++) {
            if (!fits(route->path, url, parts))
                continue;
            if (!strcmp(route->method, head ? MHD_HTTP_METHOD_GET : method))
                return route;
            *code = MHD_HTTP_METHOD_NOT_ALLOWED;
        }
    return NULL;
}

/* The server's end of the connection as text, or "". */
static void local_address(nl_exchange *exchange, char text[64])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info || getsockname((int)info->connect_fd, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, text, 64, NULL, 0, NI_NUMERICHOST) != 0)
        *text = '\0';
    if (!strncmp(text, "::ffff:", 7)) /* an address of IPv4 on a socket of IPv6 */
        memmove(text, text + 7, strlen(text + 7) + 1);
}

/* 0: it may go on. */
static unsigned refuse(nl_exchange *exchange, const char *method, const char **why)
{
    const nl_guard *guard = &exchange->server->guard;
    const nl_route *route = exchange->route;
    const char *host = header(exchange, MHD_HTTP_HEADER_HOST), *type;
    char address[64];
    local_address(exchange, address);
    *why = "this name of the server is not one that it knows (--name)";
    if (!nl_guard_host(guard, host, address))
        return MHD_HTTP_MISDIRECTED_REQUEST;
    *why = "requests from pages of others are not answered";
    if (!nl_guard_origin(header(exchange, MHD_HTTP_HEADER_ORIGIN),
                         header(exchange, "Sec-Fetch-Site"), host, exchange->open))
        return MHD_HTTP_FORBIDDEN;
    *why = "a token is needed: Authorization: Bearer TOKEN";
    if (!exchange->open && !nl_guard_token(guard, header(exchange, MHD_HTTP_HEADER_AUTHORIZATION)))
        return MHD_HTTP_UNAUTHORIZED;
    *why = "expected application/json";
    type = header(exchange, MHD_HTTP_HEADER_CONTENT_TYPE);
    bool post = !strcmp(method, MHD_HTTP_METHOD_POST);
    if (post && route && (!type || strncasecmp(type, "application/json", 16) != 0)) {
        /* An empty body (interrupt) has no type. */
        const char *length = header(exchange, MHD_HTTP_HEADER_CONTENT_LENGTH);
        if (type || (length && strcmp(length, "0") != 0))
            return MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
    }
    return 0;
}

static enum MHD_Result too_large(nl_exchange *exchange)
{
    return nl_answer_error(exchange, MHD_HTTP_CONTENT_TOO_LARGE,
                           "a request has at most %d bytes of content", MOST_BODY);
}

static enum MHD_Result begin(nl_server *server, struct MHD_Connection *connection, const char *url,
                             const char *method, nl_exchange **out)
{
    nl_context *context;
    nl_exchange *exchange;
    unsigned code;
    const char *why;
    if (nl_core_context_create(NULL, &context) != NL_OK)
        return MHD_NO;
    if (NL_NEW(context, "a request", &exchange) != NL_OK) {
        nl_core_context_destroy(context);
        return MHD_NO;
    }
    *out = exchange;
    exchange->body = exchange->nothing;
    exchange->server = server;
    exchange->connection = connection;
    exchange->context = context;
    exchange->started = nl_seconds();
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)IDLE_SECONDS);
    exchange->route = find_route(method, url, exchange->parts, &code);
    for (const nl_route *route = nl_page_routes; route->method; route++)
        exchange->open |= route == exchange->route;
    unsigned refused = refuse(exchange, method, &why);
    if (refused)
        return nl_answer_error(exchange, refused, "%s", why);
    if (!exchange->route)
        return nl_answer_error(exchange, code, "%s",
                               code == MHD_HTTP_NOT_FOUND ? "there is nothing of this name"
                                                          : "this method is not for this");
    const char *length = header(exchange, MHD_HTTP_HEADER_CONTENT_LENGTH);
    /* A number too long to be one is refused by MHD. */
    if (length && (strlen(length) > 9 || atol(length) > MOST_BODY))
        return too_large(exchange);
    return MHD_YES;
}

static void free_body(nl_exchange *exchange)
{
    if (exchange->body != exchange->nothing)
        nl_free(exchange->context, exchange->body);
}

static enum MHD_Result take_body(nl_exchange *exchange, const char *data, size_t *size)
{
    char *longer;
    if (nl_seconds() - exchange->started > BODY_SECONDS)
        return MHD_NO; /* closes the connection */
    exchange->too_large |= exchange->size + *size > MOST_BODY;
    if (exchange->too_large) { /* an answer has to wait for the end of the content */
        *size = 0;
        return MHD_YES;
    }
    if (exchange->size + *size + 1 > exchange->room) {
        size_t room = 2 * (exchange->size + *size) + 1024;
        if (NL_NEW_ARRAY(exchange->context, "a request", room, &longer) != NL_OK)
            return MHD_NO;
        memcpy(longer, exchange->body, exchange->size);
        free_body(exchange);
        exchange->body = longer;
        exchange->room = room;
    }
    memcpy(exchange->body + exchange->size, data, *size);
    exchange->size += *size;
    exchange->body[exchange->size] = '\0';
    *size = 0;
    return MHD_YES;
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **kept)
{
    nl_exchange *exchange = *kept;
    (void)version;
    if (!exchange)
        return begin(user, connection, url, method, (nl_exchange **)kept);
    if (*size)
        return take_body(exchange, data, size);
    if (exchange->too_large)
        return too_large(exchange);
    return exchange->route->handle(exchange);
}

static void completed(void *user, struct MHD_Connection *connection, void **kept,
                      enum MHD_RequestTerminationCode how)
{
    nl_exchange *exchange = *kept;
    (void)user, (void)how;
    *kept = NULL;
    /* A connection that stays for another request may have had all the time of the server's work. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)IDLE_SECONDS);
    if (!exchange)
        return;
    nl_context *context = exchange->context;
    free_body(exchange);
    nl_free(context, exchange);
    nl_core_context_destroy(context);
}

static void log_message(void *user, const char *format, va_list arguments)
{
    nl_server *server = user;
    char message[256];
    vsnprintf(message, sizeof(message), format, arguments);
    message[strcspn(message, "\n")] = '\0';
    nl_log(server->context, NL_LOG_DEBUG, "HTTP: %s", message);
}

/* ---- The server */

static nl_status resolve(nl_context *context, const nl_serve_options *options,
                         struct sockaddr_storage *address, bool *local)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    snprintf(port, sizeof(port), "%d", options->port);
    int error = getaddrinfo(options->host, port, &hints, &found);
    if (error || !found || found->ai_addrlen > sizeof(*address))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--host %s: expected an address of this machine: %s", options->host,
                       gai_strerror(error));
    *address = (struct sockaddr_storage){0};
    memcpy(address, found->ai_addr, found->ai_addrlen);
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    *local = address->ss_family == AF_INET ? ntohl(four->sin_addr.s_addr) >> 24 == 127
                                           : IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    freeaddrinfo(found);
    return NL_OK;
}

nl_status nl_server_create(nl_context *context, const nl_serve_options *options, nl_server **out)
{
    struct sockaddr_storage address;
    nl_server *server = NULL;
    bool local;
    nl_status status = NL_OK;
    *out = NULL;
    NL_TRY(resolve(context, options, &address, &local));
    if (!local && !options->token)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--host %s: whoever reaches it could use it: give a --token, which clients "
                       "have to send",
                       options->host));
    if (options->token && strlen(options->token) < 8)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--token: expected at least 8 characters"));
    NL_TRY(NL_NEW(context, "a server", &server));
    server->context = context;
    server->options = options;
    nl_guard_init(options->host, options->names, local, options->token, &server->guard);
    NL_TRY(nl_queue_create(context, &options->limits, &server->queue));
    NL_TRY(nl_thumbnails_create(context, &server->thumbnails));
    *out = server;
    server = NULL;
cleanup:
    nl_server_destroy(server);
    return status;
}

nl_queue *nl_server_queue(nl_server *server)
{
    return server->queue;
}

nl_status nl_server_start(nl_server *server, const nl_context *device, char *url, size_t size)
{
    const nl_serve_options *options = server->options;
    nl_context *context = server->context;
    struct sockaddr_storage address;
    bool local;
    NL_CHECK(resolve(context, options, &address, &local));
    server->device = device;
    server->started = nl_seconds();
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                     MHD_USE_POLL | MHD_USE_ERROR_LOG;
    if (address.ss_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    server->daemon = MHD_start_daemon(
        flags, (uint16_t)options->port, NULL, NULL, handle, server, MHD_OPTION_EXTERNAL_LOGGER,
        log_message, server, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MOST_HEADERS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, completed, server, MHD_OPTION_END);
    if (!server->daemon)
        return nl_fail(context, NL_ERROR_DEVICE,
                       "%s port %d: cannot be listened at: is another server there? (see --port)",
                       options->host, options->port);
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    bool six = strchr(options->host, ':');
    snprintf(url, size, "http://%s%s%s:%u", six ? "[" : "", options->host, six ? "]" : "",
             info && info->port ? info->port : (unsigned)options->port);
    return NL_OK;
}

void nl_server_end(nl_server *server)
{
    double until = nl_seconds() + ENDING_SECONDS;
    if (!server->daemon)
        return;
    MHD_socket listening = MHD_quiesce_daemon(server->daemon);
    if (listening != MHD_INVALID_SOCKET)
        close(listening);
    /* What is made goes out; a connection that only stays open is closed a little later. */
    const union MHD_DaemonInfo *info;
    while ((info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)) &&
           info->num_connections > 0 && nl_seconds() < until)
        poll(NULL, 0, 20);
    atomic_store(&server->ending, true);
    MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
}

void nl_server_destroy(nl_server *server)
{
    if (!server)
        return;
    nl_server_end(server);
    nl_queue_destroy(server->queue);
    nl_thumbnails_destroy(server->context, server->thumbnails);
    nl_free(server->context, server);
}
