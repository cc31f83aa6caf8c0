/* SPDX-License-Identifier: MIT */
/* Giving the arena back; the rest of it is in ops.h. */
#ifndef NL_ARENA_H
#define NL_ARENA_H

#include "ops.h"

/* Gives the memory back. Only while nothing is taken from it. */
void nl_arena_free(nl_device *device);

#endif
