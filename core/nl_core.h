/* SPDX-License-Identifier: MIT */
/*
 * Core: what every other part stands on. Status and messages, memory under a budget, logging,
 * cancelling. Nothing here knows tensors or models.
 */
#ifndef NL_CORE_H
#define NL_CORE_H

#include <stdarg.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif

#include "nalagen.h"

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "nalagen relies on NaN and infinity: compile without -ffast-math and -ffinite-math-only"
#endif

#if defined(__GNUC__)
#define NL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define NL_MUST_CHECK          __attribute__((warn_unused_result))
#else
#define NL_PRINTF(text, first)
#define NL_MUST_CHECK
#endif

#define NL_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define NL_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define NL_MAX(a, b)    ((a) > (b) ? (a) : (b))

/* A list that stands once, `#define NL_PATHS(X) X(NL_PATH_LINEAR, "linear") ...`, as the constants of an enumeration, as
 * names in their order and as their count: `NL_PATHS(NL_LIST_CONSTANT)`, `0 NL_PATHS(NL_LIST_COUNT)`. */
#define NL_LIST_CONSTANT(constant, ...)   constant,
#define NL_LIST_NAME(constant, name, ...) name,
#define NL_LIST_COUNT(constant, ...)      +1

/* Runs a call and leaves through the function's one `cleanup:` label when it fails. */
#define NL_TRY(call)                                                                               \
    do {                                                                                           \
        if ((status = (call)) != NL_OK)                                                            \
            goto cleanup;                                                                          \
    } while (0)

/* The same where nothing is to be given back: returns the failure at once. */
#define NL_CHECK(call)                                                                             \
    do {                                                                                           \
        nl_status nl_checked = (call);                                                             \
        if (nl_checked != NL_OK)                                                                   \
            return nl_checked;                                                                     \
    } while (0)

enum { NL_MESSAGE_SIZE = 2048 };

