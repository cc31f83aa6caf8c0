/* SPDX-License-Identifier: MIT */
/* Random choices of rows by Philox, stream NL_STREAM_SUBSET. */
#ifndef NL_DRAW_H
#define NL_DRAW_H

#include <stdint.h>

/* Number i of a draw: 0 <= result < count. */
int64_t nl_draw_below(uint64_t seed, uint64_t draw, uint64_t i, int64_t count);
/* Makes the first `size` of order [count], which holds some order of 0 to count - 1, random. */
void nl_draw_subset(uint64_t seed, uint64_t draw, int64_t count, int64_t size, int64_t *order);

#endif
