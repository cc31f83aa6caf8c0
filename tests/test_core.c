/* SPDX-License-Identifier: MIT */
/* Contexts: status, messages, log, cancelling, the memory budget, threads. */
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "nl_failure.h"
#include "nl_test.h"
#include "nl_thread.h"

static void test_status_names(void **state)
{
    (void)state;
    const int codes[] = {0, 1, 2, 3, 4, 5, 6, 7, 130};
    for (int i = 0; i < NL_COUNT(codes); i++) {
        assert_string_not_equal(nl_status_name((nl_status)codes[i]), "unknown status");
        for (int j = 0; j < i; j++)
            assert_string_not_equal(nl_status_name((nl_status)codes[i]),
                                    nl_status_name((nl_status)codes[j]));
    }
    assert_string_equal(nl_status_name((nl_status)99), "unknown status");
    assert_string_equal(nl_version(), NL_VERSION);
}

/* Structures of options may be of older and of newer headers. */
static void test_plurals(void **state)
{
    (void)state;
    assert_string_equal(nl_plural(0, "class", "classes"), "classes");
    assert_string_equal(nl_plural(1, "class", "classes"), "class");
    assert_string_equal(nl_plural(2, "class", "classes"), "classes");
}

/* Times and rates are written the same everywhere. */
static void test_figures(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0, "0 ms"},
                 {0.0123, "12.3 ms"},
                 {0.0999, "0.1 s"},
                 {1.44, "1.4 s"},
                 {3, "3 s"},
                 {9.96, "10 s"},
                 {59.4, "59 s"},
                 {59.6, "1 min 00 s"},
                 {725, "12 min 05 s"},
                 {3599.7, "1 h 00 min"},
                 {11100, "3 h 05 min"},
                 {183600, "2 d 03 h"},
                 {-1, "?"},
                 {1e300, "?"}};
    char text[NL_FIGURE];
    for (int i = 0; i < NL_COUNT(times); i++)
        assert_string_equal(nl_time_text(times[i].seconds, text), times[i].text);
    assert_string_equal(nl_rate_text(9540.2, "image", text), "9540 images/s");
    assert_string_equal(nl_rate_text(1, "image", text), "1.0 images/s");
    assert_string_equal(nl_rate_text(1 / 1.44, "image", text), "1.4 s/image");
    assert_string_equal(nl_rate_text(0, "image", text), "?/image");
}

static void test_sizes_of_options(void **state)
{
    (void)state;
    typedef struct older {
        size_t size;
        int64_t a;
    } older;
    typedef struct newer {
        size_t size;
        int64_t a, b, c[4];
    } newer;
    nl_context *context = test_context(NULL);
    newer taken, now = {.size = sizeof(now), .a = 1, .b = 2, .c = {3}};
    assert_ok(context, nl_take_options(context, "x", &now, sizeof(now), &taken, sizeof(taken)));
    assert_memory_equal(&taken, &now, sizeof(now));
    older then = {.size = sizeof(then), .a = 7}, unsaid = {.a = 8};
    assert_ok(context, nl_take_options(context, "x", &then, sizeof(now), &taken, sizeof(taken)));
    assert_true(taken.a == 7 && taken.b == 0 && taken.c[0] == 0 && taken.c[3] == 0);
    assert_ok(context, nl_take_options(context, "x", &unsaid, sizeof(then), &taken, sizeof(taken)));
    assert_true(taken.a == 8 && taken.b == 0 && taken.c[3] == 0);
    older small;
    assert_int_equal(nl_take_options(context, "x", &now, sizeof(then), &small, sizeof(small)),
                     NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), "newer"));
    now.b = now.c[0] = 0; /* asks for nothing that is not known */
    assert_ok(context, nl_take_options(context, "x", &now, sizeof(then), &small, sizeof(small)));
    assert_int_equal(small.a, 1);
    nl_core_context_destroy(context);
}

static void test_reason_without_a_context(void **state)
{
    (void)state;
    char reason[64] = "", tiny[4] = "xxx";
    nl_context *context = (nl_context *)reason;
    nl_context_options options = {.threads = -1, .message = reason, .message_size = sizeof(reason)};
    assert_int_equal(nl_context_create(&options, &context), NL_ERROR_USAGE);
    assert_null(context);
    assert_string_equal(reason, "threads must be 0 (all) or more");
    options =
        (nl_context_options){.device = "abacus", .message = tiny, .message_size = sizeof(tiny)};
    assert_int_not_equal(nl_context_create(&options, &context), NL_OK);
    assert_null(context);
    assert_int_equal(strlen(tiny), 3);
    assert_string_not_equal(tiny, "xxx");
}

