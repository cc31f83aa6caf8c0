/* SPDX-License-Identifier: MIT */
/* The grammar of RFC 8259, before cJSON sees the text; inside core only. */
#ifndef NL_JSON_SCAN_H
#define NL_JSON_SCAN_H

#include "nl_core.h"

typedef struct nl_json_counts {
    int64_t values; /* for an estimate of memory */
    int64_t bytes;  /* escapes that stand for bytes which are not UTF-8 */
    int64_t large;  /* numbers that nl_json_is_large */
} nl_json_counts;

/* Refuses whatever is not one JSON value in valid UTF-8, at most 64 levels deep, with numbers of at
 * most 63 characters and no \u0000. */
nl_status nl_json_scan(nl_context *context, const char *where, const char *text, size_t size,
                       nl_json_counts *counts);
/* Characters of the "\uXXXX" that `text` begins with, or of the two that make one character; 0: there is none.
 * *byte: 0x80 to 0xFF for \udc80 to \udcff without a first half, 0 for \u0000, otherwise -1. */
size_t nl_json_escape(const char *text, size_t size, int *byte);
/* Whether a number is an integer of more than 15 digits, which a double and cJSON's printing may change. */
bool nl_json_is_large(const char *number, size_t length);

#endif
