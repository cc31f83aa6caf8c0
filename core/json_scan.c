/* SPDX-License-Identifier: MIT */
/*
 * cJSON is lenient: it takes "01", control characters, cuts numbers at 63 characters and strings at
 * \u0000, and counts a thousand levels. So the text is checked here first, by plain recursive descent.
 */
#include "json_scan.h"

#include <stdio.h>
#include <string.h>

#include "nl_utf8.h"

enum { MAX_DEPTH = 64, MAX_NUMBER = 63 };

typedef struct scanner {
    const char *text;
    size_t size, at;
    int64_t values;
    const char *expected; /* what the first problem is, or NULL */
} scanner;

static bool refuse(scanner *s, const char *expected)
{
    s->expected = expected;
    return false;
}

/* The next byte, or 0 at the end; 0 is no byte of JSON outside strings. */
static char peek(const scanner *s)
{
    return s->at < s->size ? s->text[s->at] : '\0';
}

static bool take(scanner *s, char c)
{
    if (s->at == s->size || s->text[s->at] != c)
        return false;
    s->at++;
    return true;
}

static void skip_space(scanner *s)
{
    while (take(s, ' ') || take(s, '\n') || take(s, '\r') || take(s, '\t')) {
    }
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool take_digits(scanner *s)
{
    size_t start = s->at;
    while (is_digit(peek(s)))
        s->at++;
    return s->at > start;
}

static bool scan_number(scanner *s)
{
    size_t start = s->at;
    take(s, '-');
    if (!take(s, '0') && !take_digits(s))
        return refuse(s, "a digit");
    if (take(s, '.') && !take_digits(s))
        return refuse(s, "a digit after the point");
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            take(s, '-');
        if (!take_digits(s))
            return refuse(s, "a digit in the exponent");
    }
    if (s->at - start > MAX_NUMBER)
        return refuse(s, "a number of at most 63 characters");
    return true;
}

/* After "\u". Whether surrogates come in pairs is left to cJSON, which sees to it. */
static bool scan_code_point(scanner *s)
{
    bool zero = true;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = peek(s);
        if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F'))
            return refuse(s, "four hexadecimal digits");
        zero = zero && c == '0';
    }
    return !zero || refuse(s, "a string without \\u0000");
}

static bool scan_string(scanner *s)
{
    if (!take(s, '"'))
        return refuse(s, "'\"'");
    while (!take(s, '"')) {
        if (s->at == s->size)
            return refuse(s, "the end of the string");
        if ((unsigned char)peek(s) < 0x20)
            return refuse(s, "no control character in a string");
        if (!take(s, '\\')) {
            uint32_t code;
            int bytes = nl_utf8_decode(s->text + s->at, s->size - s->at, &code);
            if (bytes == 0)
                return refuse(s, "valid UTF-8");
            s->at += (size_t)bytes;
        } else if (take(s, 'u')) {
            if (!scan_code_point(s))
                return false;
        } else if (peek(s) && strchr("\"\\/bfnrt", peek(s))) {
            s->at++;
        } else {
            return refuse(s, "one of \" \\ / b f n r t u after '\\'");
        }
    }
    return true;
}

static bool scan_word(scanner *s, const char *word)
{
    size_t length = strlen(word);
    if (s->size - s->at < length || memcmp(s->text + s->at, word, length) != 0)
        return refuse(s, "a value");
    s->at += length;
    return true;
}

static bool scan_value(scanner *s, int depth);

/* The members of an object or the elements of an array, after its opening bracket. */
static bool scan_members(scanner *s, int depth, char close)
{
    bool object = close == '}';
    if (depth > MAX_DEPTH)
        return refuse(s, "at most 64 levels of brackets");
    skip_space(s);
    if (take(s, close))
        return true;
    do {
        skip_space(s);
        if (object && !scan_string(s))
            return false;
        skip_space(s);
        if (object && !take(s, ':'))
            return refuse(s, "':'");
        if (!scan_value(s, depth))
            return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, close) || refuse(s, object ? "',' or '}'" : "',' or ']'");
}

static bool scan_value(scanner *s, int depth)
{
    s->values++;
    skip_space(s);
    if (take(s, '{'))
        return scan_members(s, depth + 1, '}');
    if (take(s, '['))
        return scan_members(s, depth + 1, ']');
    char c = peek(s);
    if (c == '"')
        return scan_string(s);
    if (c == '-' || is_digit(c))
        return scan_number(s);
    return scan_word(s, c == 't' ? "true" : c == 'f' ? "false" : "null");
}

nl_status nl_json_scan(nl_context *context, const char *where, const char *text, size_t size,
                       int64_t *values)
{
    scanner s = {.text = text, .size = size};
    if (scan_value(&s, 0)) {
        skip_space(&s);
        *values = s.values;
        if (s.at == size)
            return NL_OK;
        refuse(&s, "the end of the text");
    }
    size_t line = 1, column = 1;
    for (size_t i = 0; i < s.at && i < size; i++) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    char found[16] = "the end";
    if (s.at < size)
        snprintf(found, sizeof(found),
                 text[s.at] > 0x20 && text[s.at] < 0x7F ? "'%c'" : "byte 0x%02x",
                 (unsigned char)text[s.at]);
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s: not JSON at line %zu, column %zu: expected %s, found %s", where, line,
                   column, s.expected, found);
}
