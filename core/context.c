/* SPDX-License-Identifier: MIT */
/* A context's life, its last error, its log, progress and cancellation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_failure.h"

const char *nl_status_name(nl_status status)
{
    switch (status) {
    case NL_OK:
        return "ok";
    case NL_ERROR_INTERNAL:
        return "internal error";
    case NL_ERROR_USAGE:
        return "usage error";
    case NL_ERROR_INPUT:
        return "bad input";
    case NL_ERROR_MEMORY:
        return "out of memory";
    case NL_ERROR_DEVICE:
        return "device error";
    case NL_ERROR_NOT_FINITE:
        return "not finite";
    case NL_ERROR_WRITE:
        return "cannot write";
    case NL_CANCELLED:
        return "cancelled";
    }
    return "unknown status";
}

const char *nl_plural(int64_t count, const char *one, const char *many)
{
    return count == 1 ? one : many;
}

bool nl_same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

nl_status nl_refuse_idle(nl_context *context, const nl_idle *options, int count)
{
    for (int i = 0; i < count; i++)
        if (options[i].given && !options[i].acts)
            return nl_fail(context, NL_ERROR_USAGE, "--%s does nothing without %s", options[i].name,
                           options[i].needs);
    return NL_OK;
}

const char *nl_version(void)
{
    return NL_VERSION;
}

nl_status nl_take_options(nl_context *context, const char *what, const void *from, size_t old_size,
                          void *to, size_t to_size)
{
    size_t size;
    memcpy(&size, from, sizeof(size));
    if (size == 0)
        size = old_size;
    for (size_t i = to_size; i < size; i++)
        if (((const char *)from)[i])
            return nl_fail(context, NL_ERROR_USAGE,
                           "%s: of a header newer than this library, %s, which lacks what they ask "
                           "for",
                           what, NL_VERSION);
    memset(to, 0, to_size);
    memcpy(to, from, NL_MIN(size, to_size));
    return NL_OK;
}

void nl_tell_failure(const nl_context_options *options, const char *message)
{
    if (options->log)
        options->log(options->user, NL_LOG_ERROR, message);
    if (options->message && options->message_size > 0)
        snprintf(options->message, options->message_size, "%s", message);
}

nl_status nl_core_context_create(const nl_context_options *given, nl_context **context)
{
    nl_context_options taken = {0}, *options = &taken;
    *context = NULL;
    const char *problem = NULL;
    nl_status status = NL_OK;
    nl_context *created = NULL;
    if (given && nl_take_options(NULL, "", given, sizeof(taken), &taken, sizeof(taken)) != NL_OK) {
        problem = "options of a header newer than this library, " NL_VERSION
                  ", which lacks what they ask for";
        status = NL_ERROR_USAGE;
        memcpy(&taken, given, sizeof(taken));
    } else if (options->threads < 0) {
        problem = "threads must be 0 (all) or more";
        status = NL_ERROR_USAGE;
    } else if (options->max_memory < 0) {
        problem = "max_memory must be 0 (no limit) or more";
        status = NL_ERROR_USAGE;
    } else if (!(created = calloc(1, sizeof(*created)))) {
        problem = "no memory for a context";
        status = NL_ERROR_MEMORY;
    }
    if (problem) {
        nl_tell_failure(options, problem);
        return status;
    }
    created->options = *options;
    /* The caller's strings may be gone after this call; the device keeps what it needs of them. */
    created->options.device = created->options.dtype = NULL;
    created->options.message = NULL;
    atomic_init(&created->cancelled, false);
    atomic_init(&created->memory_used, 0);
    atomic_init(&created->memory_peak, 0);
    atomic_init(&created->allocations, 0);
    atomic_init(&created->writes, 0);
    atomic_flag_clear(&created->message_lock);
    *context = created;
    return NL_OK;
}

void nl_core_context_destroy(nl_context *context)
{
    free(context);
}

const char *nl_last_error(const nl_context *context)
{
    return context ? context->message : "";
}

static void set_message(nl_context *context, const char *message)
{
    while (atomic_flag_test_and_set(&context->message_lock)) {
    }
    memcpy(context->message, message, strlen(message) + 1);
    atomic_flag_clear(&context->message_lock);
}

nl_status nl_fail(nl_context *context, nl_status code, const char *format, ...)
{
    if (!context)
        return code;
    char message[NL_MESSAGE_SIZE]; /* an argument may be the old message itself */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    set_message(context, message);
    return code;
}

/* Cut off where the message is full. */
static void append(char message[NL_MESSAGE_SIZE], const char *text)
{
    size_t length = strlen(message), more = strnlen(text, NL_MESSAGE_SIZE - 1 - length);
    memcpy(message + length, text, more);
    message[length + more] = '\0';
}

nl_status nl_fail_in(nl_context *context, nl_status code, const char *format, ...)
{
    if (!context)
        return code;
    char message[NL_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    append(message, ": ");
    append(message, context->message);
    set_message(context, message);
    return code;
}

void nl_failure_keep(nl_context *context, nl_status status, nl_failure *failure)
{
    failure->status = status;
    failure->message[0] = '\0';
    if (status == NL_OK)
        return;
    while (atomic_flag_test_and_set(&context->message_lock)) {
    }
    memcpy(failure->message, context->message, NL_MESSAGE_SIZE);
    atomic_flag_clear(&context->message_lock);
}

nl_status nl_failure_tell(nl_context *context, const nl_failure *failure)
{
    if (failure->status != NL_OK)
        set_message(context, failure->message);
    return failure->status;
}

void nl_log(nl_context *context, nl_log_level level, const char *format, ...)
{
    if (!context || !context->options.log)
        return;
    char message[NL_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    context->options.log(context->options.user, level, message);
}

void nl_cancel(nl_context *context)
{
    /* A lock-free store: the only thing here that a signal handler may do. */
    if (context)
        atomic_store(&context->cancelled, true);
}

nl_status nl_check_cancelled(nl_context *context)
{
    if (!atomic_load(&context->cancelled))
        return NL_OK;
    atomic_store(&context->cancelled, false);
    return nl_fail(context, NL_CANCELLED, "cancelled");
}

nl_status nl_report_progress(nl_context *context, const nl_progress *progress)
{
    const nl_context_options *options = &context->options;
    if (options->progress && !options->progress(options->user, progress))
        return nl_fail(context, NL_CANCELLED, "cancelled by the progress callback");
    return nl_check_cancelled(context);
}
