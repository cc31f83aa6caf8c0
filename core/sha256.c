/* SPDX-License-Identifier: MIT */
/* SHA-256 as FIPS 180-4 has it: padding and blocks. */
#include <stdio.h>
#include <string.h>

#include "sha256_blocks.h"

typedef void compress_blocks(uint32_t state[8], const uint8_t *data, size_t blocks);

static compress_blocks *fastest(void)
{
    return nl_sha256_has_x86() ? nl_sha256_blocks_x86 : nl_sha256_blocks;
}

void nl_sha256_init(nl_sha256 *sha)
{
    /* Fractional parts of the square roots of the first 8 primes. */
    *sha = (nl_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void nl_sha256_update(nl_sha256 *sha, const void *data, size_t size)
{
    compress_blocks *compress = fastest();
    const uint8_t *next = data;
    while (size > 0) {
        size_t filled = sha->length % 64;
        size_t part = filled == 0 && size >= 64 ? size / 64 * 64 : NL_MIN(size, 64 - filled);
        if (part >= 64) {
            compress(sha->state, next, part / 64);
        } else {
            memcpy(sha->block + filled, next, part);
            if (filled + part == 64)
                compress(sha->state, sha->block, 1);
        }
        sha->length += part;
        next += part;
        size -= part;
    }
}

void nl_sha256_hex(nl_sha256 *sha, char hex[65])
{
    uint64_t bits = sha->length * 8;
    const uint8_t padding[64] = {0x80};
    nl_sha256_update(sha, padding, 1 + (119 - sha->length % 64) % 64);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    nl_sha256_update(sha, length, sizeof(length));
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", sha->state[i]);
}
