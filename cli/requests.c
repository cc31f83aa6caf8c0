/* SPDX-License-Identifier: MIT */
/* --requests: a line of JSON in, a line of JSON out, the model stays loaded. */
#include "nl_sample.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const own_keys[] = {"id", NULL};

nl_status nl_requests_allow(const nl_session *session, const char *path)
{
    const char *root = session->options->root;
    if (nl_is_stdout(path))
        return nl_fail(session->context, NL_ERROR_USAGE,
                       "%s: standard output is where the answers go", path);
    if (root && !nl_path_stays_in(path, root))
        return nl_fail(session->context, NL_ERROR_USAGE, "%s lies outside of --root %s", path,
                       root);
    return NL_OK;
}

/* Every file that a request may name. */
static nl_status check_files(const nl_session *session, const char *where,
                             const nl_sample_options *options)
{
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(&nl_sample_command, rows); o->name; o++) {
        if (o->kind != NL_OPTION_FILE || !(o->where & NL_IN_REQUEST))
            continue;
        const char *path = *(const char *const *)((const char *)options + o->offset);
        if (path && nl_requests_allow(session, path) != NL_OK)
            return nl_fail_in(session->context, NL_ERROR_USAGE, "%s", where);
    }
    return NL_OK;
}

static nl_status run_line(nl_session *session, const char *where, const cJSON *request,
                          nl_texts *texts, cJSON *pictures)
{
    nl_context *context = session->context;
    nl_sample_options options = *session->options;
    NL_CHECK(nl_options_apply(context, &nl_sample_command, where, request, NL_IN_REQUEST, own_keys,
                              texts, &options));
    NL_CHECK(check_files(session, where, &options));
    return nl_job_run(session, &options, pictures);
}

static nl_status answer(nl_session *session, int64_t line, const cJSON *request, nl_status status,
                        cJSON *pictures)
{
    nl_context *context = session->context;
    cJSON *object = cJSON_CreateObject();
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(request, "id");
    cJSON_AddNumberToObject(object, "line", (double)line);
    if (id)
        cJSON_AddItemToObject(object, "id", cJSON_Duplicate(id, true));
    cJSON_AddStringToObject(object, "status", nl_status_name(status));
    if (status != NL_OK) {
        cJSON_AddNumberToObject(object, "code", status);
        cJSON_AddStringToObject(object, "error", nl_last_error(context));
    }
    if (pictures)
        cJSON_AddItemReferenceToObject(object, "pictures", pictures);
    else
        cJSON_AddArrayToObject(object, "pictures");
    nl_status printed = nl_print_json(context, object);
    cJSON_Delete(object);
    return printed;
}

static bool is_blank(const char *text, size_t size)
{
    while (size && strchr(" \t\r", text[size - 1]) && text[size - 1])
        size--;
    return size == 0;
}

/* *status: what the line came to. The result: whether its answer could be given. */
static nl_status serve(nl_session *session, const char *text, size_t size, int64_t line,
                       nl_status *status)
{
    nl_context *context = session->context;
    const char *file = session->options->requests;
    char where[256];
    nl_texts texts = {.context = context};
    cJSON *request = NULL, *pictures = cJSON_CreateArray();
    snprintf(where, sizeof(where), "%.200s line %lld", strcmp(file, "-") ? file : "standard input",
             (long long)line);
    *status = nl_json_parse(context, where, text, size, &request);
    if (*status == NL_OK)
        *status = run_line(session, where, request, &texts, pictures);
    nl_status answered = answer(session, line, request, *status, pictures);
    nl_texts_free(&texts);
    cJSON_Delete(request);
    cJSON_Delete(pictures);
    return answered;
}

nl_status nl_requests_run(nl_session *session)
{
    nl_context *context = session->context;
    const char *path = session->options->requests, *text;
    nl_status status = NL_OK, first = NL_OK, one;
    bool standard = !strcmp(path, "-");
    nl_lines lines = {.context = context, .path = path};
    size_t size;
    lines.fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (lines.fd < 0)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %s", path, strerror(errno));
    for (int64_t line = 1;; line++) {
        status = nl_lines_next(&lines, &text, &size);
        if (status == NL_ERROR_MEMORY) {
            first = first ? first : status;
            NL_TRY(answer(session, line, NULL, status, NULL));
            continue;
        }
        NL_TRY(status);
        if (!text)
            break;
        if (is_blank(text, size))
            continue;
        NL_TRY(serve(session, text, size, line, &one));
        if (one == NL_CANCELLED)
            NL_TRY(one);
        first = first ? first : one;
    }
    if (first != NL_OK)
        nl_fail(context, first, "%s: not every request could be met; the answers say why", path);
    status = first;
cleanup:
    nl_free(context, lines.bytes);
    if (!standard)
        close(lines.fd);
    return status;
}
