/* SPDX-License-Identifier: MIT */
/*
 * The order of samples: a Feistel network whose round function is Philox, over the smallest square power
 * of two that holds [0, count), walked until the result is below count. Both steps are bijections; the
 * domain is less than 4 count, so that the walk takes less than 4 steps on average.
 */
#include "nl_data.h"
#include "nl_random.h"

enum { ROUNDS = 8 };

static int64_t permute(uint64_t seed, uint64_t epoch, int half, int64_t x)
{
    uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t left = (uint64_t)x >> half, right = (uint64_t)x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint32_t words[4];
        nl_philox(seed, epoch, NL_STREAM_ORDER, (round << half | right) * 4, words);
        uint64_t next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return (int64_t)(left << half | right);
}

int64_t nl_data_order(uint64_t seed, int64_t count, int64_t sample)
{
    int64_t epoch = sample / count, x = sample % count;
    int half = 1;
    while (half < 29 && (INT64_C(1) << 2 * half) < count)
        half++;
    do
        x = permute(seed, (uint64_t)epoch, half, x);
    while (x >= count);
    return x;
}
