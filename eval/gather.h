/* SPDX-License-Identifier: MIT */
/* What the processes of a group found in their parts of the pictures becomes, in each of them, what is found in all. Features,
 * hashes and counts are those that one process would have, bit by bit; sums are added in the order of the processes.
 * Called by all of a group that has agreed to go on; a failure ends the others. A group of one, or NULL, has it all. */
#ifndef NL_GATHER_H
#define NL_GATHER_H

#include "extract.h"

/* The pictures of this process, of `count`: neighbours, as many as those of any other, or one more. */
nl_picture_range nl_share_of(const nl_group *group, int64_t count);

/* size: numbers in a row of e->kept. e->count becomes that of all. */
nl_status nl_gather(nl_group *group, int64_t size, nl_extraction *e);
/* Each number becomes the sum over the processes. */
nl_status nl_gather_sums(nl_group *group, double *sums, int64_t count);

#endif
