/* SPDX-License-Identifier: MIT */
/*
 * Every operation of the table on every device under test: against the reference, with one image of a
 * batch alone, and with one thread. Environment:
 *
 *   NL_TEST_DEVICE   devices: op_open_devices
 *   NL_TEST_DTYPE    f32 or bf16; default: f32, and on a CPU the operations of feature maps in bf16 too
 *   NL_TEST_SEED     of the inputs, or `random` for one of the time; default: 1
 *   NL_TEST_ONLY     tests whose names match this pattern (*gated*)
 *   NL_TEST_PART     K/N: every N-th case, from the K-th on, so that N processes share the work
 *   NL_TEST_VALUES   test_compares; without, each case is run once, and its first image alone
 */
#include <time.h>

#include "op_cases.h"

enum { MAX_TESTS = 256 };

static bool values; /* test_compares */
static uint64_t seed;
static int this_part = 1, parts = 1, cases_seen;
static nl_context *context;
static nl_device *reference;

/* The state of one test: an operation on a device. */
typedef struct op_test {
    nl_device *device, *one_thread;
    const op_family *family;
    char name[96];
    int failures;
} op_test;

static void complain(op_test *test, int index, const char *what, const char *problem)
{
    print_error("%s (seed %llu), %s\n    {%s}\n    %s\n", test->name, (unsigned long long)seed,
                what, op_case_text(test->family, index), problem);
    test->failures++;
}

/* Runs a case with all images (only = -1) or one. NULL, after a complaint, when that fails. */
static op_run *run_case(op_test *test, nl_device *device, int index, int64_t only, const char *what)
{
    char problem[NL_MESSAGE_SIZE + 64];
    op_run *run = calloc(1, sizeof(*run));
    assert_non_null(run);
    run->device = device;
    run->seed = seed + (uint64_t)index;
    run->only = only;
    run->rounded = test->device->activation == NL_BF16;
    run->rounded_maps = test->device->feature_maps == NL_BF16;
    run->gpu = nl_device_queues(test->device);
    run->poison = device == reference ? 0x5a : 0xa5;
    if (op_run_case(run, test->family, index, problem, sizeof(problem)))
        return run;
    complain(test, index, what, problem);
    op_run_free(run);
    free(run);
    return NULL;
}

static void end_case(op_run *run)
{
    if (run)
        op_run_free(run);
    free(run);
}

/* Relative L2 error of a[count] against b, and no element off by more than ten times the tolerance of
 * the largest. NaN fails. */
static bool close_enough(const double *a, const double *b, int64_t count, double tolerance,
                         char *problem, size_t size)
{
    double difference = 0, norm = 0, worst = 0, largest = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(a[i] - b[i]);
        difference += error * error;
        norm += b[i] * b[i];
        largest = fmax(largest, fabs(b[i]));
        if (error > worst || (isnan(error) && !isnan(worst))) {
            worst = error;
            at = i;
        }
    }
    double relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    if (relative <= tolerance && worst <= 10 * tolerance * (largest > 0 ? largest : 1))
        return true;
    snprintf(problem, size,
             "relative error %.3g, allowed %.3g; the worst of %lld is element %lld: %.9g, not %.9g",
             relative, tolerance, (long long)count, (long long)at, a[at], b[at]);
    return false;
}

/* `part` must hold what the outputs of `whole` hold for its image. of_outputs: their own tolerances count too. */
static void compare(op_test *test, int index, const char *what, const op_run *part,
                    const op_run *whole, double tolerance, bool of_outputs)
{
    for (int i = 0; i < whole->output_count; i++) {
        const op_output *a = &part->outputs[i], *b = &whole->outputs[i];
        char problem[512], message[640];
        int64_t first = part->only < 0 ? 0 : part->only * a->count;
        if (part->only >= 0 && b->shared)
            continue;
        int64_t expected = part->only < 0 ? b->count : b->count / whole->batch;
        if (a->count != expected)
            complain(test, index, what, "outputs of other sizes: a defect of the test");
        else if (!close_enough(a->values, b->values + first, a->count,
                               fmax(tolerance, of_outputs ? a->tolerance : 0), problem,
                               sizeof(problem))) {
            snprintf(message, sizeof(message), "%s: %s", a->name, problem);
            complain(test, index, what, message);
        }
    }
}

static void check_case(op_test *test, int index)
{
    op_run *expected =
        values ? run_case(test, reference, index, -1, "on the reference device") : NULL;
    bool left_out = expected && expected->left_out;
    bool threads = values && test->device->ops != reference->ops; /* the reference has none */
    op_run *whole = left_out ? NULL : run_case(test, test->device, index, -1, "whole batch");
    op_run *single =
        left_out || !threads ? NULL : run_case(test, test->one_thread, index, -1, "one thread");
    if (expected && whole)
        compare(test, index, "against the reference", whole, expected, whole->tolerance, true);
    if (single && whole)
        compare(test, index, "one thread against several", single, whole, whole->batch_tolerance,
                false);
    for (int last = 0; whole && whole->batch > 1 && last < (values ? 2 : 1); last++) {
        op_run *alone =
            run_case(test, test->device, index, last ? whole->batch - 1 : 0, "one image alone");
        if (alone)
            compare(test, index, "one image alone against the batch", alone, whole,
                    whole->batch_tolerance, false);
        end_case(alone);
    }
    end_case(expected);
    end_case(whole);
    end_case(single);
}

