/* SPDX-License-Identifier: MIT */
/* JSON: good and malformed texts, messages, depth, duplicate keys, suggestions. */
#include "file_test.h"
#include "nl_json.h"

static nl_status parse(const char *text, size_t size, cJSON **value)
{
    char *copy = exact_copy(text, size);
    nl_status status = nl_json_parse(context, "test.json", copy, size, value);
    free(copy);
    return status;
}

#define assert_message(text) assert_non_null(strstr(nl_last_error(context), text))

static void test_valid(void **state)
{
    (void)state;
    const char *texts[] = {"{}",
                           "[]",
                           " null ",
                           "true",
                           "false",
                           "0",
                           "-0",
                           "-1.5e+3",
                           "1E2",
                           "\"\"",
                           "\"\\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u00e9 \\ud83d\\ude00\"",
                           "\"\xc3\xa9\xf0\x9f\x98\x80\"",
                           "{\"a\": {\"a\": [1, 2, {\"a\": null}]}, \"A\": 1}\r\n\t",
                           "[[[[]]]]",
                           "123456789012345678901234567890123456789012345678901234567890123"};
    for (int i = 0; i < NL_COUNT(texts); i++) {
        cJSON *value;
        assert_ok(context, parse(texts[i], strlen(texts[i]), &value));
        assert_non_null(value);
        cJSON_Delete(value);
    }
}

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *what, *text;
    } cases[] = {
        {"empty", ""},
        {"spaces only", "  \n"},
        {"byte order mark", "\xef\xbb\xbf{}"},
        {"object without end", "{\"a\": 1"},
        {"array without end", "[1, 2"},
        {"string without end", "\"abc"},
        {"escape without end", "\"abc\\"},
        {"trailing comma in an object", "{\"a\": 1,}"},
        {"trailing comma in an array", "[1,]"},
        {"missing comma", "[1 2]"},
        {"missing colon", "{\"a\" 1}"},
        {"missing value", "{\"a\":}"},
        {"bare key", "{a: 1}"},
        {"single quotes", "{'a': 1}"},
        {"number for a key", "{1: 1}"},
        {"text after the value", "{} x"},
        {"second value", "{}{}"},
        {"wrong bracket", "[1}"},
        {"wrong word", "nul"},
        {"word in capitals", "True"},
        {"NaN", "NaN"},
        {"Infinity", "-Infinity"},
        {"leading zero", "01"},
        {"leading plus", "+1"},
        {"leading point", ".5"},
        {"point without digits", "1."},
        {"exponent without digits", "1e"},
        {"minus alone", "-"},
        {"two points", "1.2.3"},
        {"hexadecimal", "0x10"},
        {"comment", "/* a */ 1"},
        {"unknown escape", "\"\\x41\""},
        {"short code point", "\"\\u12\""},
        {"code point of no digits", "\"\\u12g4\""},
        {"code point zero", "\"a\\u0000b\""},
        {"control character", "\"a\nb\""},
        {"lone high surrogate", "\"\\ud83d\""},
        {"lone low surrogate", "\"\\ude00\""},
        {"lone continuation byte", "\"\x80\""},
        {"overlong sequence", "\"\xc0\xaf\""},
        {"overlong sequence of three", "\"\xe0\x80\xaf\""},
        {"overlong sequence of four", "\"\xf0\x80\x80\xaf\""},
        {"surrogate in UTF-8", "\"\xed\xa0\x80\""},
        {"beyond U+10FFFF", "\"\xf4\x90\x80\x80\""},
        {"sequence cut off by the quote", "\"\xe2\x82\""},
        {"sequence cut off by the end", "\"\xe2\x82"},
        {"byte FF", "\"\xff\""},
        {"number of 64 characters",
         "1234567890123456789012345678901234567890123456789012345678901234"},
        {"number beyond a double", "1e999"},
        {"number beyond a double, inside", "{\"a\": [1, -1e400]}"},
        {"duplicate key", "{\"a\": 1, \"b\": 2, \"a\": 3}"},
        {"duplicate key, escaped", "{\"a\": 1, \"\\u0061\": 2}"},
        {"duplicate key, inside", "[{\"x\": {\"k\": 1, \"k\": 1}}]"},
        {"duplicate empty key", "{\"\": 1, \"\": 2}"},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        cJSON *value = (cJSON *)&cases;
        nl_status status = parse(cases[i].text, strlen(cases[i].text), &value);
        if (status != NL_ERROR_INPUT || value)
            fail_msg("%s: %s", cases[i].what, nl_status_name(status));
        assert_memory_equal(nl_last_error(context), "test.json: ", 11);
    }
    cJSON *value;
    assert_int_equal(parse("{\"a\"\0: 1}", 9, &value), NL_ERROR_INPUT);
    assert_int_equal(parse("{}\0", 3, &value), NL_ERROR_INPUT);
}

