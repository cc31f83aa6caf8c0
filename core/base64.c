/* SPDX-License-Identifier: MIT */
/* Bytes as text (RFC 4648): pictures in terminals and in answers over HTTP. */
#include "nl_core.h"

nl_status nl_base64(nl_context *context, const uint8_t *bytes, size_t size, char **text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    NL_CHECK(NL_NEW_ARRAY(context, "base64", (size + 2) / 3 * 4 + 1, text));
    char *to = *text;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)bytes[i] << 16;
        three |= i + 1 < size ? (uint32_t)bytes[i + 1] << 8 : 0;
        three |= i + 2 < size ? bytes[i + 2] : 0;
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = i + 1 < size ? digits[three >> 6 & 63] : '=';
        *to++ = i + 2 < size ? digits[three & 63] : '=';
    }
    *to = '\0';
    return NL_OK;
}
