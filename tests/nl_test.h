/* SPDX-License-Identifier: MIT */
/* What every test program shares: cmocka, a context that prints its errors, golden files. */
#ifndef NL_TEST_H
#define NL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "nl_checkpoint.h"
#include "nl_io.h"
#include "ops.h"

/* As gcc says it, by clang too: its allocator ends the process where a limit leaves it no addresses. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif

/* Fails the test with the context's message. */
#define assert_ok(context, call)                                                                   \
    do {                                                                                           \
        nl_status assert_ok_status = (call);                                                       \
        if (assert_ok_status != NL_OK)                                                             \
            fail_msg("%s: %s: %s", #call, nl_status_name(assert_ok_status),                        \
                     nl_last_error(context));                                                      \
    } while (0)

/* The device that tests of whole networks run on: NL_TEST_DEVICE, or the CPU. */
static inline const char *test_device(void)
{
    const char *name = getenv("NL_TEST_DEVICE");
    return name ? name : "cpu";
}

static inline bool test_on_cpu(void)
{
    return strcmp(test_device(), "cpu") == 0;
}

/* A context without a device, or on the named one. Ends the test program when that fails. */
static inline nl_context *test_context(const char *device)
{
    nl_context *context = NULL;
    /* Two threads: the memory that a CPU takes, for which tests set limits, grows with their number. */
    nl_context_options options = {.device = device, .dtype = "f32", .threads = 2};
    nl_status status =
        device ? nl_context_create(&options, &context) : nl_core_context_create(&options, &context);
    if (status == NL_ERROR_DEVICE) { /* ctest reports the test as skipped */
        print_message("SKIPPED: no device %s\n", device ? device : "");
        exit(77);
    }
    if (status != NL_OK)
        fail_msg("no context: %s", nl_status_name(status));
    return context;
}

/* Skips the test without a file that is not in the repository. Called before anything is made: a skipped
 * test returns to nobody who could free it. */
static inline void test_need(const char *path)
{
    if (nl_path_exists(path))
        return;
    print_message("SKIPPED: no %s (see docs/testing.md)\n", path);
    skip();
}

/* Whether values are compared for their own sake: everywhere but under sanitizers, which look at memory and take several
 * times as long. There NL_TEST_VALUES asks for it. */
static inline bool test_compares(void)
{
#ifdef __SANITIZE_ADDRESS__
    return getenv("NL_TEST_VALUES") != NULL;
#else
    return true;
#endif
}

/* Skips the test where they are not. Called before anything is made, as test_need. */
static inline void test_need_values(void)
{
    if (test_compares())
        return;
    print_message("SKIPPED: values are compared without sanitizers, or with NL_TEST_VALUES\n");
    skip();
}

/* Skips the test where a limit of addresses is no "no memory": an emulated process's would be the emulator's, and the
 * sanitizer's allocator ends the process. */
static inline void test_need_address_limits(void)
{
#ifndef __SANITIZE_ADDRESS__
    struct rlimit before, low;
    getrlimit(RLIMIT_AS, &before);
    low = before;
    low.rlim_cur = (rlim_t)512 << 20;
    setrlimit(RLIMIT_AS, &low);
    void *volatile memory = malloc((size_t)600 << 20);
    setrlimit(RLIMIT_AS, &before);
    free(memory);
    if (!memory)
        return;
#endif
    print_message("SKIPPED: limits of memory do not hold here\n");
    skip();
}

/* Runs a group whose last `foreign` tests are of other people's files, which are not in the repository: a checkout without
 * ../shared does not have these tests. Each of them has a twin on files that are here. */
#define test_run(tests, foreign, setup, teardown)                                                  \
    _cmocka_run_group_tests(#tests, tests,                                                         \
                            sizeof(tests) / sizeof((tests)[0]) -                                   \
                                (nl_path_exists(NL_SHARED_DIR) ? 0 : (foreign)),                   \
                            setup, teardown)

/* tests/golden/NAME if it is there, otherwise ../shared/golden/NAME. */
static inline const char *test_golden_path(const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", NL_SOURCE_DIR "/tests/golden", name);
    if (!nl_path_exists(path))
        snprintf(path, size, "%s/%s", NL_SHARED_DIR "/golden", name);
    return path;
}

static inline void test_need_golden(const char *name)
{
    char path[4096];
    test_need(test_golden_path(name, path, sizeof(path)));
}

static inline nl_checkpoint *test_golden(nl_context *context, const char *name)
{
    char path[4096];
    nl_checkpoint *checkpoint = NULL;
    assert_ok(context,
              nl_checkpoint_open(context, test_golden_path(name, path, sizeof(path)), &checkpoint));
    return checkpoint;
}

/* A golden tensor as floats (malloc). Its shape, when asked for. */
static inline float *test_read(const nl_checkpoint *golden, const char *name, nl_tensor *shape)
{
    const nl_entry *entry = nl_checkpoint_find(golden, name);
    if (!entry)
        fail_msg("%s: no tensor %s", golden->path, name);
    int64_t count = nl_entry_count(entry);
    float *data = malloc((size_t)(count ? count : 1) * sizeof(float));
    nl_convert_to_float(entry->data, entry->dtype, count, data);
    if (shape)
        *shape = nl_tensor_of(data, NL_F32, entry->ndim, entry->shape);
    return data;
}

/* ||a - b|| / ||b||; NaN anywhere gives NaN, which no comparison below passes. */
static inline double test_relative_error(const float *a, const float *b, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

#define assert_close(a, b, count, tolerance)                                                       \
    do {                                                                                           \
        double assert_close_error = test_relative_error(a, b, count);                              \
        if (!(assert_close_error <= (tolerance)))                                                  \
            fail_msg("%s against %s: relative error %.3g, allowed %.3g", #a, #b,                   \
                     assert_close_error, (double)(tolerance));                                     \
    } while (0)

#endif