static void test_messages(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL), *other = test_context(NULL);
    assert_string_equal(nl_last_error(context), "");
    assert_string_equal(nl_last_error(NULL), "");
    assert_int_equal(nl_fail(context, NL_ERROR_INPUT, "%s: %d", "file", 3), NL_ERROR_INPUT);
    assert_string_equal(nl_last_error(context), "file: 3");
    nl_fail_in(context, NL_ERROR_INPUT, "block %d", 7);
    assert_string_equal(nl_last_error(context), "block 7: file: 3");
    nl_fail(context, NL_ERROR_INPUT, "again: %s", nl_last_error(context));
    assert_string_equal(nl_last_error(context), "again: block 7: file: 3");
    assert_string_equal(nl_last_error(other), "");

    nl_failure kept, none;
    nl_failure_keep(context, NL_ERROR_INPUT, &kept);
    nl_failure_keep(context, NL_OK, &none);
    nl_fail(context, NL_ERROR_WRITE, "another");
    assert_int_equal(nl_failure_tell(context, &none), NL_OK);
    assert_string_equal(nl_last_error(context), "another");
    assert_int_equal(nl_failure_tell(context, &kept), NL_ERROR_INPUT);
    assert_string_equal(nl_last_error(context), "again: block 7: file: 3");

    char longest[3 * NL_MESSAGE_SIZE];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    nl_fail(context, NL_ERROR_INPUT, "%s", longest);
    assert_int_equal(strlen(nl_last_error(context)), NL_MESSAGE_SIZE - 1);
    nl_fail_in(context, NL_ERROR_INPUT, "prefix");
    assert_int_equal(strlen(nl_last_error(context)), NL_MESSAGE_SIZE - 1);
    assert_memory_equal(nl_last_error(context), "prefix: xxx", 11);
    nl_core_context_destroy(other);
    nl_core_context_destroy(context);
}

typedef struct heard {
    int count;
    nl_log_level level;
    char message[256];
} heard;

static void hear(void *user, nl_log_level level, const char *message)
{
    heard *h = user;
    h->count++;
    h->level = level;
    snprintf(h->message, sizeof(h->message), "%s", message);
}

static void test_logging(void **state)
{
    (void)state;
    heard h = {0};
    nl_context *context;
    nl_context_options options = {.log = hear, .user = &h};
    assert_int_equal(nl_core_context_create(&options, &context), NL_OK);
    nl_log(context, NL_LOG_WARNING, "%d files", 2);
    assert_int_equal(h.count, 1);
    assert_int_equal(h.level, NL_LOG_WARNING);
    assert_string_equal(h.message, "2 files");
    nl_core_context_destroy(context);

    nl_context *silent = test_context(NULL);
    nl_log(silent, NL_LOG_ERROR, "nobody hears this");
    nl_core_context_destroy(silent);
    nl_core_context_destroy(NULL);
}

static void test_bad_options(void **state)
{
    (void)state;
    heard h = {0};
    nl_context *context = (nl_context *)&h;
    nl_context_options options = {.threads = -1, .log = hear, .user = &h};
    assert_int_equal(nl_core_context_create(&options, &context), NL_ERROR_USAGE);
    assert_null(context);
    assert_non_null(strstr(h.message, "threads"));
    options = (nl_context_options){.max_memory = -1, .log = hear, .user = &h};
    assert_int_equal(nl_core_context_create(&options, &context), NL_ERROR_USAGE);
    assert_non_null(strstr(h.message, "max_memory"));
}

static bool stop_at_three(void *user, const nl_progress *progress)
{
    (void)user;
    return progress->step < 3;
}

static void test_cancelling(void **state)
{
    (void)state;
    nl_context *context;
    nl_context_options options = {.progress = stop_at_three};
    assert_int_equal(nl_core_context_create(&options, &context), NL_OK);
    assert_ok(context, nl_check_cancelled(context));
    nl_cancel(context);
    assert_int_equal(nl_check_cancelled(context), NL_CANCELLED);
    assert_ok(context, nl_check_cancelled(context)); /* usable again */
    assert_ok(context, nl_report_progress(context, &(nl_progress){.step = 2}));
    assert_int_equal(nl_report_progress(context, &(nl_progress){.step = 3}), NL_CANCELLED);
    nl_cancel(context);
    assert_int_equal(nl_report_progress(context, &(nl_progress){.step = 2}), NL_CANCELLED);
    nl_cancel(NULL);
    nl_core_context_destroy(context);
}

