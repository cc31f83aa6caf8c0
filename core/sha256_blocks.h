/* SPDX-License-Identifier: MIT */
/* The compression function of SHA-256 over whole blocks of 64 bytes; inside core only. */
#ifndef NL_SHA256_BLOCKS_H
#define NL_SHA256_BLOCKS_H

#include "nl_io.h"

/* Fractional parts of the cube roots of the first 64 primes. */
extern const uint32_t nl_sha256_constants[64];

void nl_sha256_blocks(uint32_t state[8], const uint8_t *data, size_t blocks);

/* The same with the SHA instructions of x86, where this machine has them. */
bool nl_sha256_has_x86(void);
void nl_sha256_blocks_x86(uint32_t state[8], const uint8_t *data, size_t blocks);

#endif
