/* SPDX-License-Identifier: MIT */
/* CRC-32 as zip and PNG have it, of large data by several threads. */
#ifndef NL_CRC_H
#define NL_CRC_H

#include "nl_core.h"

/* Carries `crc` (0 at first) on over these bytes; to: where they are copied meanwhile, or NULL. A checksum alone takes
 * longer than a GPU with the picture that it is of. */
uint32_t nl_crc32(uint32_t crc, void *to, const void *from, int64_t bytes);

#endif
