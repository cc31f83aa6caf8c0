/* SPDX-License-Identifier: MIT */
/* What tests of a file format share: a context, files made byte by byte, what a refusal says. */
#ifndef NL_FILE_TEST_H
#define NL_FILE_TEST_H

#include "nl_test.h"

static nl_context *context; /* without a device */

static inline int setup(void **state)
{
    (void)state;
    context = test_context(NULL);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    int64_t left = context->memory_used;
    nl_core_context_destroy(context);
    return left == 0 ? 0 : -1;
}

static inline void put_bytes(uint8_t **at, const void *bytes, size_t size)
{
    if (size > 0)
        memcpy(*at, bytes, size);
    *at += size;
}

/* The lowest `size` bytes of the number, little-endian. */
static inline void put(uint8_t **at, uint64_t value, int size)
{
    for (int i = 0; i < size; i++)
        *(*at)++ = (uint8_t)(value >> 8 * i);
}

/* In an allocation that ends where the bytes end, so that a sanitizer sees any step beyond. */
static inline void *exact_copy(const void *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1), *at = copy;
    put_bytes(&at, bytes, size);
    return copy;
}

/* `what` was tried: the file was refused, by name and for the reason expected, and nothing kept of it. */
static inline void assert_refused(const char *what, nl_status status, int64_t used_before,
                                  const char *file, const char *message)
{
    const char *said = nl_last_error(context);
    if (status != NL_ERROR_INPUT)
        fail_msg("%s was not refused", what);
    if (!strstr(said, message) || !strstr(said, file))
        fail_msg("%s: \"%s\" does not say \"%s\" of %s", what, said, message, file);
    assert_int_equal(context->memory_used, used_before);
}

#endif