static void test_operation(void **state)
{
    op_test *test = *state;
    for (int i = 0; i < test->family->case_count; i++)
        if (cases_seen++ % parts == this_part - 1)
            check_case(test, i);
    if (test->failures)
        fail_msg("%s: %d failures above", test->name, test->failures);
}

static const op_family *const tables[] = {op_backbone_families, op_image_families,
                                          op_sampling_families, op_training_families};

/* Every operation of the table has its cases. */
static void test_all_operations_have_cases(void **state)
{
    (void)state;
    static const char *const operations[] = {
#define NL_OPERATION(operation) #operation,
        NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
    };
    for (int i = 0; i < NL_COUNT(operations); i++) {
        int cases = 0;
        for (int table = 0; table < NL_COUNT(tables); table++)
            for (const op_family *family = tables[table]; family->operation; family++)
                if (!strcmp(family->operation, operations[i]))
                    cases += family->case_count;
        if (!cases)
            fail_msg("operation %s has no cases", operations[i]);
    }
}

static int add_family_tests(nl_device *device, nl_device *one_thread, const char *type,
                            const op_family *families, op_test *tests, int count)
{
    for (const op_family *family = families; family->operation && count < MAX_TESTS; family++) {
        op_test *test = &tests[count++];
        *test = (op_test){.device = device, .one_thread = one_thread, .family = family};
        snprintf(test->name, sizeof(test->name), "%.24s%s: %s", device->name, type,
                 family->operation);
    }
    return count;
}

static int add_tests(nl_device *device, nl_device *one_thread, op_test *tests, int count)
{
    for (int table = 0; table < NL_COUNT(tables); table++)
        count = add_family_tests(device, one_thread, "", tables[table], tests, count);
    return count;
}

/* A CPU whose feature maps are bf16, although its tokens are not. */
static int add_half_tests(nl_device **half, op_test *tests, int count)
{
    for (int i = 0; i < 2; i++)
        if (nl_device_create(context, "cpu", "bf16", 2 - i, &half[i]) != NL_OK) {
            fprintf(stderr, "%s\n", nl_last_error(context));
            exit(1);
        }
    if (half[0]->feature_maps == NL_BF16)
        return add_family_tests(half[0], half[1], " bf16", op_image_families, tests, count);
    printf("SKIPPED: feature maps in bf16, of which this processor has no products\n");
    return count;
}

int main(void)
{
    static op_test tests[MAX_TESTS];
    static struct CMUnitTest units[MAX_TESTS + 1];
    nl_device *devices[OP_MAX_DEVICES], *one_thread[OP_MAX_DEVICES], *half[2] = {0};
    int count = 0;
    const char *given = getenv("NL_TEST_SEED");
    setvbuf(stdout, NULL, _IOLBF, 0); /* whoever ends the program sees how far it came */
    seed = !given                         ? 1
           : strcmp(given, "random") != 0 ? strtoull(given, NULL, 0)
                                          : (uint64_t)time(NULL);
    printf("NL_TEST_SEED=%llu\n", (unsigned long long)seed);
    values = test_compares();
    given = getenv("NL_TEST_PART");
    if (given &&
        (sscanf(given, "%d/%d", &this_part, &parts) != 2 || this_part < 1 || this_part > parts)) {
        fprintf(stderr, "NL_TEST_PART: expected K/N, found %s\n", given);
        return 2;
    }
    if (nl_core_context_create(NULL, &context) != NL_OK ||
        nl_device_create(context, "reference", "f32", 1, &reference) != NL_OK)
        return 1;
    int device_count = op_open_devices(context, 2, devices);
    op_open_devices(context, 1, one_thread);
    for (int i = 0; i < device_count; i++)
        count = add_tests(devices[i], one_thread[i], tests, count);
    for (int i = 0; i < device_count; i++)
        if (!half[0] && !getenv("NL_TEST_DTYPE") && !strcmp(devices[i]->name, "cpu"))
            count = add_half_tests(half, tests, count);
    units[0] = (struct CMUnitTest)cmocka_unit_test(test_all_operations_have_cases);
    for (int i = 0; i < count; i++)
        units[i + 1] = (struct CMUnitTest){
            .name = tests[i].name, .test_func = test_operation, .initial_state = &tests[i]};
    if (getenv("NL_TEST_ONLY"))
        cmocka_set_test_filter(getenv("NL_TEST_ONLY"));
    int failed = _cmocka_run_group_tests("operations", units, (size_t)count + 1, NULL, NULL);
    for (int i = 0; i < device_count; i++) {
        nl_device_destroy(devices[i]);
        nl_device_destroy(one_thread[i]);
    }
    nl_device_destroy(half[0]);
    nl_device_destroy(half[1]);
    nl_device_destroy(reference);
    nl_core_context_destroy(context);
    return failed;
}
