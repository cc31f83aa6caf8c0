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
    nl_json_counts counts;
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

bool nl_json_is_large(const char *number, size_t length)
{
    size_t sign = length && *number == '-';
    for (size_t i = sign; i < length; i++)
        if (!is_digit(number[i]))
            return false;
    return length - sign > 15;
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
    s->counts.large += nl_json_is_large(s->text + start, s->at - start);
    return true;
}

/* The code of "\uXXXX", or -1. */
static int code_unit(const char *text, size_t size)
{
    int code = 0;
    if (size < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        static const char digits[] = "00112233445566778899aAbBcCdDeEfF";
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return -1;
        code = 16 * code + (int)(digit - digits) / 2;
    }
    return code;
}

size_t nl_json_escape(const char *text, size_t size, int *byte)
{
    int code = code_unit(text, size);
    bool pair = code >= 0xD800 && code <= 0xDBFF && code_unit(text + 6, size - 6) >= 0xDC00 &&
                code_unit(text + 6, size - 6) <= 0xDFFF;
    *byte = code == 0 ? 0 : code >= 0xDC80 && code <= 0xDCFF ? code - 0xDC00 : -1;
    return code < 0 ? 0 : pair ? 12 : 6;
}

/* At "\u". Halves of pairs that stand for no byte are left to cJSON, which refuses them. */
static bool scan_code_point(scanner *s)
{
    int byte;
    size_t length = nl_json_escape(s->text + s->at, s->size - s->at, &byte);
    if (length == 0)
        return refuse(s, "four hexadecimal digits after \\u");
    if (byte == 0)
        return refuse(s, "a string without \\u0000");
    s->counts.bytes += byte > 0;
    s->at += length;
    return true;
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
        if (peek(s) != '\\') {
            uint32_t code;
            int bytes = nl_utf8_decode(s->text + s->at, s->size - s->at, &code);
            if (bytes == 0)
                return refuse(s, "valid UTF-8");
            s->at += (size_t)bytes;
            continue;
        }
        char escaped = s->at + 1 < s->size ? s->text[s->at + 1] : '\0';
        if (escaped == 'u') {
            if (!scan_code_point(s))
                return false;
        } else if (escaped && strchr("\"\\/bfnrt", escaped)) {
            s->at += 2;
        } else {
            s->at++;
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
    s->counts.values++;
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
                       nl_json_counts *counts)
{
    scanner s = {.text = text, .size = size};
    if (scan_value(&s, 0)) {
        skip_space(&s);
        *counts = s.counts;
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