#ifdef __cplusplus
extern "C" {
#else
struct nl_context {
    nl_context_options options;
    char message[NL_MESSAGE_SIZE]; /* last failure */
    atomic_flag message_lock;      /* operations may fail on several threads at once */
    atomic_bool cancelled;
    _Atomic int64_t memory_used; /* bytes, host and device together */
    _Atomic int64_t memory_peak;
    _Atomic int64_t allocations; /* calls of nl_new_array, and growths by nl_account, so far */
    _Atomic int64_t writes;      /* steps of file writers so far: writes, syncs, renames */
    int64_t fail_allocation;     /* test hook: the allocation of this number fails; 0: none */
    int64_t fail_write;          /* test hook: the write of this number fails; 0: none */
    struct nl_device *device;    /* created with the context by kernels/device.c */
};
#endif

double nl_seconds(void); /* of a clock that only goes forward */

/* The word that a count wants in a message: `one` for 1, otherwise `many`. "%lld %s" is given the count and
 * nl_plural(count, "class", "classes"). */
const char *nl_plural(int64_t count, const char *one, const char *many);
/* Whether two texts, of which each may be NULL, are the same. */
bool nl_same_text(const char *a, const char *b);

/* An option that acts under another one alone: its name, whether it was given, whether it acts, and what it needs. */
typedef struct nl_idle {
    const char *name;
    bool given, acts;
    const char *needs;
} nl_idle;
/* Refuses (NL_ERROR_USAGE) the first one that was given and does nothing, by its name. */
nl_status nl_refuse_idle(nl_context *context, const nl_idle *options, int count);

enum { NL_FIGURE = 48 }; /* room for one of the texts below */
/* A time in seconds for people: "1.4 s", "45 s", "12 min 05 s", "3 h 05 min", "2 d 03 h"; returns `text`. */
const char *nl_time_text(double seconds, char text[NL_FIGURE]);
/* A rate of things a second: "9540 images/s"; below 1 what one of them takes: "1.4 s/image". `one` has a plural in s. */
const char *nl_rate_text(double rate, const char *one, char text[NL_FIGURE]);

/* The bytes in base64 (RFC 4648): allocated, ended by NUL. */
nl_status nl_base64(nl_context *context, const uint8_t *bytes, size_t size, char **text);

/* A context without a device: for tests and tools that only read and write files. */
nl_status nl_core_context_create(const nl_context_options *options, nl_context **context);
void nl_core_context_destroy(nl_context *context);

/* `to`, of to_size bytes, becomes the caller's structure of options, which says its size in its first member and may be
 * of an older header (what it lacks is 0; it had old_size bytes when it said nothing) or of a newer one
 * (NL_ERROR_USAGE when that asks for something). */
nl_status nl_take_options(nl_context *context, const char *what, const void *from, size_t old_size,
                          void *to, size_t to_size) NL_MUST_CHECK;
/* For failures without a context: to the log and into options->message. */
void nl_tell_failure(const nl_context_options *options, const char *message);

/* Records the message and returns `code`, so that `return nl_fail(...)` says everything. The message
 * names the file, tensor or option; what was expected; what was found; what to try. */
nl_status nl_fail(nl_context *context, nl_status code, const char *format, ...) NL_PRINTF(3, 4);
/* Puts "prefix: " in front of the recorded message; returns `code`. */
nl_status nl_fail_in(nl_context *context, nl_status code, const char *format, ...) NL_PRINTF(3, 4);

void nl_log(nl_context *context, nl_log_level level, const char *format, ...) NL_PRINTF(3, 4);

/* NL_CANCELLED once for each nl_cancel, so that the context is usable afterwards: pass it on. */
nl_status nl_check_cancelled(nl_context *context);
/* Calls the progress callback. NL_CANCELLED as well when that returned false. */
nl_status nl_report_progress(nl_context *context, const nl_progress *progress);

/* ---- Memory: 64-byte aligned, counted against options.max_memory, with a fault hook. */

/* count * size bytes, refused when it overflows; size 0 is allowed. NULL on failure, and the message
 * says what for, need and have. Not cleared. */
void *nl_new_array(nl_context *context, const char *what, int64_t count, size_t size) NL_MUST_CHECK;
void *nl_new_zeros(nl_context *context, const char *what, int64_t count, size_t size) NL_MUST_CHECK;

/* The same as expressions of type nl_status. `pointer` is the address of the pointer that is to hold
 * the memory, `NL_TRY(NL_NEW_ARRAY(context, "labels", count, &labels))`, and its type gives the
 * element's size: an array, one that is cleared, a single cleared element, and elements whose size
 * only the run knows (or bytes of a void pointer). */
#define NL_NEW_ARRAY(context, what, count, pointer)                                                \
    NL_NEW_SIZED(context, what, count, sizeof(**(pointer)), pointer)
#define NL_NEW_ZEROS(context, what, count, pointer)                                                \
    ((*(pointer) = nl_new_zeros(context, what, count, sizeof(**(pointer)))) ? NL_OK                \
                                                                            : NL_ERROR_MEMORY)
#define NL_NEW(context, what, pointer) NL_NEW_ZEROS(context, what, 1, pointer)
#define NL_NEW_SIZED(context, what, count, size, pointer)                                          \
    ((*(pointer) = nl_new_array(context, what, count, size)) ? NL_OK : NL_ERROR_MEMORY)

/* NULL is allowed. */
void nl_free(nl_context *context, void *pointer);
nl_status nl_strdup(nl_context *context, const char *text, char **copy) NL_MUST_CHECK;
/* Allocated, formatted text. */
nl_status nl_format(nl_context *context, char **text, const char *format, ...)
    NL_PRINTF(3, 4) NL_MUST_CHECK;
nl_status nl_vformat(nl_context *context, char **text, const char *format, va_list arguments)
    NL_PRINTF(3, 0) NL_MUST_CHECK;
/* Counts memory that another allocator gave (device memory): +bytes or -bytes. A growth beyond the
 * budget is refused and not counted. */
nl_status nl_account(nl_context *context, const char *what, int64_t bytes) NL_MUST_CHECK;
/* Bytes still free under the budget; INT64_MAX without one. */
int64_t nl_memory_left(const nl_context *context);
/* Bytes that this process could still take on the host: what the machine has available, what its control groups
 * (version 1 and 2) and RLIMIT_AS leave. INT64_MAX: nothing says. */
int64_t nl_memory_available(void);
/* Addresses that RLIMIT_AS (ulimit -v) leaves; INT64_MAX: no limit. */
int64_t nl_addresses_left(void);
/* The groups' part of it. list: a file like /proc/self/cgroup; root: where the groups' files lie. */
#define NL_GROUPS_OF_PROCESS "/proc/self/cgroup", "/sys/fs/cgroup"
int64_t nl_group_memory_left(const char *list, const char *root);

/* ---- Processors. */

/* Those that this process may use, at least 1: what its mask holds (OpenMP's places, where it has bound the first thread
 * to one), at most the quota of its control groups (version 1 and 2), rounded up. */
int nl_processors_available(void);
/* The groups' part of it; INT_MAX: no quota. Files as above. */
int nl_group_processors(const char *list, const char *root);
/* What the first processor is called; "unknown" where nothing says it. */
void nl_processor_name(char *text, size_t size);

/* ---- Checked arithmetic for sizes that come from files: false on overflow or negative input. */
bool nl_mul_size(int64_t a, int64_t b, int64_t *product);
bool nl_add_size(int64_t a, int64_t b, int64_t *sum);

#ifdef __cplusplus
}
#endif

#endif