static void test_messages(void **state)
{
    (void)state;
    cJSON *value;
    const char *text = "{\n  \"a\": 1\n  \"b\": 2\n}";
    assert_int_equal(parse(text, strlen(text), &value), NL_ERROR_INPUT);
    assert_message("line 3, column 3: expected ',' or '}', found '\"'");
    assert_int_equal(parse("[1", 2, &value), NL_ERROR_INPUT);
    assert_message("expected ',' or ']', found the end");
    assert_int_equal(parse("\x01", 1, &value), NL_ERROR_INPUT);
    assert_message("found byte 0x01");
    assert_int_equal(parse("\xff", 1, &value), NL_ERROR_INPUT);
    assert_message("found byte 0xff");
    assert_int_equal(parse("{\"key\": 1, \"key\": 2}", 20, &value), NL_ERROR_INPUT);
    assert_message("\"key\" stands twice");
    assert_int_equal(parse("{\"beta\": 1e999}", 15, &value), NL_ERROR_INPUT);
    assert_message("beta");
}

static void test_depth(void **state)
{
    (void)state;
    char text[200];
    cJSON *value;
    for (int depth = 63; depth <= 66; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        nl_status status = parse(text, 2 * (size_t)depth, &value);
        assert_int_equal(status, depth <= 64 ? NL_OK : NL_ERROR_INPUT);
        cJSON_Delete(value);
    }
    assert_message("64 levels");
    /* Nothing but opening brackets, a million of them: no stack to overflow. */
    char *deep = malloc(1000000);
    memset(deep, '[', 1000000);
    assert_int_equal(parse(deep, 1000000, &value), NL_ERROR_INPUT);
    free(deep);
}

/* Many keys, the last of them twice: found, and in time (tests end after seconds, not hours). */
static void test_many_keys(void **state)
{
    (void)state;
    const int count = 50000;
    char *text = malloc((size_t)count * 24 + 32);
    size_t used = 0;
    text[used++] = '{';
    for (int i = 0; i < count; i++)
        used += (size_t)sprintf(text + used, "\"key%d\":%d,", i, i);
    size_t start = used;
    used += (size_t)sprintf(text + used, "\"last\":0}");
    cJSON *value;
    assert_ok(context, parse(text, used, &value));
    cJSON_Delete(value);
    used = start + (size_t)sprintf(text + start, "\"key7\":0}");
    assert_int_equal(parse(text, used, &value), NL_ERROR_INPUT);
    assert_message("\"key7\" stands twice");
    context->fail_allocation = context->allocations + 1;
    assert_int_equal(parse(text, used, &value), NL_ERROR_MEMORY);
    assert_null(value);
    free(text);
}

static void test_memory_limit(void **state)
{
    (void)state;
    context->options.max_memory = 10000;
    char text[1001];
    cJSON *value;
    memset(text, '[', 1);
    for (int i = 1; i < 1000; i += 2)
        memcpy(text + i, "1,", 2);
    memcpy(text + 999, "1]", 2);
    assert_int_equal(parse(text, 1001, &value), NL_ERROR_MEMORY);
    assert_message("need");
    context->options.max_memory = 1000000;
    assert_ok(context, parse(text, 1001, &value));
    cJSON_Delete(value);
}

static const char *const example = "{\"flag\": true, \"count\": 12, \"half\": 0.5, \"name\": "
                                   "\"gvp\", \"list\": [], \"nothing\": null,"
                                   " \"big\": 9007199254740993, \"object\": {}}";

