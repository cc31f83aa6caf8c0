/* SPDX-License-Identifier: MIT */
/* Philox4x32-10 for several blocks at a time. */
#ifndef NL_CPU_PHILOX_H
#define NL_CPU_PHILOX_H

#include <stdint.h>

enum { NL_PHILOX_LANES = 16, NL_PHILOX_STEP = 4 * NL_PHILOX_LANES }; /* blocks, their elements */

typedef struct nl_words {
    uint32_t word[4][NL_PHILOX_LANES]; /* element 4 i + j: word[j][i] */
} nl_words;

/* Words of the elements [first, first + NL_PHILOX_STEP) of one image and stream; first % 4 == 0. */
static inline nl_words nl_philox_words(uint64_t seed, uint64_t image, uint64_t stream,
                                       uint64_t first)
{
    nl_words c;
    uint64_t block = ((stream << 34) + first) / 4;
    for (int i = 0; i < NL_PHILOX_LANES; i++) {
        c.word[0][i] = (uint32_t)(block + (uint64_t)i);
        c.word[1][i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c.word[2][i] = (uint32_t)image;
        c.word[3][i] = (uint32_t)(image >> 32);
    }
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
#pragma omp simd
        for (int i = 0; i < NL_PHILOX_LANES; i++) {
            uint64_t product0 = (uint64_t)0xD2511F53 * c.word[0][i];
            uint64_t product1 = (uint64_t)0xCD9E8D57 * c.word[2][i];
            c.word[0][i] = (uint32_t)(product1 >> 32) ^ c.word[1][i] ^ key0;
            c.word[1][i] = (uint32_t)product1;
            c.word[2][i] = (uint32_t)(product0 >> 32) ^ c.word[3][i] ^ key1;
            c.word[3][i] = (uint32_t)product0;
        }
    }
    return c;
}

#endif