static void test_allocation(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    char *a, *b, *none;
    assert_ok(context, NL_NEW_SIZED(context, "a", 1000, 1, &a));
    assert_int_equal((uintptr_t)a % 64, 0);
    memset(a, 0xFF, 1000);
    assert_ok(context, NL_NEW_ZEROS(context, "b", 100, &b));
    for (int i = 0; i < 100; i++)
        assert_int_equal(b[i], 0);
    assert_ok(context, NL_NEW_SIZED(context, "none", 0, 1, &none));
    assert_non_null(none);
    assert_int_equal(context->memory_used, 1100);
    assert_int_equal(context->allocations, 3);
    nl_free(context, a);
    nl_free(context, none);
    nl_free(context, NULL);
    assert_int_equal(context->memory_used, 100);
    assert_int_equal(context->memory_peak, 1100);
    nl_free(context, b);
    assert_int_equal(context->memory_used, 0);

    char *text, *copy;
    assert_ok(context, nl_format(context, &text, "%s-%05d", "part", 42));
    assert_string_equal(text, "part-00042");
    assert_ok(context, nl_strdup(context, text, &copy));
    assert_string_equal(copy, text);
    nl_free(context, text);
    nl_free(context, copy);
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

/* The flags of the mapping that holds an address, "" when the kernel does not say. */
static void mapping_flags(const void *address, char flags[256])
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[256];
    bool inside = false;
    flags[0] = 0;
    while (maps && !flags[0] && fgets(line, sizeof(line), maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(flags, 256, "%s", line);
    }
    if (maps)
        fclose(maps);
}

/* And small ones do not. */
static void test_large_blocks_ask_for_huge_pages(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    char *large = NULL, *small = NULL;
    char flags[256];
    assert_ok(context, NL_NEW_ARRAY(context, "a large block", 64 << 20, &large));
    assert_ok(context, NL_NEW_ARRAY(context, "a small block", 1 << 20, &small));
    mapping_flags(large + (32 << 20), flags);
    if (flags[0] && access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0)
        assert_non_null(strstr(flags, " hg"));
    mapping_flags(small + (1 << 19), flags);
    assert_null(strstr(flags, " hg"));
    nl_free(context, small);
    nl_free(context, large);
    nl_core_context_destroy(context);
}

static void test_budget(void **state)
{
    (void)state;
    nl_context *context;
    nl_context_options options = {.max_memory = 3 << 20};
    assert_int_equal(nl_core_context_create(&options, &context), NL_OK);
    assert_int_equal(nl_memory_left(context), 3 << 20);
    void *a, *b = &a;
    assert_ok(context, NL_NEW_SIZED(context, "weights", 2 << 20, 1, &a));
    assert_int_equal(NL_NEW_SIZED(context, "activations", (1 << 20) + 1, 1, &b), NL_ERROR_MEMORY);
    assert_null(b);
    assert_non_null(strstr(nl_last_error(context), "activations"));
    assert_non_null(strstr(nl_last_error(context), "need 1.0 MiB, have 1.0 MiB"));
    assert_int_equal(nl_memory_left(context), 1 << 20);
    assert_ok(context, nl_account(context, "device memory", 1 << 20));
    assert_int_equal(nl_account(context, "device memory", 1), NL_ERROR_MEMORY);
    assert_ok(context, nl_account(context, "device memory", -(1 << 20)));
    assert_ok(context, NL_NEW_SIZED(context, "exactly the rest", 1 << 20, 1, &b));
    nl_free(context, a);
    nl_free(context, b);
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

static void test_impossible_sizes(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    void *pointer;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, (size_t)INT64_MAX, (size_t)1 << 50};
    for (int i = 0; i < NL_COUNT(sizes); i++) {
        assert_int_equal(NL_NEW_SIZED(context, "too much", sizes[i], 1, &pointer), NL_ERROR_MEMORY);
        assert_null(pointer);
    }
    assert_int_equal(NL_NEW_SIZED(context, "x", INT64_MAX, 2, &pointer), NL_ERROR_MEMORY);
    assert_int_equal(NL_NEW_SIZED(context, "x", -1, 4, &pointer), NL_ERROR_MEMORY);
    assert_int_equal(NL_NEW_SIZED(context, "x", 1, SIZE_MAX, &pointer), NL_ERROR_MEMORY);
    assert_int_equal(context->memory_used, 0);
    assert_ok(context, NL_NEW_SIZED(context, "x", 3, 5, &pointer));
    assert_int_equal(context->memory_used, 15);
    nl_free(context, pointer);
    nl_core_context_destroy(context);
}

/* The system itself refuses: said so, and nothing stays counted. */
static void test_system_refuses(void **state)
{
    (void)state;
    test_need_address_limits();
    nl_context *context = test_context(NULL);
    struct rlimit before, low = {.rlim_cur = (rlim_t)512 << 20};
    void *pointer;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    nl_status status = NL_NEW_SIZED(context, "weights", (size_t)600 << 20, 1, &pointer);
    setrlimit(RLIMIT_AS, &before);
    assert_int_equal(status, NL_ERROR_MEMORY);
    assert_null(pointer);
    assert_non_null(strstr(nl_last_error(context), "memory for weights: need 600.0 MiB, have"));
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

static void test_fault_hook(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    void *pointer;
    char *text;
    context->fail_allocation = 2;
    assert_ok(context, NL_NEW_SIZED(context, "first", 8, 1, &pointer));
    nl_free(context, pointer);
    assert_int_equal(nl_strdup(context, "second", &text), NL_ERROR_MEMORY);
    assert_null(text);
    assert_ok(context, NL_NEW_SIZED(context, "third", 8, 1, &pointer));
    nl_free(context, pointer);
    context->fail_allocation = 4;
    assert_int_equal(nl_account(context, "fourth", 8), NL_ERROR_MEMORY);
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

typedef struct worker {
    pthread_t thread;
    nl_context *context;
    int failures;
} worker;

/* Takes 1 KiB and gives it back, under a budget that two threads at a time exceed. */
static void *allocate_often(void *argument)
{
    worker *w = argument;
    for (int i = 0; i < 20000; i++) {
        void *pointer;
        if (NL_NEW_SIZED(w->context, "a worker", 1024, 1, &pointer) != NL_OK)
            w->failures++;
        nl_free(w->context, pointer);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    nl_context *context;
    nl_context_options options = {.max_memory = 2 * 1024};
    assert_int_equal(nl_core_context_create(&options, &context), NL_OK);
    worker workers[4];
    for (int i = 0; i < NL_COUNT(workers); i++) {
        workers[i] = (worker){.context = context};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, allocate_often, &workers[i]), 0);
    }
    int failures = 0;
    for (int i = 0; i < NL_COUNT(workers); i++) {
        pthread_join(workers[i].thread, NULL);
        failures += workers[i].failures;
    }
    assert_int_equal(context->memory_used, 0);
    assert_int_equal(context->allocations, 4 * 20000);
    assert_in_range(context->memory_peak, 1024, 2048);
    if (failures)
        assert_non_null(strstr(nl_last_error(context), "a worker"));
    nl_core_context_destroy(context);
}

static void test_checked_sizes(void **state)
{
    (void)state;
    int64_t x;
    assert_true(nl_mul_size(3, 5, &x) && x == 15);
    assert_true(nl_mul_size(0, INT64_MAX, &x) && x == 0);
    assert_true(nl_mul_size((int64_t)1 << 31, (int64_t)1 << 31, &x) && x == (int64_t)1 << 62);
    assert_false(nl_mul_size((int64_t)1 << 32, (int64_t)1 << 31, &x));
    assert_false(nl_mul_size(-1, 1, &x));
    assert_false(nl_mul_size(-2, -2, &x));
    assert_true(nl_add_size(INT64_MAX - 1, 1, &x) && x == INT64_MAX);
    assert_false(nl_add_size(INT64_MAX, 1, &x));
    assert_false(nl_add_size(-1, 5, &x));
    assert_false(nl_add_size(5, -1, &x));
}

typedef struct mask_reader {
    pthread_barrier_t started;
    cpu_set_t mask;
} mask_reader;

static void *read_mask(void *user)
{
    mask_reader *r = user;
    pthread_barrier_wait(&r->started);
    sched_getaffinity(0, sizeof(r->mask), &r->mask);
    return NULL;
}

/* ctest runs it with OMP_PROC_BIND too, where the first thread is bound to one processor: others are not. */
static void test_threads_run_anywhere(void **state)
{
    (void)state;
    pthread_t thread;
    mask_reader r;
    CPU_ZERO(&r.mask);
    assert_int_equal(pthread_barrier_init(&r.started, NULL, 2), 0);
    assert_int_equal(nl_start_thread(&thread, read_mask, &r), 0);
    pthread_barrier_wait(&r.started);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&r.started);
    assert_int_equal(CPU_COUNT(&r.mask), omp_get_num_procs());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_plurals),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_sizes_of_options),
        cmocka_unit_test(test_reason_without_a_context),
        cmocka_unit_test(test_logging),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_large_blocks_ask_for_huge_pages),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_impossible_sizes),
        cmocka_unit_test(test_fault_hook),
        cmocka_unit_test(test_system_refuses),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_checked_sizes),
        cmocka_unit_test(test_threads_run_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
