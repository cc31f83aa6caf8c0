/* SPDX-License-Identifier: MIT */
/* The pickle machine: what it builds, what it refuses by name, and that it never does more than
 * that. */
#include <unistd.h>

#include "file_test.h"
#include "pickle.h"

typedef struct test_pickle {
    nl_pickle pickle;
    void *bytes; /* an exact copy */
    const nl_pickle_value *value;
} test_pickle;

static nl_status load(const void *bytes, size_t size, test_pickle *loaded)
{
    int64_t length = -1;
    *loaded = (test_pickle){.pickle = {.context = context, .where = "test.pkl"}};
    loaded->bytes = exact_copy(bytes, size);
    nl_status status =
        nl_pickle_load(&loaded->pickle, loaded->bytes, (int64_t)size, &length, &loaded->value);
    if (status == NL_OK)
        assert_int_equal(length, size);
    return status;
}

static void unload(test_pickle *loaded)
{
    nl_pickle_free(&loaded->pickle);
    free(loaded->bytes);
}

#define BYTES(text) text, sizeof(text) - 1

/* ---- What it builds */

static const nl_pickle_value *build(const void *bytes, size_t size, test_pickle *loaded)
{
    assert_ok(context, load(bytes, size, loaded));
    return loaded->value;
}

static void integers(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t size;
        int64_t value;
    } rows[] = {
        {BYTES("\x80\2K\xff."), 255},
        {BYTES("\x80\2M\xff\xff."), 65535},
        {BYTES("\x80\2J\xff\xff\xff\xff."), -1},
        {BYTES("\x80\2J\0\0\0\x80."), INT32_MIN},
        {BYTES("\x80\2\x8a\0."), 0},
        {BYTES("\x80\2\x8a\1\xff."), -1},
        {BYTES("\x80\2\x8a\2\0\x80."), -32768},
        {BYTES("\x80\2\x8a\5\0\0\0\0\1."), INT64_C(1) << 32},
        {BYTES("\x80\2\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), INT64_MAX},
        {BYTES("\x80\2\x8b\1\0\0\0\x7f."), 127},
        {BYTES("\x80\2\x88."), 1},
        {BYTES("\x80\2\x89."), 0},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        test_pickle loaded;
        const nl_pickle_value *value = build(rows[i].bytes, rows[i].size, &loaded);
        assert_int_equal(value->kind, rows[i].bytes[2] == '\x88' || rows[i].bytes[2] == '\x89'
                                          ? NL_PICKLE_BOOL
                                          : NL_PICKLE_INT);
        assert_true(value->integer == rows[i].value);
        unload(&loaded);
    }
    test_pickle loaded; /* torch's magic number does not fit */
    assert_int_equal(
        build(BYTES("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), &loaded)->kind,
        NL_PICKLE_LONG);
    unload(&loaded);
}

static void floats_and_strings(void **state)
{
    (void)state;
    test_pickle loaded;
    const nl_pickle_value *value = build(BYTES("\x80\2G\x3f\xf8\0\0\0\0\0\0."), &loaded);
    assert_int_equal(value->kind, NL_PICKLE_FLOAT);
    assert_true(value->real == 1.5);
    unload(&loaded);
    const struct {
        const char *bytes;
        size_t size;
        nl_pickle_kind kind;
    } rows[] = {
        {BYTES("\x80\2X\3\0\0\0ema."), NL_PICKLE_TEXT},
        {BYTES("\x80\2U\3ema."), NL_PICKLE_TEXT},
        {BYTES("\x80\2T\3\0\0\0ema."), NL_PICKLE_TEXT},
        {BYTES("\x80\4\x8c\3ema."), NL_PICKLE_TEXT},
        {BYTES("\x80\4\x8d\3\0\0\0\0\0\0\0ema."), NL_PICKLE_TEXT},
        {BYTES("\x80\3C\3ema."), NL_PICKLE_BYTES},
        {BYTES("\x80\3B\3\0\0\0ema."), NL_PICKLE_BYTES},
        {BYTES("\x80\4\x8e\3\0\0\0\0\0\0\0ema."), NL_PICKLE_BYTES},
        {BYTES("\x80\5\x96\3\0\0\0\0\0\0\0ema."), NL_PICKLE_BYTES},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        value = build(rows[i].bytes, rows[i].size, &loaded);
        assert_int_equal(value->kind, rows[i].kind);
        assert_int_equal(value->size, 3);
        assert_memory_equal(value->text, "ema", 3);
        assert_int_equal(nl_pickle_is_text(value, "ema"), rows[i].kind == NL_PICKLE_TEXT);
        assert_false(nl_pickle_is_text(value, "em"));
        unload(&loaded);
    }
}

static void containers(void **state)
{
    (void)state;
    const struct {
        const char *name, *bytes;
        size_t size;
        nl_pickle_kind kind;
        int64_t count;
    } rows[] = {
        {"empty tuple", BYTES("\x80\2)."), NL_PICKLE_TUPLE, 0},
        {"empty marked tuple", BYTES("\x80\2(t."), NL_PICKLE_TUPLE, 0},
        {"tuple of 1", BYTES("\x80\2K\1\x85."), NL_PICKLE_TUPLE, 1},
        {"tuple of 3", BYTES("\x80\2K\1K\2K\3\x87."), NL_PICKLE_TUPLE, 3},
        {"marked tuple", BYTES("\x80\2(K\1K\2K\3K\4t."), NL_PICKLE_TUPLE, 4},
        {"nested marks", BYTES("\x80\2((K\1K\2tK\3t."), NL_PICKLE_TUPLE, 2},
        {"list", BYTES("\x80\2](K\1K\2eK\3a."), NL_PICKLE_LIST, 3},
        {"marked list", BYTES("\x80\2(K\1K\2l."), NL_PICKLE_LIST, 2},
        {"dict", BYTES("\x80\2}(K\1K\2K\3K\4uK\5K\6s."), NL_PICKLE_DICT, 6},
        {"marked dict", BYTES("\x80\2(K\1K\2d."), NL_PICKLE_DICT, 2},
        {"set", BYTES("\x80\4\x8f(K\1K\2\x90."), NL_PICKLE_SET, 2},
        {"frozenset", BYTES("\x80\4(K\1K\2\x91."), NL_PICKLE_SET, 2},
        {"recalled", BYTES("\x80\2]q\0h\0a."), NL_PICKLE_LIST, 1},
        {"memoized", BYTES("\x80\4]\x94h\0a."), NL_PICKLE_LIST, 1},
        {"dropped",
         BYTES("\x80\2]K\1K\2"
               "00."),
         NL_PICKLE_LIST, 0},
        {"mark dropped",
         BYTES("\x80\2](K\1K\2"
               "1."),
         NL_PICKLE_LIST, 0},
        {"framed", BYTES("\x80\4\x95\2\0\0\0\0\0\0\0]."), NL_PICKLE_LIST, 0},
        {"OrderedDict",
         BYTES("\x80\2"
               "ccollections\nOrderedDict\n)RK\1K\2s."),
         NL_PICKLE_DICT, 2},
        {"OrderedDict of pairs",
         BYTES("\x80\2"
               "ccollections\nOrderedDict\n](](K\1K\2ee\x85R."),
         NL_PICKLE_DICT, 2},
        {"defaultdict",
         BYTES("\x80\2"
               "ccollections\ndefaultdict\n"
               "c__builtin__\nlist\n\x85RK\1K\2s."),
         NL_PICKLE_DICT, 2},
        {"attributes of a dict",
         BYTES("\x80\2"
               "ccollections\nOrderedDict\n)R}b."),
         NL_PICKLE_DICT, 0},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        test_pickle loaded;
        if (load(rows[i].bytes, rows[i].size, &loaded) != NL_OK)
            fail_msg("%s: %s", rows[i].name, nl_last_error(context));
        if (loaded.value->kind != rows[i].kind || loaded.value->count != rows[i].count)
            fail_msg("%s: kind %d with %lld items", rows[i].name, loaded.value->kind,
                     (long long)loaded.value->count);
        unload(&loaded);
    }
}

static void opaque_objects(void **state)
{
    (void)state;
    const struct {
        const char *name, *bytes;
        size_t size;
        const char *class;
        bool state;
    } rows[] = {
        {"Namespace",
         BYTES("\x80\2"
               "cargparse\nNamespace\n)\x81}X\1\0\0\0aK\1sb."),
         "argparse.Namespace", true},
        {"by stack",
         BYTES("\x80\4\x8c\x08"
               "argparse\x8c\x09Namespace\x93)\x81}b."),
         "argparse.Namespace", true},
        {"numpy scalar",
         BYTES("\x80\2"
               "cnumpy.core.multiarray\nscalar\nK\1\x85R."),
         "numpy.core.multiarray.scalar", false},
        {"keywords",
         BYTES("\x80\4"
               "ca\nb\n)}\x92."),
         "a.b", false},
        {"subclass of list",
         BYTES("\x80\2"
               "cmine\nList\n)\x81K\1a."),
         "mine.List", false},
        {"os as a part of a name",
         BYTES("\x80\2"
               "cosmosis\nModel\n)\x81."),
         "osmosis.Model", false},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        test_pickle loaded;
        if (load(rows[i].bytes, rows[i].size, &loaded) != NL_OK)
            fail_msg("%s: %s", rows[i].name, nl_last_error(context));
        assert_int_equal(loaded.value->kind, NL_PICKLE_OBJECT);
        assert_true(nl_pickle_is_global(loaded.value->callee, rows[i].class));
        assert_int_equal(loaded.value->state != NULL, rows[i].state);
        unload(&loaded);
    }
}

static void looks_up(void **state)
{
    (void)state;
    test_pickle loaded;
    const nl_pickle_value *dict =
        build(BYTES("\x80\2}(X\1\0\0\0aK\1X\1\0\0\0bK\2X\1\0\0\0aK\3K\1K\4u."), &loaded);
    assert_int_equal(nl_pickle_get(dict, "a")->integer, 3); /* the last one, as in Python */
    assert_int_equal(nl_pickle_get(dict, "b")->integer, 2);
    assert_null(nl_pickle_get(dict, "c"));
    assert_null(nl_pickle_get(nl_pickle_get(dict, "a"), "a"));
    assert_null(nl_pickle_get(NULL, "a"));
    unload(&loaded);
}

/* ---- What it refuses */

static void refuse(const char *name, const void *bytes, size_t size, const char *message)
{
    test_pickle loaded;
    int64_t used = context->memory_used;
    nl_status status = load(bytes, size, &loaded);
    unload(&loaded);
    assert_refused(name, status, used, "test.pkl", message);
}

static void malformed(void **state)
{
    (void)state;
    const struct {
        const char *name, *bytes;
        size_t size;
        const char *message;
    } rows[] = {
        {"empty", BYTES(""), "ends in the middle"},
        {"no protocol", BYTES("K\1."), "does not begin with its protocol"},
        {"protocol 0", BYTES("\x80\0."), "none of 2 to 5"},
        {"protocol 6", BYTES("\x80\6."), "none of 2 to 5"},
        {"no value", BYTES("\x80\2."), "something else than one value"},
        {"two values", BYTES("\x80\2K\1K\1."), "something else than one value"},
        {"open mark", BYTES("\x80\2K\1(."), "something else than one value"},
        {"no end", BYTES("\x80\2K\1"), "ends in the middle"},
        {"half an integer", BYTES("\x80\2J\1\2"), "ends in the middle"},
        {"half a string", BYTES("\x80\2X\5\0\0\0abc"), "ends in the middle"},
        {"string of 4 GiB",
         BYTES("\x80\2X\xff\xff\xff\xff"
               "abc."),
         "ends in the middle"},
        {"string of 2^64 - 1",
         BYTES("\x80\4\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
               "abc."),
         "ends in the middle"},
        {"long of 2^32 - 1",
         BYTES("\x80\2\x8b\xff\xff\xff\xff"
               "a."),
         "ends in the middle"},
        {"pops from nothing",
         BYTES("\x80\2"
               "0."),
         "empty stack"},
        {"tuple of nothing", BYTES("\x80\2K\1\x86."), "more values than there are"},
        {"tuple across a mark", BYTES("\x80\2K\1(K\2\x86."), "more values than there are"},
        {"no mark", BYTES("\x80\2K\1t."), "mark that it has not set"},
        {"append to a number", BYTES("\x80\2K\1K\2a."), "holds nothing"},
        {"items of a list", BYTES("\x80\2](K\1K\2u."), "holds nothing"},
        {"append without a list", BYTES("\x80\2K\1a."), "empty stack"},
        {"key without value", BYTES("\x80\2}(K\1u."), "key without a value"},
        {"dict of three", BYTES("\x80\2(K\1K\2K\3d."), "key without a value"},
        {"recalls nothing", BYTES("\x80\2h\0."), "has not remembered"},
        {"recalls a gap", BYTES("\x80\2]q\1h\0."), "has not remembered"},
        {"remembers at 2^32 - 1", BYTES("\x80\2]r\xff\xff\xff\xff."), "impossible number"},
        {"remembers nothing", BYTES("\x80\2q\0."), "empty stack"},
        {"class without end",
         BYTES("\x80\2"
               "cargparse\nNamespace"),
         "does not end"},
        {"class without name",
         BYTES("\x80\2"
               "cargparse\n\n."),
         "impossible length"},
        {"class with control characters",
         BYTES("\x80\2"
               "ca\033[2J\nb\n."),
         "not printable"},
        {"class of numbers", BYTES("\x80\4K\1K\2\x93."), "is no string"},
        {"calls a number", BYTES("\x80\2K\1)R."), "calls something"},
        {"calls an object",
         BYTES("\x80\2"
               "ca\nb\n)R)R."),
         "calls something"},
        {"arguments in a list",
         BYTES("\x80\2"
               "ca\nb\n]R."),
         "are no tuple"},
        {"attributes of a number", BYTES("\x80\2K\1}b."), "attributes"},
        {"OrderedDict of numbers",
         BYTES("\x80\2"
               "ccollections\nOrderedDict\n]K\1a\x85R."),
         "something else than pairs"},
        {"text opcode", BYTES("\x80\2I1\n."), "opcode 0x49"},
        {"INST", BYTES("\x80\2(ios\nsystem\n."), "opcode 0x69"},
        {"OBJ", BYTES("\x80\2(K\1o."), "opcode 0x6f"},
        {"extension", BYTES("\x80\2\x82\1."), "opcode 0x82"},
        {"out-of-band buffer", BYTES("\x80\5\x97."), "opcode 0x97"},
        {"persistent id by text", BYTES("\x80\2P1\n."), "opcode 0x50"},
    };
    for (int i = 0; i < NL_COUNT(rows); i++)
        refuse(rows[i].name, rows[i].bytes, rows[i].size, rows[i].message);
}

/* Each of these would run code in Python. The name is refused even where nothing calls it. */
static void malicious(void **state)
{
    (void)state;
    const char *names[][2] = {
        {"os", "system"},
        {"posix", "system"},
        {"nt", "system"},
        {"subprocess", "Popen"},
        {"subprocess", "call"},
        {"builtins", "eval"},
        {"builtins", "exec"},
        {"builtins", "getattr"},
        {"builtins", "__import__"},
        {"builtins", "open"},
        {"__builtin__", "eval"},
        {"__builtin__", "execfile"},
        {"importlib", "import_module"},
        {"runpy", "_run_code"},
        {"pty", "spawn"},
        {"socket", "create_connection"},
        {"shutil", "rmtree"},
        {"ctypes", "CDLL"},
        {"pickle", "loads"},
        {"torch", "load"},
        {"torch.hub", "load"},
        {"numpy.testing._private.utils", "runstring"},
        {"webbrowser", "open"},
        {"operator", "attrgetter"},
        {"functools", "reduce"},
        {"types", "CodeType"},
        {"timeit", "timeit"},
        {"bdb", "Bdb"},
        {"multiprocessing.util", "spawnv_passfds"},
        {"_posixsubprocess", "fork_exec"},
        {"urllib.request", "urlopen"},
        {"pip._internal", "main"},
    };
    unlink("pickle_pwned");
    for (int i = 0; i < NL_COUNT(names); i++) {
        char full[80], called[160], stacked[160];
        snprintf(full, sizeof(full), "names %s.%s, which would run code", names[i][0], names[i][1]);
        int size =
            snprintf(called, sizeof(called), "\x80\2c%s\n%s\nX%c%c%c%ctouch pickle_pwned\x85R.",
                     names[i][0], names[i][1], 18, 1, 1, 1);
        memcpy(called + strlen(names[i][0]) + strlen(names[i][1]) + 6, "\x12\0\0\0", 4);
        refuse(full, called, (size_t)size, full);
        size =
            snprintf(stacked, sizeof(stacked), "\x80\4\x8c%c%s\x8c%c%s\x93.",
                     (int)strlen(names[i][0]), names[i][0], (int)strlen(names[i][1]), names[i][1]);
        refuse(full, stacked, (size_t)size, full);
    }
    assert_false(nl_path_exists("pickle_pwned"));
}

/* ---- Bounds */

static void bounded_depth(void **state)
{
    (void)state;
    char bytes[4096] = "\x80\2";
    memset(bytes + 2, '(', 2000);
    refuse("2000 marks", bytes, 2002, "nested too deeply");
    /* lists in lists need no mark and no recursion */
    memset(bytes + 2, ']', 1500);
    memset(bytes + 1502, 'a', 1499);
    bytes[3001] = '.';
    test_pickle loaded;
    assert_ok(context, load(bytes, 3002, &loaded));
    unload(&loaded);
}

static void bounded_memory(void **state)
{
    (void)state;
    size_t size = 8 << 20;
    char *bytes = malloc(size);
    memset(bytes, '}', size);
    bytes[0] = '\x80';
    bytes[1] = 2;
    refuse("8 million dicts", bytes, size, "more than 256 MiB");
    free(bytes);
}

static void without_memory(void **state)
{
    (void)state;
    static const char bytes[] = "\x80\2}(X\1\0\0\0aK\1X\1\0\0\0b(K\2K\3tu.";
    nl_status status = NL_ERROR_MEMORY;
    int64_t used = context->memory_used;
    int failures = 0;
    for (int64_t i = 1; status != NL_OK; i++) {
        test_pickle loaded;
        context->fail_allocation = context->allocations + i;
        status = load(bytes, sizeof(bytes) - 1, &loaded);
        context->fail_allocation = 0;
        unload(&loaded);
        assert_true(status == NL_OK || status == NL_ERROR_MEMORY);
        assert_int_equal(context->memory_used, used);
        failures += status != NL_OK;
    }
    assert_int_equal(failures, 1); /* one chunk holds it all */
}

static void cancelled(void **state)
{
    (void)state;
    size_t size = 1 << 20;
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i += 2)
        memcpy(bytes + i, "N0", 2);
    memcpy(bytes, "\x80\2", 2);
    test_pickle loaded;
    nl_cancel(context);
    assert_int_equal(load(bytes, size, &loaded), NL_CANCELLED);
    unload(&loaded);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),       cmocka_unit_test(floats_and_strings),
        cmocka_unit_test(containers),     cmocka_unit_test(opaque_objects),
        cmocka_unit_test(looks_up),       cmocka_unit_test(malformed),
        cmocka_unit_test(malicious),      cmocka_unit_test(bounded_depth),
        cmocka_unit_test(bounded_memory), cmocka_unit_test(without_memory),
        cmocka_unit_test(cancelled),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
