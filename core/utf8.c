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
