/* SPDX-License-Identifier: MIT */
/* Checksums that our own safetensors files carry of their tensors; inside of weights/ only.
 *
 * Metadata "nalagen.crc32": 8 hexadecimal digits of the table, then 8 for each tensor, in the order of the header. The table's
 * are CRC-32 of each tensor's name, ended by NUL, and its end in the data section, 8 bytes little endian. Another program that
 * writes the tensors anew and keeps the metadata lays them out otherwise: where the table is another, there are no checksums. */
#ifndef NL_CHECKSUMS_H
#define NL_CHECKSUMS_H

#include "nl_checkpoint.h"

#define NL_CHECKSUMS "nalagen.crc32"
enum { NL_CHECKSUM_DIGITS = 8 };

struct nl_checksum {
    const char *name;
    const uint8_t *data; /* in the mapping */
    int64_t bytes;
    uint32_t crc;
};

/* Carries the table's checksum on over one tensor. */
uint32_t nl_checksum_table(uint32_t crc, const char *name, int64_t end);
void nl_checksum_print(uint32_t crc, char digits[NL_CHECKSUM_DIGITS]);
/* Takes `text` over as what it says of checkpoint->checksums, which hold name, data and bytes of all tensors in the order of the
 * header, and sorts them by place; without a text, or one of another table, there are none. table: of all tensors. */
void nl_checksums_read(nl_checkpoint *checkpoint, const char *text, uint32_t table);
/* Of the tensor that is these bytes of the mapping; NL_OK of what has no checksum. */
nl_status nl_checksum_check(const nl_checkpoint *checkpoint, const void *data, int64_t bytes);

#endif
