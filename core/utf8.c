/* SPDX-License-Identifier: MIT */
/* UTF-8, decoded character by character. */
#include "nl_utf8.h"

#include <string.h>

int nl_utf8_decode(const char *text, size_t size, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    int bytes = size == 0     ? 0
                : c[0] < 0x80 ? 1
                : c[0] < 0xC0 ? 0
                : c[0] < 0xE0 ? 2
                : c[0] < 0xF0 ? 3
                : c[0] < 0xF8 ? 4
                              : 0;
    if (bytes == 0 || size < (size_t)bytes)
        return 0;
    *code = bytes == 1 ? c[0] : c[0] & (0x7Fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if (c[i] >> 6 != 2)
            return 0;
        *code = *code << 6 | (c[i] & 0x3Fu);
    }
    return *code < least[bytes] || *code > 0x10FFFF || *code >> 11 == 0xD800 >> 11 ? 0 : bytes;
}

static bool within(uint32_t code, const uint32_t (*ranges)[2], int count)
{
    for (int i = 0; i < count; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return false;
}

bool nl_utf8_hidden(uint32_t code)
{
    static const uint32_t ranges[][2] = {{0, 0x1F},        {0x7F, 0x9F},      {0xAD, 0xAD},
                                         {0x61C, 0x61C},   {0x180E, 0x180E},  {0x200B, 0x200F},
                                         {0x2028, 0x202E}, {0x2060, 0x206F},  {0xFEFF, 0xFEFF},
                                         {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
    return within(code, ranges, sizeof(ranges) / sizeof(*ranges));
}

bool nl_utf8_blank(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x206F}, {0x3000, 0x3002}};
    return nl_utf8_hidden(code) || within(code, ranges, sizeof(ranges) / sizeof(*ranges));
}

bool nl_utf8_valid(const char *text)
{
    uint32_t code;
    for (size_t left = strlen(text); left > 0;) {
        int bytes = nl_utf8_decode(text, left, &code);
        if (bytes == 0)
            return false;
        text += bytes;
        left -= (size_t)bytes;
    }
    return true;
}
