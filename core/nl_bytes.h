/* SPDX-License-Identifier: MIT */
/* Little-endian numbers in bytes of any alignment. */
#ifndef NL_BYTES_H
#define NL_BYTES_H

#include <stdint.h>

static inline uint64_t nl_little(const uint8_t *bytes, int count)
{
    uint64_t value = 0;
    while (count-- > 0)
        value = value << 8 | bytes[count];
    return value;
}

static inline void nl_put_little(uint8_t *bytes, int count, uint64_t value)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

#endif