static void test_cursor(void **state)
{
    (void)state;
    cJSON *tree;
    assert_ok(context, parse(example, strlen(example), &tree));
    nl_json json = {.context = context, .where = "model.json", .object = tree};
    const char *const names[] = {"linear", "gvp", NULL};

    bool flag = false;
    int64_t integer = 5;
    double number = 7;
    const char *string = "default";
    int choice = -1;
    assert_ok(context, nl_json_bool(&json, "flag", &flag));
    assert_true(flag);
    assert_ok(context, nl_json_int(&json, "count", 1, 12, &integer));
    assert_int_equal(integer, 12);
    assert_ok(context, nl_json_double(&json, "half", 0, 1, &number));
    assert_true(number == 0.5);
    assert_ok(context, nl_json_double(&json, "count", -INFINITY, INFINITY, &number));
    assert_true(number == 12);
    assert_ok(context, nl_json_string(&json, "name", &string));
    assert_string_equal(string, "gvp");
    assert_ok(context, nl_json_choice(&json, "name", names, &choice));
    assert_int_equal(choice, 1);

    /* Absent, or in other letters: values stay. */
    flag = true, integer = 5, number = 7, string = "default", choice = -1;
    assert_ok(context, nl_json_bool(&json, "absent", &flag));
    assert_ok(context, nl_json_int(&json, "Count", 0, 1, &integer));
    assert_ok(context, nl_json_double(&json, "absent", 0, 1, &number));
    assert_ok(context, nl_json_string(&json, "absent", &string));
    assert_ok(context, nl_json_choice(&json, "absent", names, &choice));
    assert_true(flag && integer == 5 && number == 7 && choice == -1);
    assert_string_equal(string, "default");

    /* Wrong types and ranges: values stay, messages say file, key, expectation, finding. */
    assert_int_equal(nl_json_bool(&json, "count", &flag), NL_ERROR_INPUT);
    assert_string_equal(nl_last_error(context),
                        "model.json: \"count\": expected true or false, found 12");
    assert_int_equal(nl_json_int(&json, "count", 1, 11, &integer), NL_ERROR_INPUT);
    assert_string_equal(nl_last_error(context),
                        "model.json: \"count\": expected an integer from 1 to 11, found 12");
    assert_int_equal(nl_json_int(&json, "half", 0, 9, &integer), NL_ERROR_INPUT);
    assert_int_equal(nl_json_int(&json, "name", 0, 9, &integer), NL_ERROR_INPUT);
    assert_message("found \"gvp\"");
    assert_int_equal(nl_json_int(&json, "big", 0, 9, &integer), NL_ERROR_INPUT);
    assert_message("from 0 to 9, found 9007199254740993");
    assert_int_equal(nl_json_int(&json, "flag", 0, 9, &integer), NL_ERROR_INPUT);
    assert_int_equal(nl_json_double(&json, "half", 0.6, 1, &number), NL_ERROR_INPUT);
    assert_message("expected a number from 0.6 to 1, found 0.5");
    assert_int_equal(nl_json_double(&json, "list", 0, 1, &number), NL_ERROR_INPUT);
    assert_message("found an array");
    assert_int_equal(nl_json_string(&json, "nothing", &string), NL_ERROR_INPUT);
    assert_message("found null");
    assert_int_equal(nl_json_string(&json, "object", &string), NL_ERROR_INPUT);
    assert_message("found an object");
    const char *const others[] = {"vp", "linear", NULL};
    assert_int_equal(nl_json_choice(&json, "name", others, &choice), NL_ERROR_INPUT);
    assert_string_equal(nl_last_error(context),
                        "model.json: \"name\": expected one of \"vp\", \"linear\", found \"gvp\"");
    assert_int_equal(nl_json_choice(&json, "count", others, &choice), NL_ERROR_INPUT);
    assert_int_equal(choice, -1);
    assert_string_equal(string, "default");
    cJSON_Delete(tree);
}

static void test_known_keys(void **state)
{
    (void)state;
    cJSON *tree;
    assert_ok(context, parse(example, strlen(example), &tree));
    nl_json json = {.context = context, .where = "model.json", .object = tree};
    const char *known[] = {"flag", "count",   "half",   "name", "list",
                           "big",  "nothing", "object", NULL};
    assert_ok(context, nl_json_known_keys(&json, known));
    known[1] = "counts";
    assert_int_equal(nl_json_known_keys(&json, known), NL_ERROR_INPUT);
    assert_message("unknown key \"count\"; did you mean \"counts\"?");
    known[1] = "different";
    assert_int_equal(nl_json_known_keys(&json, known), NL_ERROR_INPUT);
    assert_message("unknown key \"count\"");
    assert_null(strstr(nl_last_error(context), "did you mean"));
    cJSON_Delete(tree);
}

static void test_nearest(void **state)
{
    (void)state;
    const char *const names[] = {"steps", "seed", "sampler", "size", "cfg-scale", NULL};
    char endless[1000];
    memset(endless, 's', sizeof(endless));
    endless[sizeof(endless) - 1] = '\0';
    assert_string_equal(nl_nearest("step", names), "steps");
    assert_string_equal(nl_nearest("stpes", names), "steps");
    assert_string_equal(nl_nearest("SAMPLER", names), "sampler");
    assert_string_equal(nl_nearest("cfgscale", names), "cfg-scale");
    assert_string_equal(nl_nearest("sized", names), "size");
    assert_null(nl_nearest("x", names));
    assert_null(nl_nearest("", names));
    assert_null(nl_nearest("temperature", names));
    assert_null(nl_nearest(endless, names));
}

