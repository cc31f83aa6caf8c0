/* SPDX-License-Identifier: MIT */
/* Allocation that counts against the context's budget and can be made to fail; texts by format. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nl_core.h"

enum { ALIGNMENT = 64, WORTH_ASKING = 1 << 20 };
/* Code and tables that libraries make without asking; a group that holds no more kills the process, and where no addresses
 * are left, they end it. */
enum { OF_LIBRARIES = 24 << 20 };

/* The smallest block that asks for huge pages, and one of them on x86-64 and most aarch64. */
enum { LARGE = 4 << 20, HUGE_PAGE = 2 << 20 };

/* In front of every allocation; as wide as the alignment, so that what follows is aligned too. */
typedef union header {
    size_t size;
    char space[ALIGNMENT];
} header;

/* A size in the unit that suits it. */
static const char *size_text(double bytes, char text[32])
{
    if (bytes < 1 << 10)
        snprintf(text, 32, "%.0f bytes", bytes);
    else if (bytes < 1 << 20)
        snprintf(text, 32, "%.1f KiB", bytes / (1 << 10));
    else
        snprintf(text, 32, "%.1f MiB", bytes / (1 << 20));
    return text;
}

/* The most that one allocation can be given, and whose word that is. */
static int64_t most(const char **whose)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t bytes, least = nl_mul_size(pages, page, &bytes) ? bytes : INT64_MAX;
    int64_t group = nl_group_memory_left(NL_GROUPS_OF_PROCESS), addresses = nl_addresses_left();
    *whose = "in this machine";
    if (group - OF_LIBRARIES < least) {
        least = NL_MAX(group - OF_LIBRARIES, 0);
        *whose = "left in this process's control group beside the libraries' own";
    }
    if (addresses - OF_LIBRARIES < least) {
        least = NL_MAX(addresses - OF_LIBRARIES, 0);
        *whose = "of addresses left by ulimit -v beside the libraries' own; allow more";
    }
    return least;
}

static nl_status no_memory(nl_context *context, const char *what, double need, double have,
                           const char *whose)
{
    char needed[32], there[32];
    return nl_fail(context, NL_ERROR_MEMORY, "memory for %s: need %s, have %s %s", what,
                   size_text(need, needed), size_text(have, there), whose);
}

/* Counts `bytes` as used if the budget allows it. */
static nl_status reserve(nl_context *context, const char *what, int64_t bytes)
{
    int64_t number = atomic_fetch_add(&context->allocations, 1) + 1;
    if (context->fail_allocation && number == context->fail_allocation)
        return no_memory(context, what, (double)bytes, 0, "(a failure asked for by a test)");
    int64_t limit = context->options.max_memory;
    int64_t used = atomic_load(&context->memory_used), sum;
    do {
        if (!nl_add_size(used, bytes, &sum) || (limit > 0 && sum > limit))
            return no_memory(context, what, (double)bytes, (double)nl_memory_left(context),
                             "of the memory limit left; allow more");
    } while (!atomic_compare_exchange_weak(&context->memory_used, &used, sum));
    int64_t peak = atomic_load(&context->memory_peak);
    while (sum > peak && !atomic_compare_exchange_weak(&context->memory_peak, &peak, sum)) {
    }
    return NL_OK;
}

nl_status nl_account(nl_context *context, const char *what, int64_t bytes)
{
    if (bytes > 0)
        return reserve(context, what, bytes);
    atomic_fetch_add(&context->memory_used, bytes);
    return NL_OK;
}

int64_t nl_memory_left(const nl_context *context)
{
    int64_t limit = context->options.max_memory;
    int64_t left = limit - atomic_load(&context->memory_used);
    return limit > 0 ? NL_MAX(left, 0) : INT64_MAX;
}

/* Whole huge pages within a block: without them weights and activations cost a fault for every 4 KiB when they are first
 * written. */
static void prefer_huge_pages(void *block, size_t size)
{
#ifdef MADV_HUGEPAGE
    uintptr_t begin = ((uintptr_t)block + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)block + size) / HUGE_PAGE * HUGE_PAGE;
    if (size >= LARGE && end > begin)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)block, (void)size;
#endif
}

void *nl_new_array(nl_context *context, const char *what, int64_t count, size_t size)
{
    int64_t bytes;
    if (size > INT64_MAX || !nl_mul_size(count, (int64_t)size, &bytes)) {
        nl_fail(context, NL_ERROR_MEMORY,
                "memory for %s: %lld elements of %zu bytes are no possible size", what,
                (long long)count, size);
        return NULL;
    }
    /* Larger than what there is: Linux would promise it, and kill the process when it is touched. */
    const char *whose;
    if (bytes >= WORTH_ASKING && bytes > most(&whose)) {
        no_memory(context, what, (double)bytes, (double)most(&whose), whose);
        return NULL;
    }
    if (reserve(context, what, bytes) != NL_OK)
        return NULL;
    size_t padded = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    header *block = aligned_alloc(ALIGNMENT, sizeof(header) + padded);
    if (!block) {
        atomic_fetch_sub(&context->memory_used, bytes);
        int64_t have = most(&whose);
        no_memory(context, what, (double)bytes, (double)NL_MIN(have, nl_memory_available()), whose);
        return NULL;
    }
    prefer_huge_pages(block, sizeof(header) + padded);
    block->size = (size_t)bytes;
    return block + 1;
}

void *nl_new_zeros(nl_context *context, const char *what, int64_t count, size_t size)
{
    void *pointer = nl_new_array(context, what, count, size);
    return pointer ? memset(pointer, 0, (size_t)count * size) : NULL;
}

void nl_free(nl_context *context, void *pointer)
{
    if (!pointer)
        return;
    header *block = (header *)pointer - 1;
    atomic_fetch_sub(&context->memory_used, (int64_t)block->size);
    free(block);
}

nl_status nl_strdup(nl_context *context, const char *text, char **copy)
{
    size_t size = strlen(text) + 1;
    nl_status status = NL_NEW_ARRAY(context, "a text", size, copy);
    if (status == NL_OK)
        memcpy(*copy, text, size);
    return status;
}

nl_status nl_vformat(nl_context *context, char **text, const char *format, va_list arguments)
{
    *text = NULL;
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0)
        return nl_fail(context, NL_ERROR_INTERNAL, "format \"%s\" cannot be printed", format);
    nl_status status = NL_NEW_ARRAY(context, "a text", (size_t)length + 1, text);
    if (status == NL_OK)
        vsnprintf(*text, (size_t)length + 1, format, arguments);
    return status;
}

nl_status nl_format(nl_context *context, char **text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    nl_status status = nl_vformat(context, text, format, arguments);
    va_end(arguments);
    return status;
}
