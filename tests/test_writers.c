/* SPDX-License-Identifier: MIT */
/* The threads that write pictures: nothing lost, reported in order, failures end the work. */
#include "nl_test.h"

#include <stdatomic.h>
#include <time.h>

#include "nl_writers.h"

enum { PICTURES = 700, HEIGHT = 3, WIDTH = 5, BYTES = 3 * HEIGHT * WIDTH };

typedef struct nl_shelf {
    atomic_int written[PICTURES];
    atomic_int at_work, most_at_work;
    int64_t reported;
    int64_t fail_write, fail_report; /* at this number; -1: never */
} nl_shelf;

static nl_shelf shelf;
static nl_context *context;

static nl_status write_picture(void *user, const nl_writing *writing)
{
    assert_ptr_equal(user, &shelf);
    int now = atomic_fetch_add(&shelf.at_work, 1) + 1, most = atomic_load(&shelf.most_at_work);
    while (now > most && !atomic_compare_exchange_weak(&shelf.most_at_work, &most, now)) {
    }
    nanosleep(&(struct timespec){.tv_nsec = writing->number % 7 == 0 ? 900000 : 20000}, NULL);
    atomic_fetch_sub(&shelf.at_work, 1);
    bool good = writing->rgb[0] == (uint8_t)writing->number && writing->rgb[BYTES - 1] == 77;
    if (!good || writing->number == shelf.fail_write)
        return nl_fail(context, NL_ERROR_WRITE, "picture %d", (int)writing->number);
    atomic_fetch_add(&shelf.written[writing->number], 1);
    return NL_OK;
}

static nl_status report_picture(void *user, const nl_writing *writing)
{
    assert_ptr_equal(user, &shelf);
    assert_int_equal(writing->number, shelf.reported);
    assert_int_equal(atomic_load(&shelf.written[writing->number]), 1);
    if (writing->number == shelf.fail_report)
        return NL_ERROR_INTERNAL;
    shelf.reported++;
    return NL_OK;
}

/* Puts pictures until one is refused or all are there; the writers' last word. */
static nl_status fill(int threads, int *put)
{
    nl_writers *writers = NULL;
    nl_status status = NL_OK;
    assert_ok(context,
              nl_writers_create(context, threads, write_picture, report_picture, &shelf, &writers));
    for (*put = 0; *put < PICTURES && status == NL_OK; ++*put) {
        uint8_t rgb[BYTES] = {(uint8_t)*put};
        nl_writing writing = {
            .number = *put, .height = HEIGHT, .width = WIDTH, .rgb = rgb, .path = NULL};
        rgb[BYTES - 1] = 77;
        assert_ok(context, nl_format(context, &writing.path, "%d", *put));
        status = nl_writers_put(writers, &writing);
        memset(rgb, 0, sizeof(rgb));
        if (*put % 50 == 0 && status == NL_OK)
            status = nl_writers_report(writers);
    }
    nl_fail(context, NL_ERROR_DEVICE, "a failure that came later");
    nl_status last = nl_writers_end(&writers);
    assert_true(status == NL_OK || status == last);
    assert_null(writers);
    return last;
}

static int begin(void **state)
{
    (void)state;
    memset(&shelf, 0, sizeof(shelf));
    shelf.fail_write = shelf.fail_report = -1;
    return nl_core_context_create(NULL, &context);
}

static int finish(void **state)
{
    (void)state;
    int64_t left = atomic_load(&context->memory_used);
    nl_core_context_destroy(context);
    return left != 0;
}

static void everything_is_written_in_order(void **state)
{
    (void)state;
    int put;
    for (int threads = 0; threads <= 4; threads += 4) {
        begin(NULL);
        assert_ok(context, fill(threads, &put));
        assert_int_equal(shelf.reported, PICTURES);
        assert_int_equal(atomic_load(&shelf.at_work), 0);
        assert_true(threads ? atomic_load(&shelf.most_at_work) > 1
                            : atomic_load(&shelf.most_at_work) == 1);
        if (threads == 0)
            assert_int_equal(finish(NULL), 0);
    }
}

static void a_failure_ends_the_work(void **state)
{
    (void)state;
    int put;
    shelf.fail_write = 300;
    assert_int_equal(fill(4, &put), NL_ERROR_WRITE);
    assert_true(shelf.reported <= 300);
    assert_true(put < PICTURES);
    assert_string_equal(nl_last_error(context), "picture 300");
}

static void a_failed_report_too(void **state)
{
    (void)state;
    int put;
    shelf.fail_report = 10;
    assert_int_equal(fill(4, &put), NL_ERROR_INTERNAL);
    assert_true(put < PICTURES);
}

/* No memory for a copy: the picture is written where it lies. */
static void without_memory_it_waits(void **state)
{
    (void)state;
    int put;
    context->options.max_memory = atomic_load(&context->memory_used) + (1 << 17);
    assert_ok(context, fill(4, &put));
    assert_int_equal(shelf.reported, PICTURES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everything_is_written_in_order, NULL, finish),
        cmocka_unit_test_setup_teardown(a_failure_ends_the_work, begin, finish),
        cmocka_unit_test_setup_teardown(a_failed_report_too, begin, finish),
        cmocka_unit_test_setup_teardown(without_memory_it_waits, begin, finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
