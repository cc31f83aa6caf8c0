/* SPDX-License-Identifier: MIT */
/* --requests: a line of JSON in, a line of JSON out, the model stays loaded. */
#include "nl_sample.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const own_keys[] = {"id", NULL};

static nl_status run_line(nl_session *session, const char *where, const cJSON *request,
                          nl_texts *texts, cJSON *pictures)
{
    nl_context *context = session->context;
    nl_sample_options options = *session->options;
    nl_status status = NL_OK;
    NL_TRY(nl_options_apply(context, &nl_sample_command, where, request, NL_IN_REQUEST, own_keys,
                            texts, &options));
    if (options.out && !strcmp(options.out, "-"))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s: \"out\": standard output is where the answers go", where));
    NL_TRY(nl_job_run(session, &options, pictures));
cleanup:
    return status;
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
    cJSON_AddItemReferenceToObject(object, "pictures", pictures);
    nl_status printed = nl_print_json(context, object);
    cJSON_Delete(object);
    return printed;
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
    const char *path = session->options->requests;
    bool standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "r");
    nl_status status = NL_OK, first = NL_OK, one;
    char *text = NULL;
    size_t room = 0;
    ssize_t size;
    if (!file)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %s", path, strerror(errno));
    for (int64_t line = 1; (errno = 0, size = getline(&text, &room, file)) >= 0; line++) {
        if ((ssize_t)strspn(text, " \t\r\n") == size)
            continue;
        NL_TRY(serve(session, text, (size_t)size, line, &one));
        if (one == NL_CANCELLED)
            NL_TRY(one);
        first = first ? first : one;
    }
    if (nl_interrupted())
        NL_TRY(nl_fail(context, NL_CANCELLED, "interrupted"));
    if (errno)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: %s", path, strerror(errno)));
    if (first != NL_OK)
        nl_fail(context, first, "%s: not every request could be met; the answers say why", path);
    status = first;
cleanup:
    free(text);
    if (!standard)
        fclose(file);
    return status;
}
