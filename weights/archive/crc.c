/* SPDX-License-Identifier: MIT */
/* CRC-32 of parts at once, joined. */
#include "nl_crc.h"

#include <string.h>
#include <zlib.h>

#include "nl_thread.h"
#include "ops.h"

uint32_t nl_crc32(uint32_t crc, void *to, const void *from, int64_t bytes)
{
    enum { PART = 1 << 20, MOST = 64, THREADS = 4 };
    int team = bytes > PART ? nl_team(NULL, NL_MIN(THREADS, nl_default_threads())) : 1;
    uLong of[MOST], joining = crc32_combine_gen(PART);
    const uint8_t *next = from;
    uint8_t *copy = to;
    while (bytes > 0) {
        int64_t now = NL_MIN(bytes, (int64_t)MOST * PART);
        int parts = (int)((now + PART - 1) / PART);
#pragma omp parallel for num_threads(team)
        for (int i = 0; i < parts; i++) {
            int64_t at = (int64_t)i * PART;
            size_t size = (size_t)NL_MIN(PART, now - at);
            if (copy)
                memcpy(copy + at, next + at, size);
            of[i] = crc32_z(0, next + at, size);
        }
        for (int i = 0; i < parts; i++)
            crc = (uint32_t)(i < parts - 1 || now % PART == 0
                                 ? crc32_combine_op(crc, of[i], joining)
                                 : crc32_combine(crc, of[i], (z_off_t)(now % PART)));
        copy = copy ? copy + now : NULL;
        next += now;
        bytes -= now;
    }
    return crc;
}
