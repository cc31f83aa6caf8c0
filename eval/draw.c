/* SPDX-License-Identifier: MIT */
/* Random subsets of rows by Philox, and numpy's RandomState permutation, which public code shuffles with. */
#include "draw.h"
#include "nl_random.h"
#include "nl_statistics.h"

int64_t nl_draw_below(uint64_t seed, uint64_t draw, uint64_t i, int64_t count)
{
    uint32_t words[4];
    nl_philox(seed, draw, NL_STREAM_SUBSET, 4 * i, words);
    uint64_t bits = (uint64_t)words[0] << 32 | words[1];
    return (int64_t)(bits % (uint64_t)count);
}

void nl_draw_subset(uint64_t seed, uint64_t draw, int64_t count, int64_t size, int64_t *order)
{
    for (int64_t i = 0; i < size; i++) {
        int64_t j = i + nl_draw_below(seed, draw, (uint64_t)i, count - i);
        int64_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* ---- numpy's RandomState */

enum { WORDS = 624, MIDDLE = 397 };

/* MT19937 (Matsumoto and Nishimura 1998). */
typedef struct twister {
    uint32_t words[WORDS];
    int next;
} twister;

static void seed_twister(twister *t, uint32_t seed)
{
    t->words[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        t->words[i] = 1812433253u * (t->words[i - 1] ^ t->words[i - 1] >> 30) + i;
    t->next = WORDS;
}

static uint32_t next_word(twister *t)
{
    if (t->next == WORDS) {
        for (int i = 0; i < WORDS; i++) {
            uint32_t y = (t->words[i] & 0x80000000u) | (t->words[(i + 1) % WORDS] & 0x7fffffffu);
            t->words[i] = t->words[(i + MIDDLE) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        t->next = 0;
    }
    uint32_t y = t->words[t->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Fisher and Yates from the end; each index from as many bits as it needs, drawn again while too large. */
nl_status nl_numpy_permutation(nl_context *context, uint32_t seed, int64_t count,
                               int64_t *permutation)
{
    twister t;
    if (count > UINT32_MAX)
        return nl_fail(context, NL_ERROR_INPUT, "a permutation of %lld", (long long)count);
    seed_twister(&t, seed);
    for (int64_t i = 0; i < count; i++)
        permutation[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t mask = UINT32_MAX >> __builtin_clz((unsigned)i), j;
        do
            j = next_word(&t) & mask;
        while (j > i);
        int64_t swap = permutation[i];
        permutation[i] = permutation[j];
        permutation[j] = swap;
    }
    return NL_OK;
}