/* Bytes that are not UTF-8 are printed as Python's surrogateescape has them, and read back as they were. */
static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *string, *printed;
    } cases[] = {
        {"l\363n", "\"l\\udcf3n\""},
        {"\x80", "\"\\udc80\""},
        {"\xff\xfe", "\"\\udcff\\udcfe\""},
        {"\xc3\xa9", "\"\xc3\xa9\""},
        {"\xc3\xa9\xc3", "\"\xc3\xa9\\udcc3\""},
        {"\xed\xb3\xb3", "\"\\udced\\udcb3\\udcb3\""}, /* U+DCF3, as no UTF-8 writes it */
        {"\\\xe9\"", "\"\\\\\\udce9\\\"\""},
        {"\\udcf3", "\"\\\\udcf3\""}, /* six plain characters */
        {"\n\xf0\x9f\x98\x80\xf0\x9f", "\"\\n\xf0\x9f\x98\x80\\udcf0\\udc9f\""},
    };
    for (int i = 0; i < NL_COUNT(cases); i++) {
        cJSON *value = cJSON_CreateString(cases[i].string), *again = NULL;
        char *text = nl_json_print(value, false);
        assert_string_equal(text, cases[i].printed);
        assert_ok(context, parse(text, strlen(text), &again));
        assert_string_equal(again->valuestring, cases[i].string);
        cJSON_free(text);
        cJSON_Delete(value);
        cJSON_Delete(again);
    }
    cJSON *value;
    /* A pair of surrogates stays one, whatever its second half is; capitals are read too. */
    const char *pair = "[\"\\ud83d\\udcf3\", \"\\uDCF3\", {\"\\udcf3\": 1}]";
    assert_ok(context, parse(pair, strlen(pair), &value));
    assert_string_equal(value->child->valuestring, "\xf0\x9f\x93\xb3");
    assert_string_equal(value->child->next->valuestring, "\363");
    assert_string_equal(value->child->next->next->child->string, "\363");
    cJSON_Delete(value);
    static const char *const refused[] = {"\"\\udc7f\"", "\"\\udd00\"", "\"\\ud83d\\u0041\"",
                                          "\"\\udcf\"",  "\"\\udcf3",   "\"\\ud83d\\udcf"};
    for (int i = 0; i < NL_COUNT(refused); i++)
        assert_int_equal(parse(refused[i], strlen(refused[i]), &value), NL_ERROR_INPUT);
}

/* Integers that a double does not hold keep their digits, wherever they stand. */
static void test_large_integers(void **state)
{
    (void)state;
    const char *text = "{\"a\":9007199254740993,\"5\":[1,-9223372036854775808,\"\\\"7\",1e+300],"
                       "\"b\":9007199254740991,\"c\":18446744073709551615,\"d\":0.5}";
    cJSON *value;
    assert_ok(context, parse(text, strlen(text), &value));
    char *printed = nl_json_print(value, false);
    assert_string_equal(printed, text);
    cJSON_free(printed);
    nl_json json = {.context = context, .where = "x", .object = value};
    int64_t whole = 0;
    double real = 0;
    assert_ok(context, nl_json_int(&json, "a", 0, INT64_MAX, &whole));
    assert_true(whole == 9007199254740993);
    assert_ok(context, nl_json_int(&json, "b", 0, INT64_MAX, &whole));
    assert_true(whole == 9007199254740991); /* cJSON would print 9.00719925474099e+15 */
    assert_int_equal(nl_json_int(&json, "c", 0, INT64_MAX, &whole), NL_ERROR_INPUT);
    assert_message("found 18446744073709551615");
    assert_ok(context, nl_json_double(&json, "c", 0, 1e20, &real));
    assert_true(real == 18446744073709551616.0);
    nl_json list = {.context = context, .where = "x", .object = cJSON_GetObjectItem(value, "5")};
    assert_string_equal(list.object->child->next->valuestring, "-9223372036854775808");
    cJSON_Delete(value);
    const char *power = "{\"a\": 1e16}"; /* may be any of several integers */
    assert_ok(context, parse(power, strlen(power), &value));
    json.object = value;
    assert_int_equal(nl_json_int(&json, "a", 0, INT64_MAX, &whole), NL_ERROR_INPUT);
    cJSON_Delete(value);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_valid),  TEST(test_malformed),      TEST(test_messages),
        TEST(test_depth),  TEST(test_many_keys),      TEST(test_memory_limit),
        TEST(test_cursor), TEST(test_known_keys),     TEST(test_nearest),
        TEST(test_bytes),  TEST(test_large_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
